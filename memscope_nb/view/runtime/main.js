// Entry of the runtime: mount(root, payload, figures, {host}) makes a viewer below one element.

import { around, buildControls, updateInputs, updateLinks } from "./controls.js";
import { buildLegend, drawCurve, drawOverview } from "./curve.js";
import { el, safeHref } from "./dom.js";
import { openFigures } from "./figures.js";
import { clientBox, layoutGantt } from "./gantt.js";
import { hashWriter, readHash, readHashView, windowHash } from "./hash.js";
import { listenToPointer } from "./hover.js";
import { buildLayerLegend, drawLayers } from "./layers.js";
import { buildOverview, placeOverview } from "./overview.js";
import { drawPanel } from "./panel.js";
import { decodePayload } from "./payload.js";
import { buildRibbon, drawRibbon } from "./ribbon.js";
import { buildSkeleton } from "./skeleton.js";
import { valueAt } from "./steps.js";
import { applyTheme, followTheme, themeName } from "./theme.js";
import { buildTimeline, findBlock, LEAST_NS, snapshotAt } from "./timeline.js";
import { buildViews, drawView } from "./views.js";

const MOSTLY_EMPTY = 0.75;

/** Add overlays that the plots' parts fill later. */
function buildOverlays(refs) {
  refs.peakLabel = el("span", { class: "ms-peak-label", hidden: true });
  refs.gapLabels = el("div", {});
  refs.curveCross = el("div", { class: "ms-cross", hidden: true });
  refs.ganttCross = el("div", { class: "ms-cross", hidden: true });
  refs.layersCross = el("div", { class: "ms-cross", hidden: true });
  refs.stackCross = el("div", { class: "ms-cross", hidden: true });
  refs.rowLabels = el("div", { class: "ms-rows" });
  refs.rowsTitle = el("div", { class: "ms-rows-title", text: "operator, bytes at the peak · blocks" });
  refs.noRows = el("p", { class: "ms-norows", text: "No operator matches the filter.", hidden: true });
  refs.curveOver.append(refs.gapLabels, refs.peakLabel, refs.curveCross);
  refs.layersOver.append(refs.layersCross);
  refs.stackOver.append(refs.stackCross);
  refs.ganttOver.append(refs.rowsTitle, refs.rowLabels, refs.noRows, refs.ganttCross);
}

/** Keep a window inside the segment: shifted first, cut only where it is too wide. */
export function clampWindow(start, end, [w0, w1]) {
  const width = Math.min(Math.max(end - start, LEAST_NS), w1 - w0);
  const middle = end - start < LEAST_NS ? (start + end) / 2 - width / 2 : start;
  const from = Math.min(Math.max(middle, w0), w1 - width);
  return [from, from + width];
}

function newViewer(timeline, figures, refs, options) {
  const closers = [];
  return {
    timeline,
    figures,
    refs,
    themes: options.themes,
    host: options.host,
    hrefs: new Map(),
    series: timeline.series(0),
    view: { x0: timeline.header.window[0], x1: timeline.header.window[1], width: 1 },
    hidden: new Set(),
    shown: new Uint8Array(timeline.header.classes.length).fill(1),
    filterText: "",
    topN: 30,
    aroundRows: 32, // height of the Gantt's axis and borders, measured once it is laid out
    minSize: 0,
    selected: -1,
    ready: false,
    closed: false,
    draws: 0,
    onDestroy: (run) => closers.push(run),
    destroy() {
      if (this.closed) return;
      this.closed = true;
      closers.splice(0).forEach((run) => run());
      figures.close();
      refs.root.replaceChildren();
    },
  };
}

