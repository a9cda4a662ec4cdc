// The Cases view: evaluation sets and scenario files at the left, at the right the case or the file that is edited.

import { draw, showDialog, addView } from "./app.js";
import { address, go } from "./address.js";
import { fileOf, formOf, textOf } from "./case_editor.js";
import { newCase } from "./case_keys.js";
import { ask } from "./client.js";
import { fill, foreign, h } from "./dom.js";
import { announce, disclosure, problem } from "./parts.js";

const MOST_SHOWN = 300;

let filter = "";
let scenarios = null; // as they were found last
let removed = null; // what was taken out last, to be put back

export function addCasesView() {
  addView("cases", { title: "Cases", nav: true, show, keys: [["Ctrl+S", "save"]] });
}

async function show(place, params, signal) {
  const found = await ask("/api/cases", { signal });
  const set = found.sets.find((each) => each.file === params.file);
  fill(
    place,
    h("h1", {}, "Cases"),
    h("div", { class: "cases" },
      h("div", { class: "cases-list" }, disclosure("Evaluation sets and scenario files", list(found, params, signal), !params.file || innerWidth > 700)),
      h("section", { class: "cases-editor", "aria-label": "Editor" }, undo(), await right(set, params, signal))),
  );
}

// --- at the left

function list(found, params, signal) {
  const search = h("input", { type: "search", value: filter, "aria-label": "Filter cases", placeholder: "Filter (/)", oninput: () => redraw() });
  const sets = h("div", {});
  const redraw = () => {
    filter = search.value;
    const shown = found.sets.map((set) => setItem(set, params)).filter(Boolean);
    fill(sets, shown.length ? shown : h("p", { class: "quiet" }, found.sets.length ? "No case has this in its name." : "There is no evaluation set yet."));
  };
  redraw();
  return [
    h("div", { class: "row" }, search, h("button", { type: "button", class: "small", onclick: askForSet }, "New set")),
    found.notes.map((note) => h("p", { class: "notice" }, note)),
    h("h2", {}, "Evaluation sets"), sets,
    scenarioFiles(signal),
  ];
}

function setItem(set, params) {
  const fits = (text) => text.toLowerCase().includes(filter.toLowerCase());
  const cases = fits(set.file) ? set.cases : set.cases.filter((each) => fits(each.id));
  if (!cases.length && !fits(set.file)) return null;
  const here = set.file === params.file;
  const left = cases.length - MOST_SHOWN;
  return h("details", { open: here || Boolean(filter) || set.cases.length <= 20 },
    h("summary", {}, foreign(set.file), set.error && h("span", { class: "badge errored" }, "! cannot be read")),
    h("ul", { class: "plain-list" },
      h("li", {}, h("a", { href: address("cases", { file: set.file }), "aria-current": here && !params.case && "true", data: { step: "" } }, "The whole set")),
      cases.slice(0, MOST_SHOWN).map(({ id }) => h("li", {}, h("a", {
        href: address("cases", { file: set.file, case: id }), "aria-current": here && params.case === id && "true", data: { step: "" },
      }, foreign(id || "(no id)")))),
      left > 0 && h("li", { class: "quiet" }, `and ${left} more: filter for them`)));
}

// They are programs, which the server imports only when somebody wants to see them.
function scenarioFiles(signal) {
  const place = h("div", {}, h("p", { class: "quiet" }, "Looking for scenarios…"));
  const folded = h("details", { ontoggle: opened, open: Boolean(scenarios) }, h("summary", {}, "Scenario files"), place);
  async function opened() {
    if (!folded.open) return;
    try {
      scenarios ||= await ask("/api/cases/scenarios", { signal });
      const again = h("button", { type: "button", class: "small", onclick: () => { scenarios = null; opened(); } }, "Look again");
      const items = h("ul", { class: "plain-list" }, scenarios.scenarios.map(scenarioItem));
      fill(place, scenarios.error && problem(scenarios.error), items, again);
    } catch (error) {
      if (!signal.aborted) fill(place, problem(error.message));
    }
  }
  return folded;
}

function scenarioItem({ file, name, line, error }) {
  const at = foreign(line ? `${file}:${line}` : file, "span", { class: "quiet" });
  if (error) return h("li", {}, disclosure([foreign(name || file), h("span", { class: "badge errored" }, "! broken")], [at, foreign(error, "pre")]));
  return h("li", { class: "row" }, foreign(name), at, runButton(() => ({ kind: "run", paths: [`${file}::${name}`] }), `Run ${name}`));
}

function askForSet() {
  const name = h("input", { id: "set-name", value: "tests/new.evalset.json", autofocus: true, size: 40 });
  const form = h("form", { class: "row", onsubmit: made }, h("label", { for: "set-name" }, "File, from the project's folder"), name, h("button", { class: "primary" }, "Go on"));
  const dialog = showDialog("New evaluation set", form, h("p", { class: "quiet" }, "It is written with its first case. A name that ends in .test.json is run with its folder."));
  function made(event) {
    event.preventDefault();
    dialog.close();
    go("cases", { file: name.value.trim(), as: "new" });
  }
}

