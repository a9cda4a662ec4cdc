// The Cases view: evaluation sets and scenario files at the left, at the right the case or the file that is edited.

import { addView } from "./app.js";
import { address, go } from "./address.js";
import { caseEditor, fileEditor } from "./case_editor.js";
import { newCase } from "./case_form.js";
import { ask } from "./client.js";
import { fill, foreign, h, visible } from "./dom.js";
import { action, attempt, badge, disclosure, json, problem } from "./parts.js";
import { folded } from "./folding.js";

const MOST_SHOWN = 300;
const PERFECT = 'What the sets of this folder are held to, such as {"criteria": {"tool_trajectory_avg_score": 1.0}}.';

let filter = "";

export function addCasesView() {
  addView("cases", { title: "Cases", nav: true, show, keys: [["Ctrl+S", "save"]] });
}

async function show(place, params, signal) {
  const found = await ask("/api/cases", { signal });
  const set = found.sets.find((each) => each.file === params.file);
  const open = !params.file || innerWidth > 700; // on a phone, the case that was chosen comes first
  const chosen = await right(set, params, signal).catch((error) => problem(error.message));
  fill(
    place,
    h("h1", "Cases"),
    h("div.cases",
      h("div.cases-list", disclosure("Evaluation sets", list(found, params, signal), open)),
      h("section", { "aria-label": "Editor" }, chosen)),
  );
}

// --- at the left

function list(found, params, signal) {
  const sets = h("div");
  const props = { type: "search", value: filter, "aria-label": "Filter cases", placeholder: "Filter (/)" };
  const search = h("input", { ...props, oninput: drawn });
  function drawn() {
    filter = search.value;
    const shown = found.sets.map((set) => setItem(set, params)).filter(Boolean);
    fill(sets, shown.length ? shown : found.sets.length ? h("p.quiet", "There is no such evaluation set.") : none());
  }
  drawn();
  const notes = found.notes.map((note) => h("p.notice", note));
  const scenarios = folded("details", "Scenario files", () => scenarioFiles(signal));
  return [search, notes, sets, disclosure("New set", newSet(found.sets), !found.sets.length), scenarios];
}

function none() {
  return h("p", "There is no evaluation set yet. Make one here, save a conversation of Talk, or use ", h("code", "agentest export"), ".");
}

function setItem({ file, cases, error }, params) {
  const fits = (text) => text.toLowerCase().includes(filter.toLowerCase());
  const shown = fits(file) ? cases : cases.filter(({ id }) => fits(id));
  if (!shown.length && !fits(file)) return null;
  const open = file === params.file || Boolean(filter) || cases.length <= 20;
  const link = (id, text) => {
    const current = file === params.file && params.case === id && "true";
    const href = address("cases", { file, case: id });
    return h("li", h("a", { href, "aria-current": current, data: { step: "" } }, text));
  };
  const more = shown.length - MOST_SHOWN;
  const items = [
    link(undefined, "The whole set"),
    shown.slice(0, MOST_SHOWN).map(({ id }) => link(id, foreign(id || "(no id)"))),
    more > 0 && h("li.quiet", `and ${more} more: filter for them`),
  ];
  const broken = error && [" ", badge("errored", "cannot be read")];
  return disclosure([foreign(file), broken], h("ul.plain-list", items), open);
}

// Its folder is one that has sets, or a new one that the name begins with.
function newSet(sets) {
  const option = (value, text = value) => h("option", { value }, text);
  const folders = [...new Set(sets.map(({ file }) => file.slice(0, file.lastIndexOf("/") + 1)))].filter(Boolean).sort();
  const folder = h("select", option("", "the project's folder"), folders.map((each) => option(each)));
  const kind = h("select", option(".evalset.json"), option(".test.json", ".test.json, run with its folder"));
  const name = h("input", { value: "new", required: true, oninput: () => name.setCustomValidity("") });
  const onsubmit = (event) => {
    event.preventDefault();
    const file = `${folder.value}${name.value.trim()}${kind.value}`;
    if (!sets.some((each) => each.file === file)) return go("cases", { file, as: "new" });
    name.setCustomValidity(`${file} is there already: choose it in the list.`);
    name.reportValidity();
  };
  const field = (text, control) => h("div.field", h("label", text, " ", control));
  const hint = h("p.quiet", "It is written with its first case.");
  return h("form", { onsubmit }, field("Folder", folder), field("Name", name), field("Kind", kind), hint, h("button", "Go on"));
}

