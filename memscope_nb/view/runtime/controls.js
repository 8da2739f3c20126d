// Header, inputs, class legend, links between segments, keys: everything around the plots.

import { data, el, safeHref } from "./dom.js";
import { buildFilters } from "./filterbar.js";
import { clip, count, duration, milliseconds, offset, parseTime } from "./format.js";
import { windowHash } from "./hash.js";

function fillHeader(viewer) {
  const { refs, timeline } = viewer;
  const { header, columns } = timeline;
  refs.title.replaceChildren(data(clip(header.title ?? "", 300)));
  refs.subtitle.replaceChildren(data(clip(header.subtitle ?? "", 500)));
  refs.facts.textContent = `${count(columns.id.length)} blocks · ${offset(header.window[0])} to ${offset(header.window[1])}`;
  refs.segment.textContent = `Seg ${header.segment + 1} of ${header.segments.length}`;
  const index = safeHref(header.index_href);
  refs.index.hidden = !index;
  if (index) refs.index.href = index;
}

/** Links to the neighbouring segments; they carry the window along. */
export function updateLinks(viewer) {
  const { refs, timeline, view } = viewer;
  const { header, limits } = timeline;
  const [w0, w1] = limits;
  const whole = view.x0 <= w0 && view.x1 >= w1;
  const hash = whole ? windowHash(viewer) : windowHash(viewer, ...viewer.trueRange());
  const least = (view.x1 - view.x0) / Math.max(view.width, 1);
  for (const [link, go, k, touches, text] of [
    [refs.prev, refs.goPrev, header.segment - 1, view.x0 - w0 <= least, `← Seg ${header.segment}`],
    [refs.next, refs.goNext, header.segment + 1, w1 - view.x1 <= least, `Seg ${header.segment + 2} →`],
  ]) {
    const href = safeHref(header.segments[k]?.href);
    link.classList.toggle("ms-off", !href);
    if (href) link.href = href + hash;
    else link.removeAttribute("href");
    go.hidden = !href || !touches;
    go.textContent = text;
    viewer.hrefs.set(go, href + hash);
  }
}

function applyInputs(viewer) {
  const { refs } = viewer;
  const { t0_ns: origin } = viewer.timeline.header;
  const [from, to] = [parseTime(refs.left.value, origin), parseTime(refs.right.value, origin)];
  const [w0, w1] = viewer.timeline.header.window;
  let problem = "";
  if (Number.isNaN(from) || Number.isNaN(to)) problem = "Left and Right are numbers of milliseconds or UTC times such as 14:03:21.5.";
  else if (from >= to) problem = "Left must be less than Right.";
  else if (to <= w0 || from >= w1) problem = `This segment holds ${offset(w0)} to ${offset(w1)}.`;
  refs.error.textContent = problem;
  for (const input of [refs.left, refs.right]) input.setAttribute("aria-invalid", String(Boolean(problem)));
  if (!problem) viewer.setRange(from, to);
}

/** Show the current window in the inputs, unless someone is typing there. */
export function updateInputs(viewer) {
  const { refs, timeline } = viewer;
  const [x0, x1] = viewer.trueRange();
  const seen = (timeline.header.sources ?? []).slice(0, MOST_SOURCES).map((item) => item.start < x1 && item.end > x0);
  const only = seen.filter(Boolean).length === 1 ? seen.indexOf(true) : "";
  refs.source.value = String(only);
  for (const [input, value] of [
    [refs.left, x0],
    [refs.right, x1],
  ]) {
    if (input.ownerDocument.activeElement !== input || input.dataset.typed !== "yes") {
      input.value = milliseconds(value, false);
      input.dataset.typed = "no";
      input.setAttribute("aria-invalid", "false");
    }
  }
}

function buildSeriesSelect(viewer) {
  const { refs, timeline } = viewer;
  const { series } = timeline.header;
  refs.seriesField.hidden = series.length < 2;
  series.forEach((item, k) => refs.series.append(el("option", { value: k, text: clip(item.label, 200) })));
  refs.series.addEventListener("change", () => viewer.setSeries(Number(refs.series.value)));
}

