// What is alive at an instant as a tree over call stacks, and its boxes. Pure functions.

import { upperBound, valueAt } from "./steps.js";

/**
 * Blocks alive at an instant, joined where stack and operator are the same.
 * @returns {{groups, bytes, blocks, hidden, hiddenBlocks}} groups = [{stack (-1: none), name, bytes, blocks}]; hidden =
 *   bytes that the mask leaves out
 */
export function aliveGroups(series, t, nNames, mask) {
  const { start, end, size, stack, name } = series;
  const found = new Map();
  const out = { groups: [], bytes: 0, blocks: 0, hidden: 0, hiddenBlocks: 0 };
  for (let i = 0, to = upperBound(start, t); i < to; i += 1) {
    if (end[i] <= t) continue;
    if (mask && !mask[i]) {
      out.hidden += size[i];
      out.hiddenBlocks += 1;
      continue;
    }
    const key = stack[i] * nNames + name[i];
    let group = found.get(key);
    if (!group) {
      group = { stack: stack[i] - 1, name: name[i], bytes: 0, blocks: 0 };
      found.set(key, group);
      out.groups.push(group);
    }
    group.bytes += size[i];
    group.blocks += 1;
    out.bytes += size[i];
    out.blocks += 1;
  }
  return out;
}

const MOST_FRAMES = 500;
const MOST_ROWS_DRAWN = 60;

function newNode(kind, text) {
  return { kind, text, bytes: 0, blocks: 0, folded: [], children: new Map() };
}

function addPath(root, steps, group) {
  let node = root;
  const count = (one) => {
    one.bytes += group.bytes;
    one.blocks += group.blocks;
  };
  count(node);
  for (const [kind, key, text] of steps) {
    if (!node.children.has(key)) node.children.set(key, newNode(kind, text));
    node = node.children.get(key);
    count(node);
  }
}

/** Steps of a way without those beyond a depth that nobody reads; how many went is said in their place. */
function cutSteps(steps) {
  if (steps.length <= MOST_FRAMES) return steps;
  const left = steps.length - MOST_FRAMES;
  return [...steps.slice(0, MOST_FRAMES), ["frame", `cut ${left}`, `… ${left} more frames`]];
}

