// What a payload says, ready for drawing, and questions to it.

import { liveBy } from "./groups.js";
import { buildLayers, placeLayers } from "./layers.js";
import { buildSeries, placeCurve, placeSeries } from "./series.js";
import { clipSteps, storedSteps, upperBound, valueAt } from "./steps.js";
import { buildTime, timeModes } from "./time.js";

/** Shortest stretch of time that a view can show. */
export const LEAST_NS = 100;

/** Wrap a decoded payload; `series(k)` is built when first asked for, `setTime(mode)` moves all to another axis. */
export function buildTimeline({ header, columns }) {
  const built = new Map();
  const [start, end] = header.window;
  header.window = [start, Math.max(end, start + LEAST_NS)]; // nothing without length can be drawn
  header.span = [header.span[0], Math.max(header.span[1], header.window[1])];
  const raw = {
    resident: header.resident ? clipSteps(storedSteps(columns.resident_t, columns.resident_v), start, end) : null,
    layers: buildLayers(header, columns),
    overview: storedSteps(columns.overview_t, columns.overview_v),
  };
  const timeline = {
    header,
    columns,
    modes: timeModes(header),
    openClass: header.classes.findIndex((item) => item.key === "open"),
    series(k) {
      if (!built.has(k)) built.set(k, placeSeries(buildSeries(header, columns, k), timeline.time));
      return built.get(k);
    },
    setTime(mode) {
      const time = buildTime(header, mode);
      timeline.time = time;
      timeline.limits = header.window.map(time.toShown);
      timeline.span = header.span.map(time.toShown);
      timeline.resident = raw.resident && placeCurve(raw.resident, time);
      timeline.layers = placeLayers(raw.layers, time);
      timeline.overview = placeCurve(raw.overview, time);
      for (const series of built.values()) placeSeries(series, time);
    },
  };
  timeline.setTime(timeline.modes.includes("folded") ? "folded" : "true");
  return timeline;
}

/** Everything that holds at a place of the axis: ledgers, live blocks, the ten largest groups, the rest. */
export function snapshotAt(timeline, series, t) {
  const live = liveBy(series, series.group, series.nGroups, t);
  const order = [];
  for (let g = 0; g < live.bytes.length; g += 1) if (live.blocks[g]) order.push(g);
  order.sort((a, b) => live.bytes[b] - live.bytes[a] || a - b);
  const top = order.slice(0, 10).map((g) => ({ group: g, bytes: live.bytes[g], blocks: live.blocks[g] }));
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
    restGroups: order.length - top.length,
  };
}

/** Other blocks of the same operator that live at the same time: positions, largest first. */
export function overlapping(series, block) {
  const { name, size } = series;
  const { start, end } = series.raw;
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
