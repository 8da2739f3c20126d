// What hosts, keys, inputs and tests may ask of a viewer: range, selection, filters, rows, time.

import { buildLegend, drawOverview } from "./curve.js";
import { safeHref } from "./dom.js";
import { lifeTest } from "./filters.js";
import { offset, offsetAbout } from "./format.js";
import { clientBox } from "./gantt.js";
import { windowHash } from "./hash.js";
import { drawPanel } from "./panel.js";
import { layoutGantt } from "./rows.js";
import { valueAt } from "./steps.js";
import { findBlock, LEAST_NS, snapshotAt } from "./timeline.js";

/** Keep a window inside the segment: shifted first, cut only where it is too wide. */
export function clampWindow(start, end, [w0, w1]) {
  const width = Math.min(Math.max(end - start, LEAST_NS), w1 - w0);
  const middle = end - start < LEAST_NS ? (start + end) / 2 - width / 2 : start;
  const from = Math.min(Math.max(middle, w0), w1 - width);
  return [from, from + width];
}

/** The instant at a place of the axis, null = the peak, as what rows are ranked by. */
export function focusAt(viewer, u) {
  const peak = viewer.series.peakTrue;
  const isPeak = u === null || viewer.trueAt(u) === peak;
  return isPeak ? { true: peak, t: viewer.shown(peak), isPeak } : { true: viewer.trueAt(u), t: u, isPeak };
}

/** Times: `toTrue` and texts of places on the axis. */
function addTimes(viewer) {
  const { timeline } = viewer;
  Object.assign(viewer, {
    shown: (t) => timeline.time.toShown(t),
    trueAt: (u) => Math.round(timeline.time.toTrue(u)),
    when: (u) => offset(viewer.trueAt(u)),
    /** Text of a place as exact as the screen can resolve. */
    about(u) {
      const px = (viewer.view.x1 - viewer.view.x0) / viewer.view.width;
      return offsetAbout(timeline.time.toTrue(u), timeline.time.toTrue(u + px) - timeline.time.toTrue(u));
    },
    timeAt: (x) => viewer.view.x0 + (x / viewer.view.width) * (viewer.view.x1 - viewer.view.x0),
  });
}

/** The window: `setRange` and `goTo…` take true times, `setShown` places on the axis. */
function addRange(viewer) {
  const { timeline, figures } = viewer;
  Object.assign(viewer, {
    range: figures.range,
    setShown(start, end) {
      const [from, to] = clampWindow(start, end, timeline.limits);
      figures.range.setv({ start: from, end: to });
    },
    setRange: (start, end) => viewer.setShown(viewer.shown(start), viewer.shown(end)),
    trueRange: () => [viewer.trueAt(viewer.view.x0), viewer.trueAt(viewer.view.x1)],
    pan(share) {
      const { x0, x1 } = viewer.view;
      viewer.setShown(x0 + share * (x1 - x0), x1 + share * (x1 - x0));
    },
    zoom(factor) {
      const { x0, x1 } = viewer.view;
      const [middle, half] = [(x0 + x1) / 2, ((x1 - x0) / 2) * factor];
      viewer.setShown(middle - half, middle + half);
    },
    reset: () => viewer.setShown(...timeline.limits),
    /** Show an instant in the middle, zoomed in if the whole segment is shown. */
    goTo(t) {
      const [w0, w1] = timeline.limits;
      const half = Math.min(viewer.view.x1 - viewer.view.x0, (w1 - w0) / 10) / 2;
      viewer.goToShown(viewer.shown(t) - half, viewer.shown(t) + half);
    },
    goToWindow: (start, end) => viewer.goToShown(viewer.shown(start), viewer.shown(end)),
    /** Show a stretch of the axis, in the segment that holds its middle. */
    goToShown(start, end) {
      const [w0, w1] = timeline.limits;
      const middle = (start + end) / 2;
      const t = viewer.trueAt(middle);
      const elsewhere = middle < w0 || middle > w1;
      const other = elsewhere && timeline.header.segments.find((item) => t >= item.start && t <= item.end);
      const href = other && safeHref(other.href);
      if (href) viewer.leave(href + windowHash(viewer, viewer.trueAt(start), viewer.trueAt(end)));
      else viewer.setShown(start, end);
    },
    leave(href) {
      if (viewer.host.navigate) viewer.host.navigate(href);
      else window.location.href = href;
    },
  });
}

/** Bring a block into view: keep the width of the window where the block fits. */
function showBlock(viewer, block) {
  const { series, view } = viewer;
  const [start, end] = [series.start[block], series.end[block]];
  if (start >= view.x0 && end <= view.x1) return;
  const width = Math.max(view.x1 - view.x0, (end - start) * 1.2);
  const middle = (start + end) / 2;
  viewer.setShown(middle - width / 2, middle + width / 2);
}

