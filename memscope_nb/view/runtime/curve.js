// The curve figure and the overview: steps to glyph data, the legend, the peak, gaps and step lines.

import { el, place } from "./dom.js";
import { bytes, duration, offset } from "./format.js";
import { withCapacity } from "./layers.js";
import { highest, lowest, stepArea, stepLine, thinSteps } from "./steps.js";

const LEDGER_TEXT = {
  allocated: "allocated",
  active: "active",
  reserved: "reserved",
  resident: "resident",
};
/** Figures that show the instant that rows are ranked by. */
export const FOCUSED = ["curve", "gantt", "stack"];

const MAX_STEP_LINES = 300;
const MOST_FOLD_LABELS = 40;
const LEAST_FOLD_PX = 12; // that the text of a fold needs

/** Thinned curves that a view shows: the ledgers that exist and are switched on, and the older band. */
function visibleCurves(viewer) {
  const { timeline, series, view, hidden } = viewer;
  const all = { ...series.curves, ...(timeline.resident ? { resident: timeline.resident } : {}) };
  const shown = {};
  for (const [key, curve] of Object.entries(all)) {
    if (!hidden.has(key)) shown[key] = thinSteps(curve, view.x0, view.x1, Math.max(Math.floor(view.width), 1));
  }
  return shown;
}

/** Range of the byte axis: from 0 to all that is drawn, or close around what is allocated. */
function byteRange(viewer, shown) {
  const around = [shown.allocated, shown.active].filter((curve) => curve?.v.length);
  const low = Math.min(...around.map(lowest));
  if (!viewer.fitBytes || !Number.isFinite(low)) {
    return [0, withCapacity(viewer, Math.max(...Object.values(shown).map(highest), 1024)) * 1.13];
  }
  const high = Math.max(...around.map(highest));
  const room = Math.max(high - low, 1024);
  return [low - 0.08 * room, high + 0.2 * room];
}

/** Marker, line and label of the peak; seen from elsewhere, the label tells on which side it lies. */
function drawPeak(viewer, bottom, top) {
  const { figures, refs, view } = viewer;
  const peak = viewer.hidden.has("allocated") ? null : viewer.series.info.peak?.allocated;
  const shown = peak && peak[1] <= top && peak[1] >= bottom;
  const at = peak ? viewer.shown(peak[0]) : 0;
  const inView = shown && at >= view.x0 && at <= view.x1;
  figures.model("peak-line").location = shown ? peak[1] : null;
  figures.setData("peak", inView ? { x: [at], y: [peak[1]] } : { x: [], y: [] });
  refs.peakLabel.hidden = !shown;
  if (!shown) return;
  const frame = figures.frame("curve");
  const before = at < view.x0 ? "← " : "";
  const after = at > view.x1 ? " →" : "";
  refs.peakLabel.textContent = `${before}peak ${bytes(peak[1])} at ${offset(peak[0])}${after}`;
  const fraction = Math.min(Math.max((at - view.x0) / (view.x1 - view.x0), 0), 1);
  const x = frame.left + fraction * frame.width;
  const left = fraction > 0.6 ? x - refs.peakLabel.offsetWidth - 9 : x + 9;
  place(refs.peakLabel, { left, top: frame.top + frame.height * ((top - peak[1]) / (top - bottom)) - 19 });
}

function drawGaps(viewer) {
  const { figures, refs, view, series } = viewer;
  const inView = series.gaps.filter(([from, to]) => from < view.x1 && to > view.x0);
  const strips = {
    x0: inView.map((gap) => Math.max(gap[0], view.x0)),
    x1: inView.map((gap) => Math.min(gap[1], view.x1)),
  };
  figures.setData("curve-gaps", strips);
  figures.setData("gantt-gaps", strips);
  figures.setData("layer-gaps", strips);
  const frame = figures.frame("curve");
  const px = frame.width / (view.x1 - view.x0);
  const labels = [];
  for (const [from, to] of inView) {
    const left = Math.max(from, view.x0);
    const width = (Math.min(to, view.x1) - left) * px;
    if (width < 58) continue;
    const label = el("span", { class: "ms-gap", text: "no recording" });
    place(label, { left: frame.left + (left - view.x0) * px, width, top: frame.top + frame.height / 2 - 9 });
    labels.push(label);
  }
  refs.gapLabels.replaceChildren(...labels, ...foldLabels(viewer, frame, px));
}

/** Breaks of the axis: how much time each leaves out. */
function foldLabels(viewer, frame, px) {
  const { x0, x1 } = viewer.view;
  const inView = viewer.time.folds.filter((fold) => fold.x1 > x0 && fold.x0 < x1);
  if (inView.length > MOST_FOLD_LABELS) return [];
  return inView.map((fold) => {
    const left = Math.max(fold.x0, x0);
    const width = (Math.min(fold.x1, x1) - left) * px;
    const text = width < LEAST_FOLD_PX ? null : el("span", { text: duration(fold.end - fold.start) });
    const label = el("span", { class: "ms-fold-mark" }, text);
    place(label, { left: frame.left + (left - x0) * px, width, top: frame.top, height: frame.height });
    return label;
  });
}

