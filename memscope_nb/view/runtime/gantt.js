// The Gantt figure: rows, bars, live-bytes areas, row labels, the status line, and what lies under the pointer.

import { stepEdges } from "./curve.js";
import { data, el, place } from "./dom.js";
import { bytes, clip, count } from "./format.js";
import { areaAt, areaColumns, areaRuns, chooseBars, laneBox, layoutRows } from "./lod.js";
import { highest } from "./steps.js";

const SHADES = 12;
const HATCH_MIN_PX = 7;

/** Colours between two, as many as there are shades. */
function ramp([from, to]) {
  const parts = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
  const [a, b] = [parts(from), parts(to)];
  return Array.from({ length: SHADES }, (_, i) => {
    const mixed = a.map((value, k) => Math.round(value + ((b[k] - value) * i) / (SHADES - 1)));
    return `rgb(${mixed.join(",")})`;
  });
}

/** Operators whose name holds the filter text, in rank order. */
export function wantedNames(viewer) {
  const { names } = viewer.timeline.header;
  const text = viewer.filterText.toLowerCase();
  return viewer.series.ranked.filter((op) => !text || names[op].toLowerCase().includes(text));
}

/** Choose the rows again (after a change of series, filter or number of rows) and label them. */
export function layoutGantt(viewer) {
  const { figures, timeline, series } = viewer;
  const rows = layoutRows(series, wantedNames(viewer), viewer.topN, timeline.header.names.length);
  viewer.rows = rows;
  const plot = figures.model("gantt");
  plot.y_range.setv({ start: rows.height, end: 0 });
  plot.height = Math.round(rows.height + viewer.aroundRows);
  figures.model("rows").ticks = Array.from({ length: rows.nRows + 1 }, (_, i) => i * rows.rowPx);
  buildLabels(viewer);
}

function rowLabel(viewer, name, ops, onClick) {
  const { series } = viewer;
  const alive = ops.reduce((sum, op) => sum + series.atPeak.bytes[op], 0);
  const blocks = ops.reduce((sum, op) => sum + series.countByName[op], 0);
  const when = series.rankIsPeak ? "at the peak of allocated" : "at the highest point of this segment";
  const title = `${clip(name, 2000)}\n${bytes(alive)} alive ${when}\n${count(blocks)} blocks in this segment`;
  return el(
    "button",
    { type: "button", class: "ms-row", title, on: { click: onClick } },
    data(clip(name, 300) || "(no name)", { class: "ms-data ms-row-name" }),
    el("span", { class: "ms-row-facts", text: `${bytes(alive)} · ${count(blocks)}` }),
  );
}

function buildLabels(viewer) {
  const { refs, rows, timeline } = viewer;
  const labels = rows.names.map((op) => {
    const name = timeline.header.names[op];
    return rowLabel(viewer, name, [op], () => viewer.setFilter(viewer.filterText === name ? "" : name));
  });
  if (rows.rest.length) {
    const label = rowLabel(viewer, `rest: ${count(rows.rest.length)} operators`, rows.rest, () => {});
    label.classList.add("ms-row-rest");
    labels.push(label);
  }
  refs.rowLabels.replaceChildren(...labels);
  refs.noRows.hidden = rows.nRows > 0;
}

/** Put the row labels beside their rows. */
export function placeLabels(viewer) {
  const { refs, rows, figures } = viewer;
  const frame = figures.frame("gantt");
  place(refs.rowLabels, { left: 0, top: frame.top, width: frame.left - 6, height: frame.height });
  place(refs.rowsTitle, { left: 0, top: frame.top - 22, width: frame.left - 40 });
  const px = frame.height / rows.height;
  [...refs.rowLabels.children].forEach((label, row) => {
    place(label, { top: row * rows.rowPx * px, height: rows.rowPx * px });
    label.classList.toggle("ms-row-two", rows.rowPx >= 34);
  });
}

/** How far beyond the view glyphs are drawn: pixels far outside would lose precision on the canvas. */
function reach({ x0, x1 }) {
  return [x0 - (x1 - x0), x1 + (x1 - x0)];
}

function barData(viewer, plan) {
  const { bars } = plan;
  const { series, rows, theme, timeline, view } = viewer;
  const classes = timeline.header.classes.map((item) => theme.classes[item.key] ?? theme.older);
  const n = bars.length;
  const out = { color: new Array(n), alpha: new Float64Array(n) };
  for (const key of ["left", "right", "top", "bottom"]) out[key] = new Float64Array(n);
  const hatched = { left: [], right: [], top: [], bottom: [] };
  const open = { x: [], y: [], color: [], size: [] };
  const [low, high] = reach(view);
  bars.forEach((i, k) => {
    const box = laneBox(series, rows, plan, i);
    const isOpen = series.class[i] === timeline.openClass;
    out.left[k] = Math.max(series.start[i], low);
    out.right[k] = Math.min(series.end[i], high);
    out.top[k] = box.top;
    out.bottom[k] = box.bottom;
    out.color[k] = classes[series.class[i]];
    out.alpha[k] = isOpen ? 0.55 : 0.95;
    if (!isOpen) return;
    if (box.px >= HATCH_MIN_PX) {
      for (const key of ["left", "right", "top", "bottom"]) hatched[key].push(out[key][k]);
    }
    open.x.push(series.end[i]);
    open.y.push((box.top + box.bottom) / 2);
    open.color.push(classes[series.class[i]]);
    open.size.push(Math.max(Math.min(box.px, 12), 4));
  });
  return { bars: out, hatched, open };
}