/** Range, selection and filters: what hosts and tests call. */
function addActions(viewer) {
  const { timeline, figures, refs } = viewer;
  const redrawRows = () => {
    layoutGantt(viewer);
    viewer.redraw();
  };
  Object.assign(viewer, {
    range: figures.range,
    setRange(start, end) {
      const [from, to] = clampWindow(start, end, timeline.header.window);
      figures.range.setv({ start: from, end: to });
    },
    pan(share) {
      const { x0, x1 } = viewer.view;
      viewer.setRange(x0 + share * (x1 - x0), x1 + share * (x1 - x0));
    },
    zoom(factor) {
      const { x0, x1 } = viewer.view;
      const [middle, half] = [(x0 + x1) / 2, ((x1 - x0) / 2) * factor];
      viewer.setRange(middle - half, middle + half);
    },
    reset: () => viewer.setRange(...timeline.header.window),
    /** Show an instant in the middle, zoomed in if the whole segment is shown. */
    goTo(t) {
      const [w0, w1] = timeline.header.window;
      const width = Math.min(viewer.view.x1 - viewer.view.x0, (w1 - w0) / 10);
      viewer.goToWindow(t - width / 2, t + width / 2);
    },
    /** Show a stretch of time, in the segment that holds its middle. */
    goToWindow(start, end) {
      const [w0, w1] = timeline.header.window;
      const middle = (start + end) / 2;
      const elsewhere = middle < w0 || middle > w1;
      const other = elsewhere && timeline.header.segments.find((item) => middle >= item.start && middle <= item.end);
      const href = other && safeHref(other.href);
      if (href) viewer.leave(href + windowHash(viewer, start, end));
      else viewer.setRange(start, end);
    },
    leave(href) {
      if (viewer.host.navigate) viewer.host.navigate(href);
      else window.location.href = href;
    },
    timeAt: (x) => viewer.view.x0 + (x / viewer.view.width) * (viewer.view.x1 - viewer.view.x0),
    select(block, show = false) {
      viewer.selected = block;
      drawPanel(viewer);
      if (show) showBlock(viewer, block);
      viewer.redraw();
      viewer.host.onSelect?.(block < 0 ? null : viewer.series.id[block]);
    },
    selectId(id) {
      viewer.select(findBlock(viewer.series, id), true);
    },
    setFilter(text) {
      viewer.filterText = text;
      if (refs.filter.value !== text) refs.filter.value = text;
      redrawRows();
    },
    setTop(n) {
      viewer.topN = n;
      refs.top.value = String(n);
      redrawRows();
    },
    setSeries(k) {
      viewer.series = timeline.series(k);
      refs.series.value = String(k);
      viewer.selected = -1;
      drawPanel(viewer);
      buildLegend(viewer);
      redrawRows();
    },
    snapshot: (t) => snapshotAt(timeline, viewer.series, t),
    valueAt: (ledger, t) => valueAt(ledger === "resident" ? timeline.resident : viewer.series.curves[ledger], t),
    boxOf: (id) => clientBox(viewer, findBlock(viewer.series, id)),
    state: () => stateOf(viewer),
  });
}

/** Bring a block into view: keep the width of the window where the block fits. */
function showBlock(viewer, block) {
  const { series, view } = viewer;
  const [start, end] = [series.start[block], series.end[block]];
  if (start >= view.x0 && end <= view.x1) return;
  const width = Math.max(view.x1 - view.x0, (end - start) * 1.2);
  const middle = (start + end) / 2;
  viewer.setRange(middle - width / 2, middle + width / 2);
}

function stateOf(viewer) {
  const { view, drawn, series, rows, timeline } = viewer;
  const { names } = timeline.header;
  return {
    x0: view.x0,
    x1: view.x1,
    width: view.width,
    series: series.index,
    rows: rows.names.map((op) => names[op]),
    rest: rows.rest.length,
    rowPx: rows.rowPx,
    bars: drawn.bars.length,
    barIds: Array.from(drawn.bars.slice(0, 200), (i) => series.id[i]),
    inView: drawn.inView,
    areaRuns: drawn.runs,
    thresholdPx: drawn.thresholdPx,
    selected: viewer.selected < 0 ? null : series.id[viewer.selected],
    status: viewer.refs.status.textContent,
    gaps: series.gaps,
    frames: Object.fromEntries(["overview", "curve", "gantt", "stack"].map((name) => [name, viewer.figures.frame(name)])),
    tab: viewer.views?.active.key,
    draws: viewer.draws,
    lastDrawMs: viewer.lastDrawMs,
  };
}

