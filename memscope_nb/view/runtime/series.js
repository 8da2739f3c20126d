// One series of a payload, ready for drawing: its blocks, their events and its exact curves.
//
// `start`, `end`, `activeEnd`, `events.t` and the curves' `t` are places on the x axis, which is true time unless it
// is folded (time.js); `raw` keeps the true ones. Order never differs between the two.

import { addSteps, clipSteps, eventsOf, gapsOf, liveSteps, storedSteps } from "./steps.js";

function pick(column, positions) {
  const out = new column.constructor(positions.length);
  for (let i = 0; i < positions.length; i += 1) out[i] = column[positions[i]];
  return out;
}

/** Blocks of series k; `at` = their positions in the payload's columns. */
function blocksOf(columns, k) {
  const chosen = [];
  for (let i = 0; i < columns.id.length; i += 1) if (columns.series[i] === k) chosen.push(i);
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
  return { n: at.length, at, ...named, raw: { start, end, activeEnd } };
}

function curvesOf(series, header, columns, k) {
  const { info, raw, size } = series;
  const [start, end] = header.window;
  const older = storedSteps(columns[`older_t_${k}`], columns[`older_v_${k}`], info.older_base ?? 0);
  const events = eventsOf(raw.start, raw.end);
  const curves = { older: clipSteps(older, start, end) };
  curves.allocated = clipSteps(addSteps(older, liveSteps(events, size)), start, end);
  if (info.has_active) {
    const base = storedSteps(columns[`active_t_${k}`], columns[`active_v_${k}`], info.active_base ?? 0);
    const activeEvents = raw.activeEnd === raw.end ? events : eventsOf(raw.start, raw.activeEnd);
    curves.active = clipSteps(addSteps(base, liveSteps(activeEvents, size)), start, end);
  }
  if (info.has_reserved) {
    curves.reserved = clipSteps(storedSteps(columns[`reserved_t_${k}`], columns[`reserved_v_${k}`]), start, end);
  }
  return { events, curves };
}

/** The instant of the highest value of a curve: `[t, v]`, the first of equal ones. */
function peakOf(curve) {
  let best = -1;
  for (let i = 0; i < curve.v.length; i += 1) if (best < 0 ? !Number.isNaN(curve.v[i]) : curve.v[i] > curve.v[best]) best = i;
  return best < 0 ? null : [curve.t[best], curve.v[best]];
}

/** Build a series in true time; `placeSeries` puts it on the axis. */
export function buildSeries(header, columns, k) {
  const info = header.series[k];
  const [start, end] = header.window;
  const series = { index: k, info, ...blocksOf(columns, k) };
  const { events, curves } = curvesOf(series, header, columns, k);
  Object.assign(series.raw, { events, curves, gaps: gapsOf(curves.older, start, end) });
  const recorded = info.peak?.allocated;
  const here = recorded && recorded[0] >= start && recorded[0] <= end;
  const local = here ? recorded : peakOf(curves.allocated);
  return Object.assign(series, { peakTrue: local ? local[0] : start, peakIsRecorded: Boolean(here) });
}

/** A step curve on the axis. */
export function placeCurve(curve, time) {
  return time.identity ? curve : { t: time.mapAll(curve.t), v: curve.v };
}

/** Put a series on an axis. */
export function placeSeries(series, time) {
  const { raw } = series;
  series.start = time.mapAll(raw.start);
  series.end = time.mapAll(raw.end);
  series.activeEnd = raw.activeEnd === raw.end ? series.end : time.mapAll(raw.activeEnd);
  series.events = { t: time.mapAll(raw.events.t), code: raw.events.code };
  series.curves = Object.fromEntries(Object.entries(raw.curves).map(([key, curve]) => [key, placeCurve(curve, time)]));
  series.gaps = raw.gaps.map(([from, to]) => [time.toShown(from), time.toShown(to)]);
  return series;
}
