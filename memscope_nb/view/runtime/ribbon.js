// The phase ribbon: roles, ranges and steps as DOM cells that follow the x range.

import { data, el, place } from "./dom.js";
import { bytes, clip, duration, offset } from "./format.js";

const MAX_CELLS = 400;
const MAX_LANES = 3;
const LANE_PX = { role: 34, range: 16, step: 16, mark: 12 };

/** Give every item the lowest lane that is free at its start; deeper nesting shares the last one. */
function laneOf(items) {
  const ends = [];
  return items.map((item) => {
    let lane = ends.findIndex((end) => end <= item.start);
    if (lane < 0) lane = Math.min(ends.length, MAX_LANES - 1);
    ends[lane] = item.end;
    return lane;
  });
}

function band(kind, items) {
  const sorted = items.filter((item) => item.end >= item.start).sort((a, b) => a.start - b.start || b.end - a.end);
  const lanes = kind === "mark" ? sorted.map(() => 0) : laneOf(sorted);
  return { kind, items: sorted, lanes, height: lanes.reduce((most, lane) => Math.max(most, lane + 1), 0) * LANE_PX[kind] };
}

/** Sort a payload's phases and steps into bands, once. */
export function buildRibbon(viewer) {
  const { header } = viewer.timeline;
  const ofKind = (kind) => header.phases.filter((phase) => phase.kind === kind);
  const marks = (header.marks ?? []).map((mark) => ({ ...mark, end: mark.start }));
  viewer.bands = [band("role", ofKind("role")), band("range", ofKind("range")), band("step", header.steps), band("mark", marks)];
  const height = viewer.bands.reduce((sum, item) => sum + item.height, 0);
  viewer.refs.ribbon.style.height = `${height}px`;
  viewer.refs.ribbon.hidden = height === 0;
}

function cellFacts(item) {
  const known = (value) => value !== undefined && value !== null;
  const parts = [];
  if (known(item.peak_bytes)) parts.push(`peak ${bytes(item.peak_bytes)}`);
  if (known(item.floor_bytes)) parts.push(`floor ${bytes(item.floor_bytes)}`);
  return parts.join(" · ");
}

/** Where a step's name does not fit, its number says enough. */
function shortName(kind, name, width) {
  const number = kind === "step" && width < 90 ? /\d+$/.exec(name) : null;
  return number ? number[0] : clip(name, 300);
}

function cell(viewer, kind, item, box) {
  const text = cellFacts(item);
  const title = [
    clip(item.name, 2000),
    text,
    item.end > item.start
      ? `${offset(item.start)} to ${offset(item.end)} (${duration(item.end - item.start)})`
      : `${item.kind} at ${offset(item.start)}`,
    "Click to zoom",
  ];
  const node = el("button", {
    type: "button",
    class: `ms-cell ms-cell-${kind}${box.width < 12 ? " ms-cell-narrow" : ""}`,
    title: title.filter(Boolean).join("\n"),
    on: { click: () => (item.end > item.start ? viewer.setRange(item.start, item.end) : viewer.goTo(item.start)) },
  });
  if (box.width > 22) node.append(data(shortName(kind, item.name, box.width)));
  if (box.width > (kind === "role" ? 60 : 210) && text) node.append(el("span", { class: "ms-cell-facts", text }));
  place(node, box);
  return node;
}

function bandCells(viewer, { kind, items, lanes }, top, frame) {
  const { x0, x1 } = viewer.view;
  const px = frame.width / (x1 - x0);
  const { shown } = viewer;
  const cells = [];
  const lastRight = new Array(MAX_LANES).fill(-1);
  for (let i = 0; i < items.length && shown(items[i].start) < x1 && cells.length < MAX_CELLS; i += 1) {
    const item = items[i];
    const [start, end] = [shown(item.start), shown(item.end)];
    if (end < x0 || (end === x0 && start < x0)) continue;
    const left = (Math.max(start, x0) - x0) * px;
    const right = Math.max((Math.min(end, x1) - x0) * px, left + (kind === "mark" ? 3 : 2));
    if (right - left < 3 && right <= lastRight[lanes[i]] + 1) continue;
    lastRight[lanes[i]] = right;
    const box = { left: frame.left + left, width: right - left - 1, top: top + lanes[i] * LANE_PX[kind], height: LANE_PX[kind] - 2 };
    cells.push(cell(viewer, kind, item, box));
  }
  return cells;
}

/** Draw the cells of the current view. */
export function drawRibbon(viewer) {
  if (viewer.refs.ribbon.hidden) return;
  const frame = viewer.figures.frame("curve");
  const cells = [];
  let top = 0;
  for (const item of viewer.bands) {
    if (!item.height) continue;
    const label = el("span", { class: "ms-band", text: { role: "phases", range: "ranges", step: "steps", mark: "marks" }[item.kind] });
    place(label, { left: 0, width: frame.left - 10, top, height: Math.min(item.height, LANE_PX[item.kind]) });
    cells.push(label, ...bandCells(viewer, item, top, frame));
    top += item.height;
  }
  viewer.refs.ribbon.replaceChildren(...cells);
}