/** Words for a place inside a fold, null outside. */
export function foldText(viewer, u) {
  const fold = viewer.time.folds.find((item) => u > item.x0 && u < item.x1);
  if (!fold) return null;
  const what = viewer.time.mode === "folded" ? "nothing changes" : "between steps";
  return `folded: ${what} from ${offset(fold.start)} to ${offset(fold.end)} (${duration(fold.end - fold.start)})`;
}

/** The instant that the rows are ranked by, where it is not the peak. */
function drawFocus(viewer) {
  const { view, figures, refs, focus } = viewer;
  for (const name of FOCUSED) {
    const line = refs[`${name}Focus`];
    line.hidden = focus.isPeak || refs[name].parentElement.hidden || focus.t < view.x0 || focus.t > view.x1;
    if (line.hidden) continue;
    const frame = figures.frame(name);
    place(line, { left: frame.left + ((focus.t - view.x0) / (view.x1 - view.x0)) * frame.width, top: frame.top, height: frame.height });
  }
}

/** Step boundaries inside the view; none where they would only be a grey veil. */
export function stepEdges(viewer) {
  const { x0, x1 } = viewer.view;
  const edges = new Set();
  for (const step of viewer.timeline.header.steps) {
    for (const t of [step.start, step.end].map(viewer.shown)) if (t > x0 && t < x1) edges.add(t);
  }
  return edges.size > MAX_STEP_LINES ? [] : [...edges];
}

function drawStepLines(viewer, bottom, top) {
  const x = stepEdges(viewer);
  viewer.figures.setData("steps", { x, y0: x.map(() => bottom), y1: x.map(() => top) });
}

/** Draw everything of the curve figure for the current view. Returns the thinned curves. */
export function drawCurve(viewer) {
  const { figures, view } = viewer;
  const shown = visibleCurves(viewer);
  const [bottom, top] = byteRange(viewer, shown);
  const empty = { x: [], y: [] };
  for (const key of ["allocated", "active", "reserved", "resident"]) {
    figures.setData(key, shown[key] ? stepLine(shown[key], view.x1) : empty);
  }
  figures.setData("fill", shown.allocated ? stepArea(shown.allocated, view.x1) : empty);
  figures.setData("older", shown.older ? stepArea(shown.older, view.x1) : empty);
  figures.model("curve").y_range.setv({ start: bottom, end: top });
  drawStepLines(viewer, bottom, top);
  drawPeak(viewer, bottom, top);
  drawGaps(viewer);
  drawFocus(viewer);
  return shown;
}

/** A switch of the byte axis: where much is allocated throughout, changes are small beside it. */
function fitButton(viewer) {
  const flip = () => {
    viewer.fitBytes = !viewer.fitBytes;
    button.setAttribute("aria-pressed", String(viewer.fitBytes));
    viewer.redraw();
  };
  const title = "Let the byte axis show only the range of what is allocated, instead of starting at 0";
  const attributes = { type: "button", class: "ms-fit", title, "aria-pressed": String(viewer.fitBytes), text: "fit bytes" };
  const button = el("button", { ...attributes, on: { click: flip } });
  return button;
}

/** The legend above the plot; every entry switches its curve. */
export function buildLegend(viewer) {
  const { refs, timeline, series } = viewer;
  const keys = ["older", ...Object.keys(series.curves).filter((key) => key !== "older")];
  const items = [...keys, ...(timeline.resident ? ["resident"] : [])].map((key) => {
    const text =
      key === "older"
        ? "older than the window"
        : key === "resident"
          ? timeline.header.resident.label || "resident (process)"
          : LEDGER_TEXT[key];
    const toggle = () => {
      if (!viewer.hidden.delete(key)) viewer.hidden.add(key);
      button.setAttribute("aria-pressed", String(!viewer.hidden.has(key)));
      viewer.redraw();
    };
    const button = el(
      "button",
      { type: "button", class: "ms-key", "aria-pressed": String(!viewer.hidden.has(key)), on: { click: toggle } },
      el("span", { class: `ms-line ms-line-${key}` }),
      el("bdi", { text }),
    );
    return button;
  });
  const peaks = el("span", { class: "ms-peaks" }, el("span", { text: "peaks" }));
  for (const [key, peak] of Object.entries(series.info.peak ?? {})) {
    peaks.append(
      el("button", {
        type: "button",
        class: "ms-peak-go",
        title: `Highest ${LEDGER_TEXT[key] ?? key} of the timeline: ${peak[1]} B at ${offset(peak[0])}; click to go there`,
        text: `${LEDGER_TEXT[key] ?? key} ${bytes(peak[1])}`,
        on: { click: () => viewer.goTo(peak[0]) },
      }),
    );
  }
  refs.legend.replaceChildren(...items, fitButton(viewer), ...(peaks.childElementCount > 1 ? [peaks] : []));
}

/** The strip of the whole timeline, drawn anew for every size. */
export function drawOverview(viewer) {
  const { figures, timeline } = viewer;
  const [start, end] = timeline.span;
  const plot = figures.model("overview");
  // BokehJS repaints an axis only when its range changes, and would leave the ticks of an earlier layout standing
  plot.x_range.setv({ start, end: plot.x_range.end === end ? end + 1 : end });
  plot.y_range.setv({ start: 0, end: Math.max(highest(timeline.overview), 1) * 1.05 });
  figures.setData("overview", stepArea(timeline.overview, end));
}
