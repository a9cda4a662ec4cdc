// A table of any length: rows stand in blocks, and only the blocks near the screen are filled. Screen readers
// are told of all rows by `aria-rowcount` and `aria-rowindex`.

import { fill, h } from "./dom.js";

const BLOCK = 40;
const GUESS_PX = 60;
const MOST_PRINTED = 2000;

// `head`: a row of header cells; `span`: how many cells; `rows(item, index)`: the `tr` elements of an item, the
// first of which is its own; `key(item)`: what the elements in it that may have the focus have as `data-key`.
export function windowed({ head, span, caption, rows, key, signal }) {
  const table = h("table", { class: "windowed" }, h("caption", { class: "off-screen" }, caption), h("thead", {}, head));
  const near = new IntersectionObserver(seen, { rootMargin: "1200px 0px" });
  const blocks = new Map();
  let list = [];
  let rowPx = GUESS_PX;

  function seen(entries) {
    for (const { target, isIntersecting, boundingClientRect } of entries) {
      const block = blocks.get(target);
      if (!block) continue;
      if (isIntersecting) draw(block);
      else if (block.drawn && boundingClientRect.height && !target.contains(document.activeElement)) empty(block, boundingClientRect.height);
      if (block.drawn && boundingClientRect.height) rowPx = boundingClientRect.height / Math.min(BLOCK, list.length - block.from);
    }
  }

  function draw(block) {
    if (block.drawn) return;
    block.drawn = true;
    const items = list.slice(block.from, block.from + BLOCK);
    fill(block.body, items.map((item, at) => indexed(rows(item), block.from + at)));
  }

  function indexed(drawn, index) {
    drawn[0].setAttribute("aria-rowindex", index + 2);
    return drawn;
  }

  function empty(block, px) {
    const height = `${Math.round(px)}px`;
    const space = block.drawn === false && block.body.querySelector(".space");
    block.drawn = false;
    if (space) space.style.height = height;
    else fill(block.body, h("tr", { "aria-hidden": "true" }, h("td", { colspan: span, class: "space", style: { height } })));
  }

  // The items instead of those before. What has the focus keeps it, wherever it stands now.
  function show(items) {
    const focused = table.contains(document.activeElement) ? document.activeElement.dataset.key : null;
    list = items;
    table.setAttribute("aria-rowcount", list.length + 1);
    const all = [...blocks.values()];
    for (const extra of all.splice(Math.ceil(list.length / BLOCK))) remove(extra);
    while (all.length * BLOCK < list.length) all.push(added(all.length * BLOCK));
    for (const [n, block] of all.entries()) {
      const wanted = block.drawn || n < 1;
      if (wanted) {
        block.drawn = false;
        draw(block);
      } else empty(block, Math.min(BLOCK, list.length - block.from) * rowPx);
    }
    if (focused) reveal(focused, false);
  }

  function added(from) {
    const block = { body: h("tbody", {}), from, drawn: null };
    blocks.set(block.body, block);
    table.append(block.body);
    near.observe(block.body);
    return block;
  }

  function remove(block) {
    near.unobserve(block.body);
    blocks.delete(block.body);
    block.body.remove();
  }

  // Gives the focus to what has the key; `scroll`: brings it into sight.
  function reveal(wanted, scroll = true) {
    const at = list.findIndex((item) => key(item).includes(wanted));
    if (at < 0) return;
    const block = [...blocks.values()][Math.floor(at / BLOCK)];
    draw(block);
    const element = [...block.body.querySelectorAll("[data-key]")].find((each) => each.dataset.key === wanted);
    if (!element) return;
    element.focus({ preventScroll: true });
    if (scroll) element.scrollIntoView({ block: "center" });
  }

  // Draws one item anew.
  function redraw(item) {
    const block = [...blocks.values()][Math.floor(list.indexOf(item) / BLOCK)];
    if (!block || !block.drawn) return;
    const focused = document.activeElement.dataset.key;
    block.drawn = false;
    draw(block);
    if (focused) reveal(focused, false);
  }

  const printed = h("tfoot", { class: "print" });
  table.append(printed);
  function beforePrint() {
    for (const block of [...blocks.values()].slice(0, MOST_PRINTED / BLOCK)) draw(block);
    const left = list.length - MOST_PRINTED;
    for (const block of [...blocks.values()].slice(MOST_PRINTED / BLOCK)) empty(block, 0);
    if (left > 0) fill(printed, h("tr", {}, h("td", { colspan: span }, `${left.toLocaleString("en")} more rows are not printed: filter the list.`)));
  }
  addEventListener("beforeprint", beforePrint, { signal });
  addEventListener("afterprint", () => (fill(printed), show(list)), { signal });
  signal.addEventListener("abort", () => near.disconnect());
  return { element: table, show, reveal, redraw };
}
