// Table of the blocks in view: sorted by any column, the first 500 to scroll through, all of them as CSV.

import { data, el } from "./dom.js";
import { bytes, clip, count, duration, offset, shortFrame } from "./format.js";
import { viewMask, viewOf } from "./stackplot.js";
import { blocksInView, csvPieces, firstBlocks, MOST_ROWS, tableColumns } from "./tablerows.js";

const TABLE_ROW_PX = 24;
const VISIBLE_PX = 552;
const SPARE_ROWS = 6;
const KEEP_URL_MS = 60_000;
const RIGHT = new Set(["size", "start", "end", "duration"]);
const DESCENDING_FIRST = new Set(["size", "duration"]);

function tableText(viewer, column, i) {
  const { series, timeline } = viewer;
  const { start, end } = series.raw;
  const open = series.class[i] === timeline.openClass;
  if (column.key === "site") return clip(shortFrame(column.text(i)), 400);
  if (column.text) return clip(column.text(i) ?? "", 400) || (column.key === "operator" ? "(no name)" : "");
  if (column.key === "size") return bytes(series.size[i]);
  if (column.key === "start") return offset(start[i]);
  if (column.key === "end") return open ? "not released" : offset(end[i]);
  return `${open ? "≥ " : ""}${duration(end[i] - start[i])}`;
}

function tableCell(viewer, column, i) {
  if (column.key === "id") {
    return el("td", {}, el("button", { type: "button", class: "ms-link", "data-block": i, text: `#${viewer.series.id[i]}` }));
  }
  const text = tableText(viewer, column, i);
  return el("td", { class: RIGHT.has(column.key) ? "ms-right" : null, title: column.key === "site" || text.length > 20 ? clip(column.text?.(i) ?? text, 2000) : null }, data(text));
}

/** Put the rows that the scroll position shows into the table. */
function renderRows(viewer, kept) {
  const first = Math.max(Math.floor(kept.scroller.scrollTop / TABLE_ROW_PX) - SPARE_ROWS, 0);
  const rows = kept.rows.slice(first, first + Math.ceil(VISIBLE_PX / TABLE_ROW_PX) + 2 * SPARE_ROWS);
  const spacer = (n) => {
    const row = el("tr", { "aria-hidden": "true" });
    row.style.height = `${n * TABLE_ROW_PX}px`;
    return row;
  };
  const nodes = rows.map((i, k) =>
    el(
      "tr",
      { class: viewer.selection.includes(i) ? "ms-tr ms-tr-selected" : "ms-tr", "data-block": i, "aria-rowindex": first + k + 2 },
      ...kept.columns.map((column) => tableCell(viewer, column, i)),
    ),
  );
  const focused = kept.body.contains(document.activeElement) ? document.activeElement.getAttribute("data-block") : null;
  kept.body.replaceChildren(spacer(first), ...nodes, spacer(Math.max(kept.rows.length - first - rows.length, 0)));
  if (focused !== null) kept.body.querySelector(`button[data-block="${focused}"]`)?.focus({ preventScroll: true });
}

function drawTable(viewer) {
  const { series, view } = viewer;
  const kept = viewOf(viewer, "table");
  if (kept.of !== series) {
    kept.of = series;
    kept.columns = tableColumns(viewer.timeline, series);
    fillTableHead(viewer, kept);
  }
  const column = kept.columns.find((item) => item.key === kept.sort) ?? kept.columns[0];
  kept.blocks = blocksInView(series, view, viewMask(viewer));
  kept.rows = firstBlocks(kept.blocks, column.number, kept.descending);
  kept.table.setAttribute("aria-rowcount", String(kept.rows.length + 1));
  renderRows(viewer, kept);
  const [all, shown] = [kept.blocks.length, kept.rows.length];
  const rest = all > shown ? ` · the first ${count(shown)} by ${column.label} are shown, ${count(all - shown)} more are in the CSV` : "";
  viewer.refs.status.textContent = all ? `${count(all)} blocks in view${rest}` : "No block in view.";
  kept.download.textContent = `Download ${count(all)} block${all === 1 ? "" : "s"} as CSV`;
  kept.download.disabled = !all;
}

function fillTableHead(viewer, kept) {
  const heads = kept.columns.map((column) => {
    const on = column.key === kept.sort;
    const sortBy = () => {
      kept.descending = on ? !kept.descending : DESCENDING_FIRST.has(column.key);
      kept.sort = column.key;
      kept.scroller.scrollTop = 0;
      fillTableHead(viewer, kept);
      kept.head.querySelector(`[data-key="${column.key}"]`).focus();
      viewer.redraw();
    };
    const arrow = on ? (kept.descending ? " ↓" : " ↑") : "";
    const button = el("button", { type: "button", "data-key": column.key, text: column.label + arrow, on: { click: sortBy } });
    const order = on ? (kept.descending ? "descending" : "ascending") : "none";
    return el("th", { scope: "col", "aria-sort": order, class: `ms-th-${column.key}` }, button);
  });
  kept.head.replaceChildren(el("tr", {}, ...heads));
}

/** Save all blocks in view; a frame needs the permission for downloads. */
function saveCsv(viewer, kept) {
  const blob = new Blob(csvPieces(viewer.timeline, viewer.series, kept.blocks), { type: "text/csv;charset=utf-8" });
  const url = URL.createObjectURL(blob);
  const link = el("a", { href: url, download: "memscope_blocks.csv", hidden: true });
  viewer.refs.root.append(link);
  link.click();
  link.remove();
  setTimeout(() => URL.revokeObjectURL(url), KEEP_URL_MS);
}

function enterTable(viewer) {
  const kept = viewOf(viewer, "table");
  kept.of = null;
  kept.sort ??= "size";
  kept.descending ??= true;
  kept.download = el("button", { type: "button", on: { click: () => saveCsv(viewer, kept) } });
  viewer.refs.viewBar.append(kept.download, el("span", { class: "ms-bar-hint", text: `click a head to sort, a row to select; at most ${MOST_ROWS} rows are listed` }));
  kept.head = el("thead", {});
  kept.body = el("tbody", {});
  kept.table = el("table", { class: "ms-table", "aria-label": "Blocks in view" }, kept.head, kept.body);
  kept.scroller = el("div", { class: "ms-table-scroll", tabindex: "0", role: "region", "aria-label": "Blocks in view, scrollable" }, kept.table);
  let waiting = false;
  kept.scroller.addEventListener("scroll", () => {
    if (waiting) return;
    waiting = true;
    requestAnimationFrame(() => {
      waiting = false;
      if (!viewer.closed && viewer.views.active === tableView) renderRows(viewer, kept);
    });
  });
  kept.body.addEventListener("click", (event) => {
    const row = event.target.closest("[data-block]");
    if (!row) return;
    const block = Number(row.getAttribute("data-block"));
    if (event.shiftKey) viewer.toggle(block);
    else viewer.select(block);
  });
  viewer.refs.viewOwn.append(kept.scroller);
}

export const tableView = {
  key: "table",
  figure: null,
  label: () => "Table",
  available: () => true,
  enter: enterTable,
  draw: drawTable,
};
