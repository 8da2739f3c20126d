// A picture made pixel by pixel that also knows what every pixel belongs to.

/** Pixel owners that are no block. */
export const NOTHING = -1;
export const REST = -2;
export const OLDER = -3;

/** A raster of a size; `old` is used again where it fits. */
export function clearRaster(old, width, height) {
  if (old && old.width === width && old.height === height) {
    old.pixels.fill(0);
    old.owner.fill(NOTHING);
    return old;
  }
  const image = new ImageData(width, height);
  const pixels = new Uint32Array(image.data.buffer);
  return { width, height, image, pixels, owner: new Int32Array(width * height).fill(NOTHING) };
}

function colourParts(text) {
  if (text.startsWith("#")) return [1, 3, 5].map((k) => parseInt(text.slice(k, k + 2), 16));
  return text.match(/\d+/g).slice(0, 3).map(Number);
}

/** `#rrggbb` or `rgb(…)` as the number that a raster stores, optionally mixed with another colour. */
export function pixelColour(colour, other = colour, share = 0) {
  const [from, to] = [colourParts(colour), colourParts(other)];
  const [r, g, b] = from.map((value, k) => Math.round(value * (1 - share) + to[k] * share));
  return ((255 << 24) | (b << 16) | (g << 8) | r) >>> 0;
}

/** Fill the rows y0 (top) … y1 - 1 of a column; at least 3 px high, its top row gets the edge colour. */
export function fillBand(raster, column, y0, y1, colour, edge, owner) {
  const { width, pixels } = raster;
  const from = Math.max(y0, 0);
  const to = Math.min(y1, raster.height);
  for (let y = from, at = from * width + column; y < to; y += 1, at += width) {
    pixels[at] = colour;
    raster.owner[at] = owner;
  }
  if (to - from >= 3) pixels[from * width + column] = edge;
}

/** Draw a line around what belongs to some owners, one pixel inside, one outside; returns how many have a pixel. */
export function outline(raster, owners, inner, outer) {
  const { width, height, pixels } = raster;
  const edge = [];
  const found = new Set();
  const wanted = new Set(owners);
  const few = owners.length === 1 ? owners[0] : null;
  const isMine = few === null ? (at) => wanted.has(raster.owner[at]) : (at) => raster.owner[at] === few;
  for (let y = 0, at = 0; y < height; y += 1) {
    for (let x = 0; x < width; x += 1, at += 1) {
      const mine = isMine(at);
      if (mine) found.add(raster.owner[at]);
      // Neighbours that are both selected keep the line between them.
      const differs = (there, inside) =>
        inside && raster.owner[there] !== raster.owner[at] && (mine || isMine(there));
      if (differs(at + 1, x + 1 < width)) edge.push(at, at + 1);
      if (differs(at + width, y + 1 < height)) edge.push(at, at + width);
    }
  }
  for (const at of edge) pixels[at] = isMine(at) ? inner : outer;
  return found.size;
}

/** Show a raster on a canvas that covers a frame. */
export function showRaster(canvas, raster, frame) {
  if (canvas.width !== raster.width) canvas.width = raster.width;
  if (canvas.height !== raster.height) canvas.height = raster.height;
  for (const key of ["left", "top", "width", "height"]) canvas.style[key] = `${frame[key]}px`;
  canvas.getContext("2d").putImageData(raster.image, 0, 0);
}
