// What is made when it is wanted: a conversation may have thousands of calls, and its page must stay quick.

import { append, h } from "./dom.js";

const waiting = new WeakMap();

// A disclosure whose content `make` gives when it is opened first.
export function folded(summary, make, props = {}) {
  const ontoggle = () => element.open && unfold(element);
  const element = h("details", { ...props, ontoggle }, h("summary", {}, summary));
  waiting.set(element, make);
  if (props.open) unfold(element);
  return element;
}

function unfold(element) {
  const make = waiting.get(element);
  waiting.delete(element);
  if (make) append(element, [make()]);
}

const MOST_PRINTED = 400;

// On paper nothing can be opened: what a reader would open is open while it is printed.
export function openForPrint(place, signal) {
  let opened = [];
  const open = () => {
    opened = [...place.querySelectorAll("details:not([open]):not(.no-print)")].slice(0, MOST_PRINTED);
    for (const each of opened) {
      unfold(each);
      each.open = true;
    }
  };
  addEventListener("beforeprint", open, { signal });
  addEventListener("afterprint", () => opened.forEach((each) => (each.open = false)), { signal });
}

// Some of many children of `list`, with buttons for those before and after them; the first that a button brings
// gets the focus. `make` gives the child at an index; `shown` is what the list stands in.
export function bounded(list, length, make, { first = 0, step = 100, noun = "row", shown = list } = {}) {
  let [from, to] = [first, first];
  const buttons = [-1, 1].map((by) => h("button", { type: "button", onclick: () => show(by).focus() }));

  function show(by) {
    const [start, end] = by < 0 ? [Math.max(0, from - step), from] : [to, Math.min(length, to + step)];
    const added = Array.from({ length: end - start }, (_, at) => make(start + at));
    if (by < 0) list.prepend(...added);
    else list.append(...added);
    [from, to] = [Math.min(from, start), Math.max(to, end)];
    [from, length - to].forEach((left, side) => {
      buttons[side].textContent = `Show ${Math.min(step, left)} ${side ? "more" : "earlier"} ${noun}s`;
      buttons[side].hidden = !left;
    });
    if (added.length) added[0].tabIndex = -1;
    return added[0];
  }

  show(1);
  return h("div", {}, buttons[0], shown, buttons[1]);
}

// A table of `length` rows. Columns without a name have no head; `more` stands behind the rows.
export function table(name, heads, length, row, { foot, more = {} } = {}) {
  const head = (each) => (each ? h("th", { scope: "col" }, each) : h("td"));
  const body = h("tbody");
  const whole = h("table", { class: name }, h("thead", {}, h("tr", {}, heads.map(head))), body, foot);
  const scroll = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Table" }, whole);
  return bounded(body, length, row, { ...more, shown: scroll });
}
