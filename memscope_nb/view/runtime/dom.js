// Building DOM below one root. Text always goes in as text: nothing here parses HTML.

/** Make an element: `text` becomes its text, `on` its listeners, other keys attributes. */
export function el(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(attributes)) {
    if (value === undefined || value === null || value === false) continue;
    if (key === "text") node.textContent = value;
    else if (key === "on") for (const [type, run] of Object.entries(value)) node.addEventListener(type, run);
    else node.setAttribute(key, value === true ? "" : value);
  }
  node.append(...children.filter((child) => child !== null && child !== undefined));
  return node;
}

/** Text from a recording: isolated so that its direction cannot disturb what stands around it. */
export function data(text, attributes = {}) {
  return el("bdi", { class: "ms-data", ...attributes, text });
}

/** Links of a payload may only lead to neighbouring files. */
export function safeHref(href) {
  return href && !/^\s*(?:[a-z][a-z0-9+.-]*:|\/\/)/i.test(href) ? href : null;
}

/** A list of term and value. */
export function facts(pairs) {
  const list = el("dl", { class: "ms-facts" });
  for (const [term, value] of pairs) {
    if (value === null) continue;
    list.append(el("dt", { text: term }), el("dd", {}, typeof value === "string" ? data(value) : value));
  }
  return list;
}

/** Place an absolutely positioned element. */
export function place(node, box) {
  for (const [key, value] of Object.entries(box)) node.style[key] = `${value}px`;
}
