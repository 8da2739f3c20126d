// Segment map: addresses over time. Ranges that the driver gave, the blocks in them, and what is free between.

import { el } from "./dom.js";
import { bytes, bytesExact, count } from "./format.js";
import { barTip, tipRow } from "./hover.js";
import { drawPanel } from "./panel.js";
import { NOTHING, pixelColour } from "./raster.js";
import { gapParts } from "./segmentpanel.js";
import { addressAt, gapsAt, hasSegments, kindText, segmentsOf } from "./segments.js";
import { byteTicks, drawStackFigure, frameRaster, rasterPlace, viewOf } from "./stackplot.js";
import { findBlock } from "./timeline.js";

const IDLE = -2;
const KEY = "segments";
const AROUND_GAP = 3;

function mapOf(viewer) {
  return segmentsOf(viewer.timeline, viewer.series.index);
}

/** What this view keeps for the series shown: instant, clicked place, addresses in view. */
function keptOf(viewer) {
  const kept = viewOf(viewer, KEY);
  if (kept.series !== viewer.series.index) Object.assign(kept, { series: viewer.series.index, at: null, place: null, low: 0, high: mapOf(viewer).info.size });
  return kept;
}

/** Fill a rectangle given in time and places; nothing that is in view gets less than one pixel. */
function fillBox(raster, scale, box, colour, owner) {
  if (box.end <= scale.x0 || box.start >= scale.x1 || box.high <= scale.low || box.low >= scale.high) return;
  const { width, height, pixels, owner: owners } = raster;
  const x = (t) => Math.round((t - scale.x0) * scale.perTime);
  const y = (place) => height - Math.round((place - scale.low) * scale.perByte);
  const from = Math.min(Math.max(x(box.start), 0), width - 1);
  const to = Math.min(Math.max(x(box.end), from + 1), width);
  const bottom = Math.max(Math.min(y(box.low), height), 1);
  const top = Math.max(Math.min(y(box.high), bottom - 1), 0);
  for (let row = top; row < bottom; row += 1) {
    const start = row * width;
    pixels.fill(colour, start + from, start + to);
    owners.fill(owner, start + from, start + to);
  }
}

/** Colour of each block in use, and of blocks pending free. */
function segmentColours(viewer, map) {
  const { theme, timeline, series } = viewer;
  const pending = pixelColour(theme.ledgers.active);
  if (viewOf(viewer, KEY).colouring !== "lifetime") {
    const active = pixelColour(theme.ledgers.allocated);
    return { active: () => active, pending };
  }
  const classes = timeline.header.classes.map((item) => pixelColour(theme.classes[item.key] ?? theme.older));
  const classOf = new Map(series.id.length ? Array.from(series.id, (id, i) => [id, series.class[i]]) : []);
  const unknown = pixelColour(theme.older);
  return { active: (i) => classes[classOf.get(map.blocks.id[i])] ?? unknown, pending };
}

/** Draw ranges, then blocks: the longer one lives, the later it comes, so that what pins memory stays in sight. */
function rasterSegments(viewer, raster, map, scale) {
  const { ranges, blocks } = map;
  const idle = pixelColour(viewer.theme.layers.cached);
  for (let i = 0; i < ranges.start.length; i += 1) {
    const box = { start: ranges.start[i], end: ranges.end[i], low: ranges.pos[i], high: ranges.pos[i] + ranges.size[i] };
    fillBox(raster, scale, box, idle, IDLE);
  }
  const colours = segmentColours(viewer, map);
  let inView = 0;
  for (const i of map.order) {
    if (blocks.end[i] <= scale.x0 || blocks.start[i] >= scale.x1) continue;
    const [low, high] = [blocks.pos[i], blocks.pos[i] + blocks.size[i]];
    if (high <= scale.low || low >= scale.high) continue;
    inView += 1;
    if (blocks.request[i] > blocks.start[i]) fillBox(raster, scale, { start: blocks.start[i], end: blocks.request[i], low, high }, colours.active(i), i);
    if (blocks.end[i] > blocks.request[i]) fillBox(raster, scale, { start: blocks.request[i], end: blocks.end[i], low, high }, colours.pending, i);
  }
  return inView;
}

