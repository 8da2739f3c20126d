// Which blocks are shown: text or pattern, size, lifetime class, owner. The result is one flag a block.

const MOST_TEXT = 4096; // of one frame or name, for patterns

/** No filter at all. `life` depends on the view: any, allocated, released, either, open. */
export function newFilters(header) {
  return {
    text: "",
    where: "name",
    minSize: 0,
    life: "any",
    classes: new Uint8Array(header.classes.length).fill(1),
    owners: new Uint8Array((header.owners?.length ?? 0) + 1).fill(1),
  };
}

/**
 * Read a search text: a part of a name, or `/pattern/`.
 * @returns a test of one text, null for an empty search
 * @throws SyntaxError for a pattern that is none
 */
function textTest(text) {
  const pattern = /^\/(.+)\/(i?)$/.exec(text);
  if (pattern) {
    const expression = new RegExp(pattern[1], "i");
    return (candidate) => expression.test(candidate.slice(0, MOST_TEXT));
  }
  const wanted = text.toLowerCase();
  return wanted ? (candidate) => candidate.toLowerCase().includes(wanted) : null;
}

function flagsOf(texts, test) {
  return Uint8Array.from(texts, (text) => (test(text) ? 1 : 0));
}

/** One flag per stack: does any frame match? Position 0 = no stack. */
function stackFlags(header, test) {
  const frames = flagsOf(header.frames, test);
  return Uint8Array.from([0, ...header.stacks.map((stack) => (stack.some((f) => frames[f]) ? 1 : 0))]);
}

function searchFlags(header, { text, where }) {
  const test = textTest(text);
  if (!test) return null;
  return {
    names: where === "stack" ? null : flagsOf(header.names, test),
    stacks: where === "name" ? null : stackFlags(header, test),
  };
}

/** Flags of the blocks of a series that pass all filters, null where all do. Sets no state. */
export function maskOf(timeline, series, filters) {
  const { header, openClass } = timeline;
  const found = searchFlags(header, filters);
  const { classes, owners, minSize, life } = filters;
  const every = (flags) => flags.every((flag) => flag);
  if (!found && every(classes) && every(owners) && !minSize && life !== "open") return null;
  const mask = new Uint8Array(series.n);
  const { size, name, stack } = series;
  for (let i = 0; i < series.n; i += 1) {
    if (size[i] < minSize || !classes[series.class[i]] || !owners[series.owner?.[i] ?? 0]) continue;
    if (life === "open" && series.class[i] !== openClass) continue;
    if (found && !(found.names?.[name[i]] || found.stacks?.[stack[i]])) continue;
    mask[i] = 1;
  }
  return mask;
}

/** Whether a block passes what depends on the view: allocated in it, released in it. */
export function lifeTest(series, { x0, x1 }, life, openClass) {
  const { start, end } = series;
  const allocated = (i) => start[i] >= x0 && start[i] <= x1;
  const released = (i) => series.class[i] !== openClass && end[i] >= x0 && end[i] <= x1;
  const tests = { allocated, released, either: (i) => allocated(i) || released(i) };
  return tests[life] ?? null;
}
