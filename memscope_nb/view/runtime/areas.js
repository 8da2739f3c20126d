// Live bytes of the blocks that are not drawn one by one: per row and pixel column the highest, coloured by what most
// of them are. Pure functions.

import { upperBound } from "./steps.js";

const AREA_PX = 2;

/**
 * Highest live bytes per row and column of the blocks flagged in `inArea`.
 * @param colours {{index: Uint8Array, palette: string[]}} colour of every block
 * @returns {{max: Float64Array, kind: Uint8Array, columns: number, step: number}} max[row * columns + column] and the
 *   colour that most of these bytes have, step = ns per column
 */
export function areaColumns(series, view, rows, inArea, { index, palette }) {
  const columns = Math.max(1, Math.ceil(view.width / AREA_PX));
  const step = (AREA_PX * (view.x1 - view.x0)) / view.width; // whole px: no seams between columns
  const n = palette.length;
  const max = new Float64Array(rows.nRows * columns);
  const kind = new Uint8Array(rows.nRows * columns);
  const live = new Float64Array(rows.nRows);
  const liveOf = new Float64Array(rows.nRows * n);
  const filled = new Int32Array(rows.nRows);
  const { group, size, events } = series;
  const perNs = 1 / step;
  const change = (row, i, by) => {
    live[row] += by;
    liveOf[row * n + index[i]] += by;
  };
  const largestOf = (row) => {
    let most = 0;
    for (let k = 1; k < n; k += 1) if (liveOf[row * n + k] > liveOf[row * n + most]) most = k;
    return most;
  };
  for (let i = 0, to = upperBound(series.start, view.x0); i < to; i += 1) {
    if (inArea[i] && series.end[i] > view.x0) change(rows.rowOf[group[i]], i, size[i]);
  }
  const fill = (row, column) => {
    const base = row * columns;
    let most = -1;
    for (let c = filled[row]; c <= column; c += 1) {
      if (live[row] <= max[base + c]) continue;
      if (most < 0) most = largestOf(row);
      max[base + c] = live[row];
      kind[base + c] = most;
    }
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
      change(row, i, size[i]); // reaches the column with the next event of this row
    } else {
      fill(row, place === column ? column - 1 : column);
      change(row, i, -size[i]);
      filled[row] = column;
    }
  }
  for (let row = 0; row < rows.nRows; row += 1) fill(row, columns - 1);
  return { max, kind, columns, step };
}

/** Shade 0..1 of a number of live bytes: its magnitude between a millionth of the peak and the peak. */
export function shade(bytes, peak) {
  if (bytes <= 0 || peak <= 0) return 0;
  return Math.min(Math.max(1 + Math.log2(bytes / peak) / 20, 0), 1);
}

/**
 * Rectangles of the live-bytes areas, neighbours of equal height, shade and colour joined.
 * @returns arrays left, right, top, bottom, level (0 … levels - 1), kind (colour)
 */
export function areaRuns(areas, view, rows, peak, levels) {
  const out = { left: [], right: [], top: [], bottom: [], level: [], kind: [] };
  const inside = rows.rowPx - 3;
  for (let row = 0; row < rows.nRows; row += 1) {
    const base = row * areas.columns;
    const bottom = (row + 1) * rows.rowPx - 1.5;
    let from = 0;
    let height = 0;
    let level = -1;
    let kind = 0;
    for (let c = 0; c <= areas.columns; c += 1) {
      const bytes = c < areas.columns ? areas.max[base + c] : 0;
      const h = bytes > 0 ? Math.max(Math.round((bytes / Math.max(rows.scale[row], bytes)) * inside * 2) / 2, 1.5) : 0;
      const l = bytes > 0 ? Math.min(Math.floor(shade(bytes, peak) * levels), levels - 1) : -1;
      const k = areas.kind[base + Math.min(c, areas.columns - 1)];
      if (h === height && l === level && k === kind) continue;
      if (level >= 0) {
        out.left.push(view.x0 + from * areas.step);
        out.right.push(Math.min(view.x0 + c * areas.step, view.x1));
        out.top.push(bottom - height);
        out.bottom.push(bottom);
        out.level.push(level);
        out.kind.push(kind);
      }
      from = c;
      height = h;
      level = l;
      kind = k;
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
