// What two lists, or two texts, have in common and what not.

import { valueText } from "./calls.js";
import { foreign, h, visible } from "./dom.js";
import { longText } from "./parts.js";

const MOST_CELLS = 4000000;
const MOST_CHARS = 4000;

const same = (left, right) => (left === right ? 1 : 0);

// Pairs of places [in a, in b] of what is alike, in order; undefined beside what only one of them has. The pairs have
// the largest sum of `alike`, where 0 makes no pair; where that would take long, nothing is alike.
export function aligned(a, b, alike = same) {
  const fits = a.length * b.length <= MOST_CELLS;
  const sums = fits && Array.from({ length: a.length + 1 }, () => new Float32Array(b.length + 1));
  const both = (x, y) => {
    const score = alike(a[x], b[y]);
    return score > 0 ? score + sums[x + 1][y + 1] : -1;
  };
  for (let x = a.length - 1; fits && x >= 0; x--) {
    for (let y = b.length - 1; y >= 0; y--) sums[x][y] = Math.max(sums[x + 1][y], sums[x][y + 1], both(x, y));
  }
  const pairs = [];
  let [x, y] = [0, 0];
  while (x < a.length || y < b.length) {
    const inside = fits && x < a.length && y < b.length;
    const skips = y === b.length || (x < a.length && (!fits || sums[x + 1][y] >= sums[x][y + 1]));
    if (inside && Math.fround(both(x, y)) >= Math.max(sums[x + 1][y], sums[x][y + 1])) pairs.push([x++, y++]);
    else if (skips) pairs.push([x++, undefined]);
    else pairs.push([undefined, y++]);
  }
  return pairs;
}

// How alike two texts are by their words, from 0 to 1; texts are sets of words here.
export function wordsOf(text) {
  return new Set((text || "").toLowerCase().match(/[\p{L}\p{N}]+/gu));
}

export function likeness(a, b) {
  const [few, many] = a.size < b.size ? [a, b] : [b, a];
  if (!many.size) return 1;
  let both = 0;
  for (const word of few) if (many.has(word)) both++;
  return (2 * both) / (a.size + b.size);
}

// A text, in an element of a `kind`, with the words in `tag` that the other one lacks.
export function marked(text, other, tag, kind) {
  if (text === other) return longText(text, kind);
  if (Math.max(text.length, other.length) > MOST_CHARS) {
    return [h("p.quiet", "≠ differs; too long to mark words"), longText(text, kind)];
  }
  const words = text.match(/\s*\S+|\s+$/g) || [];
  const shown = foreign("", kind);
  let last = null;
  for (const [x, y] of aligned(words.map((each) => each.trim()), other.match(/\S+/g) || [])) {
    if (x === undefined) continue;
    const name = y === undefined ? tag : "span";
    if (!last || last.localName !== name) shown.append((last = h(name)));
    last.append(visible(words[x]));
  }
  return shown;
}

const SIGNS = { matched: "=", free: "·", changed: "≠", removed: "−", added: "+" };
const NAMED = /(?:^|; )([^\s;:(]+): (?:expected |not expected)/g;

// The arguments of one call against those that were expected, key by key. What differs is what the verdict says
// in `difference`; null where the texts are of another form.
export function argumentsDiff({ expected, difference = "" }, { name, args }) {
  const wanted = expected ? argumentsOf(expected, name) : null;
  if (!wanted || args === null || typeof args !== "object") return null;
  const wrong = new Set([...difference.matchAll(NAMED)].map(([, key]) => key));
  const keys = [...new Set([...Object.keys(wanted.given), ...Object.keys(args)])];
  return keys.map((key) => {
    const [left, right] = [wanted.given[key], Object.hasOwn(args, key) ? valueText(args[key]) : undefined];
    const free = left === undefined && wanted.open ? "free" : "matched";
    const kind = right === undefined ? "removed" : left === undefined ? "added" : "changed";
    const status = wrong.has(key) ? kind : right === undefined ? "free" : free;
    return { key, left, right, status, sign: SIGNS[status] };
  });
}

// {given: key → text, open: whether others are allowed} of `name(key=value, …)`.
function argumentsOf(text, name) {
  if (text === name) return { given: {}, open: true };
  if (!text.startsWith(`${name}(`) || !text.endsWith(")")) return null;
  const found = { given: {}, open: false };
  for (const piece of pieces(text.slice(name.length + 1, -1))) {
    const at = piece.indexOf("=");
    if (piece === "…") found.open = true;
    else if (at < 1) return null;
    else found.given[piece.slice(0, at)] = piece.slice(at + 1);
  }
  return found;
}

// What stands between commas that are in no quotes and no brackets.
function pieces(text) {
  const found = [""];
  let [quote, depth] = ["", 0];
  for (let at = 0; at < text.length; at++) {
    const letter = text[at];
    if (quote) {
      if (letter === "\\") found[found.length - 1] += text[at++];
      else if (letter === quote) quote = "";
    } else if (letter === "'" || letter === "\"") quote = letter;
    else if ("([{".includes(letter)) depth++;
    else if (")]}".includes(letter)) depth--;
    if (letter === "," && !quote && !depth) found.push("");
    else found[found.length - 1] += text[at] || "";
  }
  return found.map((each) => each.trim()).filter(Boolean);
}
