// The payload's binary form: see view/codec.py. Bytes in, header and typed arrays out.

/** Undo gzip. */
async function gunzip(packed) {
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Uint8Array(await new Response(stream).arrayBuffer());
}

/** Smallest array type that holds every value of a column. */
function arrayFor(spec) {
  const wide = spec.delta || spec.unit * 256 ** spec.width > 2 ** 32;
  if (wide) return new Float64Array(spec.n);
  if (spec.unit !== 1 || spec.width > 2) return new Uint32Array(spec.n);
  return spec.width === 1 ? new Uint8Array(spec.n) : new Uint16Array(spec.n);
}

function readColumn(data, start, spec) {
  const { n, width, delta, unit } = spec;
  const values = arrayFor(spec);
  for (let plane = 0; plane < width; plane += 1) {
    const weight = 256 ** plane;
    const from = start + plane * n;
    for (let i = 0; i < n; i += 1) values[i] += data[from + i] * weight;
  }
  let sum = 0;
  for (let i = 0; i < n; i += 1) {
    sum = delta ? sum + values[i] : values[i];
    values[i] = sum * unit;
  }
  return values;
}

/** Decode a payload into `{header, columns}`. */
export async function decodePayload(packed) {
  const data = await gunzip(packed);
  const size = new DataView(data.buffer).getUint32(0, true);
  const header = JSON.parse(new TextDecoder().decode(data.subarray(4, 4 + size)));
  if (header.format !== 1) throw new Error(`this page cannot show payload format ${header.format}`);
  const columns = {};
  let start = 4 + size;
  for (const spec of header.columns) {
    columns[spec.name] = readColumn(data, start, spec);
    start += spec.n * spec.width;
  }
  return { header, columns };
}
