// The fixed part of a viewer's DOM. Returns the elements that the rest of the runtime fills.

import { el } from "./dom.js";
import { buildViewFrame } from "./viewtabs.js";

function labelled(text, input, hint) {
  return el("label", { class: "ms-field", title: hint }, el("span", { text }), input);
}

function options(values) {
  return values.map(([value, text]) => el("option", { value, text }));
}

const LIVES = [
  ["any", "all in view"],
  ["allocated", "allocated in view"],
  ["released", "released in view"],
  ["either", "allocated or released in view"],
  ["open", "not released"],
];
const TIME_HINT = "ms from the start, or a UTC time such as 14:03:21.5; Enter applies";

function controlBar(refs) {
  const input = (name, attributes) => (refs[name] = el("input", { autocomplete: "off", ...attributes }));
  const time = { type: "text", inputmode: "decimal", size: 13, spellcheck: "false" };
  refs.top = el("select", {}, ...options([10, 20, 30, 60, 100].map((n) => [n, n])));
  refs.top.value = "30";
  refs.timeline = el("select", {});
  refs.timelineField = labelled("Timeline", refs.timeline, "Other ranks and devices of this export");
  refs.timelineField.hidden = true;
  refs.series = el("select", {});
  refs.seriesField = labelled("Series", refs.series, "Series are shown one at a time and never added to each other");
  refs.grouping = el("select", {});
  refs.rule = el("input", { type: "text", size: 22, autocomplete: "off", spellcheck: "false" });
  refs.ruleField = labelled("Rule", refs.rule, "A pattern for the frames from the site outwards; its group names the row. Enter applies");
  refs.ruleField.hidden = true;
  refs.colouring = el("select", {});
  refs.where = el("select", {}, ...options([["name", "operators"], ["stack", "stacks"], ["both", "both"]]));
  refs.life = el("select", {}, ...options(LIVES));
  refs.time = el("select", {});
  refs.timeField = labelled("Time", refs.time, "How time lies on the axis; ticks and inputs are true times");
  refs.unfocus = el("button", { type: "button", text: "Rank at the peak", hidden: true, title: "Rank rows at the peak again (Esc)" });
  refs.source = el("select", {});
  refs.sourceField = labelled("Recording", refs.source, "Zoom to one recorded window");
  refs.minText = el("output", { class: "ms-min", text: "all" });
  refs.drag = el("select", {}, ...options([["pan", "pan"], ["zoom", "zoom"], ["select", "select"]]));
  refs.reset = el("button", { type: "button", text: "Reset", title: "Show the whole segment (Home)" });
  refs.classes = el("fieldset", { class: "ms-classes" }, el("legend", { text: "Lifetime" }));
  refs.owners = el("fieldset", { class: "ms-classes", hidden: true }, el("legend", { text: "Owner" }));
  refs.colourKey = el("div", { class: "ms-classes", role: "group", "aria-label": "Colours", hidden: true });
  refs.error = el("span", { class: "ms-error", role: "status" });
  return el(
    "div",
    { class: "ms-controls" },
    labelled("Left", input("left", { ...time }), TIME_HINT),
    labelled("Right", input("right", { ...time }), TIME_HINT),
    el("span", { class: "ms-unit", text: "ms" }),
    refs.reset,
    labelled("Drag", refs.drag, "What dragging over the plots does"),
    refs.timelineField,
    refs.timeField,
    refs.seriesField,
    refs.sourceField,
    labelled("Find", input("filter", { type: "search", size: 18, placeholder: "text or /pattern/" })),
    labelled("in", refs.where, "Where to look for the text"),
    el("span", { class: "ms-together" }, labelled("Min size", input("min", { type: "range", min: 0, max: 40, value: 0, step: 1 })), refs.minText),
    labelled("Blocks", refs.life, "Which blocks of the view to show"),
    labelled("Rows by", refs.grouping),
    refs.ruleField,
    labelled("Top", refs.top, "Rows, by bytes alive at the peak or where you clicked the curve"),
    labelled("Colour by", refs.colouring),
    refs.unfocus,
    refs.classes,
    refs.owners,
    refs.colourKey,
    refs.error,
  );
}

function buildHeader(refs) {
  refs.title = el("h1", {});
  refs.subtitle = el("span", { class: "ms-subtitle" });
  refs.facts = el("span", { class: "ms-headfacts" });
  refs.index = el("a", { text: "All timelines" });
  refs.prev = el("a", { text: "← Prev", rel: "prev" });
  refs.segment = el("span", { class: "ms-segment" });
  refs.next = el("a", { text: "Next →", rel: "next" });
  return el(
    "header",
    { class: "ms-header" },
    refs.title,
    refs.subtitle,
    refs.facts,
    el("nav", { "aria-label": "Segments" }, refs.index, refs.prev, refs.segment, refs.next),
  );
}

function buildPlots(refs) {
  const figure = (name, label) => {
    refs[name] = el("div", { class: "ms-bokeh" });
    refs[`${name}Over`] = el("div", { class: "ms-over" });
    return el("div", { class: `ms-figure ms-${name}`, role: "group", "aria-label": label }, refs[name], refs[`${name}Over`]);
  };
  refs.ribbon = el("div", { class: "ms-ribbon", "aria-label": "Phases, ranges and steps" });
  refs.legend = el("div", { class: "ms-legend", role: "group", "aria-label": "Curves" });
  refs.layerLegend = el("div", { class: "ms-legend ms-layer-legend", role: "group", "aria-label": "Layers" });
  refs.goPrev = el("button", { type: "button", class: "ms-go ms-go-prev", hidden: true });
  refs.goNext = el("button", { type: "button", class: "ms-go ms-go-next", hidden: true });
  refs.sum = el("p", { class: "ms-status ms-sum" });
  refs.status = el("p", { class: "ms-status", role: "status" });
  return el(
    "div",
    { class: "ms-plots" },
    figure("overview", "Allocated bytes over the whole timeline, with the window shown"),
    refs.ribbon,
    refs.legend,
    figure("curve", "Bytes over time"),
    refs.layerLegend,
    figure("layers", "Layers on the device over time"),
    buildViewFrame(refs, figure("gantt", "Blocks per operator over time"), figure("stack", "Stacked bytes over time")),
    refs.goPrev,
    refs.goNext,
    refs.sum,
    refs.status,
  );
}

/** Fill a root element with a viewer's skeleton. */
export function buildSkeleton(root) {
  const refs = { root };
  refs.panel = el("aside", { class: "ms-panel", "aria-live": "polite", "aria-label": "Selected block" });
  refs.tip = el("div", { class: "ms-tip", role: "tooltip", hidden: true });
  refs.footer = el("footer", { class: "ms-footer" });
  const header = buildHeader(refs);
  const controls = controlBar(refs);
  refs.main = el("div", { class: "ms-main", tabindex: "0", "aria-label": "Plots: arrows pan, + and - zoom" }, buildPlots(refs));
  root.replaceChildren(header, controls, el("div", { class: "ms-body" }, refs.main, refs.panel), refs.footer, refs.tip);
  return refs;
}
