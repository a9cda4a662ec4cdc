// What a talk is saved as: a dialog that shows the file before it is written.

import { showDialog } from "./app.js";
import { fill, foreign, h } from "./dom.js";
import { announce, copyButton, problem } from "./parts.js";

const KINDS = [
  ["script", "A scripted scenario", "the same messages, the same calls, the same answers"],
  ["case", "A case of an evaluation set", "in a new set, or behind the cases of one that is there"],
  ["scenario", "A beginning of a simulated scenario", "what is left to write is marked TODO"],
];

// `about` is the talk's first event, `ask(body)` the server's route.
export function saveTalk(about, ask) {
  const state = { asked: 0, version: null };
  const free = about.script !== undefined && about.file && about.file.endsWith(".sim.py") ? about.file.replace(/[^/]*$/, "") : "";
  const name = h("input", { id: "save-name", value: `${about.file ? about.scenario : "talk"} by hand`, size: 40, oninput: renamed });
  const path = h("input", { id: "save-path", size: 40, oninput: () => ((touched = true), later()) });
  const preview = h("div", { "aria-live": "polite" });
  const save = h("button", { class: "primary", disabled: true }, "Save");
  let touched = false;
  let timer = 0;
  const kinds = KINDS.map(([value, label, what], number) => h("div", {}, h("input", { type: "radio", name: "as", id: `save-${value}`, value, checked: number === 0, onchange: renamed }), " ", h("label", { for: `save-${value}` }, label, h("span", { class: "quiet" }, ` – ${what}`))));
  const form = h(
    "form",
    { onsubmit: write },
    h("fieldset", {}, h("legend", {}, "Save as"), kinds),
    field("Name", name),
    field("File", path),
    preview,
    h("div", { class: "row" }, save, h("button", { type: "button", onclick: () => dialog.close() }, "Cancel")),
  );
  const dialog = showDialog("Save this conversation", form);
  renamed();
  name.focus();

  function kind() {
    return form.querySelector("[name=as]:checked").value;
  }
  function renamed() {
    const stem = name.value.toLowerCase().replace(/[^a-z0-9]+/g, "_").replace(/^_+|_+$/g, "") || "talk";
    if (!touched) path.value = kind() === "case" ? "talks.evalset.json" : `${free}${stem}.sim.py`;
    later();
  }
  // The preview follows what is written, and only what was shown can be saved.
  function later() {
    save.disabled = true;
    clearTimeout(timer);
    timer = setTimeout(look, 250);
  }
  const wish = () => ({ as: kind(), path: path.value, name: name.value });
  async function look() {
    const mine = ++state.asked;
    const shown = await ask(wish()).catch((error) => ({ error: error.message }));
    if (mine !== state.asked) return;
    if (shown.error) return void fill(preview, problem(shown.error));
    state.version = shown.version;
    save.disabled = false;
    const what = shown.version ? "Behind the cases of " : "A new file, ";
    fill(preview, h("p", {}, what, foreign(shown.path, "code"), ":"), shown.notes.map((note) => h("p", { class: "notice" }, foreign(note))), foreign(shown.text, "pre"));
  }
  async function write(event) {
    event.preventDefault();
    if (save.disabled) return;
    save.disabled = true;
    try {
      done(await ask({ ...wish(), version: state.version, write: true }));
    } catch (error) {
      fill(preview, problem(error.message));
      timer = setTimeout(look, 2000);
    }
  }
  function done(saved) {
    const command = kind() === "case" ? `agentest eval ${saved.path}` : `agentest run ${saved.path}`;
    announce(`Saved in ${saved.path}`);
    const close = h("button", { type: "button", class: "primary", onclick: () => dialog.close() }, "Close");
    fill(form, h("p", {}, "Saved in ", foreign(saved.path, "code"), "."), h("div", { class: "row" }, foreign(command, "code"), copyButton(command)), close);
    close.focus();
  }
}

function field(label, control) {
  return h("div", {}, h("label", { for: control.id }, label), h("div", {}, control));
}
