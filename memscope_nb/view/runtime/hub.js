// What a notebook widget shares between its views and Python: one hub per widget, one view per place where it is shown.
// The other end is notebook/link.py. Sent to the page with the rest of the kit; widget.js is what the notebook knows.

const DELAY_MS = 250;
const LOST_MS = 10_000; // an answer that takes longer was lost with the connection

const bytesOf = (view) => new Uint8Array(view.buffer, view.byteOffset, view.byteLength);
/** Ids that Python sent; some hosts drop a buffer that is empty. */
const idsOf = (buffer) => (buffer ? new Float64Array(bytesOf(buffer).slice().buffer) : new Float64Array(0));
const same = (a, b) => a.length === b.length && a.every((value, i) => value === b[i]);

/** Whether a viewer shows a range: on its axis, which may fold time, half a unit is far below a pixel. */
function showsRange(viewer, [t0, t1]) {
  const { start, end } = viewer.range;
  return Math.abs(viewer.shown(t0) - start) < 0.5 && Math.abs(viewer.shown(t1) - end) < 0.5;
}

async function unpack(packed) {
  const stream = new Blob([bytesOf(packed)]).stream().pipeThrough(new DecompressionStream("gzip"));
  return new Response(stream).text();
}

/**
 * What all viewers of a page share. BokehJS gets a place of its own, as the notebook may use another one in `window`, and
 * no `visualViewport`: it listens there for every plot and never stops, which keeps all plots for good.
 */
export async function buildKit(buffers, importText) {
  const [bokeh, runtime, css, figures] = await Promise.all(buffers.map(unpack));
  const place = {};
  (await importText(`export default function (visualViewport) {\n${bokeh}\n}`)).default.call(place, null);
  return { Bokeh: place.Bokeh, mount: (await importText(runtime)).mount, css, figures, openHub };
}

