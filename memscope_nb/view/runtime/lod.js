// Level of detail of the Gantt: its rows, and which blocks are drawn one by one. Pure functions.

import { upperBound } from "./steps.js";

const BAR_BUDGET = 6000;
const LANE_MIN_PX = 3;
const WIDTHS = 512;
const HEIGHT_PX = 660;

/**
 * Rows of the Gantt, one for each of the first `topN` ranked groups and one for the rest.
 * @returns {{groups: number[], rest: number[], rowOf: Int32Array, fits: Uint8Array, rowPx, height, scale: Float64Array}}
 *   `rest` = groups of the last row, `rowOf` = row per group or -1
 */
export function layoutRows(series, topN, mask) {
  const groups = series.ranked.slice(0, topN);
  const rest = series.ranked.slice(topN);
  const nRows = groups.length + (rest.length ? 1 : 0);
  const mostLanes = groups.reduce((most, g) => Math.max(most, series.lanes[g]), 1);
  const rowPx = Math.max(12, Math.min(Math.floor(HEIGHT_PX / Math.max(nRows, 1)), Math.max(48, 6 * mostLanes + 3)));
  const rowOf = new Int32Array(series.nGroups).fill(-1);
  const fits = new Uint8Array(nRows);
  const scale = new Float64Array(nRows);
  groups.forEach((g, row) => {
    rowOf[g] = row;
    fits[row] = (rowPx - 3) / Math.max(series.lanes[g], 1) >= LANE_MIN_PX ? 1 : 0;
    scale[row] = series.topBy[g];
  });
  for (const g of rest) rowOf[g] = groups.length;
  if (rest.length) scale[groups.length] = highestTogether(series, rowOf, groups.length, mask);
  return { groups, rest, nRows, rowOf, fits, scale, rowPx, height: Math.max(nRows, 1) * rowPx };
}

/** Highest live bytes of all groups of one row. */
function highestTogether(series, rowOf, row, mask) {
  let live = 0;
  let top = 0;
  for (const code of series.events.code) {
    const i = code >= 0 ? code : ~code;
    if (rowOf[series.group[i]] !== row || (mask && !mask[i])) continue;
    live += code >= 0 ? series.size[i] : -series.size[i];
    if (live > top) top = live;
  }
  return top;
}

/** Place of a block inside its row, in px from the Gantt's top; the whole row where lanes do not fit. */
export function laneBox(series, rows, plan, block) {
  const group = series.group[block];
  const row = rows.rowOf[group];
  const inside = rows.rowPx - 3;
  const packed = plan.packed[row];
  const lanes = rows.fits[row] ? Math.max(series.lanes[group], 1) : packed ? packed.size : 1;
  const lane = rows.fits[row] ? series.lane[block] : (packed?.get(series.lane[block]) ?? 0);
  const px = inside / lanes;
  const top = row * rows.rowPx + 1.5 + lane * px;
  return { top, bottom: top + px - (px >= 5 ? 1 : 0.4), px };
}

/**
 * Rows whose lanes do not all fit may still have room for those that the view uses: number these anew.
 * @returns per row a Map lane -> place, or undefined where even those are too many
 */
function packLanes(series, rows, wide) {
  const most = Math.floor((rows.rowPx - 3) / LANE_MIN_PX);
  const used = Array.from({ length: rows.nRows }, () => new Set());
  for (const i of wide) {
    const row = rows.rowOf[series.group[i]];
    if (!rows.fits[row] && row < rows.groups.length && used[row].size <= most) used[row].add(series.lane[i]);
  }
  return used.map((lanes) => {
    if (!lanes.size || lanes.size > most) return undefined;
    return new Map([...lanes].sort((a, b) => a - b).map((lane, place) => [lane, place]));
  });
}

/**
 * Choose the blocks to draw one by one: the widest, as many as the budget allows.
 * @param passes {{mask: Uint8Array | null, inView: function | null}} which blocks may be shown
 * @returns bars (longest first), `inArea` flag per block, `packed` lanes, numbers for the status line
 */
export function chooseBars(series, view, rows, { mask, inView: passes }, selected = -1) {
  const { start, end, group } = series;
  const perNs = view.width / (view.x1 - view.x0);
  const to = upperBound(start, view.x1);
  const inArea = new Uint8Array(series.n);
  const wide = [];
  let inView = 0;
  let empty = 0;
  for (let i = 0; i < to; i += 1) {
    if (end[i] <= view.x0 || rows.rowOf[group[i]] < 0 || (mask && !mask[i]) || (passes && !passes(i))) continue;
    inView += 1;
    if (end[i] === start[i]) empty += 1;
    else if (widthIn(series, view, i) * perNs < 1) inArea[i] = 1;
    else wide.push(i);
  }
  const packed = packLanes(series, rows, wide);
  const candidates = [];
  const histogram = new Uint32Array(WIDTHS);
  for (const i of wide) {
    const row = rows.rowOf[group[i]];
    if (rows.fits[row] || packed[row]) {
      candidates.push(i);
      histogram[widthClass(widthIn(series, view, i) * perNs)] += 1;
    } else inArea[i] = 1;
  }
  const lowest = lowestClass(histogram);
  let bars = [];
  for (const i of candidates) {
    if (widthClass(widthIn(series, view, i) * perNs) >= lowest || i === selected) bars.push(i);
    else inArea[i] = 1;
  }
  for (const i of bars.slice(BAR_BUDGET)) inArea[i] = 1;
  bars = bars.slice(0, BAR_BUDGET);
  const life = (i) => end[i] - start[i];
  bars.sort((a, b) => life(b) - life(a) || a - b);
  return { bars, inArea, packed, inView, empty, thresholdPx: widthOf(lowest) };
}

/** Length of the part of a block that the view shows, in ns. */
function widthIn(series, view, i) {
  return Math.min(series.end[i], view.x1) - Math.max(series.start[i], view.x0);
}

/** The narrowest class such that it and all wider ones stay within the budget. */
function lowestClass(histogram) {
  let lowest = WIDTHS - 1;
  let sum = histogram[lowest];
  while (lowest > 0 && sum + histogram[lowest - 1] <= BAR_BUDGET) {
    lowest -= 1;
    sum += histogram[lowest];
  }
  return lowest;
}

/** Width classes: 32 per doubling, from 1 px. */
function widthClass(px) {
  return Math.min(Math.floor(Math.log2(px) * 32), WIDTHS - 1);
}

function widthOf(index) {
  return 2 ** (index / 32);
}
