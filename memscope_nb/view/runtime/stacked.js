// Stacked area: allocated bytes by lifetime class, site, operator or owner; or one small area per series.

import { highestInstants, sweepGroups } from "./bands.js";
import { data, el } from "./dom.js";
import { bytes, byteTick, clip, shortFrame } from "./format.js";
import { tipRow } from "./hover.js";
import { fillBand, OLDER, pixelColour } from "./raster.js";
import { byteTicks, cutSwitch, drawStackFigure, frameRaster, rasterPlace, stackScale, viewOf } from "./stackplot.js";
import { stackBands } from "./stackgroups.js";
import { highest, thinSteps, valueAt } from "./steps.js";

const MOST_SERIES = 8;
const LEGEND_CHARS = 44;

/** What can be stacked: `pool` stands for one area per series, which are never added. */
function stackKeys({ timeline, series }) {
  const { header } = timeline;
  const keys = [["class", "lifetime"], ["operator", "operator"]];
  if (header.stacks.length) keys.push(["site", "site"]);
  if (series.owner && header.owners.length) keys.push(["owner", "owner"]);
  if (header.series.length > 1) keys.push(["pool", "series (pools), side by side"]);
  return keys;
}

function bandColour({ theme, timeline }, key, band, k) {
  if (band.own === "rest") return theme.rest;
  if (band.own === "hidden") return theme.css.border;
  if (key === "class") return theme.classes[timeline.header.classes[band.group].key] ?? theme.older;
  return theme.bands[k % theme.bands.length];
}

/** Bands of the current choice, kept until series, choice or filters change. */
function currentBands(viewer, kept) {
  const { timeline, series } = viewer;
  const { mask } = viewer;
  const same = kept.bands && kept.of === series && kept.mask === mask && kept.bandsKey === kept.key;
  if (!same) {
    Object.assign(kept, stackBandsOf(timeline, series, kept.key, mask), { of: series, mask, bandsKey: kept.key, theme: null });
  }
  if (kept.theme !== viewer.theme) {
    kept.theme = viewer.theme;
    kept.bands.forEach((band, k) => (band.colour = bandColour(viewer, kept.key, band, k)));
    fillStackLegend(viewer, kept);
  }
  return kept;
}

function stackBandsOf(timeline, series, key, mask) {
  const { bands, of } = stackBands(timeline, series, key, mask);
  return { bands, bandOf: of };
}

function fillStackLegend(viewer, kept) {
  const swatch = (colour) => {
    const node = el("span", { class: "ms-swatch" });
    node.style.background = colour;
    return node;
  };
  const short = (text) => clip(kept.key === "site" ? shortFrame(text) : text, LEGEND_CHARS);
  const item = (colour, label) =>
    el("span", { class: "ms-layer-key", title: clip(label, 2000) }, swatch(colour), data(short(label)));
  kept.legend.replaceChildren(
    ...kept.bands.map((band) => item(band.colour, band.label)),
    item(viewer.theme.older, "older than the window"),
  );
}

function drawBands(viewer, kept, raster) {
  const { series, view, theme } = viewer;
  currentBands(viewer, kept);
  const { bands, bandOf } = kept;
  const n = bands.length;
  const top = thinSteps(series.curves.allocated, view.x0, view.x1, Math.max(Math.floor(view.width), 1));
  const scale = stackScale(viewer, raster, top, kept.cut);
  const tops = highestInstants(series.curves.allocated, view.x0, view.x1, raster.width);
  const sums = sweepGroups(series, bandOf, n, tops.t);
  const colours = bands.map((band) => pixelColour(band.colour));
  const grey = pixelColour(theme.older);
  const y = (value) => raster.height - Math.round((value - scale.low) * scale.perByte);
  const older = new Float64Array(raster.width);
  let wrong = 0;
  for (let c = 0; c < raster.width; c += 1) {
    let level = (older[c] = valueAt(series.curves.older, tops.t[c]));
    if (Number.isNaN(tops.v[c])) continue;
    let below = y(level);
    if (level > 0) fillBand(raster, c, below, y(0), grey, grey, OLDER);
    for (let k = 0; k < n; k += 1) {
      level += sums[c * n + k];
      const above = y(level);
      if (above < below) fillBand(raster, c, above, below, colours[k], colours[k], k);
      below = above;
    }
    if (level !== tops.v[c]) wrong += 1;
  }
  kept.plan = { t: tops.t, total: tops.v, sums, older, wrong };
  drawStackFigure(viewer, raster, { ...scale, ticks: byteTicks(scale.low, scale.high), tops: [top] });
  const problem = wrong ? ` · the bands of ${wrong} pixel columns do not add up to the recorded total` : "";
  viewer.refs.status.textContent = `Each pixel column shows the instant of its highest total; the bands add up to allocated${problem}`;
}

