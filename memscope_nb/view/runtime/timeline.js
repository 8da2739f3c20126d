// What a payload says, ready for drawing: per series blocks, events, exact curves, lanes and the rank of operators.

import { addSteps, clipSteps, eventsOf, gapsOf, liveSteps, storedSteps, upperBound, valueAt } from "./steps.js";
import { assignLanes } from "./lanes.js";
import { buildLayers } from "./layers.js";

/** Shortest stretch of time that a view can show. */
export const LEAST_NS = 100;

function pick(column, positions) {
  const out = new column.constructor(positions.length);
  for (let i = 0; i < positions.length; i += 1) out[i] = column[positions[i]];
  return out;
}

function blocksOf(columns, k) {
  const n = columns.id.length;
  const chosen = [];
  for (let i = 0; i < n; i += 1) if (columns.series[i] === k) chosen.push(i);
  const at = Uint32Array.from(chosen);
  const start = Float64Array.from(pick(columns.start, at));
  const life = pick(columns.life, at);
  const end = Float64Array.from(start, (value, i) => value + life[i]);
  const lateOf = new Map();
  (columns.late_block ?? []).forEach((block, i) => lateOf.set(block, columns.late[i]));
  const activeEnd = lateOf.size ? end.map((value, i) => value + (lateOf.get(at[i]) ?? 0)) : end;
  const named = {};
  for (const key of ["id", "size", "name", "stack", "kind", "class"]) named[key] = pick(columns[key], at);
  for (const key of ["owner", "label"]) if (columns[key]) named[key] = pick(columns[key], at);
  return { n: at.length, start, end, activeEnd, ...named };
}

/** Bytes and blocks alive per operator at an instant. */
export function liveByName(series, t, nNames) {
  const bytes = new Float64Array(nNames);
  const blocks = new Uint32Array(nNames);
  const { start, end, size, name } = series;
  const to = upperBound(start, t);
  let total = 0;
  let alive = 0;
  for (let i = 0; i < to; i += 1) {
    if (end[i] <= t) continue;
    bytes[name[i]] += size[i];
    blocks[name[i]] += 1;
    total += size[i];
    alive += 1;
  }
  return { bytes, blocks, total, alive };
}

function byteTime(series, window, nNames) {
  const sum = new Float64Array(nNames);
  for (let i = 0; i < series.n; i += 1) {
    const from = Math.max(series.start[i], window[0]);
    const to = Math.min(series.end[i], window[1]);
    if (to > from) sum[series.name[i]] += series.size[i] * (to - from);
  }
  return sum;
}

/** Highest live bytes per operator. */
function highestByName(events, series, nNames) {
  const live = new Float64Array(nNames);
  const top = new Float64Array(nNames);
  for (let e = 0; e < events.code.length; e += 1) {
    const code = events.code[e];
    const i = code >= 0 ? code : ~code;
    const op = series.name[i];
    live[op] += code >= 0 ? series.size[i] : -series.size[i];
    if (live[op] > top[op]) top[op] = live[op];
  }
  return top;
}

/** The instant of the highest value of a curve: `[t, v]`, the first of equal ones. */
export function peakOf(curve) {
  let best = -1;
  for (let i = 0; i < curve.v.length; i += 1) if (best < 0 ? !Number.isNaN(curve.v[i]) : curve.v[i] > curve.v[best]) best = i;
  return best < 0 ? null : [curve.t[best], curve.v[best]];
}

function rankNames(series, atPeak, area) {
  const present = new Set(series.name);
  return [...present].sort(
    (a, b) => atPeak.bytes[b] - atPeak.bytes[a] || area[b] - area[a] || a - b,
  );
}

