// The list of the free gaps at an instant, with the blocks beside each, in the panel at the side.

import { data, el, facts } from "./dom.js";
import { bytes, bytesExact, clip, count } from "./format.js";
import { siteOf } from "./panel.js";
import { addressAt, kindText } from "./segments.js";
import { findBlock } from "./timeline.js";

const MOST_GAPS = 20;

function neighbour(viewer, map, at, side) {
  if (at < 0) return el("p", { class: "ms-freegap-side", text: `${side}: edge of the segment` });
  const id = map.blocks.id[at];
  const block = findBlock(viewer.series, id);
  const site = block < 0 ? null : siteOf(viewer, block);
  const button = el("button", {
    type: "button",
    class: "ms-link",
    text: `#${id}`,
    disabled: block < 0,
    on: { click: () => viewer.selectIds([id], false) },
  });
  return el("p", { class: "ms-freegap-side" }, `${side}: ${bytes(map.blocks.size[at])} `, button, " ", site ? data(clip(site, 200)) : el("span", { text: "no stack" }));
}

function gapItem(viewer, map, gap, isPicked, zoom) {
  const head = el("p", {},
    el("strong", { text: bytesExact(gap.size) }),
    ` at ${addressAt(map, gap.pos)} in a segment of ${bytes(gap.segment.size)} · `,
    data(kindText(map, gap.kind)),
    " ",
    el("button", { type: "button", class: "ms-link", text: "show", title: "Show the addresses around this gap", on: { click: () => zoom(gap) } }),
  );
  return el("li", { class: isPicked ? "ms-freegap ms-freegap-picked" : "ms-freegap" }, head, neighbour(viewer, map, gap.left, "below"), neighbour(viewer, map, gap.right, "above"));
}

/** Sums by kind: a request is served by one gap of its own kind. */
function kindRows(map, gaps) {
  const sums = new Map();
  for (const gap of gaps) {
    const one = sums.get(gap.kind) ?? { n: 0, bytes: 0, most: 0 };
    sums.set(gap.kind, { n: one.n + 1, bytes: one.bytes + gap.size, most: Math.max(one.most, gap.size) });
  }
  return [...sums].sort((a, b) => b[1].bytes - a[1].bytes).map(([kind, sum]) => [
    kindText(map, kind), `${bytes(sum.bytes)} in ${count(sum.n)}, largest ${bytes(sum.most)}`,
  ]);
}

/**
 * The content of the panel.
 * @param found what `gapsAt` gave for the instant
 * @param picked the gap that was clicked, or null
 */
export function gapParts(viewer, map, { t, found, picked, zoom }) {
  const { gaps } = found;
  const rest = gaps.filter((gap) => gap !== picked);
  const listed = (picked ? [picked, ...rest] : rest).slice(0, MOST_GAPS);
  const more = gaps.length - listed.length;
  return [
    el("h2", { text: `Free gaps at ${viewer.when(t)}` }),
    facts([
      ["mapped", bytesExact(found.mapped)],
      ["active", bytesExact(found.active)],
      ["pending free", bytesExact(found.pending)],
      ["free", `${bytesExact(found.idle)} in ${count(gaps.length)} gap${gaps.length === 1 ? "" : "s"}`],
    ]),
    gaps.length ? el("h3", { text: "By what they can serve" }) : null,
    facts(kindRows(map, gaps)),
    el("h3", { text: picked ? "The gap you clicked, then the largest" : "Largest first" }),
    el("ol", { class: "ms-freegaps" }, ...listed.map((gap) => gapItem(viewer, map, gap, gap === picked, zoom))),
    more > 0 ? el("p", { class: "ms-hint", text: `and ${count(more)} smaller ones` }) : null,
    ...map.info.notes.map((text) => el("p", { class: "ms-hint", text })),
  ].filter(Boolean);
}