// --- at the right

async function right(set, params, signal) {
  const { file, as } = params;
  if (!file) return h("p", { class: "quiet" }, "Choose a case, or make one.");
  if (as === "file") return whole(file, signal);
  if (as === "new" || as === "simulated") return fresh(set, file, as, signal);
  if (params.case === undefined) return set ? setPage(set) : problem(`There is no evaluation set ${file}.`);
  const opened = await ask(`/api/cases/case?${new URLSearchParams({ file, id: params.case })}`, { signal });
  const asText = as === "text";
  const run = runButton(() => ({ kind: "eval", file, cases: [opened.id] }), "Run this case");
  const actions = [run, copyOf(opened), remove(opened)];
  return [
    heading(opened.id),
    h("p", {}, foreign(file), " · ", h("a", { href: address("cases", { file, case: opened.id, as: asText ? "" : "text" }) }, asText ? "Edit in a form" : "Edit as text")),
    (asText ? textOf : formOf)(opened, { signal, actions }),
  ];
}

function heading(text) {
  return h("h2", {}, foreign(text));
}

function fresh(set, file, as, signal) {
  const taken = new Set(set ? set.cases.map((each) => each.id) : []);
  let number = 1;
  while (taken.has(`case_${number}`)) number++;
  const camel = Boolean(set && set.camel);
  const opened = { file, camel, id: null, version: set && set.version, text: "", notes: [], case: newCase(`case_${number}`, as === "simulated", camel) };
  return [
    heading("New case"),
    h("p", {}, set ? "" : "New set ", foreign(file)),
    formOf(opened, { signal, actions: [], fresh: true }),
  ];
}

async function whole(file, signal) {
  const opened = await ask(`/api/cases/text?${new URLSearchParams({ file })}`, { signal });
  return [
    heading(file),
    file.endsWith("test_config.json") && h("p", { class: "quiet" }, "What the sets of this folder are held to, such as {\"criteria\": {\"tool_trajectory_avg_score\": 1.0}}."),
    fileOf(opened, opened.version ? "The file as text" : "The file as text; it is not there yet", { signal }),
  ];
}

function setPage(set) {
  const { file } = set;
  const link = (text, params) => h("a", { class: "button", href: address("cases", params) }, text);
  return [
    heading(file),
    set.error && foreign(set.error, "pre", { class: "problem" }),
    set.whyNot && !set.error && h("p", { class: "notice" }, foreign(set.whyNot)),
    h("p", {}, `${set.cases.length} case${set.cases.length === 1 ? "" : "s"}`),
    h("div", { class: "row" },
      !set.whyNot && link("New case", { file, as: "new" }),
      !set.whyNot && link("New case with a simulated user", { file, as: "simulated" }),
      link("Edit as text", { file, as: "file" }),
      link(set.criteria ? "Criteria" : "Write criteria", { file: criteriaOf(file), as: "file" }),
      !set.error && runButton(() => ({ kind: "eval", file, cases: [] }), "Run this set")),
  ];
}

function criteriaOf(file) {
  return `${file.slice(0, file.lastIndexOf("/") + 1)}test_config.json`;
}

// --- what is done with a case

function copyOf({ file, id, version }) {
  return action("Copy", async () => {
    const copied = await ask("/api/cases/copy", { method: "POST", body: { file, id, version } });
    go("cases", { file, case: copied.id });
  });
}

function remove({ file, id, version, alone }) {
  return !alone && action("Delete", async () => {
    removed = { file, id, ...(await ask("/api/cases/case", { method: "DELETE", body: { file, id, version } })) };
    announce(`Deleted ${id}`);
    go("cases", { file });
  });
}

function undo() {
  if (!removed) return null;
  const { file, id, ...body } = removed;
  removed = null;
  return h("p", { class: "notice row" }, h("span", {}, foreign(id), " was deleted."), action("Undo", async () => {
    await ask("/api/cases/case", { method: "POST", body: { file, ...body } });
    go("cases", { file, case: id });
  }));
}

function runButton(body, label) {
  return action(label, async () => {
    const job = await ask("/api/jobs", { method: "POST", body: body() });
    announce("Started");
    go("start", { job: job.id });
  });
}

// A button whose failure is said beside it; a file that has changed is read again.
function action(label, act) {
  const said = h("span", { role: "alert" });
  const button = h("button", { type: "button", class: "small", onclick: pressed }, label);
  async function pressed() {
    button.disabled = true;
    fill(said);
    try {
      await act();
    } catch (error) {
      fill(said, problem(error.message), error.status === 409 && h("button", { type: "button", class: "small", onclick: () => draw() }, "Read it again"));
    }
    button.disabled = false;
  }
  return Object.assign(h("span", { class: "action" }, button, said), { button });
}