/** Selected blocks: positions in the series; `selected` is the only one, or -1. */
function addSelection(viewer) {
  Object.assign(viewer, {
    selectBlocks(blocks, show = false) {
      viewer.selection = blocks;
      viewer.selected = blocks.length === 1 ? blocks[0] : -1;
      drawPanel(viewer);
      if (show && blocks.length) showBlock(viewer, blocks[0]);
      viewer.redraw();
      viewer.host.onSelect?.(blocks.map((i) => viewer.series.id[i]));
    },
    select: (block, show = false) => viewer.selectBlocks(block < 0 ? [] : [block], show),
    /** Add a block to the selection, or take it out. */
    toggle(block) {
      const rest = viewer.selection.filter((i) => i !== block);
      viewer.selectBlocks(rest.length < viewer.selection.length ? rest : [...rest, block]);
    },
    selectIds(ids, show = true) {
      const wanted = new Set(ids);
      const found = [];
      if (wanted.size) viewer.series.id.forEach((id, i) => wanted.has(id) && found.push(i));
      viewer.selectBlocks(found, show);
    },
    selectId: (id) => viewer.selectIds([id]),
  });
}

/** What the rows show, and in which order. */
function addRows(viewer) {
  const { timeline, refs } = viewer;
  const redrawRows = () => {
    layoutGantt(viewer);
    viewer.redraw();
  };
  Object.assign(viewer, {
    redrawRows,
    setFilter(text, where = viewer.filters.where) {
      const before = { ...viewer.filters };
      Object.assign(viewer.filters, { text, where });
      try {
        redrawRows();
        refs.error.textContent = "";
      } catch (error) {
        if (!(error instanceof SyntaxError)) throw error;
        Object.assign(viewer.filters, before);
        refs.error.textContent = `Not a pattern: ${error.message}`;
        return;
      }
      if (refs.filter.value !== text) refs.filter.value = text;
      refs.where.value = where;
    },
    /** Set other filters: `minSize`, `life`, `classes`, `owners`. */
    setFilters(some) {
      Object.assign(viewer.filters, some);
      redrawRows();
    },
    setTop(n) {
      viewer.topN = n;
      refs.top.value = String(n);
      redrawRows();
    },
    /** Rows by operator, site, owner…: `{key, rule, frame}`. */
    setGrouping(grouping) {
      const before = viewer.grouping;
      viewer.grouping = grouping;
      try {
        redrawRows();
        refs.error.textContent = "";
      } catch (error) {
        if (!(error instanceof SyntaxError)) throw error;
        viewer.grouping = before;
        refs.error.textContent = `Not a rule: ${error.message}`;
      }
      refs.grouping.value = viewer.grouping.key;
      refs.ruleField.hidden = viewer.grouping.key !== "path";
    },
    setColouring(key) {
      viewer.colouring = key;
      viewer.colours = null;
      refs.colouring.value = key;
      viewer.onColours();
      viewer.redraw();
    },
    /** Rank the rows by what is alive at a place of the axis; null = at the peak. */
    setFocus(u) {
      viewer.focus = focusAt(viewer, u);
      refs.unfocus.hidden = viewer.focus.isPeak;
      redrawRows();
    },
    setSeries(k) {
      viewer.series = timeline.series(k);
      refs.series.value = String(k);
      viewer.selection = [];
      viewer.selected = -1;
      viewer.colours = null;
      drawPanel(viewer);
      buildLegend(viewer);
      viewer.onColours();
      viewer.setFocus(null);
    },
    /** Show another axis: true, folded, steps. The window stays, in true time. */
    setTime(mode) {
      const [from, to] = viewer.trueRange();
      const whole = viewer.view.x0 <= timeline.limits[0] && viewer.view.x1 >= timeline.limits[1];
      const focus = viewer.focus.true;
      timeline.setTime(mode);
      refs.time.value = mode;
      viewer.focus.t = viewer.shown(focus);
      viewer.range.setv({ bounds: null });
      viewer.range.setv({ bounds: timeline.limits });
      if (whole) viewer.reset();
      else viewer.setRange(from, to);
      drawOverview(viewer);
      redrawRows();
    },
  });
}

/** The blocks now in view that pass all filters, as positions in the payload's block columns. */
function visiblePositions(viewer) {
  const { series, mask, view, filters, timeline } = viewer;
  const passes = lifeTest(series, view, filters.life, timeline.openClass);
  const found = [];
  for (let i = 0; i < series.n && series.start[i] <= view.x1; i += 1) {
    const there = series.end[i] > view.x0 || (series.end[i] === series.start[i] && series.start[i] >= view.x0);
    if (there && (!mask || mask[i]) && (!passes || passes(i))) found.push(series.at[i]);
  }
  return Uint32Array.from(found);
}

/** Give a viewer its actions. */
export function addActions(viewer) {
  addTimes(viewer);
  addRange(viewer);
  addSelection(viewer);
  addRows(viewer);
  Object.assign(viewer, {
    snapshot: (t) => snapshotAt(viewer.timeline, viewer.series, viewer.shown(t)),
    valueAt: (ledger, t) =>
      valueAt(ledger === "resident" ? viewer.timeline.resident : viewer.series.curves[ledger], viewer.shown(t)),
    boxOf: (id) => clientBox(viewer, findBlock(viewer.series, id)),
    visiblePositions: () => visiblePositions(viewer),
  });
}