/** Lines at the instant that is listed, and around the selected block. */
function markSegments(viewer, raster, map, scale, t) {
  const colour = pixelColour(viewer.theme.selection);
  const { width, height, pixels } = raster;
  const column = Math.round((t - scale.x0) * scale.perTime);
  if (column >= 0 && column < width) for (let at = column; at < pixels.length; at += width * 2) pixels[at] = colour;
  const wanted = new Set(viewer.selection.map((i) => viewer.series.id[i]));
  if (!wanted.size) return;
  for (let i = 0; i < map.blocks.id.length; i += 1) {
    if (!wanted.has(map.blocks.id[i])) continue;
    const { start, end, pos, size } = map.blocks;
    if (end[i] <= scale.x0 || start[i] >= scale.x1 || pos[i] + size[i] <= scale.low || pos[i] >= scale.high) continue;
    const x = (at) => Math.min(Math.max(Math.round((at - scale.x0) * scale.perTime), 0), width - 1);
    const y = (at) => Math.min(Math.max(height - Math.round((at - scale.low) * scale.perByte), 0), height - 1);
    const [left, right, top, bottom] = [x(start[i]), x(end[i]), y(pos[i] + size[i]), y(pos[i])];
    for (const row of [top, bottom]) pixels.fill(colour, row * width + left, row * width + right + 1);
    for (let row = top; row <= bottom; row += 1) pixels[row * width + left] = pixels[row * width + right] = colour;
  }
}

function showGapAddresses(viewer, gap) {
  const kept = keptOf(viewer);
  const { size } = mapOf(viewer).info;
  kept.low = Math.max(gap.pos - AROUND_GAP * gap.size, 0);
  kept.high = Math.min(gap.pos + (AROUND_GAP + 1) * gap.size, size);
  viewer.redraw();
}

/** The instant whose gaps are listed: where the map was clicked, else the one that rows are ranked by. */
function instantOf(viewer, kept) {
  return kept.at === null ? viewer.focus.t : viewer.shown(kept.at);
}

function showGaps(viewer, map, kept) {
  const t = instantOf(viewer, kept);
  const { panel } = viewer.refs;
  const fresh = kept.listed?.map === map && kept.listed.t === t && kept.listed.place === kept.place;
  if (!fresh) kept.listed = { map, t, place: kept.place, found: gapsAt(map, t), node: null };
  if (viewer.selection.length || (kept.listed.node && kept.listed.node.parentElement === panel)) return;
  const { found } = kept.listed;
  const picked = kept.place === null ? null : found.gaps.find((gap) => kept.place >= gap.pos && kept.place < gap.pos + gap.size) ?? null;
  panel.replaceChildren(...gapParts(viewer, map, { t, found, picked, zoom: (gap) => showGapAddresses(viewer, gap) }));
  kept.listed.node = panel.firstElementChild;
}

function drawSegments(viewer) {
  const { view, refs } = viewer;
  const map = mapOf(viewer);
  const kept = keptOf(viewer);
  const raster = frameRaster(viewer, kept.raster);
  const scale = { x0: view.x0, x1: view.x1, low: kept.low, high: kept.high };
  scale.perTime = raster.width / (view.x1 - view.x0);
  scale.perByte = raster.height / (kept.high - kept.low);
  const inView = rasterSegments(viewer, raster, map, scale);
  showGaps(viewer, map, kept);
  markSegments(viewer, raster, map, scale, kept.listed.t);
  Object.assign(kept, { raster, scale, inView });
  drawStackFigure(viewer, raster, { low: kept.low, high: kept.high, ticks: byteTicks(kept.low, kept.high), tops: [] });
  const { found } = kept.listed;
  const whole = kept.low === 0 && kept.high === map.info.size;
  refs.status.textContent = [
    `${count(inView)} blocks in view`,
    `${whole ? "all" : bytes(kept.high - kept.low)} of ${bytes(map.info.size)} of addresses that were mapped at some time; holes between them are folded`,
    `${bytes(found.idle)} free in ${count(found.gaps.length)} gaps at ${viewer.when(kept.listed.t)}`,
  ].join(" · ");
}

