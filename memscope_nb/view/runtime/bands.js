// What stacked views draw: one instant per pixel column, and the bytes of blocks or groups then. Pure functions.

import { upperBound, valueAt } from "./steps.js";

/**
 * The first instant of the highest value in every pixel column, so that no peak is lost.
 * @returns {{t: Float64Array, v: Float64Array}} v is NaN in columns without data
 */
export function highestInstants(curve, x0, x1, columns) {
  const t = new Float64Array(columns);
  const v = new Float64Array(columns);
  const step = (x1 - x0) / columns;
  let i = upperBound(curve.t, x0) - 1;
  for (let c = 0; c < columns; c += 1) {
    let at = x0 + c * step;
    while (i + 1 < curve.t.length && curve.t[i + 1] <= at) i += 1;
    let best = i >= 0 ? curve.v[i] : NaN;
    const edge = c === columns - 1 ? Infinity : x0 + (c + 1) * step;
    while (i + 1 < curve.t.length && curve.t[i + 1] < edge && curve.t[i + 1] <= x1) {
      i += 1;
      if (curve.v[i] > best || (Number.isNaN(best) && !Number.isNaN(curve.v[i]))) [at, best] = [curve.t[i], curve.v[i]];
    }
    t[c] = at;
    v[c] = best;
  }
  return { t, v };
}

const MOST_SORTED = 50_000;
const single = new Float32Array(1);
const singleBits = new Uint32Array(single.buffer);

/** Class of a positive number, 128 classes a doubling: larger numbers never have a smaller class. */
function magnitude(value) {
  single[0] = value;
  return singleBits[0] >>> 16;
}

/**
 * The `most` blocks with the largest bytes × time inside the view, in order of their start.
 * @param mask 0/1 per block (0 = filtered out), or undefined
 * @param always blocks that are chosen in any case
 * @returns {{chosen: Int32Array, inView: number, masked: number}}
 */
export function chooseLargest(series, { x0, x1 }, most, mask, always = []) {
  const { start, end, size } = series;
  const to = upperBound(start, x1);
  const classes = new Uint32Array(65536);
  const weight = (i) => size[i] * (Math.min(end[i], x1) - Math.max(start[i], x0));
  let inView = 0;
  let masked = 0;
  const wanted = new Set(always);
  const seen = (i) => end[i] > x0 && end[i] > start[i] && start[i] < x1;
  for (let i = 0; i < to; i += 1) {
    if (!seen(i)) continue;
    inView += 1;
    if (mask && !mask[i]) masked += 1;
    else classes[magnitude(weight(i))] += 1;
  }
  let lowest = 65535;
  let sum = classes[lowest];
  while (lowest > 0 && sum + classes[lowest - 1] <= most) sum += classes[(lowest -= 1)];
  const chosen = [];
  const border = []; // the class that is only partly wanted
  for (let i = 0; i < to; i += 1) {
    if (!seen(i) || (mask && !mask[i] && !wanted.has(i))) continue;
    const level = magnitude(weight(i));
    if (level >= lowest || wanted.has(i)) chosen.push(i);
    else if (level === lowest - 1) border.push(i);
  }
  // Hundreds of thousands of nearly equal ones (less than 1 % apart) are taken in order of time instead.
  if (border.length <= MOST_SORTED) border.sort((a, b) => weight(b) - weight(a) || a - b);
  chosen.push(...border.slice(0, Math.max(most - chosen.length, 0)));
  return { chosen: Int32Array.from(chosen).sort(), inView, masked };
}

/**
 * Walk through ascending instants with the stack of the chosen blocks, in order of their start.
 * @param instants Float64Array; `visit(k, stack)` is called for each, with
 *   stack = {n, blocks, older, rest, restBlocks}: `blocks[0 … n - 1]` from the bottom, bytes of all others alive then
 */
export function sweepBlocks(series, chosen, instants, visit) {
  const { start, end, size, events } = series;
  const nobody = chosen.length;
  const next = new Int32Array(nobody + 1).fill(nobody);
  const before = new Int32Array(nobody + 1).fill(nobody);
  const numberOf = new Int32Array(series.n);
  chosen.forEach((i, k) => (numberOf[i] = k + 1));
  const stack = { n: 0, blocks: new Int32Array(nobody), older: NaN, rest: 0, restBlocks: 0 };
  const push = (k) => {
    const last = before[nobody];
    next[last] = k;
    before[k] = last;
    next[k] = nobody;
    before[nobody] = k;
  };
  const drop = (k) => {
    next[before[k]] = next[k];
    before[next[k]] = before[k];
  };
  const from = instants.length ? instants[0] : 0;
  for (let i = 0, to = upperBound(start, from); i < to; i += 1) {
    if (end[i] <= from) continue;
    if (numberOf[i]) push(numberOf[i] - 1);
    else {
      stack.rest += size[i];
      stack.restBlocks += 1;
    }
  }
  let e = upperBound(events.t, from);
  for (let k = 0; k < instants.length; k += 1) {
    for (; e < events.t.length && events.t[e] <= instants[k]; e += 1) {
      const code = events.code[e];
      const i = code >= 0 ? code : ~code;
      const number = numberOf[i];
      if (number) {
        if (code >= 0) push(number - 1);
        else drop(number - 1);
      } else {
        stack.rest += code >= 0 ? size[i] : -size[i];
        stack.restBlocks += code >= 0 ? 1 : -1;
      }
    }
    stack.n = 0;
    for (let at = next[nobody]; at !== nobody; at = next[at]) stack.blocks[stack.n++] = chosen[at];
    stack.older = valueAt(series.curves.older, instants[k]);
    visit(k, stack);
  }
}

/**
 * Bytes per group at ascending instants.
 * @param groupOf group of each block
 * @returns Float64Array, `[k * nGroups + group]`
 */
export function sweepGroups(series, groupOf, nGroups, instants) {
  const { start, end, size, events } = series;
  const out = new Float64Array(nGroups * instants.length);
  const live = new Float64Array(nGroups);
  const from = instants.length ? instants[0] : 0;
  for (let i = 0, to = upperBound(start, from); i < to; i += 1) if (end[i] > from) live[groupOf[i]] += size[i];
  let e = upperBound(events.t, from);
  for (let k = 0; k < instants.length; k += 1) {
    for (; e < events.t.length && events.t[e] <= instants[k]; e += 1) {
      const code = events.code[e];
      if (code >= 0) live[groupOf[code]] += size[code];
      else live[groupOf[~code]] -= size[~code];
    }
    out.set(live, k * nGroups);
  }
  return out;
}