/** Draw all that depends on the window, at most once per turn. */
function addDrawing(viewer) {
  const { figures, timeline, refs } = viewer;
  const [w0, w1] = timeline.header.window;
  let waiting = false;
  const draw = () => {
    waiting = false;
    if (viewer.closed) return;
    const began = performance.now();
    const { start, end } = figures.range;
    const [x0, x1] = clampWindow(start, end, [w0, w1]);
    if (x0 !== start || x1 !== end) figures.range.setv({ start: x0, end: x1 });
    waiting = false;
    const moved = x0 !== viewer.view.x0 || x1 !== viewer.view.x1;
    viewer.view = { x0, x1, width: Math.max(figures.frame("curve").width, 1) };
    viewer.curves = drawCurve(viewer);
    drawLayers(viewer);
    drawView(viewer);
    drawRibbon(viewer);
    placeOverview(viewer);
    updateLinks(viewer);
    updateInputs(viewer);
    refs.tip.hidden = true;
    if (moved && viewer.ready) {
      viewer.writeHash();
      viewer.host.onRange?.(x0, x1);
    }
    viewer.draws += 1;
    viewer.lastDrawMs = performance.now() - began;
  };
  viewer.redraw = () => {
    if (waiting) return;
    waiting = true;
    queueMicrotask(draw);
  };
}

/** The window to start with: the segment; where most of it is not recorded, the recording that holds the peak. */
function firstWindow(timeline) {
  const limits = timeline.header.window;
  const series = timeline.series(0);
  const empty = series.gaps.reduce((sum, [from, to]) => sum + to - from, 0);
  const t = series.rankInstant;
  const source = (timeline.header.sources ?? []).find((item) => t >= item.start && t <= item.end);
  return source && empty > MOSTLY_EMPTY * (limits[1] - limits[0]) ? clampWindow(...around(source), limits) : limits;
}

/** The figure of layers is there only for recordings that sampled the process; capacity where it was given. */
function showLayers(viewer) {
  const { figures, refs, timeline } = viewer;
  const there = timeline.layers.length > 0;
  figures.model("layers").visible = there;
  refs.layers.parentElement.hidden = !there;
  refs.layerLegend.hidden = !there;
  for (const line of ["capacity-line", "layers-capacity-line"]) figures.model(line).location = timeline.header.capacity_bytes ?? null;
  if (there) buildLayerLegend(viewer);
}

/** Wait until the browser has laid out and painted. */
function painted() {
  return new Promise((resolve) => requestAnimationFrame(() => requestAnimationFrame(resolve)));
}

/**
 * Make a viewer below `root`.
 * @param {Element} root
 * @param {Uint8Array} payload see view/codec.py
 * @param {object} parts `{doc, theme, gutter}` from Python: Bokeh document and colours
 * @param {{host?: object}} options host: `Bokeh`, `theme`, `page` (keys of the whole page), `navigate(href)`,
 *   `onSelect(id or null)`, `onRange(x0, x1)`
 */
export async function mount(root, payload, parts, { host = {} } = {}) {
  const timeline = buildTimeline(await decodePayload(payload));
  while (!root.isConnected) await painted();
  const refs = buildSkeleton(root);
  buildOverlays(refs);
  const figures = await openFigures(host.Bokeh ?? window.Bokeh, parts.doc, refs);
  const viewer = newViewer(timeline, figures, refs, { host, themes: parts.theme });
  const { window: limits } = timeline.header;
  figures.range.setv({ bounds: limits, min_interval: LEAST_NS });
  const wanted = host.page ? readHash(window.location.hash) : null;
  const [x0, x1] = wanted ? clampWindow(...wanted, limits) : firstWindow(timeline);
  figures.range.setv({ start: x0, end: x1 });
  addActions(viewer);
  viewer.writeHash = host.page ? hashWriter(viewer) : () => {};
  addDrawing(viewer);
  applyTheme(viewer, themeName(host));
  buildOverview(viewer);
  buildRibbon(viewer);
  buildControls(viewer, host.page ? document : root);
  buildLegend(viewer);
  showLayers(viewer);
  drawPanel(viewer);
  drawOverview(viewer);
  layoutGantt(viewer);
  await painted();
  viewer.aroundRows = figures.model("gantt").height - figures.frame("gantt").height;
  layoutGantt(viewer);
  viewer.redraw();
  let overviewPx = 0;
  figures.onLayout(() => {
    const { width } = figures.frame("overview");
    if (width !== overviewPx) drawOverview(viewer);
    overviewPx = width;
    viewer.redraw();
  });
  figures.onRange(viewer.redraw);
  buildViews(viewer, host.page ? readHashView(window.location.hash) : null);
  followTheme(viewer, host);
  listenToPointer(viewer);
  await painted();
  viewer.redraw();
  await painted();
  drawOverview(viewer);
  await painted();
  viewer.ready = true;
  root.dataset.ready = "yes";
  return viewer;
}
