// What two lists, or two texts, have in common and what not.

import { foreign, h, visible } from "./dom.js";
import { longText } from "./parts.js";

const MOST_CELLS = 4000000;
const MOST_CHARS = 4000;

// Pairs of places [in a, in b] of what is alike, in order; undefined beside what only one of them has. By the
// longest common subsequence; where that would take long, nothing is alike.
export function aligned(a, b) {
  const fits = a.length * b.length <= MOST_CELLS;
  const longest = fits && Array.from({ length: a.length + 1 }, () => new Uint16Array(b.length + 1));
  for (let x = a.length - 1; fits && x >= 0; x--) {
    for (let y = b.length - 1; y >= 0; y--) {
      const best = Math.max(longest[x + 1][y], longest[x][y + 1]);
      longest[x][y] = a[x] === b[y] ? longest[x + 1][y + 1] + 1 : best;
    }
  }
  const pairs = [];
  let [x, y] = [0, 0];
  while (x < a.length || y < b.length) {
    const skips = y === b.length || (x < a.length && (!fits || longest[x + 1][y] >= longest[x][y + 1]));
    if (fits && x < a.length && y < b.length && a[x] === b[y]) pairs.push([x++, y++]);
    else if (skips) pairs.push([x++, undefined]);
    else pairs.push([undefined, y++]);
  }
  return pairs;
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