/** Instant and place under the pointer. */
function placeAt(viewer, at) {
  const { raster, scale } = viewOf(viewer, KEY);
  const frame = viewer.figures.frame("stack");
  const place = Math.floor(scale.high - (at.y / frame.height) * (scale.high - scale.low));
  return { t: viewer.timeAt(at.x), place, owner: rasterPlace(viewer, raster, at).owner };
}

function segmentTip(viewer, at) {
  const map = mapOf(viewer);
  if (!viewOf(viewer, KEY).raster) return null;
  const { t, place, owner } = placeAt(viewer, at);
  if (owner === NOTHING) return [el("p", { text: "not mapped here" })];
  if (owner >= 0) {
    const block = findBlock(viewer.series, map.blocks.id[owner]);
    if (block >= 0) return barTip(viewer, block);
    return [el("h3", { text: `#${map.blocks.id[owner]}` }), el("p", { text: `${bytes(map.blocks.size[owner])}, pending free` })];
  }
  const { ranges } = map;
  let range = -1;
  for (let i = 0; i < ranges.start.length && range < 0; i += 1) {
    const inside = ranges.start[i] <= t && ranges.end[i] > t && ranges.pos[i] <= place && ranges.pos[i] + ranges.size[i] > place;
    if (inside) range = i;
  }
  if (range < 0) return null;
  const table = el("table", {},
    tipRow("free, at", addressAt(map, place)),
    tipRow("mapped range", bytesExact(ranges.size[range])),
    tipRow("serves", kindText(map, ranges.kind[range])),
  );
  return [el("h3", { text: viewer.when(t) }), table, el("p", { class: "ms-tip-site", text: "click lists the free gaps here" })];
}

function pickSegment(viewer, at) {
  const kept = keptOf(viewer);
  const { t, place, owner } = placeAt(viewer, at);
  kept.at = viewer.trueAt(t);
  if (owner >= 0) {
    kept.place = null;
    return findBlock(viewer.series, mapOf(viewer).blocks.id[owner]);
  }
  kept.place = owner === IDLE ? place : null;
  return -1;
}

function fillSegmentBar(viewer) {
  const { refs } = viewer;
  const kept = viewOf(viewer, KEY);
  const colouring = el("select", {}, el("option", { value: "state", text: "state" }), el("option", { value: "lifetime", text: "lifetime" }));
  colouring.value = kept.colouring ?? "state";
  colouring.addEventListener("change", () => {
    kept.colouring = colouring.value;
    viewer.redraw();
  });
  const whole = el("button", { type: "button", text: "All addresses" });
  whole.addEventListener("click", () => {
    Object.assign(keptOf(viewer), { low: 0, high: mapOf(viewer).info.size });
    viewer.redraw();
  });
  const key = (name, text) => el("span", { class: "ms-layer-key" }, el("span", { class: `ms-swatch ms-swatch-seg-${name}` }), text);
  refs.viewBar.append(
    el("label", { class: "ms-field", title: "What the colour of blocks in use says" }, "Colour", colouring),
    whole,
    key("active", "in use"),
    key("pending", "pending free"),
    key("idle", "free"),
  );
}

export const segmentView = {
  key: KEY,
  figure: "stack",
  label: () => "Segment map",
  available: (viewer) => hasSegments(viewer.timeline, viewer.series.index),
  enter: fillSegmentBar,
  draw: drawSegments,
  tip: segmentTip,
  pick: pickSegment,
  leave: (viewer) => drawPanel(viewer),
};