/** One strip per series, all to the same scale. */
function drawStrips(viewer, kept, raster) {
  const { timeline, view, theme } = viewer;
  const all = timeline.header.series;
  const shown = all.slice(0, MOST_SERIES).map((_, k) => timeline.series(k));
  const thin = shown.map((series) => thinSteps(series.curves.allocated, view.x0, view.x1, Math.max(Math.floor(view.width), 1)));
  const strip = Math.max(...thin.map(highest), 1024) * 1.12;
  const most = strip * shown.length;
  const perByte = raster.height / most;
  const base = (k) => strip * (shown.length - 1 - k);
  const [live, grey] = [pixelColour(theme.allocated_fill), pixelColour(theme.older)];
  const y = (value) => raster.height - Math.round(value * perByte);
  shown.forEach((series, k) => {
    const tops = highestInstants(series.curves.allocated, view.x0, view.x1, raster.width);
    for (let c = 0; c < raster.width; c += 1) {
      if (Number.isNaN(tops.v[c])) continue;
      const older = Math.min(Math.max(valueAt(series.curves.older, tops.t[c]), 0), tops.v[c]);
      fillBand(raster, c, y(base(k) + older), y(base(k)), grey, grey, OLDER);
      fillBand(raster, c, y(base(k) + tops.v[c]), y(base(k) + older), live, live, k);
    }
  });
  const inner = byteTicks(0, strip / 1.12, 3);
  const ticks = shown.flatMap((_, k) => inner.map(([tick]) => [base(k) + tick, byteTick(tick)]));
  const labels = shown.map((series, k) => [clip(series.info.label, 60), k / shown.length]);
  const tops = thin.map((curve, k) => ({ t: curve.t, v: curve.v.map((value) => value + base(k)) }));
  kept.plan = { strips: shown, strip, highest: thin.map(highest) };
  drawStackFigure(viewer, raster, { low: 0, high: most, ticks, tops, labels, withGaps: false });
  const more = all.length - shown.length;
  viewer.refs.status.textContent =
    `${shown.length} series on one scale; they are not added to each other${more > 0 ? ` · ${more} more are not shown` : ""}`;
}

function drawStacked(viewer) {
  const kept = viewOf(viewer, "stacked");
  kept.raster = frameRaster(viewer, kept.raster);
  if (kept.key === "pool") drawStrips(viewer, kept, kept.raster);
  else drawBands(viewer, kept, kept.raster);
}

function fillStackedBar(viewer) {
  const kept = viewOf(viewer, "stacked");
  const keys = stackKeys(viewer);
  if (!keys.some(([key]) => key === kept.key)) kept.key = "class";
  const choice = el("select", {}, ...keys.map(([value, text]) => el("option", { value, text })));
  choice.value = kept.key;
  choice.addEventListener("change", () => {
    kept.key = choice.value;
    cut.hidden = kept.key === "pool";
    if (kept.key === "pool") kept.legend.replaceChildren();
    else kept.bandsKey = null;
    viewer.redraw();
  });
  const cut = cutSwitch(viewer, kept);
  cut.hidden = kept.key === "pool";
  kept.theme = null;
  kept.legend = el("span", { class: "ms-view-legend" });
  viewer.refs.viewBar.append(el("label", { class: "ms-field" }, "By", choice), cut, kept.legend);
}

function stackedTip(viewer, at) {
  const kept = viewOf(viewer, "stacked");
  if (!kept.raster) return null;
  const { plan, bands } = kept;
  const { column, owner } = rasterPlace(viewer, kept.raster, at);
  const table = el("table", {});
  const row = (label, value, here) => {
    const line = tipRow(data(clip(label, 120)), value);
    if (here) line.classList.add("ms-tip-here");
    table.append(line);
  };
  if (plan.strips) {
    const t = viewer.timeAt(at.x);
    plan.strips.forEach((series, k) => {
      const value = valueAt(series.curves.allocated, t);
      row(series.info.label, Number.isNaN(value) ? "no recording" : bytes(value), owner === k);
    });
    return [el("h3", { text: `allocated at ${viewer.when(t)}` }), table];
  }
  if (Number.isNaN(plan.total[column])) return [el("p", { text: "no recording here" })];
  for (let k = bands.length - 1; k >= 0; k -= 1) {
    const value = plan.sums[column * bands.length + k];
    if (value) row(bands[k].label, bytes(value), owner === k);
  }
  row("older than the window", bytes(plan.older[column]), owner === OLDER);
  const total = el("table", { class: "ms-tip-top" }, tipRow("allocated", bytes(plan.total[column])));
  return [el("h3", { text: `at ${viewer.when(plan.t[column])}` }), table, total];
}

export const stackedView = {
  key: "stacked",
  figure: "stack",
  label: () => "Stacked",
  available: () => true,
  enter: fillStackedBar,
  draw: drawStacked,
  tip: stackedTip,
};