function buildSeries(header, columns, k) {
  const info = header.series[k];
  const [start, end] = header.window;
  const nNames = header.names.length;
  const blocks = blocksOf(columns, k);
  const events = eventsOf(blocks.start, blocks.end);
  const older = storedSteps(columns[`older_t_${k}`], columns[`older_v_${k}`], info.older_base ?? 0);
  const allocated = clipSteps(addSteps(older, liveSteps(events, blocks.size)), start, end);
  const series = { ...blocks, index: k, info, events, curves: { older: clipSteps(older, start, end), allocated } };
  if (info.has_active) {
    const base = storedSteps(columns[`active_t_${k}`], columns[`active_v_${k}`], info.active_base ?? 0);
    const activeEvents = blocks.activeEnd === blocks.end ? events : eventsOf(blocks.start, blocks.activeEnd);
    series.curves.active = clipSteps(addSteps(base, liveSteps(activeEvents, blocks.size)), start, end);
  }
  if (info.has_reserved) {
    series.curves.reserved = clipSteps(storedSteps(columns[`reserved_t_${k}`], columns[`reserved_v_${k}`]), start, end);
  }
  series.gaps = gapsOf(series.curves.older, start, end);
  const recorded = info.peak?.allocated;
  const here = recorded && recorded[0] >= start && recorded[0] <= end;
  const local = here ? recorded : peakOf(allocated);
  series.rankInstant = local ? local[0] : start;
  series.rankIsPeak = Boolean(here);
  series.atPeak = liveByName(series, series.rankInstant, nNames);
  series.ranked = rankNames(series, series.atPeak, byteTime(series, header.window, nNames));
  series.topByName = highestByName(events, series, nNames);
  series.countByName = new Uint32Array(nNames);
  for (let i = 0; i < series.n; i += 1) series.countByName[series.name[i]] += 1;
  return Object.assign(series, assignLanes(events, series.name, nNames));
}

/** Wrap a decoded payload; `series(k)` is built when first asked for. */
export function buildTimeline({ header, columns }) {
  const built = new Map();
  const [start, end] = header.window;
  header.window = [start, Math.max(end, start + LEAST_NS)]; // nothing without length can be drawn
  header.span = [header.span[0], Math.max(header.span[1], header.window[1])];
  const resident = header.resident ? clipSteps(storedSteps(columns.resident_t, columns.resident_v), start, end) : null;
  return {
    header,
    columns,
    resident,
    layers: buildLayers(header, columns),
    overview: storedSteps(columns.overview_t, columns.overview_v),
    openClass: header.classes.findIndex((item) => item.key === "open"),
    series(k) {
      if (!built.has(k)) built.set(k, buildSeries(header, columns, k));
      return built.get(k);
    },
  };
}

/** Everything that holds at an instant: ledgers, live blocks, the ten largest operators, the rest. */
export function snapshotAt(timeline, series, t) {
  const live = liveByName(series, t, timeline.header.names.length);
  const order = [];
  for (let op = 0; op < live.bytes.length; op += 1) if (live.blocks[op]) order.push(op);
  order.sort((a, b) => live.bytes[b] - live.bytes[a] || a - b);
  const top = order.slice(0, 10).map((op) => ({ name: op, bytes: live.bytes[op], blocks: live.blocks[op] }));
  const ledgers = {};
  for (const [key, curve] of Object.entries(series.curves)) ledgers[key] = valueAt(curve, t);
  if (timeline.resident) ledgers.resident = valueAt(timeline.resident, t);
  return {
    t,
    ledgers,
    blocks: live.alive,
    live: live.total,
    top,
    rest: live.total - top.reduce((sum, item) => sum + item.bytes, 0),
    restNames: order.length - top.length,
  };
}

/** Other blocks of the same operator that live at the same time: positions, largest first. */
export function overlapping(series, block) {
  const { start, end, name, size } = series;
  const found = [];
  const to = upperBound(start, Math.max(end[block] - 1, start[block]));
  for (let i = 0; i < to; i += 1) {
    if (i !== block && name[i] === name[block] && end[i] > start[block]) found.push(i);
  }
  return found.sort((a, b) => size[b] - size[a] || a - b);
}

/** Blocks of the operator alive when the block starts, itself included. */
export function aliveAtStart(series, block) {
  const { start, end, name } = series;
  const t = start[block];
  const to = upperBound(start, t);
  let n = 0;
  for (let i = 0; i < to; i += 1) if (name[i] === name[block] && (end[i] > t || i === block)) n += 1;
  return n;
}

/** Position of a block by its global id, or -1. */
export function findBlock(series, id) {
  return series.id.indexOf(id);
}

