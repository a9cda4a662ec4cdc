// What a conversation is saved as: a dialog that shows the file before it is written, and offers the sets that are there.

import { showDialog } from "./app.js";
import { ask } from "./client.js";
import { fill, foreign, h } from "./dom.js";
import { copyButton, problem } from "./parts.js";

const KINDS = [
  ["case", "A case of an evaluation set", "in a new set, or behind the cases of one that is there"],
  ["script", "A scripted scenario", "the same messages, calls and answers"],
  ["scenario", "A beginning of a simulated scenario", "what is left to write is marked TODO"],
];

// `send(body)` is the server's route; `file` the one of the scenario that the conversation is of.
export function saveConversation({ scenario, file }, send) {
  const folder = file.endsWith(".sim.py") ? file.replace(/[^/]*$/, "") : "";
  const name = h("input", { value: `${scenario} by hand`, oninput: renamed });
  const path = h("input", { oninput: placed, autocomplete: "off" });
  const sets = h("datalist", { id: "sets" });
  const preview = h("div", { "aria-live": "polite" });
  const save = h("button.primary", { disabled: true }, "Save");
  const radio = ([value, label, what], number) => {
    const input = h("input", { type: "radio", name: "as", value, checked: !number, onchange: renamed });
    return h("div", h("label", input, label, h("span.quiet", ` – ${what}`)));
  };
  const field = (label, control) => h("label.field", label, control);
  const fields = [h("fieldset", h("legend", "Save as"), KINDS.map(radio)), field("Name", name), field("File", path)];
  const form = h("form", { onsubmit: write }, fields, sets, preview, save);
  const close = h("button", { onclick: () => dialog.close() }, "Close");
  const dialog = showDialog("Save this conversation", form, close);
  let ownPlace = false;
  let timer = 0;
  let looks = 0;
  let shown = {};
  renamed();
  name.focus();
  const offer = (found) => fill(sets, found.sets.map(({ file }) => h("option", { value: file })));
  ask("/api/cases").then(offer, () => {}); // without it, the file is typed

  function wish() {
    return { as: form.querySelector(":checked").value, path: path.value, name: name.value };
  }
  function renamed() {
    const stem = name.value.toLowerCase().replace(/[^a-z0-9]+/g, "_").replace(/^_|_$/g, "") || "talk";
    const isCase = wish().as === "case";
    path.setAttribute("list", isCase ? "sets" : "");
    if (!ownPlace) path.value = isCase ? "talks.evalset.json" : `${folder}${stem}.sim.py`;
    later();
  }
  function placed() {
    ownPlace = true;
    later();
  }
  // The preview follows what is written, and only what was shown can be saved.
  function later() {
    save.disabled = true;
    looks += 1;
    clearTimeout(timer);
    timer = setTimeout(look, 250);
  }
  async function look() {
    const mine = looks;
    const found = await send(wish()).catch(({ message }) => ({ error: message }));
    if (mine !== looks) return;
    if (found.error) return void fill(preview, problem(found.error));
    shown = found;
    save.disabled = false;
    const what = shown.version ? "Behind the cases of " : "A new file, ";
    const notes = shown.notes.map((note) => h("p.notice", foreign(note)));
    fill(preview, h("p", what, foreign(shown.path, "code"), ":"), notes, foreign(shown.text, "pre", { tabindex: "0" }));
  }
  async function write(event) {
    event.preventDefault();
    if (save.disabled) return;
    save.disabled = true;
    const asked = wish();
    try {
      const saved = await send({ ...asked, version: shown.version, write: true });
      const command = `agentest ${asked.as === "case" ? "eval" : "run"} ${saved.path}`;
      const where = h("p", { role: "status" }, "Saved in ", foreign(saved.path, "code"), ".");
      fill(form, where, h("p.row", foreign(command, "code"), copyButton(command)));
      close.focus();
    } catch (error) {
      fill(preview, problem(error.message));
      timer = setTimeout(look, 2000);
    }
  }
}
