// The right of the Cases view: a case in a form or as text, or a whole file as text; checked, saved, guarded.

import { go } from "./address.js";
import { draw, guardLeaving, showDialog } from "./app.js";
import { caseForm } from "./case_form.js";
import { ask } from "./client.js";
import { aligned } from "./diff.js";
import { fill, foreign, h } from "./dom.js";
import { announce, copyButton } from "./parts.js";

// `base` is the text that the edit began from, `theirs` what stands there now (null: it is not there any more), `mine`
// what would be written. Resolves to "mine", "theirs" or "".
function askAboutConflict({ message, gone, base, theirs, mine }) {
  const about = theirs === null
    ? "What you edit is not in the file any more."
    : theirs === base
      ? "What you edit is as you opened it; something else in the file has changed."
      : "Since you opened it, this has changed:";
  return new Promise((answer) => {
    const choose = (which, text) => {
      const onclick = () => (dialog.close(), answer(which));
      return h("button", { type: "button", autofocus: !which, onclick }, text);
    };
    const both = [choose("mine", theirs === base ? "Save mine, keep the rest" : "Save mine over theirs"),
      choose("theirs", "Take theirs, drop mine")];
    const dialog = showDialog(
      "The file has changed on the disk",
      h("p", foreign(message), " ", about),
      theirs !== null && theirs !== base && changes(base.split("\n"), theirs.split("\n")),
      h("div.row", !gone && both, copyButton(mine, "Copy mine"), choose("", "Go on editing")),
    );
    dialog.addEventListener("close", () => answer(""));
  });
}

// The lines that differ, with two around them.
function changes(before, after) {
  const pairs = aligned(before, after).map(([x, y]) =>
    x === undefined ? ["ins", `+ ${after[y]}\n`] : y === undefined ? ["del", `- ${before[x]}\n`] : ["span", `  ${before[x]}\n`]);
  const near = (_, n) => pairs.slice(Math.max(0, n - 2), n + 3).some(([tag]) => tag !== "span");
  const lines = pairs.filter(near).map(([tag, line]) => foreign(line, tag));
  return h("pre.difference", { tabindex: "0" }, lines);
}

const CHECK_AFTER_MS = 600;
const NO_FORM = { broken: false, show: (problems) => problems, focusWrong() {} };

// `what` is edited: `text()` gives it as text, `draft()` as it is sent; `fields` are those of its form; `save(body)`
// writes it, `add(body)` writes it where it is not there, `saved(answer)` comes after; `theirs(found)` is the same in a
// file that has changed; `check` says whether it is checked while it is typed.
function editor(opened, what, { signal, actions = [], element, fresh }) {
  const { text, fields = NO_FORM } = what;
  let { version, text: base } = opened;
  let clean = fresh ? "" : text();
  let timer = 0;
  let checks = 0;
  const status = h("span", { role: "status", class: "quiet" });
  const general = h("div", { role: "alert" });
  const props = { type: "button", class: "primary", onclick: save, "aria-keyshortcuts": "Control+S" };
  const button = h("button", props, "Save");
  const dirty = () => text() !== clean;
  const body = () => ({ file: opened.file, id: opened.id, version, ...what.draft() });
  const tell = (message) => (status.textContent = message);

  function changed() {
    tell(dirty() ? "Not saved yet" : "");
    for (const action of actions) action.button.disabled = dirty();
    clearTimeout(timer);
    if (what.check) timer = setTimeout(check, CHECK_AFTER_MS);
  }

  function show(problems, kind) {
    fill(general, fields.show(problems, kind).map(({ message }) => h("p", { class: kind }, foreign(message))));
  }

  async function check() {
    if (fields.broken) return;
    const mine = ++checks;
    const asked = ask("/api/cases/check", { method: "POST", body: body(), signal });
    const { problems, notes = [] } = await asked.catch((error) => error.body || {});
    if (mine === checks && !signal.aborted) show(problems || notes, problems ? "problem" : "notice");
  }

  async function save() {
    clearTimeout(timer);
    checks++;
    if (fields.broken) return refuse("Not saved: a field holds no JSON.");
    button.disabled = true;
    try {
      const sent = text();
      const answer = await what.save(body());
      [clean, version, base] = [sent, answer.version, answer.text];
      show(answer.notes || [], "notice");
      changed();
      if (!dirty()) tell("Saved");
      announce("Saved");
      what.saved(answer);
    } catch (error) {
      await failed(error);
    } finally {
      button.disabled = false;
    }
  }

  function failed({ status: code, body: said, message }) {
    if (code === 409) return conflict(said);
    const problems = said && said.problems;
    show(problems || [{ message }], "problem");
    return refuse(problems ? "Not saved: `agentest eval` would not read it." : "Not saved");
  }

  function refuse(message) {
    tell(message);
    fields.focusWrong();
  }

  async function conflict(found) {
    const theirs = what.theirs(found);
    const gone = found.version === null;
    const choice = await askAboutConflict({ message: found.error, gone, base, theirs, mine: text() });
    if (choice === "theirs") return draw();
    if (choice !== "mine") return tell("Not saved: the file has changed on the disk");
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
  return [h("div.row.save-row", button, actions, status), general, element];
}

// A case; `asText` shows its JSON. Of a new one, the `version` of its file is null where that is to be made.
export function caseEditor(opened, { asText, ...more }) {
  const send = (method, where = "case") => (body) => ask(`/api/cases/${where}`, { method, body });
  const add = send("POST", opened.version ? "case" : "set");
  const about = {
    check: !more.fresh || opened.version,
    add,
    save: more.fresh ? add : send("PUT"),
    theirs: (found) => found.cases.find(({ id }) => id === opened.id)?.text ?? null,
    saved: ({ file, id }) => id !== opened.id && go("cases", { file, case: id }),
  };
  if (asText) return textEditor(opened, "The case as JSON", about, more);
  const draft = structuredClone(opened.case);
  const { element, fields } = caseForm(draft, opened.camel);
  const what = { ...about, fields, text: () => JSON.stringify(draft, null, 2), draft: () => ({ case: draft }) };
  return editor(opened, what, { ...more, element });
}

export function fileEditor(opened, label, more) {
  const save = (body) => ask("/api/cases/text", { method: "PUT", body });
  return textEditor(opened, label, { save, add: save, theirs: ({ text }) => text, saved() {} }, more);
}

function textEditor(opened, label, about, more) {
  const area = h("textarea", { id: "text", class: "code whole", value: opened.text, spellcheck: "false", dir: "ltr" });
  const element = h("div.field", h("label", { for: "text" }, label), area);
  return editor(opened, { ...about, text: () => area.value, draft: () => ({ text: area.value }) }, { ...more, element });
}
