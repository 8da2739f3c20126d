// Layers on the device: stacked levels at samples of the process, and what the pool counts beyond its residency.

import { el } from "./dom.js";
import { clip } from "./format.js";
import { placeCurve } from "./series.js";
import { highest, stepArea, stepLine, storedSteps, thinSteps, upperBound, valueAt } from "./steps.js";

/** Most layers that the figure has glyphs for. */
const MAX_LAYERS = 6;

/** Stack the stored layers: `top[i]` is the upper edge of layer i as a step curve. */
export function buildLayers(header, columns) {
  const layers = (header.layers ?? []).slice(0, MAX_LAYERS);
  let below = null;
  const stack = layers.map((layer, i) => {
    const own = storedSteps(columns.layer_t, columns[`layer_v_${i}`]);
    const top = { t: own.t, v: own.v.map((value, k) => value + (below ? below.v[k] : 0)) };
    below = top;
    return { ...layer, own, top };
  });
  let module = 0;
  for (const layer of stack) layer.colour = layer.key === "module" ? `module${(module += 1)}` : layer.key;
  return stack;
}

/** Layers on an axis. */
export function placeLayers(layers, time) {
  return layers.map((layer) => ({ ...layer, own: placeCurve(layer.own, time), top: placeCurve(layer.top, time) }));
}

/** Stretches where pools and modules reach above the residency: rectangles between the two. */
function unbackedRuns(tops, resident, x1) {
  const out = { left: [], right: [], bottom: [], top: [] };
  const times = [...new Set([...tops.t, ...resident.t])].sort((a, b) => a - b);
  times.forEach((t, i) => {
    const [high, low] = [valueAt(tops, t), valueAt(resident, t)];
    if (!(high > low)) return;
    out.left.push(t);
    out.right.push(Math.min(times[i + 1] ?? x1, x1));
    out.bottom.push(low);
    out.top.push(high);
  });
  return out;
}

/** Draw the figure for the current view. */
export function drawLayers(viewer) {
  const { figures, view, timeline } = viewer;
  if (!timeline.layers.length) return;
  const columns = Math.max(Math.floor(view.width), 1);
  const thin = (curve) => thinSteps(curve, view.x0, view.x1, columns);
  const tops = timeline.layers.map((layer) => thin(layer.top));
  tops.forEach((curve, i) => figures.setData(`layer${i}`, stepArea(curve, view.x1)));
  const resident = timeline.resident ? thin(timeline.resident) : { t: [], v: [] };
  figures.setData("layers-resident", stepLine(resident, view.x1));
  // The rest layer lies above the modules only where the process holds more than they explain.
  const reached = tops[tops.length - 1];
  figures.setData("unbacked", unbackedRuns(reached, resident, view.x1));
  const most = Math.max(highest(reached), highest(resident), 1024);
  figures.model("layers").y_range.setv({ start: 0, end: withCapacity(viewer, most) * 1.06 });
}

/** Upper end of an axis: what is drawn, and the capacity where that does not squeeze it. */
export function withCapacity(viewer, most) {
  const capacity = viewer.timeline.header.capacity_bytes;
  return capacity && capacity < 3 * most ? Math.max(most, capacity) : most;
}

/** What the layers say at an instant, from the top: `[[label, bytes, colour], …]`; empty without data. */
export function layersAt(timeline, t) {
  return timeline.layers
    .map((layer) => [layer.label, valueAt(layer.own, t), layer.colour])
    .filter(([, value]) => !Number.isNaN(value))
    .reverse();
}

/** Instant of the sample that holds at `t`, or null. */
export function sampleAt(timeline, t) {
  const { own } = timeline.layers[0];
  const i = upperBound(own.t, t) - 1;
  return i < 0 || Number.isNaN(own.v[i]) ? null : own.t[i];
}

/** Legend of the layers, from the bottom. */
export function buildLayerLegend(viewer) {
  const { refs, timeline } = viewer;
  const items = timeline.layers.map((layer) =>
    el("span", { class: "ms-layer-key" }, el("span", { class: `ms-swatch ms-layer-${layer.colour}` }), el("bdi", { text: clip(layer.label, 60) })),
  );
  const unbacked = el(
    "span",
    { class: "ms-layer-key", title: "Counted by the pool, not resident on the device: a sleeping engine, or samples of different instants" },
    el("span", { class: "ms-swatch ms-layer-unbacked" }),
    el("span", { text: "beyond residency (unbacked)" }),
  );
  refs.layerLegend.replaceChildren(el("span", { class: "ms-layer-title", text: "on the device" }), ...items, unbacked);
}
