// The Gantt figure: bars, live-bytes areas, the status line, and what lies under the pointer.

import { stepEdges } from "./curve.js";
import { areaAt, areaColumns, areaRuns } from "./areas.js";
import { buildColours, mixed, ramp } from "./colours.js";
import { lifeTest } from "./filters.js";
import { count } from "./format.js";
import { chooseBars, laneBox } from "./lod.js";
import { highest } from "./steps.js";

const SHADES = 12;
const FAINTEST = 0.3; // of a colour, for the areas with least bytes
const HATCH_MIN_PX = 7;

/** How far beyond the view glyphs are drawn: pixels far outside would lose precision on the canvas. */
function reach({ x0, x1 }) {
  return [x0 - (x1 - x0), x1 + (x1 - x0)];
}

function barData(viewer, plan) {
  const { bars } = plan;
  const { series, rows, timeline, view, colours } = viewer;
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
    out.color[k] = colours.of(i);
    out.alpha[k] = isOpen ? 0.55 : 0.95;
    if (!isOpen) return;
    if (box.px >= HATCH_MIN_PX) {
      for (const key of ["left", "right", "top", "bottom"]) hatched[key].push(out[key][k]);
    }
    open.x.push(series.end[i]);
    open.y.push((box.top + box.bottom) / 2);
    open.color.push(out.color[k]);
    open.size.push(Math.max(Math.min(box.px, 12), 4));
  });
  return { bars: out, hatched, open };
}

function selectedData(viewer, plan) {
  const { series, rows, selection, view } = viewer;
  const out = { left: [], right: [], top: [], bottom: [] };
  const least = (3 * (view.x1 - view.x0)) / view.width;
  const [low, high] = reach(view);
  const shown = selection.length === 1 ? selection : selection.filter((i) => plan.one.has(i));
  for (const i of shown) {
    if (rows.rowOf[series.group[i]] < 0) continue;
    const box = laneBox(series, rows, plan, i);
    out.left.push(Math.min(Math.max(series.start[i], low), high));
    out.right.push(Math.min(Math.max(series.end[i], series.start[i] + least, low), high));
    out.top.push(box.top);
    out.bottom.push(box.bottom);
  }
  return out;
}

/** Draw the Gantt for the current view. Keeps what it drew in `viewer.drawn`. */
export function drawGantt(viewer) {
  const { figures, series, rows, view, theme } = viewer;
  const inView = lifeTest(series, view, viewer.filters.life, viewer.timeline.openClass);
  const plan = chooseBars(series, view, rows, { mask: viewer.mask, inView }, viewer.selected);
  plan.one = new Set(plan.bars);
  viewer.colours ??= buildColours(viewer);
  const areas = areaColumns(series, view, rows, plan.inArea, viewer.colours);
  const peak = series.info.peak?.allocated?.[1] ?? highest(series.curves.allocated);
  const runs = areaRuns(areas, view, rows, peak, SHADES);
  const shades = viewer.colours.palette.map((colour) => ramp([mixed(colour, theme.css.ground, FAINTEST), colour], SHADES));
  const { left, right, top, bottom } = runs;
  figures.setData("areas", { left, right, top, bottom, color: runs.level.map((level, i) => shades[runs.kind[i]][level]) });
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
    parts.push(`${count(rest)} shown as areas of live bytes`);
  }
  if (empty) parts.push(`${count(empty)} without length (not drawn)`);
  return parts.join(" · ");
}

/** Where a block is drawn, in px of the browser's window; null where it is not drawn one by one. */
export function clientBox(viewer, block) {
  const { series, rows, view, drawn, figures, refs } = viewer;
  if (!drawn.one.has(block)) return null;
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
      if (series.start[i] > t + slack || series.end[i] < t - slack || rows.rowOf[series.group[i]] !== row) continue;
      const box = laneBox(series, rows, drawn, i);
      if (y >= box.top - 0.5 && y <= box.bottom + 0.5) return { kind: "bar", block: i };
    }
  }
  const { step, columns } = drawn.areas;
  const from = view.x0 + Math.min(Math.max(Math.floor((t - view.x0) / step), 0), columns - 1) * step;
  const area = areaAt(series, rows, drawn.inArea, row, t, from, Math.min(from + step, view.x1));
  return area ? { kind: "area", area } : null;
}

/** Blocks inside a box of the Gantt's frame (px from its corner): bars that it touches, others by row and time. */
export function blocksInBox(viewer, box) {
  const { series, rows, view, drawn, figures } = viewer;
  const scale = rows.height / figures.frame("gantt").height;
  const [top, bottom] = [box.top * scale, box.bottom * scale];
  const timeOf = (x) => view.x0 + (x / view.width) * (view.x1 - view.x0);
  const [from, to] = [timeOf(box.left), timeOf(box.right)];
  const found = [];
  for (let i = 0; i < series.n && series.start[i] <= to; i += 1) {
    if (series.end[i] < from || !(drawn.one.has(i) || drawn.inArea[i])) continue;
    const row = rows.rowOf[series.group[i]];
    const place = drawn.one.has(i) ? laneBox(series, rows, drawn, i) : { top: row * rows.rowPx, bottom: (row + 1) * rows.rowPx };
    if (place.bottom >= top && place.top <= bottom) found.push(i);
  }
  return found;
}
