// The panel of the selected block: facts, stack with its site first and plumbing folded, overlapping blocks.

import { data, el, facts } from "./dom.js";
import { bytes, bytesExact, clip, count, durationExact, epoch, offset } from "./format.js";
import { aliveAtStart, overlapping } from "./timeline.js";

const MOST_OVERLAPS = 20;
const KINDS = [
  "no stack: the recording holds none for this block",
  "own stack",
  "stack of the forward operator with the same sequence number",
];

/** Frames of a block's stack, its site (-1 unknown) and how it was found. */
function stackOf(viewer, block) {
  const { header } = viewer.timeline;
  const stack = viewer.series.stack[block] - 1;
  if (stack < 0) return { frames: [], site: -1, kind: KINDS[0] };
  const frames = header.stacks[stack].map((f) => ({ frame: f, text: header.frames[f], plumbing: header.plumbing[f] === 1 }));
  return { frames, site: header.sites[stack], kind: KINDS[viewer.series.kind[block]] ?? KINDS[0] };
}

/** Text of the site of a block, or null. */
export function siteOf(viewer, block) {
  const { frames, site } = stackOf(viewer, block);
  return site >= 0 && frames[site] ? frames[site].text : null;
}

function classText(viewer, block) {
  return viewer.timeline.header.classes[viewer.series.class[block]]?.label ?? "";
}

function blockFacts(viewer, block) {
  const { series, timeline } = viewer;
  const { header } = timeline;
  const { start: starts, end: ends, activeEnd } = series.raw;
  const [start, end] = [starts[block], ends[block]];
  const open = series.class[block] === timeline.openClass;
  const late = activeEnd[block] - end;
  const { label, pool, device } = series.info;
  return facts([
    ["size", bytesExact(series.size[block])],
    ["lifetime", classText(viewer, block)],
    ["start", offset(start)],
    ["end", open ? `not released; recorded until ${offset(end)}` : offset(end)],
    ["duration", open ? `at least ${durationExact(end - start)}` : durationExact(end - start)],
    ["still active", late > 0 ? `${durationExact(late)} after its end` : null],
    ["started", header.axis_note ? null : epoch(header.t0_ns, start)],
    ["ended", open || header.axis_note ? null : epoch(header.t0_ns, end)],
    ["block", `#${series.id[block]}`],
    ["owner", series.owner?.[block] ? clip(header.owners[series.owner[block] - 1], 300) : null],
    ["labels", series.label?.[block] ? clip(header.labels[series.label[block] - 1], 300) : null],
    ["pool", [pool ?? label, device].filter((item) => item !== null && item !== undefined && item !== "").join(" · ")],
  ]);
}

function frameItem(viewer, frame, index, isSite) {
  const group = el("button", {
    type: "button",
    class: "ms-by-frame",
    "aria-label": "Group rows by what this frame calls",
    title: "Group rows by what this frame calls",
    on: { click: () => viewer.setGrouping({ key: "frame", frame: frame.frame }) },
  });
  return el("li", { class: isSite ? "ms-frame ms-frame-site" : "ms-frame", value: index + 1 }, data(frame.text), group);
}

/** All frames, innermost first; runs of plumbing become a closed <details>. */
function frameList(viewer, frames, site) {
  const list = el("ol", { class: "ms-frames" });
  for (let i = 0; i < frames.length; ) {
    let to = i;
    while (to < frames.length && frames[to].plumbing && to !== site) to += 1;
    if (to === i) {
      list.append(frameItem(viewer, frames[i], i, i === site));
      i += 1;
      continue;
    }
    const text = `${to - i} framework frame${to - i > 1 ? "s" : ""}`;
    const inner = el("ol", {}, ...frames.slice(i, to).map((frame, k) => frameItem(viewer, frame, i + k, false)));
    list.append(el("li", { class: "ms-fold" }, el("details", {}, el("summary", { text }), inner)));
    i = to;
  }
  return list;
}

function stackPart(viewer, block) {
  const { frames, site, kind } = stackOf(viewer, block);
  const part = el("section", {}, el("h3", { text: "Call stack" }), el("p", { class: "ms-kind", text: kind }));
  if (!frames.length) return part;
  if (site >= 0) part.append(el("p", { class: "ms-site" }, el("b", { text: "site " }), data(frames[site].text)));
  part.append(frameList(viewer, frames, site));
  return part;
}

