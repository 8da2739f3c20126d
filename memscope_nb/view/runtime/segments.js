// The address space of a pool: ranges that the driver gave and the blocks in them, at places of an axis that folds the
// addresses never mapped. Pure functions but for `segmentsOf`, which keeps what it has built.

import { upperBound } from "./steps.js";

const KEEP = Symbol("segments");

function choose(columns, series, k) {
  const rows = [];
  for (let i = 0; i < series.length; i += 1) if (series[i] === k) rows.push(i);
  return Object.fromEntries(Object.entries(columns).map(([key, column]) => [key, Float64Array.from(rows, (i) => column[i])]));
}

/** Whether the payload has segments of a series. */
export function hasSegments(timeline, k) {
  return Boolean(timeline.header.address_map?.[k] && timeline.columns.seg_t);
}

/** Ranges and blocks of a series on its time axis: `start` and `end` are places there, `pos` places on the other axis. */
export function segmentsOf(timeline, k) {
  const kept = (timeline[KEEP] ??= new Map());
  const old = kept.get(k);
  if (old && old.time === timeline.time) return old;
  const { columns: c, header, time } = timeline;
  const ranges = choose({ t: c.seg_t, life: c.seg_life, pos: c.seg_pos, size: c.seg_size, kind: c.seg_kind }, c.seg_series, k);
  const blocks = choose({ t: c.map_t, life: c.map_life, late: c.map_late, pos: c.map_pos, size: c.map_size, id: c.map_id }, c.map_series, k);
  ranges.start = time.mapAll(ranges.t);
  ranges.end = time.mapAll(ranges.t.map((t, i) => t + ranges.life[i]));
  blocks.start = time.mapAll(blocks.t);
  blocks.request = time.mapAll(blocks.t.map((t, i) => t + blocks.life[i]));
  blocks.end = time.mapAll(blocks.t.map((t, i) => t + blocks.life[i] + blocks.late[i]));
  const info = header.address_map[k];
  const order = Uint32Array.from(blocks.start.keys()).sort((a, b) => blocks.life[a] - blocks.life[b] || a - b);
  const map = { time, info, ranges, blocks, order, starts: Float64Array.from(info.stretches, (item) => item[1]) };
  kept.set(k, map);
  return map;
}

/** Address of a place as text; a number could not hold it. */
export function addressAt(map, place) {
  const [address, from] = map.info.stretches[Math.max(upperBound(map.starts, place) - 1, 0)];
  return `0x${(BigInt(address) + BigInt(place - from)).toString(16)}`;
}

function alive(table, t) {
  const found = [];
  for (let i = 0; i < table.start.length; i += 1) if (table.start[i] <= t && table.end[i] > t) found.push(i);
  return found.sort((a, b) => table.pos[a] - table.pos[b]);
}

/** Segments at an instant, by place: parts of a growing one that touch are one. */
function segmentsAt(map, t) {
  const { ranges, starts, info } = map;
  const found = [];
  for (const i of alive(ranges, t)) {
    const [pos, kind] = [ranges.pos[i], ranges.kind[i]];
    const last = found[found.length - 1];
    const stretch = upperBound(starts, pos) - 1;
    const grows = info.kinds[kind].grows && last && last.kind === kind && last.stretch === stretch;
    if (grows && last.pos + last.size === pos) last.size += ranges.size[i];
    else found.push({ pos, size: ranges.size[i], kind, stretch });
  }
  return found;
}

/**
 * What lies where at an instant.
 * @returns {{gaps, mapped, active, pending, idle}} gaps = `{pos, size, kind, segment, left, right}`, largest first;
 *   `left` and `right` are positions in `map.blocks`, -1 at the edge of a segment; sums are bytes
 */
export function gapsAt(map, t) {
  const { blocks } = map;
  const live = alive(blocks, t);
  const sums = { mapped: 0, active: 0, pending: 0 };
  for (const i of live) sums[blocks.request[i] <= t ? "pending" : "active"] += blocks.size[i];
  const gaps = [];
  let k = 0;
  for (const segment of segmentsAt(map, t)) {
    const end = segment.pos + segment.size;
    sums.mapped += segment.size;
    let at = segment.pos;
    let left = -1;
    const close = (to, right) => {
      if (to > at) gaps.push({ pos: at, size: to - at, kind: segment.kind, segment, left, right });
    };
    for (; k < live.length && blocks.pos[live[k]] < end; k += 1) {
      const i = live[k];
      close(blocks.pos[i], i);
      at = blocks.pos[i] + blocks.size[i];
      left = i;
    }
    close(end, -1);
  }
  gaps.sort((a, b) => b.size - a.size || a.pos - b.pos);
  return { gaps, ...sums, idle: gaps.reduce((sum, gap) => sum + gap.size, 0) };
}

/** Text of what a range serves: requests of another kind cannot use it. */
export function kindText(map, kind) {
  const { stream, pool, type, grows } = map.info.kinds[kind];
  return [stream, pool, type, grows ? "expandable" : ""].filter(Boolean).join(" · ");
}
