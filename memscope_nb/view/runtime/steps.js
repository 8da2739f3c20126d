// Step curves over typed arrays: `{t, v}`, v[i] holds from t[i] until t[i + 1]; NaN = no data. Pure functions.

/** First position whose value is > x. */
export function upperBound(values, x, from = 0, to = values.length) {
  let low = from;
  let high = to;
  while (low < high) {
    const mid = (low + high) >>> 1;
    if (values[mid] <= x) low = mid + 1;
    else high = mid;
  }
  return low;
}

/** Value of a step curve at an instant; NaN before its first point. */
export function valueAt(curve, t) {
  const i = upperBound(curve.t, t) - 1;
  return i < 0 ? NaN : curve.v[i];
}

/** A stored step column (0 = no data, else bytes + 1, counted from `base`) as a step curve. */
export function storedSteps(times, values, base = 0) {
  const t = Float64Array.from(times ?? []);
  const v = Float64Array.from(values ?? [], (value) => (value === 0 ? NaN : value - 1 + base));
  return { t, v };
}

/** Order of non-negative integers below 2**53, stable: radix sort on 16-bit digits. */
function sortOrder(values) {
  const n = values.length;
  let largest = 0;
  for (let i = 0; i < n; i += 1) if (values[i] > largest) largest = values[i];
  let order = new Uint32Array(n);
  let spare = new Uint32Array(n);
  for (let i = 0; i < n; i += 1) order[i] = i;
  for (let weight = 1; weight <= largest; weight *= 65536) {
    const starts = new Uint32Array(65537);
    for (let i = 0; i < n; i += 1) starts[(Math.floor(values[i] / weight) % 65536) + 1] += 1;
    for (let d = 0; d < 65536; d += 1) starts[d + 1] += starts[d];
    for (let i = 0; i < n; i += 1) {
      const item = order[i];
      spare[starts[Math.floor(values[item] / weight) % 65536]++] = item;
    }
    [order, spare] = [spare, order];
  }
  return order;
}

/**
 * Starts and ends of blocks in time order, ends before starts at equal time; blocks without length are left out.
 * @returns {{t: Float64Array, code: Int32Array}} code i = start of block i, ~i = its end
 */
export function eventsOf(start, end) {
  const n = start.length;
  const byEnd = sortOrder(end);
  const t = new Float64Array(2 * n);
  const code = new Int32Array(2 * n);
  let out = 0;
  let j = 0;
  const emitEnds = (limit) => {
    for (; j < n && end[byEnd[j]] <= limit; j += 1) {
      const i = byEnd[j];
      if (end[i] === start[i]) continue;
      t[out] = end[i];
      code[out++] = ~i;
    }
  };
  for (let i = 0; i < n; i += 1) {
    if (end[i] === start[i]) continue;
    emitEnds(start[i]);
    t[out] = start[i];
    code[out++] = i;
  }
  emitEnds(Infinity);
  return { t: t.subarray(0, out), code: code.subarray(0, out) };
}

/** Live bytes over time: one point per instant at which something starts or ends. */
export function liveSteps(events, size) {
  const n = events.t.length;
  const t = new Float64Array(n);
  const v = new Float64Array(n);
  let out = -1;
  let live = 0;
  for (let e = 0; e < n; e += 1) {
    const code = events.code[e];
    live += code >= 0 ? size[code] : -size[~code];
    if (out < 0 || t[out] !== events.t[e]) t[++out] = events.t[e];
    v[out] = live;
  }
  return { t: t.subarray(0, out + 1), v: v.subarray(0, out + 1) };
}

/** Sum of a curve with gaps and live bytes (0 before their first point). Gaps stay gaps. */
export function addSteps(base, live) {
  const t = new Float64Array(base.t.length + live.t.length);
  const v = new Float64Array(t.length);
  let out = 0;
  let i = 0;
  let j = 0;
  let a = NaN;
  let b = 0;
  while (i < base.t.length || j < live.t.length) {
    const now = Math.min(base.t[i] ?? Infinity, live.t[j] ?? Infinity);
    if (base.t[i] === now) a = base.v[i++];
    if (live.t[j] === now) b = live.v[j++];
    t[out] = now;
    v[out++] = a + b;
  }
  return { t: t.subarray(0, out), v: v.subarray(0, out) };
}

