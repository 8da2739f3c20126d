// The module of the notebook widget (anywidget). It is the one part that a notebook may store, so it only fetches the
// others: hub.js, BokehJS and the runtime come over the widget's channel when a view is shown, once per page.

const { kits, hubs } = (globalThis[Symbol.for("memscope-nb")] ??= { kits: new Map(), hubs: new Map() });

async function importText(text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/javascript" }));
  return import(url).finally(() => URL.revokeObjectURL(url));
}

/** Ask Python for the kit. */
function fetchKit(model, signal) {
  const from = Math.random().toString(36).slice(2);
  return new Promise((resolve, reject) => {
    const receive = (message, buffers) => {
      if (message.kind !== "kit" || message.to !== from) return;
      model.off("msg:custom", receive);
      resolve(importText(message.hub).then((hub) => hub.buildKit(buffers, importText)));
    };
    model.on("msg:custom", receive);
    signal.addEventListener("abort", () => reject(new Error("closed")));
    model.send({ kind: "kit", from });
  });
}

/** The kit of a version; where another widget asked and was closed before it came, this one asks itself. */
async function kitFor(model, signal) {
  const key = model.get("kit");
  for (;;) {
    const mine = !kits.has(key);
    if (mine) kits.set(key, fetchKit(model, signal));
    const kit = kits.get(key);
    try {
      return await kit;
    } catch (error) {
      if (kits.get(key) === kit) kits.delete(key);
      if (mine || signal.aborted) throw error;
    }
  }
}

export default {
  initialize({ model }) {
    const name = model.get("name");
    const closing = new AbortController();
    const hub = kitFor(model, closing.signal).then((kit) => kit.openHub(model, kit, closing.signal));
    hub.catch(() => {}); // a view says so
    hubs.set(name, hub);
    return () => {
      closing.abort();
      if (hubs.get(name) === hub) hubs.delete(name);
    };
  },
  render({ model, el }) {
    const closing = new AbortController();
    el.textContent = "Waiting for the kernel…";
    hubs.get(model.get("name")).then(
      (hub) => closing.signal.aborted || hub.openView(el, closing.signal),
      (error) => (el.textContent = `The viewer cannot be loaded: ${error.message}`),
    );
    return () => closing.abort();
  },
};
