// The fields of a form, each with room for what the reader says of it.

import { h } from "./dom.js";

let count = 0;

export class Fields {
  all = [];

  // `write` takes the text and returns what is wrong with it, if anything is.
  add({ label, path, value, write, hint, code, line, wrong = "" }) {
    const id = `field-${++count}`;
    const props = { id, value, dir: code ? "ltr" : "auto", spellcheck: "false", class: code && "code" };
    const rows = Math.min(14, Math.max(2, value.split("\n").length));
    const control = line ? h("input", props) : h("textarea", { ...props, rows });
    const slot = h("p", { id: `${id}-said` });
    const field = { path, control, slot, broken: wrong, hint: hint && `${id}-hint` };
    control.addEventListener("input", () => {
      field.broken = write(control.value) || "";
      say(field, field.broken);
    });
    say(field, wrong);
    this.all.push(field);
    const about = hint && h("span", { id: field.hint, class: "quiet" }, ` ${hint}`);
    return h("div.field", h("label", { for: id }, label), about, control, slot);
  }

  // Say each beside the field that it is about; returns those that are about none.
  show(problems, kind) {
    for (const field of this.all) say(field, field.broken);
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

function say({ control, slot, hint }, message, kind = "problem") {
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
