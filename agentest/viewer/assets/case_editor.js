// An editor at the right of the Cases view: of a case as a form or as text, or of a whole file as text.

import { draw, guardLeaving } from "./app.js";
import { go } from "./address.js";
import { askAboutConflict } from "./case_conflict.js";
import { caseForm } from "./case_form.js";
import { ask } from "./client.js";
import { fill, foreign, h } from "./dom.js";
import { announce } from "./parts.js";

const CHECK_AFTER_MS = 600;

// `kind` says what is edited:
//   body()     what is sent, beside file and version
//   text()     it as text, for conflicts
//   base       the same text as it was opened
//   fields     the form's fields; null for a text
//   check      whether it can be checked while it is typed
//   save(body), saved(answer), missing(body)   requests, and what comes after
export function editor({ signal, version, element, kind, actions = [], notes = [], fresh = false }) {
  let clean = fresh ? "" : kind.text();
  let timer = 0;
  let checks = 0;
  const status = h("span", { role: "status", class: "quiet" });
  const general = h("div", { role: "alert" });
  const saveButton = h("button", { type: "button", class: "primary", onclick: () => save(), "aria-keyshortcuts": "Control+S" }, "Save");
  const others = actions.filter(Boolean);

  function dirty() {
    return kind.text() !== clean;
  }

  function changed() {
    const is = dirty();
    status.textContent = is ? "Not saved yet" : "";
    for (const { button } of others) button.disabled = is;
    clearTimeout(timer);
    if (kind.check && is) timer = setTimeout(check, CHECK_AFTER_MS);
  }

  function show(problems, sort) {
    const left = kind.fields ? kind.fields.show(problems, sort) : problems;
    fill(general, left.map(({ message }) => h("p", { class: sort }, foreign(message))));
  }

  async function check() {
    const mine = ++checks;
    if (signal.aborted || (kind.fields && kind.fields.broken)) return;
    try {
      const { notes: found } = await ask("/api/cases/check", { method: "POST", body: kind.body(), signal });
      if (mine === checks) show(found, "notice");
    } catch (error) {
      if (mine === checks && error.status === 422) show(error.body.problems, "problem");
    }
  }

  async function save(over = version) {
    clearTimeout(timer);
    checks++;
    if (kind.fields && kind.fields.broken) return refuse("Not saved: a field holds no JSON.");
    saveButton.disabled = true;
    try {
      const sent = kind.text();
      const answer = await kind.save({ ...kind.body(), version: over });
      clean = sent;
      version = answer.version;
      kind.base = answer.text;
      show(answer.notes || [], "notice");
      changed();
      status.textContent = "Saved";
      announce("Saved");
      kind.saved(answer);
    } catch (error) {
      if (error.status === 409) await conflict(error.body);
      else if (error.status === 422) {
        show(error.body.problems, "problem");
        refuse("Not saved: `agentest eval` would not read it.");
      } else {
        show([{ message: error.message, path: null }], "problem");
        status.textContent = "Not saved";
      }
    } finally {
      saveButton.disabled = false;
    }
  }

  function refuse(message) {
    status.textContent = message;
    const wrong = kind.fields && kind.fields.firstWrong;
    if (wrong) wrong.control.focus();
  }

  async function conflict(found) {
    const theirs = kind.theirs(found);
    const gone = found.version === null;
    const choice = await askAboutConflict({ message: found.error, base: kind.base, theirs, mine: kind.text(), gone });
    if (choice === "mine") {
      if (theirs === null) kind.save = kind.missing;
      await save(found.version);
    } else if (choice === "theirs") draw();
    else status.textContent = "Not saved: the file has changed on the disk";
  }

  function guard() {
    guardLeaving((closing) => !dirty() || (!closing && confirm("What you changed is not saved. Leave it?")));
  }

  function pressed(event) {
    if (!(event.ctrlKey || event.metaKey) || event.key.toLowerCase() !== "s" || event.altKey) return;
    event.preventDefault();
    if (!saveButton.disabled && !document.querySelector("dialog[open]")) save();
  }

  addEventListener("keydown", pressed, { signal });
  element.addEventListener("input", changed);
  guard();
  show(notes, notes.some((each) => each.refused) ? "problem" : "notice");
  return { element: [h("div", { class: "row save-row" }, saveButton, others, status), general, element], changed };
}

// --- what can be edited

export function formOf(opened, { signal, actions, fresh }) {
  const draft = structuredClone(opened.case);
  const form = caseForm(draft, opened.camel, () => made.changed());
  const kind = {
    base: opened.text,
    fields: form.fields,
    check: !fresh || opened.version,
    text: () => JSON.stringify(draft, null, 2),
    body: () => ({ file: opened.file, id: fresh ? null : opened.id, case: draft }),
    ...caseRequests(opened, fresh),
  };
  const made = editor({ signal, version: opened.version, element: form.element, kind, actions, notes: opened.notes, fresh });
  return made.element;
}

export function textOf(opened, { signal, actions }) {
  const area = textArea("The case as JSON", opened.text);
  const kind = {
    base: opened.text,
    fields: null,
    check: true,
    text: () => area.value,
    body: () => ({ file: opened.file, id: opened.id, text: area.value }),
    ...caseRequests(opened, false),
  };
  return editor({ signal, version: opened.version, element: area.element, kind, actions, notes: opened.notes }).element;
}

export function fileOf(opened, label, { signal }) {
  const area = textArea(label, opened.text);
  const kind = {
    base: opened.text,
    fields: null,
    text: () => area.value,
    body: () => ({ file: opened.file, text: area.value }),
    theirs: (found) => found.text,
    save: (body) => ask("/api/cases/text", { method: "PUT", body }),
    saved: () => {},
  };
  return editor({ signal, version: opened.version, element: area.element, kind }).element;
}

function caseRequests(opened, fresh) {
  const add = (body) => ask(body.version ? "/api/cases/case" : "/api/cases/set", { method: "POST", body });
  return {
    save: fresh ? add : (body) => ask("/api/cases/case", { method: "PUT", body }),
    missing: add,
    theirs: (found) => (found.cases.find((each) => each.id === opened.id) || { text: null }).text,
    // The address names what is edited.
    saved: ({ file, id }) => (fresh || id !== opened.id) && go("cases", { file, case: id }),
  };
}

function textArea(label, text) {
  const area = h("textarea", { id: "text", class: "code whole", value: text, spellcheck: "false", dir: "ltr" });
  return {
    element: h("div", { class: "field" }, h("label", { for: "text" }, label), area),
    get value() {
      return area.value;
    },
  };
}
