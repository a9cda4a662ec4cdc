// Lists, tables and folded parts, of which only what is wanted is made: a conversation may have thousands of
// calls, and its page must stay quick.

import { append, h } from "./dom.js";
import { count } from "./format.js";

const CLOSED = "details:not([open]):not(.no-print)";
const MOST_PRINTED = 400;

// A disclosure (`tag`: details with its classes) whose content `make` gives when it is opened first.
export function folded(tag, summary, make, open = false) {
  const element = h(tag, { open, ontoggle: () => element.open && unfold(element) }, h("summary", summary));
  element.make = make;
  if (open) unfold(element);
  return element;
}

function unfold(element) {
  const { make } = element;
  element.make = null;
  if (make) append(element, [make()]);
}

// On paper nothing can be opened: what a reader would open is open while it is printed.
export function openForPrint(place, signal) {
  const opened = [];
  const open = () => {
    for (let next; opened.length < MOST_PRINTED && (next = place.querySelector(CLOSED)); opened.push(next)) {
      unfold(next);
      next.open = true;
    }
  };
  addEventListener("beforeprint", open, { signal });
  addEventListener("afterprint", () => opened.splice(0).forEach((each) => (each.open = false)), { signal });
}

// Some of many children of `list`, with buttons for those before and after them; the first that a button
// brings gets the focus. `make` gives the child at an index; `shown` is what the list stands in.
export function bounded(list, length, make, { first = 0, step = 100, noun = "row", shown = list } = {}) {
  let [from, to] = [first, first];
  const buttons = [-1, 1].map((by) => h("button.more", { type: "button", onclick: () => show(by).focus() }));

  function show(by) {
    const [start, end] = by < 0 ? [Math.max(0, from - step), from] : [to, Math.min(length, to + step)];
    const added = Array.from({ length: end - start }, (_, at) => make(start + at));
    if (by < 0) list.prepend(...added);
    else list.append(...added);
    [from, to] = [Math.min(from, start), Math.max(to, end)];
    [from, length - to].forEach((left, side) => {
      buttons[side].textContent = `Show ${count(Math.min(step, left), [side ? "more" : "earlier", noun].join(" "))}`;
      buttons[side].hidden = !left;
    });
    if (added.length) added[0].tabIndex = -1;
    return added[0];
  }

  show(1);
  return h("div", buttons[0], shown, buttons[1]);
}

export function list(...items) {
  return h("ul.plain", items);
}

export function notice(...content) {
  return h("p.notice", content);
}

// A table of `length` rows. Columns without a name have no head; `more` stands behind the rows.
export function table(name, heads, length, row, { foot, more = {} } = {}) {
  const head = (each) => (each ? h("th", { scope: "col" }, each) : h("td"));
  const body = h("tbody");
  const whole = h("table", { class: name }, h("thead", h("tr", heads.map(head))), body, foot);
  const scroll = h("div.scroll", { tabindex: "0", role: "group", "aria-label": "Table" }, whole);
  return bounded(body, length, row, { ...more, shown: scroll });
}

// A row of a table: its class, its name, and the other cells.
export function tableRow(status, name, ...cells) {
  return h("tr", { class: status }, h("th", { scope: "row" }, name), cells.map((each) => h("td", each)));
}
