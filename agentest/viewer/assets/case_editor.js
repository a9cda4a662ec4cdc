// The right of the Cases view: a case in a form or as text, or a whole file as text; checked, saved, guarded.

import { draw, guardLeaving } from "./app.js";
import { go } from "./address.js";
import { askAboutConflict } from "./case_conflict.js";
import { caseForm } from "./case_form.js";
import { ask } from "./client.js";
import { fill, foreign, h } from "./dom.js";
import { announce } from "./parts.js";

const CHECK_AFTER_MS = 600;

// `what` is edited: `text()` gives it as text, `draft()` as it is sent; `fields` are those of a form; `save(body)`
// writes it, `add(body)` writes it where it is not there, `saved(answer)` comes after; `theirs(found)` is the same in a
// file that has changed; `check` says whether it is checked while it is typed.
function editor(opened, what, { signal, actions = [], element, fresh }) {
  let { version } = opened;
  let base = opened.text;
  let clean = fresh ? "" : what.text();
  let timer = 0;
  let checks = 0;
  const status = h("span", { role: "status", class: "quiet" });
  const general = h("div", { role: "alert" });
  const props = { type: "button", class: "primary", onclick: () => save(), "aria-keyshortcuts": "Control+S" };
  const button = h("button", props, "Save");
  const dirty = () => what.text() !== clean;
  const body = () => ({ file: opened.file, id: opened.id, version, ...what.draft() });

  function changed() {
    status.textContent = dirty() ? "Not saved yet" : "";
    for (const action of actions) action.button.disabled = dirty();
    clearTimeout(timer);
    if (what.check && dirty()) timer = setTimeout(check, CHECK_AFTER_MS);
  }

  function show(problems, kind) {
    const left = what.fields ? what.fields.show(problems, kind) : problems;
    fill(general, left.map(({ message }) => h("p", { class: kind }, foreign(message))));
  }

  async function check() {
    const mine = ++checks;
    const asked = ask("/api/cases/check", { method: "POST", body: body(), signal });
    const said = await asked.catch((error) => error.body || {});
    if (mine !== checks || signal.aborted) return;
    if (said.problems) show(said.problems, "problem");
    else show(said.notes || [], "notice");
  }

  async function save() {
    clearTimeout(timer);
    checks++;
    if (what.fields && what.fields.broken) return refuse("Not saved: a field holds no JSON.");
    button.disabled = true;
    try {
      const sent = what.text();
      const answer = await what.save(body());
      [clean, version, base] = [sent, answer.version, answer.text];
      show(answer.notes || [], "notice");
      changed();
      status.textContent = "Saved";
      announce("Saved");
      what.saved(answer);
    } catch (error) {
      await failed(error);
    } finally {
      button.disabled = false;
    }
  }

  async function failed(error) {
    if (error.status === 409) return conflict(error.body);
    const problems = error.body && error.body.problems;
    show(problems || [{ message: error.message }], "problem");
    refuse(problems ? "Not saved: `agentest eval` would not read it." : "Not saved");
  }

  function refuse(message) {
    status.textContent = message;
    if (what.fields) what.fields.focusWrong();
  }

  async function conflict(found) {
    const theirs = what.theirs(found);
    const gone = found.version === null;
    const choice = await askAboutConflict({ message: found.error, gone, base, theirs, mine: what.text() });
    if (choice === "theirs") return draw();
    if (choice !== "mine") return void (status.textContent = "Not saved: the file has changed on the disk");
    if (theirs === null) what.save = what.add;
    version = found.version;
    return save();
  }

  function pressed(event) {
    if (!(event.ctrlKey || event.metaKey) || event.altKey || event.key.toLowerCase() !== "s") return;
    event.preventDefault();
    if (!button.disabled && !document.querySelector("dialog[open]")) save();
  }

  addEventListener("keydown", pressed, { signal });
  element.addEventListener("input", changed);
  guardLeaving((closing) => !dirty() || (!closing && confirm("What you changed is not saved. Leave it?")));
  show(opened.notes || [], opened.readable === false ? "problem" : "notice");
  return [h("div", { class: "row save-row" }, button, actions, status), general, element];
}

// A case; `asText` shows its JSON. Of a new one, the `version` of its file is null where that is to be made.
export function caseEditor(opened, { asText, fresh, ...more }) {
  const add = (body) => ask(body.version ? "/api/cases/case" : "/api/cases/set", { method: "POST", body });
  const about = {
    check: !fresh || opened.version,
    add,
    save: fresh ? add : (body) => ask("/api/cases/case", { method: "PUT", body }),
    theirs: (found) => (found.cases.find(({ id }) => id === opened.id) || { text: null }).text,
    saved: ({ file, id }) => (fresh || id !== opened.id) && go("cases", { file, case: id }),
  };
  if (asText) return textEditor(opened, "The case as JSON", about, more);
  const draft = structuredClone(opened.case);
  const { element, fields } = caseForm(draft, opened.camel);
  const what = { ...about, fields, text: () => JSON.stringify(draft, null, 2), draft: () => ({ case: draft }) };
  return editor(opened, what, { ...more, element, fresh });
}

export function fileEditor(opened, label, more) {
  const save = (body) => ask("/api/cases/text", { method: "PUT", body });
  return textEditor(opened, label, { save, add: save, theirs: (found) => found.text, saved: () => {} }, more);
}

function textEditor(opened, label, about, more) {
  const area = h("textarea", { id: "text", class: "code whole", value: opened.text, spellcheck: "false", dir: "ltr" });
  const element = h("div", { class: "field" }, h("label", { for: "text" }, label), area);
  return editor(opened, { ...about, text: () => area.value, draft: () => ({ text: area.value }) }, { ...more, element });
}