const NAME_NUMBER = /([A-Za-z_.[-])(\d+)(?![A-Za-z0-9])/g; // layers.12, layer_12, h[3]; neither `:82` nor conv2d

/** The text with each of its name numbers left out in turn. */
function numberPatterns(text) {
  const short = text.slice(0, 2000);
  return [...short.matchAll(NAME_NUMBER)].map((found) => {
    const at = found.index + found[1].length;
    return `${short.slice(0, at)}*${short.slice(at + found[2].length)}`;
  });
}

function mergeNodes(into, from) {
  into.bytes += from.bytes;
  into.blocks += from.blocks;
  for (const [key, child] of from.children) {
    if (into.children.has(key)) mergeNodes(into.children.get(key), child);
    else into.children.set(key, child);
  }
}

/** Join siblings whose texts differ in one number of a name, everywhere below a node. */
export function foldSiblings(node) {
  const bags = new Map();
  for (const [key, child] of node.children) {
    if (child.kind !== "frame") continue;
    for (const pattern of numberPatterns(child.text)) {
      if (!bags.has(pattern)) bags.set(pattern, []);
      bags.get(pattern).push(key);
    }
  }
  for (const [pattern, keys] of [...bags].sort((a, b) => b[1].length - a[1].length)) {
    const left = keys.filter((key) => node.children.has(key));
    if (left.length < 2) continue;
    const joined = newNode("frame", pattern);
    for (const key of left) {
      joined.folded.push(node.children.get(key).text);
      mergeNodes(joined, node.children.get(key));
      node.children.delete(key);
    }
    node.children.set(`fold ${pattern}`, joined);
  }
  for (const child of node.children.values()) foldSiblings(child);
}

/** Leave out the frames that all stacks below a root share; `{node, common}`. */
function dropCommon(root) {
  let node = root;
  const common = [];
  for (;;) {
    const [only] = node.children.values();
    if (node.children.size !== 1 || only.kind !== "frame") break;
    if (![...only.children.values()].some((child) => child.kind === "frame")) break; // the last frame says where
    common.push(only.text);
    node = only;
  }
  return { node, common };
}

/**
 * The tree of an instant. Its top holds the stacks without what they have in common, and as boxes of their own blocks
 * without a stack, memory older than the window, blocks that filters hide.
 * @param options {innermost, plumbing, withOlder}: order of frames; whether framework frames, older memory are boxes
 * @returns {{root, common: string[], alive, older, total}} root.bytes = sum of the boxes; total = allocated by the
 *   recorded curve, NaN outside recordings
 */
export function buildIcicle(timeline, series, t, { innermost, plumbing, withOlder = true }, mask) {
  const { header } = timeline;
  const alive = aliveGroups(series, t, header.names.length, mask);
  const stacks = newNode("root", "");
  const without = newNode("none", "no stack");
  for (const group of alive.groups) {
    const operator = ["op", -1 - group.name, header.names[group.name]];
    if (group.stack < 0) {
      addPath(without, [operator], group);
      continue;
    }
    const inner = header.stacks[group.stack].filter((frame) => plumbing || !header.plumbing[frame]);
    const frames = inner.map((frame) => ["frame", frame, header.frames[frame]]);
    addPath(stacks, innermost ? [operator, ...cutSteps(frames)] : [...cutSteps(frames.reverse()), operator], group);
  }
  const { node, common } = dropCommon(stacks);
  foldSiblings(node);
  const root = newNode("root", "");
  root.children = new Map(node.children);
  const older = valueAt(series.curves.older, t);
  const addBox = (kind, text, bytes, blocks, children = new Map()) => {
    if (bytes > 0) root.children.set(kind, Object.assign(newNode(kind, text), { bytes, blocks, children }));
  };
  addBox("none", "no stack", without.bytes, without.blocks, without.children);
  addBox("hidden", "hidden by filters", alive.hidden, alive.hiddenBlocks);
  if (withOlder) addBox("older", "older than the window", older, 0);
  for (const child of root.children.values()) {
    root.bytes += child.bytes;
    root.blocks += child.blocks;
  }
  return { root, common, alive, older, total: valueAt(series.curves.allocated, t) };
}

const LAST = { none: 1, hidden: 2, older: 3 };

/**
 * Boxes of a tree for a width: children below their parent, largest first, those narrower than `least` px as one.
 * @returns {{boxes: {node, path, x, width, depth, small}[], dropped: number, rows: number, deeper: bool}} deeper = there
 *   are rows below those drawn
 */
export function layoutIcicle(root, width, least = 1) {
  const out = { boxes: [], dropped: 0, rows: 0, deeper: false };
  const perByte = root.bytes > 0 ? width / root.bytes : 0;
  const place = (node, path, x, depth) => {
    out.boxes.push({ node, path, x, width: node.bytes * perByte, depth, small: 0 });
    out.rows = Math.max(out.rows, depth + 1);
    if (depth + 1 >= MOST_ROWS_DRAWN) {
      out.deeper ||= node.children.size > 0;
      return;
    }
    const rank = (child) => LAST[child.kind] ?? 0;
    const children = [...node.children].sort(([, a], [, b]) => rank(a) - rank(b) || b.bytes - a.bytes);
    let at = x;
    const small = { n: 0, bytes: 0, blocks: 0 };
    for (const [key, child] of children) {
      if (child.bytes * perByte < least) {
        small.n += 1;
        small.bytes += child.bytes;
        small.blocks += child.blocks;
        continue;
      }
      place(child, [...path, key], at, depth + 1);
      at += child.bytes * perByte;
    }
    if (!small.n) return;
    if (small.bytes * perByte >= least) {
      const joined = Object.assign(newNode("small", `+${small.n} small`), { bytes: small.bytes, blocks: small.blocks });
      out.boxes.push({ node: joined, path, x: at, width: small.bytes * perByte, depth: depth + 1, small: small.n });
      out.rows = Math.max(out.rows, depth + 2);
    } else out.dropped += small.n;
  };
  place(root, [], 0, 0);
  return out;
}

/** The node at the end of a path, as far as it exists: `{node, path}`. */
export function followPath(root, path) {
  let node = root;
  const found = [];
  for (const key of path) {
    if (!node.children.has(key)) break;
    node = node.children.get(key);
    found.push(key);
  }
  return { node, path: found };
}
