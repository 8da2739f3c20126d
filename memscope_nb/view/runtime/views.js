// The views below the curves, of which one is open. Only that one is drawn.
//
// To add a view: write one file that exports an object as described here, import it and put it into VIEWS.
//   key                word of lower-case letters; stands in the address
//   figure             "gantt" or "stack": the Bokeh figure it draws on (both follow the window); null: its own elements,
//                      to be put into viewer.refs.viewOwn, which is empty when it is entered
//   label(viewer)      text of its tab
//   available(viewer)  whether this payload has what it needs; else there is no tab
//   enter(viewer)      optional: it was opened; may fill viewer.refs.viewBar with its options
//   draw(viewer)       called for every change of window, filters, focus or selection: shall take less than 60 ms at
//                      200,000 blocks; writes viewer.refs.status
//   leave(viewer)      optional: another one is opened; bar and own elements are emptied after it
//   tip(viewer, at)    optional, with figure "stack": content of the tooltip at a place {x, y} of the frame, or null
//   pick(viewer, at)   optional, with figure "stack": block to select there (position in the series), or -1
// What a view wants to keep while others are open goes into viewOf(viewer, key).
// Places on the x axis may be folded time: text of a time is viewer.when(place). Filters: viewer.mask or viewMask(viewer).

import { chooseLargest, sweepBlocks } from "./bands.js";
import { blockMapView } from "./blockmap.js";
import { drawGantt } from "./gantt.js";
import { hideTip } from "./hover.js";
import { icicleView } from "./icicle.js";
import { placeLabels } from "./rows.js";
import { addressAt, gapsAt } from "./segments.js";
import { segmentView } from "./segmentview.js";
import { stackedView } from "./stacked.js";
import { listenToStack } from "./stackplot.js";
import { tableView } from "./table.js";
import { viewTab } from "./viewtabs.js";

const blocksView = {
  key: "blocks",
  figure: "gantt",
  label: () => "Blocks over time",
  available: () => true,
  draw(viewer) {
    drawGantt(viewer);
    placeLabels(viewer);
  },
};

const VIEWS = [blocksView, blockMapView, stackedView, icicleView, segmentView, tableView];

/** Make the tabs and open the wanted view, or the first one. */
export function buildViews(viewer, wanted) {
  viewer.views = { all: VIEWS, active: VIEWS[0], tabs: new Map(), kept: viewer.views?.kept ?? {} };
  for (const view of VIEWS) {
    const tab = viewTab(viewer.refs, view.key, (step) => stepTo(viewer, view, step));
    viewer.views.tabs.set(view.key, tab);
    viewer.refs.viewTabs.append(tab);
  }
  viewer.stacking = { chooseLargest, sweepBlocks }; // what tests check by numbers
  viewer.segments = { addressAt, gapsAt };
  viewer.openView = (key) => openView(viewer, VIEWS.find((view) => view.key === key));
  listenToStack(viewer);
  const first = VIEWS.find((view) => view.key === wanted && view.available(viewer));
  openView(viewer, first ?? VIEWS[0]);
}

/** Views that this payload allows. */
function offered(viewer) {
  return VIEWS.filter((view) => view.available(viewer));
}

function stepTo(viewer, from, step) {
  const views = offered(viewer);
  const n = views.length;
  const at = views.indexOf(from) + step;
  const next = step === Infinity ? n - 1 : step === -Infinity ? 0 : (at + n) % n;
  openView(viewer, views[next]);
  viewer.views.tabs.get(views[next].key).focus();
}

function openView(viewer, view) {
  const { refs, views, figures } = viewer;
  if (!view || !view.available(viewer)) return;
  views.active.leave?.(viewer);
  refs.viewBar.replaceChildren();
  refs.viewOwn.replaceChildren();
  views.active = view;
  for (const name of ["gantt", "stack"]) {
    figures.model(name).visible = view.figure === name;
    refs[name].parentElement.hidden = view.figure !== name;
  }
  refs.viewOwn.hidden = view.figure !== null;
  refs.status.textContent = "";
  refs.sum.hidden = view.figure !== "gantt"; // it speaks of the rows
  hideTip(viewer);
  view.enter?.(viewer);
  updateTabs(viewer);
  if (viewer.ready) viewer.writeHash();
  viewer.redraw();
  // A figure that was hidden has its size only after the next layout.
  requestAnimationFrame(() => requestAnimationFrame(() => viewer.closed || viewer.redraw()));
}

function updateTabs(viewer) {
  const { refs, views } = viewer;
  for (const view of VIEWS) {
    const tab = views.tabs.get(view.key);
    const on = view === views.active;
    const text = view.label(viewer);
    if (tab.textContent !== text) tab.textContent = text;
    tab.hidden = !view.available(viewer);
    tab.setAttribute("aria-selected", String(on));
    tab.tabIndex = on ? 0 : -1;
  }
  refs.viewPanel.setAttribute("aria-labelledby", views.tabs.get(views.active.key).id);
}

/** Draw the open view for the current window. */
export function drawView(viewer) {
  const { views } = viewer;
  if (!viewer.drawn) drawGantt(viewer); // what hosts ask about bars holds from the start
  if (!views.active.available(viewer)) openView(viewer, VIEWS[0]);
  updateTabs(viewer);
  views.active.draw(viewer);
}
