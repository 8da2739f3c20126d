// Pointer over the figures: tooltips with exact numbers, the cross line, and what a click selects.

import { foldText } from "./curve.js";
import { data, el, place } from "./dom.js";
import { bytes, bytesExact, clip, count, duration, offset } from "./format.js";
import { blocksInBox, hitGantt } from "./gantt.js";
import { layersAt, sampleAt } from "./layers.js";
import { siteOf } from "./panel.js";
import { restNoun } from "./rows.js";
import { valueAt } from "./steps.js";
import { aliveAtStart, snapshotAt } from "./timeline.js";

/** A pointer that moved less between down and up has clicked. */
export const CLICK_PX = 4;

export function tipRow(term, value) {
  return el("tr", {}, el("th", { scope: "row" }, typeof term === "string" ? el("span", { text: term }) : term), el("td", { text: value }));
}

export function nameOf(viewer, op) {
  return clip(viewer.timeline.header.names[op], 120) || "(no name)";
}

export function barTip(viewer, block) {
  const { series, timeline } = viewer;
  const open = series.class[block] === timeline.openClass;
  const site = siteOf(viewer, block);
  const { start, end } = series.raw;
  const table = el(
    "table",
    {},
    tipRow("size", bytesExact(series.size[block])),
    tipRow("start", offset(start[block])),
    tipRow("end", open ? "open (not released)" : offset(end[block])),
    tipRow("duration", `${open ? "at least " : ""}${duration(end[block] - start[block])}`),
    tipRow("lifetime", timeline.header.classes[series.class[block]]?.label ?? ""),
    tipRow("alive at its start", `${count(aliveAtStart(series, block))} of this operator`),
  );
  const foot = site ? el("p", { class: "ms-tip-site" }, data(clip(site, 300))) : null;
  return [el("h3", {}, data(nameOf(viewer, series.name[block])), ` #${series.id[block]}`), table, foot];
}

function areaTip(viewer, area) {
  const { rows, series } = viewer;
  const isRest = area.row >= rows.groups.length;
  const title = isRest
    ? el("span", { text: `rest: ${count(rows.rest.length)} ${restNoun(viewer)}` })
    : data(clip(series.groupLabels[rows.groups[area.row]], 120) || "(no name)");
  const blocks = (n) => `${count(n)} block${n === 1 ? "" : "s"}`;
  const largest = `${bytes(series.size[area.largest])} for ${duration(series.raw.end[area.largest] - series.raw.start[area.largest])}`;
  const table = el(
    "table",
    {},
    tipRow(`live at ${viewer.about(area.t)}`, `${bytes(area.bytes)} · ${blocks(area.blocks)}`),
    tipRow("highest in this column", `${bytes(area.most)} · ${blocks(area.mostBlocks)}`),
    tipRow("at", viewer.when(area.mostAt)),
    tipRow(isRest ? `largest (${nameOf(viewer, series.name[area.largest])})` : "largest block", largest),
  );
  return [el("h3", {}, title, " live bytes"), table, el("p", { class: "ms-tip-site", text: "only blocks not drawn one by one; click picks the largest" })];
}

function curveTip(viewer, t) {
  const now = snapshotAt(viewer.timeline, viewer.series, t);
  const title = el("h3", { text: foldText(viewer, t) ?? viewer.about(t) });
  if (Number.isNaN(now.ledgers.allocated)) {
    const resident = now.ledgers.resident >= 0 ? el("table", {}, tipRow("resident", bytes(now.ledgers.resident))) : null;
    return [title, el("p", { text: "no recording here" }), resident];
  }
  const table = el("table", {});
  for (const key of ["allocated", "active", "reserved", "resident"]) {
    const value = now.ledgers[key];
    if (value !== undefined) table.append(tipRow(key, Number.isNaN(value) ? "no data" : bytes(value)));
  }
  table.append(tipRow("live blocks", count(now.blocks)));
  const top = el("table", { class: "ms-tip-top" });
  const label = (group) => clip(viewer.series.groupLabels[group], 120) || "(no name)";
  for (const item of now.top) top.append(tipRow(data(label(item.group)), `${bytes(item.bytes)} · ${count(item.blocks)}`));
  if (now.restGroups) top.append(tipRow(`rest: ${count(now.restGroups)} ${restNoun(viewer)}`, bytes(now.rest)));
  top.append(tipRow("older than the window", bytes(now.ledgers.older)));
  return [title, table, top];
}

function layersTip(viewer, t) {
  const { timeline } = viewer;
  const sample = sampleAt(timeline, t);
  const title = el("h3", { text: viewer.about(t) });
  if (sample === null) return [title, el("p", { text: "no recording here" })];
  const table = el("table", {});
  const resident = timeline.resident ? valueAt(timeline.resident, t) : NaN;
  table.append(tipRow("on the device (process)", Number.isNaN(resident) ? "no data" : bytes(resident)));
  let held = 0;
  for (const [label, value] of layersAt(timeline, t)) {
    table.append(tipRow(data(clip(label, 60)), bytes(value)));
    held += value;
  }
  if (held > resident) table.append(tipRow("beyond residency (unbacked)", bytes(held - resident)));
  const capacity = timeline.header.capacity_bytes;
  if (capacity) table.append(tipRow("capacity", bytes(capacity)));
  return [title, table, el("p", { class: "ms-tip-site", text: `sampled at ${viewer.when(sample)}` })];
}

