// Fields of a form that edits a JSON value in place, each with room for what the reader says of it.

import { append, h } from "./dom.js";

let count = 0;

// The fields of one form. `changed` is called when the value has changed; texts that are no JSON yet are kept
// here, so that they survive when the form is drawn anew.
export class Fields {
  constructor(changed) {
    this.changed = changed;
    this.all = [];
    this.drafts = new WeakMap();
  }

  reset() {
    this.all = [];
  }

  // A field for the text that `read` gives and `write` takes; `write` returns what is wrong with it, or "".
  add({ label, path, value, write, hint, code, rows, single }) {
    const id = `field-${++count}`;
    const control = single
      ? h("input", { id, value, dir: "auto", spellcheck: "false", autocomplete: "off" })
      : h("textarea", { id, value, dir: code ? "ltr" : "auto", class: code && "code", rows: rows || height(value) });
    const slot = h("p", { id: `${id}-said`, class: "said", hidden: true });
    const field = { path, control, slot, broken: "", hint: hint ? `${id}-hint` : "" };
    control.addEventListener("input", () => {
      field.broken = write(control.value) || "";
      say(field, field.broken, "problem");
      this.changed();
    });
    say(field, "", "");
    this.all.push(field);
    const about = hint && h("span", { id: field.hint, class: "quiet" }, ` ${hint}`);
    return h("div", { class: "field" }, h("label", { for: id }, label), about, control, slot);
  }

  text(holder, key, label, path, more = {}) {
    return this.add({ label, path, value: holder[key] || "", write: (text) => void (holder[key] = text), ...more });
  }

  // A field for a part of the value as JSON. `wanted` is "object" or "list"; an empty text takes the part out.
  json({ holder, key, label, path, value, write, wanted, hint }) {
    const kept = this.drafts.get(holder) || {};
    this.drafts.set(holder, kept);
    const text = kept[key] ?? (value === undefined ? "" : JSON.stringify(value, null, 2));
    const element = this.add({
      label,
      path,
      hint,
      code: true,
      value: text,
      write: (typed) => {
        const { found, wrong } = parsed(typed, wanted);
        kept[key] = wrong ? typed : undefined;
        if (!wrong) write(found);
        return wrong;
      },
    });
    const field = this.all.at(-1);
    field.broken = kept[key] === undefined ? "" : parsed(text, wanted).wrong;
    say(field, field.broken, "problem");
    return element;
  }

  // Show what the reader said beside the fields that it is about. Returns what is about none of them.
  show(problems, kind) {
    for (const field of this.all) say(field, field.broken, "problem");
    return problems.filter(({ path, message }) => {
      const field = path && path.length ? this.near(path) : null;
      if (field && !field.broken) say(field, field.slot.hidden ? message : `${field.slot.textContent}; ${message}`, kind);
      return !field;
    });
  }

  near(path) {
    const inside = this.all.filter((field) => begins(path, field.path)).sort((a, b) => b.path.length - a.path.length);
    return inside[0] || this.all.find((field) => begins(field.path, path)) || null;
  }

  get firstWrong() {
    return this.all.find((field) => field.control.getAttribute("aria-invalid") === "true");
  }

  get broken() {
    return this.all.find((field) => field.broken);
  }
}

function say(field, message, kind) {
  const { control, slot, hint } = field;
  slot.hidden = !message;
  slot.textContent = message;
  slot.className = `said ${kind}`;
  const described = [hint, message && slot.id].filter(Boolean).join(" ");
  if (described) control.setAttribute("aria-describedby", described);
  else control.removeAttribute("aria-describedby");
  control.setAttribute("aria-invalid", String(Boolean(message) && kind === "problem"));
}

function begins(path, start) {
  return start.length <= path.length && start.every((key, place) => key === path[place]);
}

function height(text) {
  return Math.min(14, Math.max(2, String(text).split("\n").length));
}

const LONG_NUMBER = /(^|[^\w.])-?\d{16,}/;

function parsed(text, wanted) {
  if (!text.trim()) return { found: undefined, wrong: "" };
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    return { wrong: `is not JSON: ${error.message}` };
  }
  const kind = Array.isArray(found) ? "list" : found === null ? "null" : typeof found;
  if (kind !== wanted) return { wrong: `expected ${wanted === "list" ? "a list: […]" : "an object: {…}"}` };
  if (LONG_NUMBER.test(text.replace(/"(?:[^"\\]|\\.)*"/g, '""'))) {
    return { wrong: "a browser cannot keep a number of so many digits; edit the case as text" };
  }
  return { found, wrong: "" };
}

// A list whose entries can be moved, taken out and added. After that, `redraw(selector)` draws the form anew and
// gives the focus to what the selector names.
export function entries(items, draw, { name, redraw, className }) {
  return h("ol", { class: className }, items.list.map((item, place) =>
    append(h("li", {}), [draw(item, place), h("div", { class: "row small-buttons" }, buttons(items, place, name, redraw))])));
}

function buttons(items, place, name, redraw) {
  const called = `${name} ${place + 1}`;
  const button = (text, label, act, off) => h("button", {
    type: "button", class: "small", "aria-label": `${label} ${called}`, disabled: off, data: { act: `${name}-${place}-${text}` },
    onclick: () => {
      act();
      redraw(`[data-act="${name}-${Math.max(0, Math.min(place, items.list.length - 1))}-${text}"]`);
    },
  }, text);
  return [
    items.swap && button("↑", "Move up", () => items.swap(place, place - 1), place === 0),
    items.swap && button("↓", "Move down", () => items.swap(place, place + 1), place === items.list.length - 1),
    button("Remove", "Remove", () => items.remove(place), Boolean(items.least && items.list.length <= items.least)),
  ];
}

export function plain(list, least = 0) {
  return {
    list,
    least,
    swap: (one, other) => ([list[one], list[other]] = [list[other], list[one]]),
    remove: (place) => list.splice(place, 1),
  };
}
