// Colours of the bars: by lifetime class, operator, owner or size, with the key that explains them.

import { bytes } from "./format.js";

const COLOURINGS = [
  { key: "class", label: "lifetime" },
  { key: "operator", label: "operator" },
  { key: "owner", label: "owner" },
  { key: "size", label: "size" },
];
const MOST_HUES = 12;
const SIZE_SHADES = 8;

/** `share` of a colour on a ground, as #rrggbb. */
export function mixed(colour, ground, share) {
  const parts = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
  const [a, b] = [parts(ground), parts(colour)];
  return `#${a.map((value, k) => Math.round(value + (b[k] - value) * share).toString(16).padStart(2, "0")).join("")}`;
}

/** Colours between two, as many as asked for. */
export function ramp([from, to], n) {
  return Array.from({ length: n }, (_, i) => mixed(to, from, i / Math.max(n - 1, 1)));
}

/** Colourings that the payload has the facts for. */
export function colouringsOf(timeline) {
  return COLOURINGS.filter(({ key }) => key !== "owner" || timeline.header.owners?.length);
}

/** The keys with most bytes × time, largest first: what lies there long covers more than what comes and goes. */
function largest(keys, { size, raw }, n) {
  const sum = new Float64Array(n);
  for (let i = 0; i < keys.length; i += 1) sum[keys[i]] += size[i] * (raw.end[i] - raw.start[i]);
  return [...sum.keys()].filter((key) => sum[key] > 0).sort((a, b) => sum[b] - sum[a] || a - b);
}

/** Twelve hues for the first keys; all others share the last colour. */
function byKeys(viewer, keys, labels) {
  const { hues, rest } = viewer.theme;
  const ranked = largest(keys, viewer.series, labels.length);
  const place = new Uint8Array(labels.length).fill(MOST_HUES);
  ranked.slice(0, MOST_HUES).forEach((key, k) => (place[key] = k));
  const items = ranked.slice(0, MOST_HUES).map((key, k) => ({ colour: hues[k], label: labels[key] }));
  if (ranked.length > MOST_HUES) items.push({ colour: rest, label: `${ranked.length - MOST_HUES} others`, own: true });
  return { index: Uint8Array.from(keys, (key) => place[key]), palette: [...hues, rest], items };
}

function bySize(viewer) {
  const { size } = viewer.series;
  const top = size.reduce((most, value) => Math.max(most, value), 1);
  const palette = ramp(viewer.theme.sizes, SIZE_SHADES);
  const shadeOf = (value) => Math.max(SIZE_SHADES - 1 - Math.floor(Math.log2(top / Math.max(value, 1)) / 2), 0);
  const items = palette.map((colour, k) => {
    const from = top / 4 ** (SIZE_SHADES - 1 - k);
    return { colour, label: k ? `over ${bytes(from / 4)}` : `to ${bytes(from)}`, own: true };
  });
  return { index: Uint8Array.from(size, shadeOf), palette, items: items.reverse() };
}

function byClass(viewer) {
  const { series, timeline, theme } = viewer;
  const palette = timeline.header.classes.map((item) => theme.classes[item.key] ?? theme.older);
  return { index: series.class, palette, items: [] };
}

function coloursOf(viewer) {
  const { series, timeline, colouring } = viewer;
  const { names, owners } = timeline.header;
  if (colouring === "operator") return byKeys(viewer, series.name, names);
  if (colouring === "owner") return byKeys(viewer, series.owner ?? new Uint8Array(series.n), ["(no owner)", ...owners]);
  return colouring === "size" ? bySize(viewer) : byClass(viewer);
}

/**
 * How blocks are coloured now.
 * @returns {{index, palette, of, items}} colour of block i = palette[index[i]] = of(i); `items` of the key (the classes
 *   have none: their toggles are their key)
 */
export function buildColours(viewer) {
  const colours = coloursOf(viewer);
  return { ...colours, of: (i) => colours.palette[colours.index[i]] };
}
