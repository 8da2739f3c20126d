// Level of detail of the Gantt: which blocks are drawn one by one, and the live bytes of all others. Pure functions.

import { upperBound } from "./steps.js";

export const BAR_BUDGET = 6000;
export const AREA_PX = 2;
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

/**
 * Highest live bytes per row and column of the blocks flagged in `inArea`.
 * @returns {{max: Float64Array, columns: number, step: number}} max[row * columns + column], step = ns per column
 */
export function areaColumns(series, view, rows, inArea) {
  const columns = Math.max(1, Math.ceil(view.width / AREA_PX));
  const step = (AREA_PX * (view.x1 - view.x0)) / view.width; // whole px: no seams between columns
  const max = new Float64Array(rows.nRows * columns);
  const live = new Float64Array(rows.nRows);
  const filled = new Int32Array(rows.nRows);
  const { group, size, events } = series;
  const perNs = 1 / step;
  for (let i = 0, to = upperBound(series.start, view.x0); i < to; i += 1) {
    if (inArea[i] && series.end[i] > view.x0) live[rows.rowOf[group[i]]] += size[i];
  }
  const fill = (row, column) => {
    const base = row * columns;
    for (let c = filled[row]; c <= column; c += 1) if (live[row] > max[base + c]) max[base + c] = live[row];
    filled[row] = column;
  };
  const to = upperBound(events.t, view.x1);
  for (let e = upperBound(events.t, view.x0); e < to; e += 1) {
    const code = events.code[e];
    const i = code >= 0 ? code : ~code;
    if (!inArea[i]) continue;
    const row = rows.rowOf[group[i]];
    const place = (events.t[e] - view.x0) * perNs;
    const column = Math.min(Math.floor(place), columns - 1);
    if (code >= 0) {
      fill(row, column);
      live[row] += size[i]; // reaches the column with the next event of this row
    } else {
      fill(row, place === column ? column - 1 : column);
      live[row] -= size[i];
      filled[row] = column;
    }
  }
  for (let row = 0; row < rows.nRows; row += 1) fill(row, columns - 1);
  return { max, columns, step };
}

/** Shade 0..1 of a number of live bytes: its magnitude between a millionth of the peak and the peak. */
export function shade(bytes, peak) {
  if (bytes <= 0 || peak <= 0) return 0;
  return Math.min(Math.max(1 + Math.log2(bytes / peak) / 20, 0), 1);
}

/**
 * Rectangles of the live-bytes areas, neighbours of equal height and shade joined.
 * @returns arrays left, right, top, bottom, level (0 … levels - 1)
 */
export function areaRuns(areas, view, rows, peak, levels) {
  const out = { left: [], right: [], top: [], bottom: [], level: [] };
  const inside = rows.rowPx - 3;
  for (let row = 0; row < rows.nRows; row += 1) {
    const base = row * areas.columns;
    const bottom = (row + 1) * rows.rowPx - 1.5;
    let from = 0;
    let height = 0;
    let level = -1;
    for (let c = 0; c <= areas.columns; c += 1) {
      const bytes = c < areas.columns ? areas.max[base + c] : 0;
      const h = bytes > 0 ? Math.max(Math.round((bytes / Math.max(rows.scale[row], bytes)) * inside * 2) / 2, 1.5) : 0;
      const l = bytes > 0 ? Math.min(Math.floor(shade(bytes, peak) * levels), levels - 1) : -1;
      if (h === height && l === level) continue;
      if (level >= 0) {
        out.left.push(view.x0 + from * areas.step);
        out.right.push(Math.min(view.x0 + c * areas.step, view.x1));
        out.top.push(bottom - height);
        out.bottom.push(bottom);
        out.level.push(level);
      }
      from = c;
      height = h;
      level = l;
    }
  }
  return out;
}

/**
 * What a live-bytes area means at a place: exact live bytes at `t`, the highest inside the pixel column around it.
 * @returns null where the area is empty there
 */
export function areaAt(series, rows, inArea, row, t, from, to) {
  const { start, end, size, group, events } = series;
  const at = { row, t, bytes: 0, blocks: 0, most: 0, mostBlocks: 0, mostAt: from, largest: -1 };
  let live = 0;
  let alive = 0;
  for (let i = 0, last = upperBound(start, to); i < last; i += 1) {
    if (!inArea[i] || rows.rowOf[group[i]] !== row || end[i] <= from) continue;
    if (end[i] > start[i] && (at.largest < 0 || size[i] > size[at.largest])) at.largest = i;
    if (start[i] <= t && end[i] > t) {
      at.bytes += size[i];
      at.blocks += 1;
    }
    if (start[i] <= from && end[i] > from) {
      live += size[i];
      alive += 1;
    }
  }
  if (at.largest < 0) return null;
  [at.most, at.mostBlocks] = [live, alive];
  for (let e = upperBound(events.t, from), last = upperBound(events.t, to); e < last; e += 1) {
    const code = events.code[e];
    const i = code >= 0 ? code : ~code;
    if (!inArea[i] || rows.rowOf[group[i]] !== row) continue;
    live += code >= 0 ? size[i] : -size[i];
    alive += code >= 0 ? 1 : -1;
    if (live > at.most) [at.most, at.mostBlocks, at.mostAt] = [live, alive, events.t[e]];
  }
  return at;
}
