// The window over the overview strip: a box to drag, two edges to stretch it, a click beside it to jump.

import { el, place } from "./dom.js";

const LEAST_PX = 6;

/** Add the draggable window to the overview's overlay. */
export function buildOverview(viewer) {
  const { refs } = viewer;
  refs.shades = el("div", { class: "ms-shades" });
  refs.window = el(
    "div",
    { class: "ms-window", title: "Drag to move the window, its edges to stretch it" },
    el("div", { class: "ms-grip ms-grip-left", "data-edge": "left" }),
    el("div", { class: "ms-grip ms-grip-right", "data-edge": "right" }),
  );
  refs.strip = el("div", { class: "ms-strip" }, refs.shades, refs.window);
  refs.overviewOver.append(refs.strip);
  refs.strip.addEventListener("pointerdown", (event) => startDrag(viewer, event));
}

function timeAt(viewer, clientX) {
  const box = viewer.refs.strip.getBoundingClientRect();
  const [start, end] = viewer.timeline.span;
  return start + ((clientX - box.left) / box.width) * (end - start);
}

function jump(viewer, t) {
  const { x0, x1 } = viewer.view;
  viewer.goToShown(t - (x1 - x0) / 2, t + (x1 - x0) / 2);
}

function startDrag(viewer, event) {
  if (event.button !== 0) return;
  event.preventDefault();
  const { strip, window: box } = viewer.refs;
  if (!box.contains(event.target)) {
    jump(viewer, timeAt(viewer, event.clientX));
    return;
  }
  const edge = event.target.getAttribute("data-edge");
  const from = timeAt(viewer, event.clientX);
  const { x0, x1 } = viewer.view;
  const move = (next) => {
    const by = timeAt(viewer, next.clientX) - from;
    if (edge === "left") viewer.setShown(Math.min(x0 + by, x1), x1);
    else if (edge === "right") viewer.setShown(x0, Math.max(x1 + by, x0));
    else viewer.setShown(x0 + by, x1 + by);
  };
  const stop = () => {
    strip.removeEventListener("pointermove", move);
    strip.removeEventListener("pointerup", stop);
    strip.removeEventListener("pointercancel", stop);
  };
  strip.setPointerCapture(event.pointerId);
  strip.addEventListener("pointermove", move);
  strip.addEventListener("pointerup", stop);
  strip.addEventListener("pointercancel", stop);
}

/** Put the window, and the shade over other segments, where they belong. */
export function placeOverview(viewer) {
  const { refs, view, timeline, figures } = viewer;
  const frame = figures.frame("overview");
  const [start, end] = timeline.span;
  const px = frame.width / Math.max(end - start, 1);
  place(refs.strip, frame);
  const width = Math.max((view.x1 - view.x0) * px, LEAST_PX);
  const left = Math.min((view.x0 - start) * px, frame.width - width);
  place(refs.window, { left, width, top: 0, height: frame.height });
  const [w0, w1] = timeline.limits;
  const shades = [
    [0, (w0 - start) * px],
    [(w1 - start) * px, (end - w1) * px],
  ]
    .filter(([, size]) => size > 0.5)
    .map(([from, size]) => {
      const node = el("div", { class: "ms-shade", title: "Another segment: click to open it there" });
      place(node, { left: from, width: size, top: 0, height: frame.height });
      return node;
    });
  refs.shades.replaceChildren(...shades);
}