/** Other timelines of the export; the view goes along, the window does not: each has its own start. */
function buildTimelineSelect(viewer) {
  const { refs, host, timeline } = viewer;
  const { index_href: index, place } = timeline.header;
  const others = (host.timelines ?? []).filter((item) => safeHref(item.href));
  if (others.length < 2 || !safeHref(index)) return;
  refs.timelineField.hidden = false;
  others.forEach((item, k) => refs.timeline.append(el("option", { value: k, text: clip(item.label, 120) })));
  refs.timeline.value = String(others.findIndex((item) => item.place === place));
  const up = index.replace(/[^/]*$/, "");
  refs.timeline.addEventListener("change", () => viewer.leave(up + others[Number(refs.timeline.value)].href + windowHash(viewer)));
}

const MOST_SOURCES = 500;

function buildSourceSelect(viewer) {
  const { refs, timeline } = viewer;
  const sources = (timeline.header.sources ?? []).slice(0, MOST_SOURCES);
  refs.sourceField.hidden = sources.length < 2;
  refs.source.append(el("option", { value: "", text: "all" }));
  sources.forEach((item, k) => {
    refs.source.append(el("option", { value: k, text: `${clip(item.label, 60)} at ${offset(item.start)}, ${duration(item.end - item.start)}` }));
  });
  refs.source.addEventListener("change", () => {
    const chosen = sources[Number(refs.source.value)];
    if (refs.source.value === "") viewer.reset();
    else viewer.goToWindow(...around(chosen));
  });
}

/** A recorded window with a little room on both sides. */
export function around(source) {
  const room = (source.end - source.start) * 0.02;
  return [source.start - room, source.end + room];
}

function listenToKeys(viewer, target) {
  const actions = {
    ArrowLeft: () => viewer.pan(-0.2),
    ArrowRight: () => viewer.pan(0.2),
    "+": () => viewer.zoom(0.5),
    "=": () => viewer.zoom(0.5),
    "-": () => viewer.zoom(2),
    _: () => viewer.zoom(2),
    Home: () => viewer.reset(),
    Escape: () => (viewer.selection.length ? viewer.select(-1) : viewer.setFocus(null)),
  };
  const onKey = (event) => {
    const at = event.composedPath()[0];
    if (event.ctrlKey || event.metaKey || event.altKey || /^(INPUT|SELECT|TEXTAREA)$/.test(at.tagName ?? "")) return;
    const run = actions[event.key];
    if (!run) return;
    event.preventDefault();
    run();
  };
  target.addEventListener("keydown", onKey);
  viewer.onDestroy(() => target.removeEventListener("keydown", onKey));
}

function listenToInputs(viewer) {
  const { refs } = viewer;
  for (const input of [refs.left, refs.right]) {
    input.addEventListener("input", () => (input.dataset.typed = "yes"));
    input.addEventListener("keydown", (event) => {
      if (event.key === "Escape") input.dataset.typed = "no";
      else if (event.key === "Enter") applyInputs(viewer);
      else return;
      if (event.key === "Escape" || !refs.error.textContent) {
        for (const both of [refs.left, refs.right]) both.dataset.typed = "no";
        refs.error.textContent = "";
        updateInputs(viewer);
      }
    });
  }
  refs.reset.addEventListener("click", () => viewer.reset());
  refs.drag.addEventListener("change", () => {
    viewer.dragMode = refs.drag.value;
    viewer.figures.drag(viewer.dragMode);
  });
  for (const go of [refs.goPrev, refs.goNext]) go.addEventListener("click", () => viewer.leave(viewer.hrefs.get(go)));
}

function fillFooter(viewer) {
  const { refs, timeline } = viewer;
  const { notes, sources, generator } = timeline.header;
  const troubled = (sources ?? []).filter((item) => item.status && item.status !== "ok");
  const lines = [...troubled.map((item) => `${item.label}: ${item.status}`), ...(notes ?? [])];
  const caveats = timeline.header.series.map((item) => item.caveat).filter(Boolean);
  refs.footer.replaceChildren(
    el("ul", {}, ...[...caveats, ...lines].map((line) => el("li", {}, data(clip(String(line), 5000))))),
    el("p", {}, data(generator ?? "made by memscope-nb; this page works offline and sends nothing")),
  );
}

/** Fill everything around the plots and listen to it. */
export function buildControls(viewer, keyTarget) {
  fillHeader(viewer);
  fillFooter(viewer);
  buildFilters(viewer);
  buildTimelineSelect(viewer);
  buildSeriesSelect(viewer);
  buildSourceSelect(viewer);
  listenToInputs(viewer);
  listenToKeys(viewer, keyTarget);
}
