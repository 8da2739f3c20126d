// Entry of the runtime: mount(root, payload, figures, {host}) makes a viewer below one element.

import { addActions, clampWindow, focusAt } from "./actions.js";
import { around, buildControls, updateInputs, updateLinks } from "./controls.js";
import { buildLegend, drawCurve, drawOverview, FOCUSED } from "./curve.js";
import { el } from "./dom.js";
import { openFigures } from "./figures.js";
import { newFilters } from "./filters.js";
import { hashWriter, readHash, readHashView } from "./hash.js";
import { listenToPointer } from "./hover.js";
import { buildLayerLegend, drawLayers } from "./layers.js";
import { buildOverview, placeOverview } from "./overview.js";
import { drawPanel } from "./panel.js";
import { decodePayload } from "./payload.js";
import { buildRibbon, drawRibbon } from "./ribbon.js";
import { layoutGantt } from "./rows.js";
import { buildSkeleton } from "./skeleton.js";
import { applyTheme, followTheme, themeName } from "./theme.js";
import { buildTimeline, LEAST_NS } from "./timeline.js";
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
  refs.rowsTitle = el("div", { class: "ms-rows-title" });
  refs.noRows = el("p", { class: "ms-norows", hidden: true });
  refs.band = el("div", { class: "ms-rubber", hidden: true });
  for (const name of FOCUSED) refs[`${name}Focus`] = el("div", { class: "ms-focus", hidden: true });
  refs.curveOver.append(refs.gapLabels, refs.peakLabel, refs.curveFocus, refs.curveCross);
  refs.layersOver.append(refs.layersCross);
  refs.stackOver.append(refs.stackFocus, refs.stackCross);
  refs.ganttOver.append(refs.rowsTitle, refs.rowLabels, refs.noRows, refs.ganttFocus, refs.ganttCross, refs.band);
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
    get time() {
      return timeline.time;
    },
    series: timeline.series(0),
    view: { x0: timeline.limits[0], x1: timeline.limits[1], width: 1 },
    hidden: new Set(),
    fitBytes: false, // whether the byte axis of the curves leaves out what is always allocated
    filters: newFilters(timeline.header),
    mask: null, // flags of the blocks that pass the filters, null = all
    grouping: { key: "operator" },
    colouring: "class",
    colours: null,
    focus: null, // the instant that rows are ranked by: {true, t, isPeak}
    topN: 30,
    aroundRows: 32, // height of the Gantt's axis and borders, measured once it is laid out
    dragMode: "pan",
    selection: [],
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

function stateOf(viewer) {
  const { view, drawn, series, rows } = viewer;
  return {
    x0: view.x0,
    x1: view.x1,
    range: viewer.trueRange(),
    time: viewer.time.mode,
    folds: viewer.time.folds,
    focus: viewer.focus,
    sum: viewer.sum,
    width: view.width,
    series: series.index,
    rows: rows.groups.map((g) => series.groupLabels[g]),
    rest: rows.rest.length,
    rowPx: rows.rowPx,
    bars: drawn.bars.length,
    barIds: Array.from(drawn.bars.slice(0, 200), (i) => series.id[i]),
    inView: drawn.inView,
    areaRuns: drawn.runs,
    thresholdPx: drawn.thresholdPx,
    selected: viewer.selected < 0 ? null : series.id[viewer.selected],
    selection: viewer.selection.map((i) => series.id[i]),
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
  let waiting = false;
  const draw = () => {
    waiting = false;
    if (viewer.closed) return;
    const began = performance.now();
    const { start, end } = figures.range;
    const [x0, x1] = clampWindow(start, end, timeline.limits);
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
      viewer.host.onRange?.(...viewer.trueRange());
    }
    viewer.draws += 1;
    viewer.lastDrawMs = performance.now() - began;
    viewer.host.onDraw?.(viewer);
  };
  viewer.redraw = () => {
    if (waiting) return;
    waiting = true;
    queueMicrotask(draw);
  };
}

/** The window to start with: the segment; where most of it is not recorded, the recording that holds the peak. */
function firstWindow(timeline) {
  const { limits } = timeline;
  const series = timeline.series(0);
  const empty = series.gaps.reduce((sum, [from, to]) => sum + to - from, 0);
  const t = series.peakTrue;
  const source = (timeline.header.sources ?? []).find((item) => t >= item.start && t <= item.end);
  if (!source || empty <= MOSTLY_EMPTY * (limits[1] - limits[0])) return limits;
  return clampWindow(...around(source).map(timeline.time.toShown), limits);
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
 *   `onSelect(ids)`, `onRange(start, end)` in true time, `onDraw(viewer)` after every drawing
 */
export async function mount(root, payload, parts, { host = {} } = {}) {
  const timeline = buildTimeline(await decodePayload(payload));
  while (!root.isConnected) await painted();
  const refs = buildSkeleton(root);
  buildOverlays(refs);
  const figures = await openFigures(host.Bokeh ?? window.Bokeh, parts.doc, refs);
  const viewer = newViewer(timeline, figures, refs, { host, themes: parts.theme });
  const { limits } = timeline;
  figures.range.setv({ bounds: limits, min_interval: LEAST_NS });
  figures.followTime(timeline);
  figures.noteAxes(timeline.header.axis_note ?? null);
  const wanted = host.page ? readHash(window.location.hash) : null;
  const [x0, x1] = wanted ? clampWindow(...wanted.map(timeline.time.toShown), limits) : firstWindow(timeline);
  figures.range.setv({ start: x0, end: x1 });
  addActions(viewer);
  viewer.state = () => stateOf(viewer);
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
  viewer.focus = focusAt(viewer, null);
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
