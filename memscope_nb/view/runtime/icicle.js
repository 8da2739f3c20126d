// Icicle: what is alive at the focus instant, by call stack; the width of a box is its bytes.

import { data, el } from "./dom.js";
import { bytes, bytesExact, clip, count, offsetAbout, shortFrame } from "./format.js";
import { showTip, tipRow } from "./hover.js";
import { buildIcicle, followPath, layoutIcicle } from "./icicletree.js";
import { viewOf } from "./stackplot.js";

const ROW_PX = 22;
const MOST_BOXES = 2500;
const TEXT_PX = 30;
const HUES = 6;

/** One hue for all frames of a file. */
function hueOf(text) {
  const file = text.split(/[:(]/, 1)[0];
  let hash = 7;
  for (let i = 0; i < Math.min(file.length, 200); i += 1) hash = (hash * 31 + file.charCodeAt(i)) >>> 0;
  return hash % HUES;
}

function boxLabel(node) {
  const times = node.folded.length ? ` ×${count(node.folded.length)}` : "";
  return (clip(node.text, 300) || "(no name)") + times;
}

function boxNode(kept, box) {
  const { node } = box;
  const colour = node.kind === "frame" ? `ms-ice-hue${hueOf(node.text)}` : `ms-ice-${node.kind}`;
  const button = el("button", { type: "button", class: `ms-ice-box ${colour}`, "aria-label": `${boxLabel(node)}, ${bytes(node.bytes)}` });
  button.style.left = `${box.x}px`;
  button.style.top = `${box.depth * ROW_PX}px`;
  button.style.width = `${Math.max(box.width - 1, 0.75)}px`;
  if (box.width >= TEXT_PX) {
    const times = node.folded.length ? ` ×${count(node.folded.length)}` : "";
    button.append(data(node.kind === "frame" ? clip(shortFrame(node.text), 300) + times : boxLabel(node)));
    button.append(el("span", { class: "ms-ice-bytes", text: bytes(node.bytes) }));
  }
  kept.boxOf.set(button, box);
  return button;
}

function zoomTo(viewer, path) {
  const kept = viewOf(viewer, "alive");
  kept.path = path;
  kept.refocus = kept.boxes.contains(document.activeElement) || kept.crumbs.contains(document.activeElement);
  kept.drawnFor = null;
  viewer.redraw();
}

/** The way from the whole to what is shown; every part leads back. */
function breadcrumb(viewer, kept, path) {
  const crumb = (text, to) => el("button", { type: "button", class: "ms-link", on: { click: () => zoomTo(viewer, to) } }, data(clip(text, 60)));
  const parts = [crumb("everything alive", [])];
  let node = kept.tree.root;
  path.forEach((key, k) => {
    node = node.children.get(key);
    const last = k === path.length - 1;
    parts.push(el("span", { text: " › " }), last ? data(clip(boxLabel(node), 120)) : crumb(boxLabel(node), path.slice(0, k + 1)));
  });
  kept.crumbs.replaceChildren(...parts);
  kept.crumbs.hidden = !path.length;
}

function aliveStatus(viewer, tree, { dropped, deeper }, t) {
  const when = viewer.when(t);
  const { alive, older, total, common } = tree;
  const parts = [`${bytes(total)} allocated at ${when} = ${bytes(alive.bytes)} in ${count(alive.blocks)} blocks`];
  if (alive.hiddenBlocks) parts[0] += ` + ${bytes(alive.hidden)} in ${count(alive.hiddenBlocks)} hidden by filters`;
  if (older > 0) parts[0] += ` + ${bytes(older)} older than the window`;
  if (older < 0) parts[0] += ` − ${bytes(-older)}: the rows exceed the recorded total, the boxes show the rows`;
  if (alive.bytes + alive.hidden + older !== total) parts.push("these do not add up");
  if (common.length) parts.push(`${count(common.length)} common frame${common.length > 1 ? "s" : ""} hidden`);
  if (deeper) parts.push("deeper rows show when you zoom in");
  if (dropped) parts.push(`${count(dropped)} boxes too small to draw`);
  return parts.join(" · ");
}

/** Boxes for the width, wider limits where there would be too many. */
function fittingBoxes(root, width) {
  for (let least = 1; ; least *= 2) {
    const layout = layoutIcicle(root, width, least);
    if (layout.boxes.length <= MOST_BOXES || least > 64) return layout;
  }
}

function rootNode({ root, total }, width, t) {
  const all = root.bytes === total;
  const text = all ? `${bytes(total)} allocated at ${t}` : `${bytes(root.bytes)} shown of ${bytes(total)} allocated at ${t}`;
  const box = el("div", { class: "ms-ice-box ms-ice-root", text });
  box.style.width = `${width}px`;
  return box;
}

function drawIcicle(viewer) {
  const kept = viewOf(viewer, "alive");
  const { t } = viewer.focus;
  const width = Math.max(kept.boxes.clientWidth - 1, 50);
  const state = [viewer.series, viewer.series.start, t, viewer.mask, kept.innermost, kept.plumbing, kept.withOlder, width, (kept.path ?? []).join("\n")];
  if (kept.drawnFor?.every((value, k) => value === state[k])) return;
  const tree = buildIcicle(viewer.timeline, viewer.series, t, kept, viewer.mask);
  kept.tree = tree;
  kept.boxOf = new WeakMap();
  if (Number.isNaN(tree.total)) {
    kept.boxes.replaceChildren(el("p", { class: "ms-hint", text: "No recording at this instant." }));
    viewer.refs.status.textContent = "";
    kept.drawnFor = state;
    return;
  }
  const { node, path } = followPath(tree.root, kept.path ?? []);
  kept.path = path;
  const layout = fittingBoxes(node, width);
  const nodes = layout.boxes.map((box) =>
    box.depth || path.length ? boxNode(kept, { ...box, path: [...path, ...box.path] }) : rootNode(tree, width, viewer.when(t)));
  kept.boxes.style.height = `${layout.rows * ROW_PX + 4}px`;
  kept.boxes.replaceChildren(...nodes);
  kept.layout = layout;
  if (kept.refocus) kept.boxes.querySelector("button")?.focus(); // the box that was activated is gone
  kept.refocus = false;
  breadcrumb(viewer, kept, path);
  viewer.refs.status.textContent = aliveStatus(viewer, tree, layout, t);
  state[state.length - 1] = path.join("\n");
  kept.drawnFor = state;
}

function icicleTip(kept, { node, small }) {
  const share = kept.tree.total > 0 ? `${((100 * node.bytes) / kept.tree.total).toFixed(1)} %` : "";
  const table = el("table", {}, tipRow("bytes", bytesExact(node.bytes)), tipRow("of allocated", share));
  if (node.blocks) table.append(tipRow("blocks", count(node.blocks)));
  const folded = node.folded.slice(0, 4).map((text) => el("p", { class: "ms-tip-site" }, data(clip(text, 160))));
  if (node.folded.length > folded.length) folded.push(el("p", { class: "ms-tip-site", text: `and ${count(node.folded.length - folded.length)} more` }));
  const title = small ? `${count(small)} parts too small to draw one by one` : boxLabel(node);
  return [el("h3", {}, data(title)), table, ...folded];
}

/** Listen once to all boxes. */
function listenToBoxes(viewer, kept) {
  const boxAt = (event) => kept.boxOf?.get(event.target.closest("button"));
  kept.boxes.addEventListener("click", (event) => {
    const box = boxAt(event);
    if (box && box.node.children.size) zoomTo(viewer, box.path);
  });
  kept.boxes.addEventListener("pointermove", (event) => {
    const box = boxAt(event);
    if (box) showTip(viewer, event, icicleTip(kept, box));
    else viewer.refs.tip.hidden = true;
  });
  kept.boxes.addEventListener("pointerleave", () => (viewer.refs.tip.hidden = true));
}

function enterIcicle(viewer) {
  const kept = viewOf(viewer, "alive");
  kept.drawnFor = null;
  kept.innermost ??= false;
  kept.plumbing ??= false;
  kept.withOlder ??= true;
  const order = el("select", {}, el("option", { value: "outer", text: "outermost first" }), el("option", { value: "inner", text: "innermost first" }));
  order.value = kept.innermost ? "inner" : "outer";
  order.addEventListener("change", () => {
    kept.innermost = order.value === "inner";
    zoomTo(viewer, []);
  });
  const toggle = (key, text) => {
    const box = el("input", { type: "checkbox" });
    box.checked = kept[key];
    box.addEventListener("change", () => {
      kept[key] = box.checked;
      zoomTo(viewer, []);
    });
    return el("label", { class: "ms-field" }, box, text);
  };
  kept.crumbs = el("nav", { class: "ms-crumbs", "aria-label": "Zoomed part" });
  viewer.refs.viewBar.append(
    el("label", { class: "ms-field" }, "Frames", order),
    toggle("plumbing", "framework frames"),
    toggle("withOlder", "older memory"),
    el("span", { class: "ms-bar-hint", text: "width = bytes; click a box to zoom" }),
  );
  kept.boxes = el("div", { class: "ms-ice" });
  viewer.refs.viewOwn.append(kept.crumbs, kept.boxes);
  listenToBoxes(viewer, kept);
}

export const icicleView = {
  key: "alive",
  figure: null,
  label: (viewer) => `Alive at ${offsetAbout(viewer.focus.true, 1000)}`,
  available: () => true,
  enter: enterIcicle,
  draw: drawIcicle,
};
