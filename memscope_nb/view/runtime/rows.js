// Rows of the Gantt: which groups they show, their labels, and the line that shows that they add up.

import { data, el, place } from "./dom.js";
import { bytes, clip, count, offset } from "./format.js";
import { GROUPINGS, liveBy, rankGroups, setGroups } from "./groups.js";
import { layoutRows } from "./lod.js";
import { maskOf } from "./filters.js";
import { valueAt } from "./steps.js";

function groupingLabel(viewer) {
  return GROUPINGS.find(({ key }) => key === viewer.grouping.key).label;
}

/** Words for the instant that the rows are ranked by. */
function focusText(viewer) {
  const { focus, series } = viewer;
  if (!focus.isPeak) return `at ${offset(focus.true)}`;
  return series.peakIsRecorded ? "at the peak" : "at this part's peak";
}

/** Choose the rows again (after a change of series, grouping, filters, focus or number of rows) and label them. */
export function layoutGantt(viewer) {
  const { figures, timeline, series, filters, focus } = viewer;
  if (series.grouping !== viewer.grouping) setGroups(timeline, series, viewer.grouping);
  viewer.mask = maskOf(timeline, series, filters);
  rankGroups(series, focus.t, timeline.header.window, viewer.mask);
  const rows = layoutRows(series, viewer.topN, viewer.mask);
  viewer.rows = rows;
  const plot = figures.model("gantt");
  plot.y_range.setv({ start: rows.height, end: 0 });
  plot.height = Math.round(rows.height + viewer.aroundRows);
  figures.model("rows").ticks = Array.from({ length: rows.nRows + 1 }, (_, i) => i * rows.rowPx);
  buildLabels(viewer);
  viewer.sum = sumOfRows(viewer);
  viewer.refs.sum.textContent = sumText(viewer);
  viewer.refs.sum.classList.toggle("ms-wrong", viewer.sum.difference !== 0);
}

/** Bytes at the focus: rows, rest row, blocks that the filters hide, older memory, and the curve they add up to. */
function sumOfRows(viewer) {
  const { series, rows, focus } = viewer;
  const inRows = (groups) => groups.reduce((sum, g) => sum + series.atFocus.bytes[g], 0);
  const every = viewer.mask ? liveBy(series, series.group, series.nGroups, focus.t).total : series.atFocus.total;
  const allocated = valueAt(series.curves.allocated, focus.t);
  const older = valueAt(series.curves.older, focus.t);
  const parts = { rows: inRows(rows.groups), rest: inRows(rows.rest), hidden: every - series.atFocus.total, older };
  const difference = allocated - parts.rows - parts.rest - parts.hidden - parts.older;
  return { ...parts, allocated, difference: Number.isNaN(difference) ? 0 : difference };
}

function sumText(viewer) {
  const { sum, rows } = viewer;
  if (Number.isNaN(sum.allocated)) return "";
  const parts = [`rows ${bytes(sum.rows)}`];
  if (rows.rest.length) parts.push(`rest ${bytes(sum.rest)}`);
  if (sum.hidden) parts.push(`filtered out ${bytes(sum.hidden)}`);
  if (sum.older) parts.push(`older ${bytes(sum.older)}`);
  const wrong = sum.difference ? ` · differs by ${bytes(sum.difference)}` : "";
  return `${focusText(viewer)}: ${parts.join(" + ")} = allocated ${bytes(sum.allocated)}${wrong}`;
}

/** A frame without its folders, so that file and line fit beside the row. */
function rowName(viewer, name) {
  return viewer.grouping.key === "operator" ? name : name.slice(0, 1000).replace(/^[^(]*[/\\](?=.)/, "");
}

function rowLabel(viewer, name, groups, onClick) {
  const { series } = viewer;
  const alive = groups.reduce((sum, g) => sum + series.atFocus.bytes[g], 0);
  const blocks = groups.reduce((sum, g) => sum + series.countBy[g], 0);
  const title = `${clip(name, 2000)}\n${bytes(alive)} alive ${focusText(viewer)}\n${count(blocks)} blocks in this segment`;
  return el(
    "button",
    { type: "button", class: "ms-row", title, on: { click: onClick } },
    data(clip(rowName(viewer, name), 300) || "(no name)", { class: "ms-data ms-row-name" }),
    el("span", { class: "ms-row-facts", text: `${bytes(alive)} · ${count(blocks)}` }),
  );
}

/** Clicking a row's name shows that row only; once more shows all again. */
function onlyRow(viewer, name) {
  const where = viewer.grouping.key === "operator" ? "name" : "stack";
  const text = viewer.filters.text === name && viewer.filters.where === where ? "" : name;
  viewer.setFilter(text, where);
}

function buildLabels(viewer) {
  const { refs, rows, series } = viewer;
  const searchable = ["operator", "site"].includes(viewer.grouping.key);
  const labels = rows.groups.map((g) => {
    const name = series.groupLabels[g];
    return rowLabel(viewer, name, [g], () => searchable && onlyRow(viewer, name));
  });
  if (rows.rest.length) {
    const label = rowLabel(viewer, `rest: ${count(rows.rest.length)} ${restNoun(viewer)}`, rows.rest, () => {});
    label.classList.add("ms-row-rest");
    labels.push(label);
  }
  refs.rowLabels.replaceChildren(...labels);
  refs.rowsTitle.textContent = `${groupingLabel(viewer)}, bytes ${focusText(viewer)} · blocks`;
  refs.noRows.hidden = rows.nRows > 0;
  refs.noRows.textContent = viewer.grouping.key === "operator" ? "No operator matches the filter." : "No block matches the filters.";
}

/** What the rest row counts. */
export function restNoun(viewer) {
  return viewer.grouping.key === "operator" ? "operators" : "rows";
}

/** Put the row labels beside their rows. */
export function placeLabels(viewer) {
  const { refs, rows, figures } = viewer;
  const frame = figures.frame("gantt");
  place(refs.rowLabels, { left: 0, top: frame.top, width: frame.left - 6, height: frame.height });
  place(refs.rowsTitle, { left: 0, top: frame.top - 22, width: frame.left - 40 });
  const px = frame.height / rows.height;
  [...refs.rowLabels.children].forEach((label, row) => {
    place(label, { top: row * rows.rowPx * px, height: rows.rowPx * px });
    label.classList.toggle("ms-row-two", rows.rowPx >= 34);
  });
}