function openHub(model, kit, signal) {
  const id = Math.random().toString(36).slice(2);
  const hub = { views: new Set(), scene: null, active: null };
  let [timer, waiting, again] = [0, 0, false]; // waiting: since when for an answer, 0 = not
  let sent = null;

  const send = (content, buffers = []) => {
    try {
      if (!signal.aborted) model.send({ ...content, from: id, scene: hub.scene?.key ?? -1, turn: hub.scene?.turn ?? 0 }, undefined, buffers);
    } catch {
      // The kernel is gone: the picture stays and works, it reaches no Python.
    }
  };

  /** Tell Python where the view that people use stands: range, pool, blocks in view. One message at a time. */
  const report = () => {
    timer = 0;
    const view = hub.active?.viewer ? hub.active : [...hub.views].find((one) => one.viewer);
    if (!view || view.shows !== hub.scene) return;
    if (waiting && performance.now() - waiting < LOST_MS) {
      again = true;
      return;
    }
    const { viewer } = view;
    const [t0, t1] = hub.scene.range;
    const bits = new Uint8Array((viewer.timeline.columns.id.length + 7) >> 3);
    for (const at of viewer.visiblePositions()) bits[at >> 3] |= 1 << (at & 7);
    const now = { key: `${hub.scene.key} ${t0} ${t1} ${hub.scene.series}`, bits };
    if (sent && sent.key === now.key && same(sent.bits, now.bits)) return;
    sent = now;
    waiting = performance.now();
    send({ kind: "view", t0, t1, series: hub.scene.series }, [bits]);
  };
  const reportSoon = () => {
    clearTimeout(timer);
    timer = setTimeout(report, DELAY_MS);
  };

  const receive = (message, buffers) => {
    if (message.to && message.to !== id) return;
    if (message.kind === "scene") {
      const { key, turn, range, series } = message;
      hub.scene = { key, turn, range, series, ids: idsOf(buffers[1]), payload: bytesOf(buffers[0]) };
      sent = null;
      for (const view of hub.views) view.show();
    } else if (message.kind === "state" && message.key === hub.scene?.key && message.from !== id) {
      const { turn, range, series } = message;
      Object.assign(hub.scene, { turn, range: range ?? hub.scene.range, series, ids: idsOf(buffers[0]) });
      for (const view of hub.views) view.follow();
      sent = null;
      reportSoon();
    } else if (message.kind === "ack") {
      waiting = 0;
      if (again) reportSoon();
      again = false;
    } else if (message.kind === "problem") {
      for (const view of hub.views) view.say(message.text);
    }
  };

  /** A view moved: the others follow at once, Python a moment later. */
  hub.drawn = (view) => {
    const { scene } = hub;
    const { viewer } = view;
    const series = viewer.series.index;
    const moved = !showsRange(viewer, scene.range);
    if (moved || series !== scene.series) {
      if (moved) scene.range = viewer.trueRange();
      scene.series = series;
      for (const other of hub.views) if (other !== view) other.follow();
    } else if (view !== hub.active && sent) return;
    reportSoon();
  };
  hub.drawnFirst = reportSoon;
  hub.idle = () => !timer && !waiting && !again; // nothing is left to tell
  hub.selected = (view, ids) => {
    view.ids = Array.from(ids);
    hub.scene.ids = Float64Array.from(ids);
    for (const other of hub.views) if (other !== view) other.follow();
    send({ kind: "select" }, [hub.scene.ids]);
  };
  hub.navigate = (href) => {
    const window = /[#&]x0=(-?\d+)&x1=(-?\d+)/.exec(href);
    send({ kind: "segment", href, t0: window ? Number(window[1]) : null, t1: window ? Number(window[2]) : null });
  };
  hub.openView = (el, viewSignal) => openView(hub, kit, el, viewSignal);
  signal.addEventListener("abort", () => {
    clearTimeout(timer);
    model.off("msg:custom", receive);
    for (const view of [...hub.views]) view.close();
  });
  model.on("msg:custom", receive);
  send({ kind: "hello" });
  return hub;
}

/** Wait until the browser has painted. */
function nextFrame() {
  return new Promise((resolve) => requestAnimationFrame(resolve));
}

/** Keep an element in the page, out of sight. */
function hide(node) {
  Object.assign(node.style, { position: "fixed", left: "-100000px", width: "1000px" });
  document.body.append(node);
}

function openView(hub, kit, el, signal) {
  const style = document.createElement("style");
  const root = document.createElement("div");
  root.className = "memscope";
  root.textContent = "Waiting for the kernel…";
  el.style.overflowX = "auto";
  el.replaceChildren(style, root);
  let [closed, busy, quiet] = [false, false, false];
  const view = { viewer: null, shows: null, ids: [] };

  const unmount = () => {
    const { viewer } = view;
    view.viewer = null;
    if (!viewer) return;
    viewer.destroy();
    const { documents } = kit.Bokeh; // only ours; BokehJS itself never forgets a document, nor its box for messages
    for (let k = documents.length - 1; k >= 0; k -= 1) {
      if (documents[k].roots().length) continue;
      documents[k].views_manager?.clear();
      documents.splice(k, 1);
    }
  };
  const quietly = (run) => {
    quiet = true;
    run();
    quiet = false;
  };

  async function remount() {
    while (!closed && !root.isConnected) await nextFrame();
    if (closed) return;
    const { scene } = hub;
    const kept = view.viewer && { ...view.viewer.filters, top: view.viewer.topN, tab: view.viewer.views.active.key };
    unmount();
    style.textContent = kit.css;
    const host = {
      Bokeh: kit.Bokeh,
      navigate: hub.navigate,
      onSelect: (ids) => view.viewer && !quiet && hub.selected(view, ids),
      onDraw: (viewer) => viewer === view.viewer && view.shows === hub.scene && hub.drawn(view),
    };
    const viewer = await kit.mount(root, scene.payload, JSON.parse(kit.figures), { host });
    Object.assign(view, { viewer, shows: scene });
    if (closed) return;
    viewer.refs.seriesField.hidden = true; // the widget has its own
    viewer.refs.sourceField.hidden = true;
    if (kept?.text) viewer.setFilter(kept.text, kept.where);
    if (kept && kept.top !== viewer.topN) viewer.setTop(kept.top);
    if (kept && viewer.views.all.some((one) => one.key === kept.tab && one.available(viewer))) viewer.openView(kept.tab);
    if (!hub.active) hub.active = view;
    scene.range ??= viewer.trueRange();
    view.ids = [];
    view.follow();
    hub.drawnFirst();
  }

  /** Show the hub's scene; a newer one that comes meanwhile is shown next. */
  view.show = async () => {
    if (busy) return;
    busy = true;
    try {
      while (!closed && hub.scene && view.shows !== hub.scene) await remount();
    } catch (error) {
      if (!closed) view.say(`This view cannot be drawn: ${error.message}`);
      console.error(error);
    } finally {
      busy = false;
      if (closed) {
        unmount();
        root.remove();
      }
    }
  };
  /** Take over pool, range and selection of the hub. */
  view.follow = () => {
    const { viewer } = view;
    const { scene } = hub;
    if (!viewer || view.shows !== scene) return;
    quietly(() => {
      if (viewer.series.index !== scene.series) {
        viewer.setSeries(scene.series);
        view.ids = [];
      }
      if (!showsRange(viewer, scene.range)) viewer.setRange(...scene.range);
      if (!same(view.ids, scene.ids)) {
        view.ids = Array.from(scene.ids);
        viewer.selectIds(view.ids, false);
      }
    });
  };
  view.say = (text) => {
    unmount();
    view.shows = null;
    root.textContent = text;
  };
  view.close = () => {
    if (closed) return;
    closed = true;
    hub.views.delete(view);
    if (hub.active === view) hub.active = null;
    if (!busy) unmount();
    else hide(root); // BokehJS fails half way, and keeps it all, if its place goes while it builds
    el.replaceChildren();
  };

  for (const type of ["pointerdown", "wheel", "keydown", "input", "change"]) {
    root.addEventListener(type, () => (hub.active = view), { capture: true, passive: true, signal });
  }
  // JupyterLab takes keys for itself, unless the very element that has the focus says no.
  root.addEventListener("focusin", (event) => (event.target.dataset.lmSuppressShortcuts = "true"), { signal });
  // Links between segments lead to Python, never away from the notebook.
  root.addEventListener("click", (event) => {
    const link = event.composedPath().find((node) => node.tagName === "A" && node.hasAttribute("href"));
    if (!link || link.hasAttribute("download")) return;
    event.preventDefault();
    hub.navigate(link.getAttribute("href"));
  }, { capture: true, signal });
  signal.addEventListener("abort", view.close);
  hub.views.add(view);
  view.show();
}
