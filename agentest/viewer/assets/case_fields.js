// Fields that edit a JSON value in place, each with room for what the reader says of it.

import { h } from "./dom.js";

let count = 0;

// The fields of one form. Texts that are no JSON yet are kept here, so that they survive when it is drawn anew.
export class Fields {
  constructor() {
    this.all = [];
    this.drafts = new WeakMap();
  }

  // `write` takes the text and returns what is wrong with it, if anything is.
  add({ label, path, value, write, hint, code, line, wrong = "" }) {
    const id = `field-${++count}`;
    const props = { id, value, dir: code ? "ltr" : "auto", spellcheck: "false", class: code && "code" };
    const rows = Math.min(14, Math.max(2, String(value).split("\n").length));
    const control = line ? h("input", props) : h("textarea", { ...props, rows });
    const slot = h("p", { id: `${id}-said` });
    const field = { path, control, slot, broken: wrong, hint: hint && `${id}-hint` };
    control.addEventListener("input", () => {
      field.broken = write(control.value) || "";
      say(field, field.broken, "problem");
    });
    say(field, wrong, "problem");
    this.all.push(field);
    const about = hint && h("span", { id: field.hint, class: "quiet" }, ` ${hint}`);
    return h("div", { class: "field" }, h("label", { for: id }, label), about, control, slot);
  }

  // A part of `holder` as JSON, an "object" or a "list"; an empty text takes it out.
  json({ holder, name, value, write, wanted, ...field }) {
    const drafts = this.drafts.get(holder) || {};
    this.drafts.set(holder, drafts);
    const typed = drafts[name];
    return this.add({
      ...field,
      code: true,
      value: typed ?? (value === undefined ? "" : JSON.stringify(value, null, 2)),
      wrong: typed && parsed(typed, wanted).wrong,
      write: (text) => {
        const { found, wrong } = parsed(text, wanted);
        drafts[name] = wrong ? text : undefined;
        if (!wrong) write(found);
        return wrong;
      },
    });
  }

  // Say each beside the field that it is about; returns those that are about none.
  show(problems, kind) {
    for (const field of this.all) say(field, field.broken, "problem");
    return problems.filter(({ path, message }) => {
      const field = path && path.length && this.near(path);
      if (field && !field.broken) say(field, [field.slot.textContent, message].filter(Boolean).join("; "), kind);
      return !field;
    });
  }

  near(path) {
    const around = this.all.filter((field) => begins(path, field.path));
    const nearest = around.sort((one, other) => other.path.length - one.path.length)[0];
    return nearest || this.all.find((field) => begins(field.path, path));
  }

  get broken() {
    return this.all.some((field) => field.broken);
  }

  focusWrong() {
    const wrong = this.all.find((field) => field.control.getAttribute("aria-invalid") === "true");
    if (wrong) focusOn(wrong.control);
  }
}

function say({ control, slot, hint }, message, kind) {
  slot.hidden = !message;
  slot.textContent = message;
  slot.className = kind;
  control.setAttribute("aria-describedby", [hint, message && slot.id].filter(Boolean).join(" "));
  control.setAttribute("aria-invalid", String(Boolean(message) && kind === "problem"));
}

function begins(path, start) {
  return start.every((key, place) => key === path[place]);
}

// What is folded away is unfolded for it.
export function focusOn(control) {
  for (let at = control.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
  control.focus();
}

const LONG_NUMBER = /(^|[^\w.])-?\d{16,}/;

function parsed(text, wanted) {
  if (!text.trim()) return { wrong: "" };
  let found;
  try {
    found = JSON.parse(text);
  } catch (error) {
    return { wrong: `is not JSON: ${error.message}` };
  }
  const kind = Array.isArray(found) ? "list" : found === null ? "null" : typeof found;
  if (kind !== wanted) return { wrong: `expected ${wanted === "list" ? "a list: […]" : "an object: {…}"}` };
  if (!LONG_NUMBER.test(text.replace(/"(?:[^"\\]|\\.)*"/g, '""'))) return { found, wrong: "" };
  return { wrong: "a browser cannot keep a number of so many digits; edit the case as text" };
}
