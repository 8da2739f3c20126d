// The place of the views: a strip of tabs, a bar for the options of the open view, the figures and elements they use.

import { el } from "./dom.js";

let framesBuilt = 0;

/** Make the strip and the panel; `gantt` and `stack` are the elements of those two figures. */
export function buildViewFrame(refs, gantt, stack) {
  framesBuilt += 1;
  refs.stackCanvas = el("canvas", { class: "ms-stack-canvas", "aria-hidden": "true" });
  stack.prepend(refs.stackCanvas);
  refs.stackNotes = el("div", {});
  refs.stackOver.append(refs.stackNotes);
  refs.viewTabs = el("div", { class: "ms-tabs", role: "tablist", "aria-label": "Views of the blocks in the window" });
  refs.viewBar = el("div", { class: "ms-view-bar" });
  refs.viewOwn = el("div", { class: "ms-view-own" });
  refs.viewPanelId = `ms-views-${framesBuilt}`;
  refs.viewPanel = el("div", { class: "ms-view-panel", role: "tabpanel", id: refs.viewPanelId }, gantt, stack, refs.viewOwn);
  return el("div", { class: "ms-views" }, el("div", { class: "ms-view-head" }, refs.viewTabs, refs.viewBar), refs.viewPanel);
}

/** One tab; `go(step)` is called for a click (0) or a key: -1 and 1 to the neighbours, ±Infinity to the ends. */
export function viewTab(refs, key, go) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
  const onKey = (event) => {
    const step = steps[event.key];
    if (step === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    event.stopPropagation(); // the same keys pan and reset the plots
    go(step);
  };
  return el("button", {
    type: "button",
    role: "tab",
    class: "ms-tab",
    id: `${refs.viewPanelId}-${key}`,
    "data-view": key,
    "aria-controls": refs.viewPanelId,
    "aria-selected": "false",
    tabindex: "-1",
    on: { click: () => go(0), keydown: onKey },
  });
}
