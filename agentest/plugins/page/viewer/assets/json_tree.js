// JSON as a tree that unfolds: the first levels are open, and a button copies all of it.

import { foreign, h } from "./dom.js";
import { bounded, folded } from "./folding.js";
import { copyButton, longText } from "./parts.js";

const MOST_OPEN = 12; // entries of what is open at first
const OPEN_DEPTH = 2;

// `name` says what is copied, such as "the arguments".
export function tree(value, name) {
  const copy = copyButton(() => (typeof value === "string" ? value : JSON.stringify(value, null, 2)));
  copy.setAttribute("aria-label", `Copy ${name}`);
  return h("div.tree", copy, node(null, value, 0));
}

function node(key, value, depth) {
  const head = key !== null && [foreign(key, "span.key"), ": "];
  const inside = value !== null && typeof value === "object" && Object.entries(value);
  if (!inside || !inside.length) return h("div", head, longText(leaf(value), "span", { class: typeof value }));
  const [first, last] = Array.isArray(value) ? "[]" : "{}";
  const make = () => bounded(h("ul.plain"), inside.length, (at) => h("li", node(...inside[at], depth + 1)), { noun: "entry" });
  const open = depth < OPEN_DEPTH && inside.length <= MOST_OPEN;
  return folded("details", [head, h("span.quiet", `${first}${inside.length}${last}`)], make, open);
}

function leaf(value) {
  return value === undefined ? "null" : JSON.stringify(value);
}
