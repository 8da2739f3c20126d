// Light or dark: which one, and its colours as custom properties of the root.

import { colourFigures } from "./figures.js";

/** "light" or "dark": what the host says, what JupyterLab says, what the system prefers. */
export function themeName(host) {
  if (host.theme === "light" || host.theme === "dark") return host.theme;
  const lab = document.body.dataset.jpThemeLight;
  if (lab) return lab === "false" ? "dark" : "light";
  return window.matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

/** Colour root and figures. */
export function applyTheme(viewer, name) {
  const theme = viewer.themes[name];
  const { root } = viewer.refs;
  viewer.theme = theme;
  viewer.colours = null; // they are made from the theme
  root.dataset.theme = name;
  const set = (key, value) => root.style.setProperty(`--ms-${key}`, value);
  for (const [key, value] of Object.entries(theme.css)) set(key, value);
  for (const [key, value] of Object.entries(theme.classes)) set(`class-${key}`, value);
  for (const [key, value] of Object.entries(theme.ledgers)) set(`line-${key}`, value);
  for (const [key, value] of Object.entries(theme.layers)) set(`layer-${key}`, value);
  set("capacity", theme.capacity);
  set("line-older", theme.older);
  set("rest", theme.rest);
  colourFigures(viewer.figures, theme, viewer.timeline.layers);
  viewer.colours = null;
  viewer.onColours?.();
}

/** Follow changes of the theme while the viewer lives. */
export function followTheme(viewer, host) {
  const update = () => {
    applyTheme(viewer, themeName(host));
    viewer.redraw();
  };
  const query = window.matchMedia("(prefers-color-scheme: dark)");
  query.addEventListener("change", update);
  const watcher = new MutationObserver(update);
  watcher.observe(document.body, { attributes: true, attributeFilter: ["data-jp-theme-light"] });
  viewer.onDestroy(() => {
    query.removeEventListener("change", update);
    watcher.disconnect();
  });
}
