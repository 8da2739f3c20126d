// Groups of blocks for the stacked view: the ten that hold most, one for the rest, one for what filters hide.

export const MOST_BANDS = 10;

/** Group of every block by a key: `{of, labels}`. */
function groupBy(timeline, series, key) {
  const { header } = timeline;
  if (key === "operator") return { of: series.name, labels: header.names };
  if (key === "owner") return { of: series.owner, labels: ["no owner", ...header.owners] };
  if (key === "class") return { of: series.class, labels: header.classes.map((item) => item.label) };
  const labels = ["no stack", "no site in the stack"];
  const ofFrame = new Map();
  const ofStack = header.stacks.map((frames, stack) => {
    const frame = frames[header.sites[stack]];
    if (frame === undefined) return 1;
    if (!ofFrame.has(frame)) ofFrame.set(frame, labels.push(header.frames[frame]) - 1);
    return ofFrame.get(frame);
  });
  return { of: Uint32Array.from(series.stack, (stack) => (stack ? ofStack[stack - 1] : 0)), labels };
}

/** Groups with bytes × time of their blocks, the largest first. */
function rankedGroups(series, { of, labels }) {
  const sum = new Float64Array(labels.length);
  const { start, end } = series.raw; // the order is the same on every axis
  for (let i = 0; i < series.n; i += 1) sum[of[i]] += series.size[i] * (end[i] - start[i]);
  const order = [];
  for (let g = 0; g < sum.length; g += 1) if (sum[g] > 0) order.push(g);
  return order.sort((a, b) => sum[b] - sum[a] || a - b);
}

/**
 * Bands from the bottom and the band of every block.
 * @returns {{bands: object[], of: Uint8Array}} band = {label, group (-1: more than one), own: text is ours}
 */
export function stackBands(timeline, series, key, mask) {
  const groups = groupBy(timeline, series, key);
  const order = rankedGroups(series, groups);
  const shown = key === "class" ? order.sort((a, b) => a - b) : order.slice(0, MOST_BANDS);
  const bands = shown.map((group) => ({ label: groups.labels[group] || "(no name)", group }));
  const rest = order.length - shown.length;
  const bandOf = new Uint8Array(groups.labels.length).fill(bands.length);
  shown.forEach((group, band) => (bandOf[group] = band));
  if (rest) bands.push({ label: `rest: ${rest} more`, group: -1, own: "rest" });
  if (mask) bands.push({ label: "hidden by filters", group: -1, own: "hidden" });
  const hidden = bands.length - 1;
  const { of } = groups;
  const out = new Uint8Array(series.n);
  for (let i = 0; i < series.n; i += 1) out[i] = mask && !mask[i] ? hidden : bandOf[of[i]];
  return { bands, of: out };
}