function selectedData(viewer, plan) {
  const { series, rows, selected, view } = viewer;
  const none = { left: [], right: [], top: [], bottom: [] };
  if (selected < 0 || rows.rowOf[series.name[selected]] < 0) return none;
  const box = laneBox(series, rows, plan, selected);
  const least = (3 * (view.x1 - view.x0)) / view.width;
  const [low, high] = reach(view);
  const left = Math.min(Math.max(series.start[selected], low), high);
  const right = Math.min(Math.max(series.end[selected], series.start[selected] + least, low), high);
  return { left: [left], right: [right], top: [box.top], bottom: [box.bottom] };
}

/** Draw the Gantt for the current view. Keeps what it drew in `viewer.drawn`. */
export function drawGantt(viewer) {
  const { figures, series, rows, view, theme } = viewer;
  const plan = chooseBars(series, view, rows, { minSize: viewer.minSize, shown: viewer.shown }, viewer.selected);
  const areas = areaColumns(series, view, rows, plan.inArea);
  const peak = series.info.peak?.allocated?.[1] ?? highest(series.curves.allocated);
  const runs = areaRuns(areas, view, rows, peak, SHADES);
  const shades = ramp(theme.area);
  const { left, right, top, bottom } = runs;
  figures.setData("areas", { left, right, top, bottom, color: runs.level.map((level) => shades[level]) });
  for (const [name, columns] of Object.entries(barData(viewer, plan))) figures.setData(name, columns);
  figures.setData("selected", selectedData(viewer, plan));
  const x = stepEdges(viewer);
  figures.setData("gantt-steps", { x, y0: x.map(() => 0), y1: x.map(() => rows.height) });
  viewer.drawn = { ...plan, areas, runs: left.length };
  viewer.refs.status.textContent = statusText(viewer.drawn);
}

function statusText({ inView, empty, bars, thresholdPx }) {
  if (!inView) return "No block in view.";
  const rest = inView - empty - bars.length;
  const width = `${Number(thresholdPx.toFixed(thresholdPx < 10 ? 1 : 0))} px`;
  const parts = [`${count(inView)} blocks in view`, `${count(bars.length)} drawn one by one`];
  if (rest) {
    parts[1] += ` (at least ${width} wide, lanes at least 3 px)`;
    parts.push(`${count(rest)} shown as live bytes (grey)`);
  }
  if (empty) parts.push(`${count(empty)} without length (not drawn)`);
  return parts.join(" · ");
}

/** Where a block is drawn, in px of the browser's window; null where it is not drawn one by one. */
export function clientBox(viewer, block) {
  const { series, rows, view, drawn, figures, refs } = viewer;
  if (!drawn.bars.includes(block)) return null;
  const host = refs.gantt.getBoundingClientRect();
  const frame = figures.frame("gantt");
  const px = (t) => host.left + frame.left + ((t - view.x0) / (view.x1 - view.x0)) * frame.width;
  const box = laneBox(series, rows, drawn, block);
  const base = host.top + frame.top;
  const scale = frame.height / rows.height;
  return {
    left: px(Math.max(series.start[block], view.x0)),
    right: px(Math.min(series.end[block], view.x1)),
    top: base + box.top * scale,
    bottom: base + box.bottom * scale,
  };
}

/** What lies at a place of the Gantt's frame, in px from its corner: a bar, an area, or nothing (null). */
export function hitGantt(viewer, x, frameY) {
  const { series, rows, view, drawn } = viewer;
  const y = (frameY * rows.height) / viewer.figures.frame("gantt").height;
  const row = Math.floor(y / rows.rowPx);
  if (row < 0 || row >= rows.nRows) return null;
  const perPx = (view.x1 - view.x0) / view.width;
  const t = view.x0 + x * perPx;
  for (const slack of [0, 1.5 * perPx]) {
    for (let k = drawn.bars.length - 1; k >= 0; k -= 1) {
      const i = drawn.bars[k];
      if (series.start[i] > t + slack || series.end[i] < t - slack || rows.rowOf[series.name[i]] !== row) continue;
      const box = laneBox(series, rows, drawn, i);
      if (y >= box.top - 0.5 && y <= box.bottom + 0.5) return { kind: "bar", block: i };
    }
  }
  const { step, columns } = drawn.areas;
  const from = view.x0 + Math.min(Math.max(Math.floor((t - view.x0) / step), 0), columns - 1) * step;
  const area = areaAt(series, rows, drawn.inArea, row, t, from, Math.min(from + step, view.x1));
  return area ? { kind: "area", area } : null;
}