function overlapPart(viewer, block) {
  const { series } = viewer;
  const found = overlapping(series, block);
  const title = `${count(found.length)} overlapping block${found.length === 1 ? "" : "s"} of this operator`;
  const list = el("ul", { class: "ms-overlaps" });
  for (const i of found.slice(0, MOST_OVERLAPS)) {
    const jump = el("button", { type: "button", class: "ms-link", text: `#${series.id[i]}` });
    jump.addEventListener("click", () => viewer.select(i, true));
    list.append(el("li", {}, jump, ` ${bytes(series.size[i])} · ${offset(series.raw.start[i])}`));
  }
  const part = el("section", {}, el("h3", { text: title }), list);
  if (found.length > MOST_OVERLAPS) {
    part.append(el("p", { class: "ms-kind", text: `the ${MOST_OVERLAPS} largest are listed` }));
  }
  return part;
}

const HINTS = [
  "Click a bar for its facts and call stack, with Shift to add one; drag with “select” for many. Click an operator's name to see only that operator.",
  "Click the curve to rank the rows by what is alive there; Esc returns to the peak.",
  "Areas are live bytes of blocks too short, or too many, to draw one by one, in the colour of most of these bytes; a click there picks the largest of them. Zoom in to take them apart.",
  "Drag pans, the wheel zooms. Keys: arrows, + and −, Home, Esc.",
];

function jumpList(viewer, blocks) {
  const { series, timeline } = viewer;
  const list = el("ul", { class: "ms-overlaps" });
  for (const i of blocks.slice(0, MOST_OVERLAPS)) {
    const jump = el("button", { type: "button", class: "ms-link", text: `#${series.id[i]}`, on: { click: () => viewer.select(i, true) } });
    const name = data(clip(timeline.header.names[series.name[i]], 60));
    list.append(el("li", {}, jump, ` ${bytes(series.size[i])} · ${offset(series.raw.start[i])} `, name));
  }
  return list;
}

/** Several selected blocks: what they are together, by operator, and the largest of them. */
function manyParts(viewer) {
  const { series, selection, timeline } = viewer;
  const { start, end } = series.raw;
  const sum = new Map();
  let [total, from, to] = [0, Infinity, -Infinity];
  for (const i of selection) {
    total += series.size[i];
    from = Math.min(from, start[i]);
    to = Math.max(to, end[i]);
    const name = series.name[i];
    const [size, n] = sum.get(name) ?? [0, 0];
    sum.set(name, [size + series.size[i], n + 1]);
  }
  const ranked = [...sum].sort((a, b) => b[1][0] - a[1][0]);
  const names = ranked.slice(0, 10).map(([name, [size, n]]) =>
    el("li", {}, data(clip(timeline.header.names[name], 80) || "(no name)"), ` ${bytes(size)} · ${count(n)}`),
  );
  const more = ranked.length > 10 ? [el("li", { text: `${count(ranked.length - 10)} other operators` })] : [];
  const largest = [...selection].sort((a, b) => series.size[b] - series.size[a] || a - b);
  return [
    el("h2", { text: `${count(selection.length)} blocks selected` }),
    facts([
      ["sizes", `${bytesExact(total)}, added up whenever they live`],
      ["first start", offset(from)],
      ["last end", offset(to)],
    ]),
    el("h3", { text: "By operator" }),
    el("ul", { class: "ms-overlaps" }, ...names, ...more),
    el("h3", { text: `Largest${largest.length > MOST_OVERLAPS ? ` ${MOST_OVERLAPS}` : ""}` }),
    jumpList(viewer, largest),
  ];
}

/** Show the selected block, several, or what to do. */
export function drawPanel(viewer) {
  const { refs, series, selected, timeline } = viewer;
  if (viewer.selection.length > 1) {
    refs.panel.replaceChildren(...manyParts(viewer));
    return;
  }
  if (selected < 0) {
    refs.panel.replaceChildren(...HINTS.map((text) => el("p", { class: "ms-hint", text })));
    return;
  }
  const alive = aliveAtStart(series, selected);
  refs.panel.replaceChildren(
    el("h2", {}, data(clip(timeline.header.names[series.name[selected]], 20000) || "(no name)")),
    blockFacts(viewer, selected),
    el("p", { class: "ms-kind", text: `${count(alive)} block${alive === 1 ? "" : "s"} of this operator alive at its start, this one included` }),
    stackPart(viewer, selected),
    overlapPart(viewer, selected),
  );
}
