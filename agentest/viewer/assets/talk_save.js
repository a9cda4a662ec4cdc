// What a talk is saved as: a dialog that shows the file before it is written.

import { showDialog } from "./app.js";
import { fill, foreign, h } from "./dom.js";
import { copyButton, problem } from "./parts.js";

const KINDS = [
  ["script", "A scripted scenario", "the same messages, calls and answers"],
  ["case", "A case of an evaluation set", "in a new set, or behind the cases of one that is there"],
  ["scenario", "A beginning of a simulated scenario", "what is left to write is marked TODO"],
];

// `about` is the talk's first event, `ask(body)` the server's route.
export function saveTalk(about, ask) {
  const folder = about.file.endsWith(".sim.py") ? about.file.replace(/[^/]*$/, "") : "";
  const name = h("input", { id: "save-name", value: `${about.scenario} by hand`, size: 40, oninput: renamed });
  const path = h("input", { id: "save-path", size: 40, oninput: placed });
  const preview = h("div", { "aria-live": "polite" });
  const save = h("button.primary", { disabled: true }, "Save");
  const cancel = h("button", { type: "button", onclick: () => dialog.close() }, "Cancel");
  const kinds = h("fieldset", h("legend", "Save as"), KINDS.map(radio));
  const fields = [field("Name", name), field("File", path)];
  const form = h("form", { onsubmit: write }, kinds, fields, preview, h("div.row", save, cancel));
  const dialog = showDialog("Save this conversation", form);
  let ownPlace = false;
  let timer = 0;
  let looks = 0;
  let version = null;
  renamed();
  name.focus();

  function radio([value, label, what], number) {
    const input = h("input", { type: "radio", name: "as", value, checked: number === 0, onchange: renamed });
    return h("div", h("label", input, ` ${label} `, h("span.quiet", `– ${what}`)));
  }
  function wish() {
    return { as: form.querySelector(":checked").value, path: path.value, name: name.value };
  }
  function renamed() {
    const stem = name.value.toLowerCase().replace(/[^a-z0-9]+/g, "_").replace(/^_|_$/g, "") || "talk";
    if (!ownPlace) path.value = wish().as === "case" ? "talks.evalset.json" : `${folder}${stem}.sim.py`;
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
    const shown = await ask(wish()).catch((error) => ({ error: error.message }));
    if (mine !== looks) return;
    if (shown.error) return void fill(preview, problem(shown.error));
    version = shown.version;
    save.disabled = false;
    const what = version ? "Behind the cases of " : "A new file, ";
    const notes = shown.notes.map((note) => h("p.notice", foreign(note)));
    const text = foreign(shown.text, "pre", { tabindex: "0" });
    fill(preview, h("p", what, foreign(shown.path, "code"), ":"), notes, text);
  }
  async function write(event) {
    event.preventDefault();
    if (save.disabled) return;
    save.disabled = true;
    const asked = wish();
    try {
      const saved = await ask({ ...asked, version, write: true });
      done(`agentest ${asked.as === "case" ? "eval" : "run"} ${saved.path}`, saved.path);
    } catch (error) {
      fill(preview, problem(error.message));
      timer = setTimeout(look, 2000);
    }
  }
  function done(command, place) {
    const where = h("p", { role: "status" }, "Saved in ", foreign(place, "code"), ".");
    cancel.textContent = "Close";
    fill(form, where, h("p.row", foreign(command, "code"), copyButton(command)), cancel);
    cancel.focus();
  }
}

function field(label, control) {
  return h("div", h("label", { for: control.id }, label), h("br"), control);
}
