// Inputs that choose what the rows show: search, size, life, rows by, colour by, lifetime classes, owners.

import { buildColours, colouringsOf } from "./colours.js";
import { data, el } from "./dom.js";
import { bytes, clip } from "./format.js";
import { groupingsOf, PATH_RULE } from "./groups.js";

const SMALLEST_POWER = 8;
const MOST_OWNERS = 12;
const OWNER_SHARE = 0.2;
const MODE_LABELS = { true: "true", folded: "idle folded", steps: "steps aligned" };

function fillSelect(select, items, run) {
  select.replaceChildren(...items.map(({ key, label }) => el("option", { value: key, text: label })));
  select.addEventListener("change", () => run(select.value));
}

function classToggle(viewer, flags, k, content, attributes) {
  const box = el("input", { type: "checkbox", ...attributes });
  box.checked = true;
  box.addEventListener("change", () => {
    flags().forEach((_, i, all) => k.includes(i) && (all[i] = box.checked ? 1 : 0));
    viewer.redrawRows();
  });
  return el("label", {}, box, ...content);
}

function buildClasses(viewer) {
  const { refs, timeline } = viewer;
  const used = new Set(timeline.columns.class);
  timeline.header.classes.forEach((item, k) => {
    if (!used.has(k)) return;
    const swatch = el("span", { class: `ms-swatch ms-swatch-${item.key}` });
    const content = [swatch, el("bdi", { text: item.label })];
    refs.classes.append(classToggle(viewer, () => viewer.filters.classes, [k], content, { "data-class": item.key }));
  });
  refs.classes.append(el("span", { class: "ms-area-key" }, el("span", { class: "ms-swatch ms-swatch-area" }), "pale: few live bytes, full: many"));
}

/** Owners by bytes × time; shown where enough of the bytes have one. The smaller ones share a toggle. */
function buildOwners(viewer) {
  const { refs, timeline } = viewer;
  const { owner, size, life } = timeline.columns;
  if (!owner) return;
  const { owners } = timeline.header;
  const area = new Float64Array(owners.length + 1); // bytes × time
  const used = new Uint8Array(owners.length + 1);
  let [total, owned] = [0, 0];
  for (let i = 0; i < owner.length; i += 1) {
    used[owner[i]] = 1;
    area[owner[i]] += size[i] * life[i];
    total += size[i];
    if (owner[i]) owned += size[i];
  }
  if (!owned || owned < OWNER_SHARE * total) return;
  const ranked = [...owners.keys()].map((k) => k + 1).filter((k) => used[k]).sort((a, b) => area[b] - area[a]);
  const toggle = (keys, label) =>
    refs.owners.append(classToggle(viewer, () => viewer.filters.owners, keys, [data(clip(label, 60))], { "data-owner": keys[0] }));
  for (const k of ranked.slice(0, MOST_OWNERS)) toggle([k], owners[k - 1]);
  if (ranked.length > MOST_OWNERS) toggle(ranked.slice(MOST_OWNERS), `${ranked.length - MOST_OWNERS} others`);
  if (used[0]) toggle([0], "no owner");
  refs.owners.hidden = false;
}

function buildMinimum(viewer) {
  const { refs, timeline } = viewer;
  let largest = 1;
  for (const size of timeline.columns.size) if (size > largest) largest = size;
  refs.min.max = Math.max(Math.floor(Math.log2(largest)) - SMALLEST_POWER, 1);
  refs.min.addEventListener("input", () => {
    const power = Number(refs.min.value);
    const minSize = power ? 2 ** (power + SMALLEST_POWER) : 0;
    refs.minText.textContent = power ? `from ${bytes(minSize)}` : "all";
    viewer.setFilters({ minSize });
  });
}

function buildRows(viewer) {
  const { refs, timeline } = viewer;
  fillSelect(refs.grouping, groupingsOf(timeline), (key) => {
    const frame = viewer.grouping.frame ?? timeline.header.stacks[0]?.at(-1);
    viewer.setGrouping({ key, rule: refs.rule.value, frame });
  });
  refs.rule.value = PATH_RULE;
  refs.rule.addEventListener("keydown", (event) => {
    if (event.key === "Enter") viewer.setGrouping({ key: "path", rule: refs.rule.value });
  });
  refs.top.addEventListener("change", () => viewer.setTop(Number(refs.top.value)));
  refs.unfocus.addEventListener("click", () => viewer.setFocus(null));
}

/** The key of colours other than those of the classes, whose toggles are their key. */
function showColourKey(viewer) {
  viewer.colours ??= buildColours(viewer);
  const { items } = viewer.colours;
  const { colourKey } = viewer.refs;
  colourKey.hidden = !items.length;
  colourKey.replaceChildren(
    ...items.map(({ colour, label, own }) => {
      const swatch = el("span", { class: "ms-swatch" });
      swatch.style.background = colour;
      return el("span", { class: "ms-layer-key" }, swatch, own ? el("span", { text: label }) : data(clip(label, 40)));
    }),
  );
}

/** Fill the inputs and listen to them. */
export function buildFilters(viewer) {
  const { refs, timeline } = viewer;
  buildClasses(viewer);
  buildOwners(viewer);
  buildMinimum(viewer);
  buildRows(viewer);
  refs.filter.addEventListener("input", () => viewer.setFilter(refs.filter.value));
  refs.where.addEventListener("change", () => viewer.setFilter(refs.filter.value, refs.where.value));
  refs.where.parentElement.hidden = !timeline.header.stacks.length;
  refs.life.addEventListener("change", () => viewer.setFilters({ life: refs.life.value }));
  viewer.onColours = () => showColourKey(viewer);
  fillSelect(refs.colouring, colouringsOf(timeline), (key) => viewer.setColouring(key));
  refs.timeField.hidden = timeline.modes.length < 2;
  fillSelect(refs.time, timeline.modes.map((key) => ({ key, label: MODE_LABELS[key] })), (mode) => viewer.setTime(mode));
  refs.time.value = timeline.time.mode;
}
