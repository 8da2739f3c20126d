// How true time lies on the x axis: as it is, with idle stretches folded, or with all steps of equal width.
// "True" times are ns offsets of the payload; "shown" ones are places on the axis. The map only ever rises.

import { upperBound } from "./steps.js";

const FOLD_SHARE = 0.018; // width of a folded stretch, as a share of all that is not folded
const BETWEEN_SHARE = 0.1; // most width between two steps, as a share of a step

/** A map through the corners `(from[i], to[i])`; slope 1 before the first and after the last. */
function throughCorners(mode, from, to, folds) {
  const at = (x, a, b) => {
    const i = upperBound(a, x) - 1;
    if (i < 0) return b[0] + (x - a[0]);
    if (i >= a.length - 1) return b[b.length - 1] + (x - a[a.length - 1]);
    return b[i] + ((x - a[i]) * (b[i + 1] - b[i])) / (a[i + 1] - a[i]);
  };
  const identity = from.length === 0;
  return {
    mode,
    identity,
    folds,
    toShown: identity ? (t) => t : (t) => at(t, from, to),
    toTrue: identity ? (u) => u : (u) => at(u, to, from),
    /** Times of a typed array on the axis; the array itself where nothing changes. */
    mapAll(values) {
      return identity ? values : values.map((t) => at(t, from, to));
    },
  };
}

function foldedTime(header) {
  const idle = header.idle ?? [];
  const [s0, s1] = header.span;
  const kept = Math.ceil(FOLD_SHARE * idle.reduce((rest, [a, b]) => rest - (b - a), s1 - s0)) + 1; // whole ns: events stay whole
  const [from, to, folds] = [[], [], []];
  let cut = 0;
  for (const [start, end] of idle) {
    from.push(start, end);
    to.push(start - cut, start - cut + kept);
    folds.push({ start, end, x0: start - cut, x1: start - cut + kept });
    cut += end - start - kept;
  }
  return throughCorners("folded", from, to, folds);
}

/** Steps one after the other, without those that begin inside an earlier one. */
function stepChain(header) {
  const chain = [];
  for (const step of [...header.steps].sort((a, b) => a.start - b.start || b.end - a.end)) {
    if (step.end > step.start && (!chain.length || step.start >= chain[chain.length - 1].end)) chain.push(step);
  }
  return chain;
}

function stepTime(header) {
  const chain = stepChain(header);
  const lengths = chain.map((step) => step.end - step.start).sort((a, b) => a - b);
  const width = lengths[lengths.length >> 1];
  const [from, to, folds] = [[], [], []];
  let [t, u] = [header.span[0], 0];
  const advance = (end, most) => {
    if (end <= t) return;
    const kept = Math.min(end - t, most);
    if (kept < end - t) folds.push({ start: t, end, x0: u, x1: u + kept });
    [t, u] = [end, u + kept];
    from.push(t);
    to.push(u);
  };
  from.push(t);
  to.push(u);
  for (const step of chain) {
    advance(step.start, width * BETWEEN_SHARE);
    from.push((t = step.end));
    to.push((u += width));
  }
  advance(header.span[1], width * BETWEEN_SHARE);
  return throughCorners("steps", from, to, folds);
}

/** A round step (1, 2 or 5 times a power of ten) that cuts a length into about `n` parts. */
function roundStep(length, n) {
  const power = 10 ** Math.floor(Math.log10(length / n));
  return power * ([1, 2, 5, 10].find((factor) => (factor * power * n) >= length * 0.8) ?? 10);
}

/** Places on the axis of round true times between two places; none inside a fold, none too close to another. */
export function ticksBetween(time, low, high, n) {
  if (!(high > low)) return [];
  const step = roundStep(high - low, n);
  const edges = [low, ...time.folds.flatMap((fold) => [fold.x0, fold.x1]).filter((u) => u > low && u < high), high];
  const ticks = [];
  for (let k = 0; k + 1 < edges.length; k += 1) {
    const middle = (edges[k] + edges[k + 1]) / 2;
    if (time.folds.some((fold) => middle > fold.x0 && middle < fold.x1)) continue;
    const last = time.toTrue(edges[k + 1]);
    for (let t = Math.ceil(time.toTrue(edges[k]) / step) * step; t <= last && ticks.length < 100; t += step) {
      const u = time.toShown(t);
      if (!ticks.length || u - ticks[ticks.length - 1] > 0.45 * step) ticks.push(u);
    }
  }
  return ticks;
}

/** Modes that a timeline can be shown in. */
export function timeModes(header) {
  const modes = ["true"];
  if (header.idle?.length) modes.push("folded");
  if (stepChain(header).length > 1) modes.push("steps");
  return modes;
}

/** The map of one mode. */
export function buildTime(header, mode) {
  if (mode === "folded") return foldedTime(header);
  if (mode === "steps") return stepTime(header);
  return throughCorners("true", [], [], []);
}
