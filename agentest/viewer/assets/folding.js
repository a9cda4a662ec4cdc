// What is shown when it is opened, and not made before: a conversation may have thousands of calls.

import { append, h } from "./dom.js";

const waiting = new WeakMap();

// A disclosure whose content `make` gives when it is opened first.
export function folded(summary, make, props = {}) {
  const element = h("details", { ...props, ontoggle: () => element.open && unfold(element) }, h("summary", {}, summary));
  waiting.set(element, make);
  if (props.open) unfold(element);
  return element;
}

function unfold(element) {
  const make = waiting.get(element);
  if (!make) return;
  waiting.delete(element);
  append(element, [make()]);
}

const MOST_PRINTED = 400;

// On paper nothing can be opened: what a reader would open is opened while it is printed.
export function openForPrint(place, signal) {
  let opened = [];
  const open = () => {
    opened = [...place.querySelectorAll("details:not([open]):not(.no-print)")].slice(0, MOST_PRINTED);
    for (const each of opened) {
      unfold(each);
      each.open = true;
    }
  };
  const close = () => opened.forEach((each) => (each.open = false));
  addEventListener("beforeprint", open, { signal });
  addEventListener("afterprint", close, { signal });
}

// Some of many children of `list`, and buttons for those around them. `make` gives the child at an index;
// `shown` is what the list stands in.
export function bounded(list, length, make, { first = 0, step = 100, noun = "row", shown = list } = {}) {
  let from = first;
  let to = Math.min(length, first + step);
  const children = (start, end) => Array.from({ length: end - start }, (_, at) => make(start + at));
  const earlier = h("button", { type: "button", onclick: before });
  const later = h("button", { type: "button", onclick: after });
  append(list, children(from, to));

  function before() {
    const start = Math.max(0, from - step);
    const added = children(start, from);
    list.prepend(...added);
    from = start;
    label();
    focus(added[0]);
  }

  function after() {
    const end = Math.min(length, to + step);
    const added = children(to, end);
    list.append(...added);
    to = end;
    label();
    focus(added[0]);
  }

  // The button may be gone, and the focus must not be.
  function focus(element) {
    if (!element.hasAttribute("tabindex")) element.setAttribute("tabindex", "-1");
    element.focus();
  }

  function label() {
    earlier.textContent = `Show ${Math.min(step, from)} earlier ${noun}s`;
    later.textContent = `Show ${Math.min(step, length - to)} more ${noun}s (of ${length - to})`;
    earlier.hidden = from === 0;
    later.hidden = to === length;
  }

  label();
  return h("div", {}, earlier, shown, later);
}
