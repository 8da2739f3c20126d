// Block map: the blocks that hold most, stacked in the order of their start; the top edge is the allocated curve.

import { chooseLargest, highestInstants, sweepBlocks } from "./bands.js";
import { buildColours } from "./colours.js";
import { el } from "./dom.js";
import { bytes, count } from "./format.js";
import { barTip, tipRow } from "./hover.js";
import { fillBand, OLDER, outline, pixelColour, REST } from "./raster.js";
import { byteTicks, cutSwitch, drawStackFigure, frameRaster, rasterPlace, stackScale, viewMask, viewOf } from "./stackplot.js";
import { thinSteps } from "./steps.js";

const EDGE_SHARE = 0.35;
const MOST_OUTLINED = 200;

/** A function that gives the pixel colours of a block: its own and that of its edge. */
function blockColours(viewer) {
  viewer.colours ??= buildColours(viewer);
  const { of } = viewer.colours;
  const known = new Map();
  return (block) => {
    const text = of(block);
    let pair = known.get(text);
    if (!pair) known.set(text, (pair = [pixelColour(text), pixelColour(text, viewer.theme.css.ground, EDGE_SHARE)]));
    return pair;
  };
}

/**
 * Stack the chosen blocks at every pixel column and fill a raster.
 * @returns per column: instant, bytes of older, rest and all together, blocks in the rest, `wrong` = columns whose
 *   bands do not add up to the allocated curve
 */
export function rasterBlocks(viewer, raster, chosen, scale) {
  const { series, view, theme } = viewer;
  const { width, height } = raster;
  const tops = highestInstants(series.curves.allocated, view.x0, view.x1, width);
  const plan = { t: tops.t, total: tops.v, older: new Float64Array(width), rest: new Float64Array(width), wrong: 0 };
  plan.restBlocks = new Uint32Array(width);
  const coloursOf = blockColours(viewer);
  const [older, rest] = [theme.older, theme.rest].map((hex) => pixelColour(hex));
  const y = (value) => height - Math.round((value - scale.low) * scale.perByte);
  sweepBlocks(series, chosen, tops.t, (column, stack) => {
    plan.older[column] = stack.older;
    plan.rest[column] = stack.rest;
    plan.restBlocks[column] = stack.restBlocks;
    if (Number.isNaN(tops.v[column])) return;
    let level = stack.older;
    let below = y(level);
    if (level > 0) fillBand(raster, column, below, y(0), older, older, OLDER);
    for (let k = 0; k < stack.n; k += 1) {
      const block = stack.blocks[k];
      level += series.size[block];
      const above = y(level);
      if (above < below) {
        const [colour, edge] = coloursOf(block);
        fillBand(raster, column, above, below, colour, edge, block);
      }
      below = above;
    }
    level += stack.rest;
    fillBand(raster, column, y(level), below, rest, rest, REST);
    if (level !== tops.v[column]) plan.wrong += 1;
  });
  return plan;
}

function blockMapStatus(plan, picked, unseen) {
  const { chosen, inView, masked } = picked;
  if (!inView) return "No block in view.";
  const parts = [`${count(inView)} blocks in view`, `the ${count(chosen.length)} with most bytes × time stacked one by one`];
  const rest = inView - chosen.length;
  if (rest > 0) parts.push(`${count(rest)} in the band "rest"${masked ? `, of them ${count(masked)} hidden by filters` : ""}`);
  if (plan.wrong) parts.push(`the bands of ${count(plan.wrong)} pixel columns do not add up to the recorded total`);
  if (unseen) parts.push(`${count(unseen)} of the selected blocks too small to be seen here`);
  return parts.join(" · ");
}

function drawBlockMap(viewer) {
  const { series, view, theme, selection } = viewer;
  const kept = viewOf(viewer, "map");
  const inView = selection.filter((i) => series.start[i] < view.x1 && series.end[i] > view.x0).slice(0, MOST_OUTLINED);
  const picked = chooseLargest(series, view, kept.most ?? 3000, viewMask(viewer), inView);
  const raster = frameRaster(viewer, kept.raster);
  const top = thinSteps(series.curves.allocated, view.x0, view.x1, Math.max(Math.floor(view.width), 1));
  const scale = stackScale(viewer, raster, top, kept.cut);
  const plan = rasterBlocks(viewer, raster, picked.chosen, scale);
  const unseen = inView.length - (inView.length ? outline(raster, inView, pixelColour(theme.selection), pixelColour(theme.css.text)) : 0);
  Object.assign(kept, { raster, plan, picked });
  drawStackFigure(viewer, raster, { ...scale, ticks: byteTicks(scale.low, scale.high), tops: [top] });
  viewer.refs.status.textContent = blockMapStatus(plan, picked, unseen);
}

function fillBlockMapBar(viewer) {
  const { refs } = viewer;
  const kept = viewOf(viewer, "map");
  const most = el("select", {}, ...[300, 1000, 3000, 10000].map((n) => el("option", { value: n, text: count(n) })));
  most.value = String(kept.most ?? 3000);
  most.addEventListener("change", () => {
    kept.most = Number(most.value);
    viewer.redraw();
  });
  const key = (name, text) => el("span", { class: "ms-layer-key" }, el("span", { class: `ms-swatch ms-swatch-${name}` }), text);
  refs.viewBar.append(
    el("label", { class: "ms-field", title: "Blocks with the largest bytes × time in view; all others make one band" }, "Largest", most),
    cutSwitch(viewer, kept),
    key("rest", "rest"),
    key("older", "older than the window"),
  );
}

function blockMapTip(viewer, at) {
  const { raster, plan } = viewOf(viewer, "map");
  if (!raster) return null;
  const { column, owner } = rasterPlace(viewer, raster, at);
  if (Number.isNaN(plan.total[column])) return [el("p", { text: "no recording here" })];
  if (owner >= 0) return barTip(viewer, owner);
  if (owner !== REST && owner !== OLDER) return null;
  const table = el("table", {},
    tipRow(`rest · ${count(plan.restBlocks[column])} blocks`, bytes(plan.rest[column])),
    tipRow("older than the window", bytes(plan.older[column])),
    tipRow("allocated", bytes(plan.total[column])),
  );
  return [el("h3", { text: `at ${viewer.when(plan.t[column])}` }), table];
}

function pickBlock(viewer, at) {
  const { raster } = viewOf(viewer, "map");
  return raster ? Math.max(rasterPlace(viewer, raster, at).owner, -1) : -1;
}

export const blockMapView = {
  key: "map",
  figure: "stack",
  label: () => "Block map",
  available: () => true,
  enter: fillBlockMapBar,
  draw: drawBlockMap,
  tip: blockMapTip,
  pick: pickBlock,
};
