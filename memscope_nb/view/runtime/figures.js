// The Bokeh document: opened below given elements, addressed by model names, recoloured for a theme.

import { byteTick, timeTicks } from "./format.js";
import { ticksBetween } from "./time.js";

const TICKS = 7;
const PLOTS = ["overview", "curve", "layers", "stack", "gantt"];

/** Open the document that Python built. `hosts` = element per plot. */
export async function openFigures(Bokeh, docJson, hosts) {
  const root_ids = docJson.roots.map((root) => root.id);
  const roots = Object.fromEntries(
    docJson.roots.map((root) => [root.id, hosts[root.attributes.name.replace("ms-", "")]]),
  );
  const [views] = await Bokeh.embed.embed_items({ memscope: docJson }, [{ docid: "memscope", root_ids, roots }]);
  const doc = views.roots[0].model.document;
  const model = (name) => doc.get_model_by_name(`ms-${name}`);
  for (const name of ["curve", "layers"]) model(`${name}-bytes`).doFormat = (ticks) => Array.from(ticks, byteTick);
  model("stack-bytes").doFormat = (ticks) => Array.from(ticks, (tick) => stackTicks.get(tick) ?? "");
  const stackTicks = new Map();
  const viewOf = (name) => views.get(model(name));

  return {
    model,
    range: model("x"),
    setData(name, columns) {
      model(`${name}-data`).data = columns;
    },
    /** Ticks of the figure of stacked views: pairs of a place and its text. */
    setStackTicks(pairs) {
      stackTicks.clear();
      for (const [tick, text] of pairs) stackTicks.set(tick, text);
      model("stack-ticks").ticks = pairs.map(([tick]) => tick);
    },
    /** Where the data area of a plot lies inside its host, in px. */
    frame(name) {
      const { left, top, width, height } = viewOf(name).frame.bbox;
      return { left, top, width, height };
    },
    /** Call back when a plot has a new size. */
    onLayout(run) {
      for (const name of PLOTS) {
        model(name).properties.inner_width.change.connect(run);
        model(name).properties.inner_height.change.connect(run);
      }
    },
    onRange(run) {
      model("x").properties.start.change.connect(run);
      model("x").properties.end.change.connect(run);
    },
    /** What dragging does: pan, zoom to a box, or nothing here (select). */
    drag(mode) {
      for (const name of PLOTS.slice(1)) {
        const only = mode === "select" && name !== "gantt" ? "pan" : mode;
        model(`${name}-pan`).active = only === "pan";
        model(`${name}-box`).active = only === "zoom";
      }
    },
    /** Say beside the axes what they show where it is no time. */
    noteAxes(text) {
      for (const name of ["curve", "gantt", "stack"]) for (const axis of model(name).below) axis.axis_label = text;
    },
    /** Put the ticks at round true times, and write these. */
    followTime(timeline) {
      for (const name of PLOTS) {
        const ticker = model(`${name}-ticker`);
        ticker.get_ticks = (low, high) => ({ major: ticksBetween(timeline.time, low, high, TICKS), minor: [] });
        model(`${name}-time`).doFormat = (ticks) => timeTicks(Array.from(ticks, timeline.time.toTrue));
      }
    },
    close() {
      for (const root of doc.roots()) views.get(root)?.remove();
      doc.clear();
    },
  };
}

/** Give the glyphs the colours of a theme. */
export function colourFigures(figures, theme, layers) {
  const glyph = (name) => figures.model(`${name}-glyph`).glyph;
  for (const [ledger, colour] of Object.entries(theme.ledgers)) glyph(ledger).line_color = { value: colour };
  layers.forEach((layer, i) => (glyph(`layer${i}`).fill_color = { value: theme.layers[layer.colour] }));
  glyph("layers-resident").line_color = { value: theme.ledgers.resident };
  glyph("fill").fill_color = { value: theme.allocated_fill };
  glyph("overview").fill_color = { value: theme.allocated_fill };
  glyph("overview").line_color = { value: theme.allocated_fill };
  glyph("older").fill_color = { value: theme.older };
  glyph("peak").fill_color = { value: theme.peak };
  glyph("selected").line_color = { value: theme.selection };
  figures.model("peak-line").line_color = theme.peak;
  for (const line of ["capacity-line", "layers-capacity-line"]) figures.model(line).line_color = theme.capacity;
  glyph("stack-top").line_color = { value: theme.css.text };
  glyph("unbacked").hatch_color = { value: theme.capacity };
  glyph("unbacked").fill_color = { value: theme.css.ground };
}
