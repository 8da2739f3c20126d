// The figure of stacked bytes, shared by views: its axis, top edge, raster, pointer.

import { stepEdges } from "./curve.js";
import { data, el, place } from "./dom.js";
import { lifeTest } from "./filters.js";
import { byteTick } from "./format.js";
import { CLICK_PX, crossAt, hideTip, inFrame, showTip } from "./hover.js";
import { clearRaster, showRaster } from "./raster.js";
import { highest, stepLine, thinSteps } from "./steps.js";

const MOST_TICKS = 8;

/** Things that a view keeps while others are open. */
export function viewOf(viewer, key) {
  viewer.views.kept[key] ??= {};
  return viewer.views.kept[key];
}

/** Flags of the blocks that pass all filters, those that depend on the window too; null = all. */
export function viewMask(viewer) {
  const { series, view, mask, filters, timeline } = viewer;
  const passes = lifeTest(series, view, filters.life, timeline.openClass);
  return passes ? Uint8Array.from(series.start, (_, i) => ((!mask || mask[i]) && passes(i) ? 1 : 0)) : mask;
}

/** Whole binary steps from `low` to `high`. */
export function byteTicks(low, high, most = MOST_TICKS) {
  let step = 1;
  while ((high - low) / step > most) step *= 2;
  const ticks = [];
  for (let tick = Math.ceil(low / step) * step; tick <= high; tick += step) ticks.push([tick, byteTick(tick)]);
  return ticks;
}

/**
 * Scale of bytes for a raster, to a little above a thinned curve: from 0, or from the least *older* in view where that is
 * negative (rows exceed the recorded totals) or the axis shall be cut there.
 */
export function stackScale(viewer, raster, top, cut) {
  const { series, view } = viewer;
  const older = thinSteps(series.curves.older, view.x0, view.x1, 200);
  const least = older.v.reduce((low, v) => (v < low ? v : low), Infinity);
  const low = least < 0 || (cut && Number.isFinite(least)) ? least : 0;
  const high = Math.max(highest(top), 1024) * 1.06;
  return { low, high, perByte: raster.height / (high - low) };
}

/** A switch that cuts the axis below the blocks; `kept.cut` is its state. */
export function cutSwitch(viewer, kept) {
  const box = el("input", { type: "checkbox" });
  box.checked = Boolean(kept.cut);
  box.addEventListener("change", () => {
    kept.cut = box.checked;
    viewer.redraw();
  });
  const title = "The axis begins at the least older memory in view instead of 0, so that the blocks get the room";
  return el("label", { class: "ms-field", title }, box, "cut off older memory");
}

/** A cleared raster of the figure's frame, one pixel a screen pixel. */
export function frameRaster(viewer, old) {
  const frame = viewer.figures.frame("stack");
  const dense = Math.min(window.devicePixelRatio || 1, 2);
  return clearRaster(old, Math.max(Math.round(frame.width * dense), 1), Math.max(Math.round(frame.height * dense), 1));
}

/**
 * Draw everything of the figure but the raster.
 * @param what `tops`: thinned curves that edge the bands; `labels`: `[text, height from the top as a share]`
 */
export function drawStackFigure(viewer, raster, { low, high, ticks, tops, labels = [], withGaps = true }) {
  const { figures, view, series, refs } = viewer;
  showRaster(refs.stackCanvas, raster, figures.frame("stack"));
  figures.model("stack").y_range.setv({ start: low, end: high });
  figures.setStackTicks(ticks);
  const lines = tops.map((top) => stepLine(top, view.x1));
  const join = (key) => Float64Array.from(lines.flatMap((line) => [...line[key], NaN]));
  figures.setData("stack-top", { x: join("x"), y: join("y") });
  const gaps = (withGaps ? series.gaps : []).filter(([from, to]) => from < view.x1 && to > view.x0);
  figures.setData("stack-gaps", {
    x0: gaps.map((gap) => Math.max(gap[0], view.x0)),
    x1: gaps.map((gap) => Math.min(gap[1], view.x1)),
  });
  const frame = figures.frame("stack");
  const notes = labels.map(([text, share]) => {
    const note = el("span", { class: "ms-strip-label" }, data(text));
    place(note, { left: 0, width: frame.left - 60, top: frame.top + share * frame.height });
    return note;
  });
  refs.stackNotes.replaceChildren(...notes);
  const x = stepEdges(viewer);
  figures.setData("stack-steps", { x, y0: x.map(() => low), y1: x.map(() => high) });
}

/** Column and row of a raster at a place of the frame. */
export function rasterPlace(viewer, raster, { x, y }) {
  const frame = viewer.figures.frame("stack");
  const column = Math.min(Math.max(Math.floor((x / frame.width) * raster.width), 0), raster.width - 1);
  const row = Math.min(Math.max(Math.floor((y / frame.height) * raster.height), 0), raster.height - 1);
  return { column, row, owner: raster.owner[row * raster.width + column] };
}

/** Send the pointer over the figure to the open view. */
export function listenToStack(viewer) {
  const host = viewer.refs.stack;
  let waiting = null;
  let down = null;
  const later = () => {
    const event = waiting;
    waiting = null;
    if (!event || viewer.closed) return;
    const at = event.buttons ? null : inFrame(viewer, "stack", event);
    const content = at && viewer.views.active.tip?.(viewer, at);
    if (!at) hideTip(viewer);
    else crossAt(viewer, at);
    if (content) showTip(viewer, event, content);
    else viewer.refs.tip.hidden = true;
  };
  const listen = (type, run) => host.addEventListener(type, run, type !== "pointerleave");
  listen("pointermove", (event) => {
    if (!waiting) requestAnimationFrame(later);
    waiting = event;
  });
  listen("pointerleave", () => {
    waiting = null;
    hideTip(viewer);
  });
  listen("pointerdown", (event) => {
    down = event.button === 0 ? event : null;
    hideTip(viewer);
  });
  listen("pointerup", (event) => {
    const still = down && Math.hypot(event.clientX - down.clientX, event.clientY - down.clientY) < CLICK_PX;
    const at = still ? inFrame(viewer, "stack", event) : null;
    const block = at && viewer.views.active.pick?.(viewer, at);
    if (block >= 0 && event.shiftKey) viewer.toggle(block);
    else if (block >= -1) viewer.select(block);
    down = null;
  });
}
