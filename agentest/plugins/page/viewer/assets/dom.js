// Elements. Whatever agents, tools and users wrote gets in here as text and stays text.

// `h("p.notice", text)`, `h("a", { href }, text)`: a tag with its classes, properties if it has some, children.
export function h(tag, ...rest) {
  const [name, ...classes] = tag.split(".");
  const props = rest[0] && rest[0].constructor === Object ? rest.shift() : {};
  const element = build(document.createElement(name), props, rest);
  element.classList.add(...classes);
  return element;
}

export function svg(tag, props, ...children) {
  return build(document.createElementNS("http://www.w3.org/2000/svg", tag), props, children);
}

function build(element, props, children) {
  for (const [name, value] of Object.entries(props || {})) set(element, name, value);
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

// The same where something may have the focus: it goes to the element that has the id of the one before.
export function refill(element, ...children) {
  const { id } = element.contains(document.activeElement) ? document.activeElement : element;
  fill(element, ...children);
  const again = id && document.getElementById(id);
  if (again) again.focus({ preventScroll: true });
}

// Controls, and invisible characters that reorder, hide or forge text: what support/terminal.py calls steering.
const STEERING =
  /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u180e\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ufff9-\ufffb\p{Cs}\u{e0000}-\u{e0fff}]/gu;

// The text with such characters as escapes, which can be seen and do nothing.
export function visible(text) {
  return String(text).replaceAll("\r\n", "\n").replace(STEERING, escaped);
}

function escaped(letter) {
  const code = letter.codePointAt(0).toString(16);
  if (code.length > 4) return `\\u{${code}}`;
  return code.length > 2 ? `\\u${code.padStart(4, "0")}` : `\\x${code.padStart(2, "0")}`;
}

// Text of others: shown from its own side, so that it cannot turn what stands beside it.
export function foreign(text, tag = "span", props = {}) {
  return h(`${tag}.foreign`, { dir: "auto", ...props }, visible(text));
}
