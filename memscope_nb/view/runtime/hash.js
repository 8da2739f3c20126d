// The window and the view in the address: #x0=…&x1=…&view=…, times in ns offsets.

const DELAY_MS = 250;

/** Read the window from the address, or null. */
export function readHash(text) {
  const found = /[#&]x0=(-?\d+)&x1=(-?\d+)/.exec(text);
  if (!found) return null;
  const [x0, x1] = [Number(found[1]), Number(found[2])];
  return Number.isSafeInteger(x0) && Number.isSafeInteger(x1) && x0 < x1 ? [x0, x1] : null;
}

/** Read the key of the view from the address, or null. */
export function readHashView(text) {
  return /[#&]view=([a-z]+)/.exec(text)?.[1] ?? null;
}

/** What an address says about a window (none: the whole segment) and the view that is open. */
export function windowHash(viewer, x0, x1) {
  const parts = x0 === undefined ? [] : [`x0=${Math.round(x0)}`, `x1=${Math.round(x1)}`];
  const view = viewer.views?.active;
  if (view && view !== viewer.views.all[0]) parts.push(`view=${view.key}`);
  return parts.length ? `#${parts.join("&")}` : "";
}

/** A function that writes the address a moment after the last call; pages that may not, do without. */
export function hashWriter(viewer) {
  let timer = 0;
  viewer.onDestroy(() => clearTimeout(timer));
  return () => {
    clearTimeout(timer);
    timer = setTimeout(() => {
      const [x0, x1] = viewer.trueRange();
      try {
        window.history.replaceState(null, "", windowHash(viewer, x0, x1));
      } catch {
        // A page without an origin (sandboxed frame) may refuse: links between segments still carry the window.
      }
    }, DELAY_MS);
  };
}
