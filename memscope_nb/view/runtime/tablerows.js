// Rows of the table of blocks, and its CSV. Pure functions.

import { upperBound } from "./steps.js";

export const MOST_ROWS = 500;

/** Text of the site of a stack (position + 1; 0 = none), "" without one. */
export function tableSite(header, stack) {
  if (!stack) return "";
  const frame = header.stacks[stack - 1][header.sites[stack - 1]];
  return frame === undefined ? "" : header.frames[frame];
}

/** Columns that a payload has: `number(i)` sorts a block; texts sort by their rank. */
export function tableColumns(timeline, series) {
  const { header } = timeline;
  const times = series.raw; // true times, also where the axis is folded
  const ranked = (texts, of) => {
    const order = [...texts.keys()].sort((a, b) => (texts[a] < texts[b] ? -1 : texts[a] > texts[b] ? 1 : a - b));
    const rank = new Float64Array(texts.length);
    order.forEach((text, k) => (rank[text] = k && texts[order[k - 1]] === texts[text] ? rank[order[k - 1]] : k));
    return { text: (i) => texts[of(i)], number: (i) => rank[of(i)] };
  };
  const columns = [
    { key: "id", label: "id", number: (i) => series.id[i] },
    { key: "operator", label: "operator", ...ranked(header.names, (i) => series.name[i]) },
    { key: "size", label: "size", number: (i) => series.size[i] },
    { key: "start", label: "start", number: (i) => times.start[i] },
    { key: "end", label: "end", number: (i) => (series.class[i] === timeline.openClass ? Infinity : times.end[i]) },
    { key: "duration", label: "duration", number: (i) => times.end[i] - times.start[i] },
    { key: "class", label: "lifetime", ...ranked(header.classes.map((item) => item.label), (i) => series.class[i]) },
  ];
  if (header.stacks.length) {
    const texts = ["", ...header.stacks.map((_, k) => tableSite(header, k + 1))];
    columns.push({ key: "site", label: "site", ...ranked(texts, (i) => series.stack[i]) });
  }
  for (const [key, texts] of [["owner", header.owners], ["label", header.labels]]) {
    if (series[key]) columns.push({ key, label: key === "label" ? "labels" : key, ...ranked(["", ...texts], (i) => series[key][i]) });
  }
  return columns;
}

/** Blocks that overlap the view and pass the mask, in time order. */
export function blocksInView(series, { x0, x1 }, mask) {
  const { start, end } = series;
  const to = upperBound(start, x1);
  const found = new Int32Array(to);
  let n = 0;
  for (let i = 0; i < to; i += 1) {
    if (start[i] < x1 && (end[i] > x0 || start[i] >= x0) && (!mask || mask[i])) found[n++] = i;
  }
  return found.subarray(0, n);
}

/** The first `most` of some blocks by a number, ties in time order; a heap, so that the rest is only looked at once. */
export function firstBlocks(blocks, number, descending, most = MOST_ROWS) {
  const sign = descending ? -1 : 1;
  const keys = new Float64Array(most);
  const heap = new Int32Array(most);
  let n = 0;
  const after = (key, block, k) => key > keys[k] || (key === keys[k] && block > heap[k]);
  const set = (k, key, block) => {
    keys[k] = key;
    heap[k] = block;
  };
  const up = (from, key, block) => {
    let k = from;
    while (k > 0 && after(key, block, (k - 1) >> 1)) {
      set(k, keys[(k - 1) >> 1], heap[(k - 1) >> 1]);
      k = (k - 1) >> 1;
    }
    set(k, key, block);
  };
  const down = (key, block) => {
    let k = 0;
    for (let child = 1; child < n; child = 2 * k + 1) {
      if (child + 1 < n && after(keys[child + 1], heap[child + 1], child)) child += 1;
      if (keys[child] < key || (keys[child] === key && heap[child] < block)) break;
      set(k, keys[child], heap[child]);
      k = child;
    }
    set(k, key, block);
  };
  for (let j = 0; j < blocks.length; j += 1) {
    const block = blocks[j];
    const key = sign * number(block);
    if (n < most) up(n++, key, block);
    else if (key < keys[0] || (key === keys[0] && block < heap[0])) down(key, block);
  }
  const order = Array.from({ length: n }, (_, k) => k).sort((a, b) => keys[a] - keys[b] || heap[a] - heap[b]);
  return order.map((k) => heap[k]);
}

/** One cell: quoted where needed; text that a spreadsheet would run as a formula gets an apostrophe before it. */
export function csvText(text) {
  const harmless = /^[=+\-@\t\r]/.test(text) ? `'${text}` : text;
  return /[",\r\n]/.test(harmless) ? `"${harmless.replaceAll('"', '""')}"` : harmless;
}

const CSV_CHUNK = 20_000;

/**
 * The blocks as CSV, in pieces for a Blob: true epochs in ns as whole numbers, sizes in bytes. An open block has no
 * end; its duration is until the end of the recording.
 */
export function csvPieces(timeline, series, blocks) {
  const { header, openClass } = timeline;
  const times = series.raw; // true times, also where the axis is folded
  const origin = BigInt(header.t0_ns);
  const owners = series.owner ? ["owner"] : [];
  const labels = series.label ? ["labels"] : [];
  const names = ["block_id", "operator", "size_bytes", "start_ns", "end_ns", "duration_ns", "open", "lifetime", "site", ...owners, ...labels, "pool", "device"];
  const texts = (list) => list.map((text) => csvText(text));
  const [ops, classes] = [texts(header.names), texts(header.classes.map((item) => item.label))];
  const sites = header.stacks.map((_, k) => csvText(tableSite(header, k + 1)));
  const [owner, label] = [texts(["", ...(header.owners ?? [])]), texts(["", ...(header.labels ?? [])])];
  const place = [csvText(series.info.pool ?? series.info.label ?? ""), csvText(series.info.device ?? "")];
  const pieces = [`${names.join(",")}\n`];
  for (let from = 0; from < blocks.length; from += CSV_CHUNK) {
    const lines = [];
    for (const i of blocks.subarray(from, from + CSV_CHUNK)) {
      const [start, end] = [times.start[i], times.end[i]];
      const open = series.class[i] === openClass;
      const row = [series.id[i], ops[series.name[i]], series.size[i], origin + BigInt(start), open ? "" : origin + BigInt(end)];
      row.push(end - start, open ? 1 : 0, classes[series.class[i]], series.stack[i] ? sites[series.stack[i] - 1] : "");
      if (owners.length) row.push(owner[series.owner[i]]);
      if (labels.length) row.push(label[series.label[i]]);
      lines.push([...row, ...place].join(","));
    }
    pieces.push(`${lines.join("\n")}\n`);
  }
  return pieces;
}
