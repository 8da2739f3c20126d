// Rows of the Gantt: which group every block belongs to, its lane there, and the rank of the groups.

import { assignLanes } from "./lanes.js";
import { upperBound } from "./steps.js";

const NO_STACK = "(no stack)";
const NO_OWNER = "(no owner)";

/** Ways to group blocks into rows, in the order of the choice. */
export const GROUPINGS = [
  { key: "operator", label: "operator" },
  { key: "site", label: "site" },
  { key: "owner", label: "owner" },
  { key: "stack", label: "call stack" },
  { key: "path", label: "module path" },
  { key: "frame", label: "calls below a frame" },
];

/** Rule that finds the module of a frame's file, for `path`: the folder and the file, without its ending. */
export const PATH_RULE = String.raw`([^/\\]+[/\\][^/\\:]+?)\.\w+[:(]`;

function hasStacks(timeline) {
  return timeline.header.stacks.length > 0;
}

/** Groupings that the payload has the facts for. */
export function groupingsOf(timeline) {
  const needs = { owner: timeline.header.owners?.length > 0, operator: true };
  return GROUPINGS.filter(({ key }) => needs[key] ?? hasStacks(timeline));
}

/** Number texts as they come: `of(text)` is the index of a text in `labels`. */
function indexer() {
  const labels = [];
  const known = new Map();
  return {
    labels,
    of(text) {
      let index = known.get(text);
      if (index === undefined) {
        index = labels.push(text) - 1;
        known.set(text, index);
      }
      return index;
    },
  };
}

function siteText(header, stack) {
  const frames = header.stacks[stack];
  const site = frames[header.sites[stack]] ?? frames[0];
  return site === undefined ? NO_STACK : header.frames[site];
}

/** Text of a stack's row: its site, told apart from other stacks with the same one by its number. */
function stackText(header, stack) {
  return `${siteText(header, stack)} · stack ${stack + 1}`;
}

function pathText(header, stack, rule) {
  const frames = header.stacks[stack];
  const from = Math.max(header.sites[stack], 0);
  for (const f of frames.slice(from)) {
    const found = rule.exec(header.frames[f].slice(0, 4096));
    if (found) return found[1] ?? found[0];
  }
  return "(no frame matches the rule)";
}

/** What a frame calls next in a stack, plumbing skipped. */
function callText(header, stack, frame) {
  const frames = header.stacks[stack];
  const at = frames.lastIndexOf(frame);
  if (at < 0) return "(not below this frame)";
  for (let i = at - 1; i >= 0; i -= 1) if (!header.plumbing[frames[i]]) return header.frames[frames[i]];
  return "(asked for there)";
}

/** Group of every block: `{group, labels}`. */
function groupsOf(timeline, series, { key, rule, frame }) {
  const { header } = timeline;
  if (key === "operator") return { group: series.name, labels: header.names };
  const names = indexer();
  if (key === "owner") {
    const of = [NO_OWNER, ...header.owners].map((text) => names.of(text));
    return { group: Uint32Array.from(series.stack, (_, i) => of[series.owner?.[i] ?? 0]), labels: names.labels };
  }
  const pattern = key === "path" ? new RegExp(rule ?? PATH_RULE) : null;
  const textOf = {
    site: (stack) => siteText(header, stack),
    stack: (stack) => stackText(header, stack),
    path: (stack) => pathText(header, stack, pattern),
    frame: (stack) => callText(header, stack, frame),
  }[key];
  const of = new Map();
  const group = Uint32Array.from(series.stack, (stack) => {
    if (!of.has(stack)) of.set(stack, names.of(stack ? textOf(stack - 1) : NO_STACK));
    return of.get(stack);
  });
  return { group, labels: names.labels };
}

/** Group the blocks of a series: sets `group`, `groupLabels`, `nGroups` and the lanes. */
export function setGroups(timeline, series, grouping) {
  const { group, labels } = groupsOf(timeline, series, grouping);
  Object.assign(series, { group, groupLabels: labels, nGroups: labels.length, grouping });
  Object.assign(series, assignLanes(series.events, group, labels.length));
}

/** Bytes and blocks alive per group at a place of the axis; `keys` = group of every block. */
export function liveBy(series, keys, n, t, mask = null) {
  const bytes = new Float64Array(n);
  const blocks = new Uint32Array(n);
  const { start, end, size } = series;
  const to = upperBound(start, t);
  let total = 0;
  let alive = 0;
  for (let i = 0; i < to; i += 1) {
    if (end[i] <= t || (mask && !mask[i])) continue;
    bytes[keys[i]] += size[i];
    blocks[keys[i]] += 1;
    total += size[i];
    alive += 1;
  }
  return { bytes, blocks, total, alive };
}

/** Bytes × true time of every group, blocks of every group. */
function totalsBy(series, window, mask) {
  const area = new Float64Array(series.nGroups);
  const blocks = new Uint32Array(series.nGroups);
  const { raw, group, size } = series;
  for (let i = 0; i < series.n; i += 1) {
    if (mask && !mask[i]) continue;
    blocks[group[i]] += 1;
    const from = Math.max(raw.start[i], window[0]);
    const to = Math.min(raw.end[i], window[1]);
    if (to > from) area[group[i]] += size[i] * (to - from);
  }
  return { area, blocks };
}

/** Highest live bytes of every group. */
function highestBy(series, mask) {
  const live = new Float64Array(series.nGroups);
  const top = new Float64Array(series.nGroups);
  const { group, size } = series;
  for (const code of series.events.code) {
    const i = code >= 0 ? code : ~code;
    if (mask && !mask[i]) continue;
    const g = group[i];
    live[g] += code >= 0 ? size[i] : -size[i];
    if (live[g] > top[g]) top[g] = live[g];
  }
  return top;
}

/**
 * Rank the groups by the bytes alive at an instant, then by bytes × time. Blocks that the mask leaves out do not
 * count; groups without any other are left out.
 */
export function rankGroups(series, t, window, mask) {
  const focus = liveBy(series, series.group, series.nGroups, t, mask);
  const { area, blocks } = totalsBy(series, window, mask);
  const present = [];
  for (let g = 0; g < series.nGroups; g += 1) if (blocks[g]) present.push(g);
  present.sort((a, b) => focus.bytes[b] - focus.bytes[a] || area[b] - area[a] || a - b);
  Object.assign(series, { ranked: present, atFocus: focus, countBy: blocks, topBy: highestBy(series, mask) });
}