// They are programs, which the server imports only when somebody wants to see them.
function scenarioFiles(signal) {
  const place = h("div", { role: "status" }, "Looking for scenarios…");
  attempt(place, async () => {
    const { scenarios, problems, error } = await ask("/api/scenarios", { signal });
    const name = (each) => [foreign(each.name), " ", foreign(`${each.file}:${each.line}`, "span", { class: "quiet" })];
    const item = (each) =>
      h("li.row", name(each), run({ kind: "run", paths: [`${each.file}::${each.name}`] }, `Run ${each.name}`));
    const broken = (each) => h("li", disclosure(name(each), foreign(each.message, "pre.problem")));
    fill(place, error && problem(error), h("ul.plain-list", problems.map(broken), scenarios.map(item)));
  });
  return place;
}

// --- at the right

async function right(set, params, signal) {
  const { file, as, case: id } = params;
  if (!file) return h("p.quiet", "A case is a conversation with the calls and replies that are expected of it, in ADK's format; `agentest eval` runs it. Choose one, or make one.");
  if (as === "file") return whole(file, signal);
  if (as === "new" || as === "simulated") return fresh(set, file, as, signal);
  if (id === undefined) return set ? setPage(set) : problem(`There is no evaluation set ${file}.`);
  const opened = await ask(`/api/cases/case?${new URLSearchParams({ file, id })}`, { signal });
  if (opened.readOnly) return [heading(id), h("p.notice", foreign(opened.readOnly)), json(opened.case)];
  const asText = as === "text";
  const actions = [run({ kind: "eval", file, cases: [id] }, "Run this case")];
  if (!opened.alone) actions.push(action("Copy", () => copy(opened)), action("Delete…", () => remove(opened)));
  const href = address("cases", { file, case: id, as: asText ? "" : "text" });
  const other = h("a", { href }, asText ? "Edit in a form" : "Edit as text");
  return [heading(id), h("p", foreign(file), " · ", other), caseEditor(opened, { asText, signal, actions })];
}

function heading(text) {
  return h("h2", foreign(text));
}

function fresh(set, file, as, signal) {
  const { camel, version, cases } = set || { camel: false, version: null, cases: [] };
  let number = 1;
  while (cases.some(({ id }) => id === `case_${number}`)) number++;
  const opened = { file, camel, id: null, version, text: "", case: newCase(`case_${number}`, as === "simulated", camel) };
  const where = h("p", set ? "" : "New set ", foreign(file));
  return [heading("New case"), where, caseEditor(opened, { signal, fresh: true })];
}

async function whole(file, signal) {
  const opened = await ask(`/api/cases/text?${new URLSearchParams({ file })}`, { signal });
  const hint = file.endsWith("test_config.json") && h("p.quiet", PERFECT);
  const label = `The file as text${opened.version ? "" : "; it is not there yet"}`;
  return [heading(file), hint, fileEditor(opened, label, { signal })];
}

function setPage({ file, cases, criteria, error, whyNot }) {
  const link = (text, as, of = file) => h("a.button", { href: address("cases", { file: of, as }) }, text);
  const beside = `${file.slice(0, file.lastIndexOf("/") + 1)}test_config.json`;
  return [
    heading(file),
    error && foreign(error, "pre.problem"),
    whyNot && !error && h("p.notice", foreign(whyNot)),
    h("p", `${cases.length} case${cases.length === 1 ? "" : "s"}`),
    h("div.row",
      !error && run({ kind: "eval", file, cases: [] }, "Run this set", "primary"),
      !whyNot && [link("New case", "new"), link("New case with a simulated user", "simulated")],
      link("Edit as text", "file"),
      link(criteria ? "Criteria" : "Write criteria", "file", beside)),
  ];
}

// --- what is done with a case

async function copy({ file, id, version }) {
  const copied = await ask("/api/cases/copy", { method: "POST", body: { file, id, version } });
  go("cases", { file, case: copied.id });
}

async function remove({ file, id, version }) {
  if (!confirm(`Delete ${visible(id)}?`)) return;
  await ask("/api/cases/case", { method: "DELETE", body: { file, id, version } });
  go("cases", { file });
}

function run(body, label, name = "small") {
  const element = action(label, async () => {
    const { id } = await ask("/api/jobs", { method: "POST", body });
    go("start", { job: id });
  });
  element.button.className = name;
  return element;
}