export function showTip(viewer, event, content) {
  const { tip, root } = viewer.refs;
  tip.replaceChildren(...content.filter(Boolean));
  tip.hidden = false;
  const base = root.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height } = tip;
  let left = event.clientX + 16;
  let top = event.clientY + 18;
  if (left + width > Math.min(base.right, window.innerWidth) - 8) left = event.clientX - width - 14;
  if (top + height > window.innerHeight - 8) top = Math.max(event.clientY - height - 14, 8);
  place(tip, { left: Math.max(left, 4) - base.left, top: top - base.top });
}

/** Place of an event inside the frame of a plot, or null outside. */
export function inFrame(viewer, name, event) {
  const box = viewer.refs[name].getBoundingClientRect();
  const frame = viewer.figures.frame(name);
  const x = event.clientX - box.left - frame.left;
  const y = event.clientY - box.top - frame.top;
  return x >= 0 && y >= 0 && x <= frame.width && y <= frame.height ? { x, y } : null;
}

export function crossAt(viewer, at) {
  for (const name of ["curve", "layers", "gantt", "stack"]) {
    const line = viewer.refs[`${name}Cross`];
    line.hidden = !at || viewer.refs[name].parentElement.hidden;
    if (line.hidden) continue;
    const frame = viewer.figures.frame(name);
    place(line, { left: frame.left + at.x, top: frame.top, height: frame.height });
  }
}

/** Neither tooltip nor cross line. */
export function hideTip(viewer) {
  viewer.refs.tip.hidden = true;
  crossAt(viewer, null);
}

/** Content of the tooltip at a place of a plot, or null. */
function contentAt(viewer, name, at) {
  if (name === "curve") return curveTip(viewer, viewer.timeAt(at.x));
  if (name === "layers") return layersTip(viewer, viewer.timeAt(at.x));
  const hit = hitGantt(viewer, at.x, at.y);
  if (!hit) return null;
  return hit.kind === "bar" ? barTip(viewer, hit.block) : areaTip(viewer, hit.area);
}

function hover(viewer, name, event) {
  const at = inFrame(viewer, name, event);
  if (!at || event.buttons) {
    hideTip(viewer);
    return;
  }
  crossAt(viewer, at);
  const content = contentAt(viewer, name, at);
  if (content) showTip(viewer, event, content);
  else viewer.refs.tip.hidden = true;
}

/** A click picks a block in the Gantt (with Shift one more), an instant on the other figures. */
function click(viewer, name, event) {
  const at = inFrame(viewer, name, event);
  if (!at) return;
  if (name !== "gantt") {
    viewer.setFocus(viewer.timeAt(at.x));
    return;
  }
  const hit = hitGantt(viewer, at.x, at.y);
  const block = hit && (hit.kind === "bar" ? hit.block : hit.area.largest);
  if (!hit) viewer.select(-1);
  else if (event.shiftKey) viewer.toggle(block);
  else viewer.select(block);
}

/** Corners of a drag over the Gantt, kept inside its frame. */
function rubberBox(viewer, down, event) {
  const host = viewer.refs.gantt.getBoundingClientRect();
  const frame = viewer.figures.frame("gantt");
  const x = (e) => Math.min(Math.max(e.clientX - host.left - frame.left, 0), frame.width);
  const y = (e) => Math.min(Math.max(e.clientY - host.top - frame.top, 0), frame.height);
  const sorted = (a, b) => (a < b ? [a, b] : [b, a]);
  const [[left, right], [top, bottom]] = [sorted(x(down), x(event)), sorted(y(down), y(event))];
  return { left, right, top, bottom };
}

function drawRubber(viewer, box) {
  const { band } = viewer.refs;
  band.hidden = !box;
  if (!box) return;
  const frame = viewer.figures.frame("gantt");
  place(band, { left: frame.left + box.left, top: frame.top + box.top, width: box.right - box.left, height: box.bottom - box.top });
}

/** Listen to the pointer over curve and Gantt. */
export function listenToPointer(viewer) {
  const { refs } = viewer;
  for (const name of ["curve", "layers", "gantt"]) {
    const host = refs[name];
    let waiting = null;
    let down = null;
    const selecting = () => down && name === "gantt" && viewer.dragMode === "select";
    const later = () => {
      const event = waiting;
      waiting = null;
      if (!event || viewer.closed) return;
      hover(viewer, name, event);
      drawRubber(viewer, selecting() ? rubberBox(viewer, down, event) : null);
    };
    host.addEventListener("pointermove", (event) => {
      if (!waiting) requestAnimationFrame(later);
      waiting = event;
    }, true);
    host.addEventListener("pointerleave", () => {
      waiting = null;
      hideTip(viewer);
    });
    host.addEventListener("pointerdown", (event) => {
      down = event.button === 0 ? event : null;
      hideTip(viewer);
    }, true);
    host.addEventListener("pointerup", (event) => {
      const still = down && Math.hypot(event.clientX - down.clientX, event.clientY - down.clientY) < CLICK_PX;
      if (still) click(viewer, name, event);
      else if (selecting()) viewer.selectBlocks(blocksInBox(viewer, rubberBox(viewer, down, event)));
      down = null;
      drawRubber(viewer, null);
    }, true);
  }
}