/** The part of a curve inside a window; it starts with the value that holds there. */
export function clipSteps(curve, start, end) {
  const from = Math.max(upperBound(curve.t, start) - 1, 0);
  const to = upperBound(curve.t, end);
  const t = curve.t.slice(from, to);
  const v = curve.v.slice(from, to);
  if (t.length && t[0] < start) t[0] = start;
  return { t, v };
}

/** Stretches of a window without data: `[[start, end], …]`. */
export function gapsOf(curve, start, end) {
  const gaps = [];
  let open = curve.t.length && curve.t[0] <= start ? null : start;
  for (let i = 0; i < curve.t.length && curve.t[i] <= end; i += 1) {
    const empty = Number.isNaN(curve.v[i]);
    const at = Math.max(curve.t[i], start);
    if (empty && open === null) open = at;
    if (!empty && open !== null) {
      if (at > open) gaps.push([open, at]);
      open = null;
    }
  }
  if (open !== null && open < end) gaps.push([open, end]);
  return gaps;
}

/** Positions to keep of one pixel column: first, lowest, highest, last, and the first gap. */
function keepColumn(v, from, to, keep) {
  let low = -1;
  let high = -1;
  let gap = -1;
  for (let i = from; i < to; i += 1) {
    if (Number.isNaN(v[i])) {
      if (gap < 0) gap = i;
      continue;
    }
    if (low < 0 || v[i] < v[low]) low = i;
    if (high < 0 || v[i] > v[high]) high = i;
  }
  let last = -1;
  for (const i of [from, low, high, gap, to - 1].sort((a, b) => a - b)) {
    if (i >= 0 && i !== last) keep.push(i);
    last = i;
  }
}

/**
 * The curve between x0 and x1 for `columns` pixels: every step where few, else first/min/max/last per column, so
 * that no extreme is lost. The first point lies at x0.
 */
export function thinSteps(curve, x0, x1, columns) {
  const before = upperBound(curve.t, x0) - 1;
  const from = before + 1;
  const to = upperBound(curve.t, x1);
  const keep = [];
  if (to - from <= 4 * columns) {
    for (let i = from; i < to; i += 1) keep.push(i);
  } else {
    const width = (x1 - x0) / columns;
    let i = from;
    for (let c = 0; c < columns && i < to; c += 1) {
      const edge = c === columns - 1 ? to : upperBound(curve.t, x0 + (c + 1) * width, i, to);
      if (edge > i) keepColumn(curve.v, i, edge, keep);
      i = edge;
    }
  }
  const head = before >= 0 ? 1 : 0;
  const t = new Float64Array(keep.length + head);
  const v = new Float64Array(keep.length + head);
  if (head) {
    t[0] = x0;
    v[0] = curve.v[before];
  }
  keep.forEach((i, k) => {
    t[k + head] = curve.t[i];
    v[k + head] = curve.v[i];
  });
  return { t, v };
}

/** Corner points of a thinned curve for a line, up to `end`. */
export function stepLine(curve, end) {
  const x = [];
  const y = [];
  for (let i = 0; i < curve.t.length; i += 1) {
    if (i > 0) {
      x.push(curve.t[i]);
      y.push(curve.v[i - 1]);
    }
    x.push(curve.t[i]);
    y.push(curve.v[i]);
  }
  if (curve.t.length) {
    x.push(end);
    y.push(curve.v[curve.v.length - 1]);
  }
  return { x: Float64Array.from(x), y: Float64Array.from(y) };
}

/** Outlines down to 0 of the stretches with data, for a filled patch. */
export function stepArea(curve, end) {
  const line = stepLine(curve, end);
  const x = [];
  const y = [];
  const close = () => {
    if (!x.length || Number.isNaN(x[x.length - 1])) return;
    x.push(x[x.length - 1], NaN);
    y.push(0, NaN);
  };
  for (let i = 0; i < line.x.length; i += 1) {
    if (Number.isNaN(line.y[i])) {
      close();
      continue;
    }
    if (!x.length || Number.isNaN(x[x.length - 1])) {
      x.push(line.x[i]);
      y.push(0);
    }
    x.push(line.x[i]);
    y.push(line.y[i]);
  }
  close();
  return { x: Float64Array.from(x), y: Float64Array.from(y) };
}

/** Smallest value of a curve, Infinity when it has none. */
export function lowest(curve) {
  return curve.v.reduce((least, value) => (value < least ? value : least), Infinity);
}

/** Largest value of a curve, 0 when it has none. */
export function highest(curve) {
  let top = 0;
  for (let i = 0; i < curve.v.length; i += 1) if (curve.v[i] > top) top = curve.v[i];
  return top;
}
