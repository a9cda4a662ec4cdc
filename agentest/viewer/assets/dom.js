// Elements. Whatever agents, tools and users wrote gets in here as text and stays text.

export function h(tag, props, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(props || {})) set(element, name, value);
  return append(element, children);
}

export function svg(tag, props, ...children) {
  const element = document.createElementNS("http://www.w3.org/2000/svg", tag);
  for (const [name, value] of Object.entries(props || {})) {
    if (value !== null && value !== undefined) element.setAttribute(name, value);
  }
  return append(element, children);
}

// Functions are listeners (`onclick`), `class`, `for` and `aria-…` are attributes, `style` is an object of CSS
// properties, `data` of data attributes; false, null and undefined are left out.
function set(element, name, value) {
  if (value === false || value === null || value === undefined) return;
  if (typeof value === "function") element.addEventListener(name.slice(2), value);
  else if (name === "style") for (const [key, text] of Object.entries(value)) element.style.setProperty(key, text);
  else if (name === "data") Object.assign(element.dataset, value);
  else if (name === "value") element.value = value;
  else element.setAttribute(name, value === true ? "" : value);
}

// Children are nodes, texts, numbers, lists of them, or nothing.
export function append(element, children) {
  for (const child of [children].flat(Infinity)) {
    if (child !== null && child !== undefined && child !== false) element.append(child);
  }
  return element;
}

export function fill(element, ...children) {
  element.replaceChildren();
  return append(element, children);
}

// Text of others: shown from its own side, so that it cannot turn what stands beside it.
export function foreign(text, tag = "span", props = {}) {
  return h(tag, { dir: "auto", ...props, class: `foreign ${props.class || ""}`.trim() }, String(text));
}
