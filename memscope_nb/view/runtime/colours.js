// Colours of the bars: by lifetime class, operator, owner or size, with the key that explains them.

import { bytes } from "./format.js";

export const COLOURINGS = [
  { key: "class", label: "lifetime" },
  { key: "operator", label: "operator" },
  { key: "owner", label: "owner" },
  { key: "size", label: "size" },
];
const MOST_HUES = 12;
const SIZE_SHADES = 8;

/** Colours between two, as many as asked for. */
export function ramp([from, to], n) {
  const parts = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));
  const [a, b] = [parts(from), parts(to)];
  return Array.from({ length: n }, (_, i) => {
    const mixed = a.map((value, k) => Math.round(value + ((b[k] - value) * i) / Math.max(n - 1, 1)));
    return `rgb(${mixed.join(",")})`;
  });
}

/** Colourings that the payload has the facts for. */
export function colouringsOf(timeline) {
  return COLOURINGS.filter(({ key }) => key !== "owner" || timeline.header.owners?.length);
}

/** The keys with most bytes, largest first. */
function largest(keys, size, n) {
  const sum = new Float64Array(n);
  for (let i = 0; i < keys.length; i += 1) sum[keys[i]] += size[i];
  return [...sum.keys()].filter((key) => sum[key] > 0).sort((a, b) => sum[b] - sum[a] || a - b);
}

function byKeys(viewer, keys, labels) {
  const { hues, rest } = viewer.theme;
  const ranked = largest(keys, viewer.series.size, labels.length);
  const colourOf = new Array(labels.length).fill(rest);
  ranked.slice(0, MOST_HUES).forEach((key, k) => (colourOf[key] = hues[k]));
  const items = ranked.slice(0, MOST_HUES).map((key, k) => ({ colour: hues[k], label: labels[key] }));
  if (ranked.length > MOST_HUES) items.push({ colour: rest, label: `${ranked.length - MOST_HUES} others`, own: true });
  return { of: (i) => colourOf[keys[i]], items };
}

function bySize(viewer) {
  const { size } = viewer.series;
  const top = size.reduce((most, value) => Math.max(most, value), 1);
  const shades = ramp(viewer.theme.sizes, SIZE_SHADES);
  const of = (i) => shades[Math.max(SIZE_SHADES - 1 - Math.floor(Math.log2(top / Math.max(size[i], 1)) / 2), 0)];
  const items = shades.map((colour, k) => {
    const from = top / 4 ** (SIZE_SHADES - 1 - k);
    return { colour, label: k ? `over ${bytes(from / 4)}` : `to ${bytes(from)}`, own: true };
  });
  return { of, items: items.reverse() };
}

/** How bars are coloured now: `of(block)` and the items of the key; the classes' key is their own toggles. */
export function buildColours(viewer) {
  const { series, timeline, theme } = viewer;
  const { header } = timeline;
  if (viewer.colouring === "operator") return byKeys(viewer, series.name, header.names);
  if (viewer.colouring === "owner") {
    const owner = series.owner ?? new Uint8Array(series.n);
    return byKeys(viewer, owner, ["(no owner)", ...header.owners]);
  }
  if (viewer.colouring === "size") return bySize(viewer);
  const classes = header.classes.map((item) => theme.classes[item.key] ?? theme.older);
  return { of: (i) => classes[series.class[i]], items: [] };
}
