// The Start view: what there is to run, chosen by search and checkbox; the command that this means, what it may cost;
// and the start.

import { addView } from "./app.js";
import { ask, whenServed } from "./client.js";
import { fill, foreign, h, refill } from "./dom.js";
import { count } from "./format.js";
import { jobsPanel } from "./jobs.js";
import { announce, copyButton, problem, wordSearch } from "./parts.js";

export function addStartView() {
  addView("start", { title: "Start", nav: true, show, keys: [] });
}

async function show(place, params, signal) {
  fill(place, h("h1", "Start"), h("p", { role: "status" }, "Reading the project's scenarios…"));
  const found = await ask("/api/scenarios", { signal });
  const items = itemsOf(found);
  const chosen = new Set();
  const jobs = jobsPanel();
  const search = wordSearch("Search", params.text, draw);
  const [list, command, said] = [h("div"), h("div.command"), h("div", { role: "status" })];
  const total = h("span.quiet", { "aria-live": "polite" });
  const options = optionFields(found.agents, showCommand);
  let asked = 0;

  function draw() {
    const shown = groups(items.filter((item) => search.fits(item.text)));
    const one = (item) => h("div", box(item.id, [item], item.name), " ", foreign(item.about, "span.quiet"));
    const all = (file, group) => h("legend", box(`all-${group[0].id}`, group, file));
    refill(list, tagBoxes(), shown.map(([file, group]) => h("fieldset", all(file, group), group.map(one))), !items.length && !found.error && NOTHING());
    const everything = `none chosen: all ${count(found.scenarios.length, "scenario")} would run`;
    total.textContent = chosen.size ? `${chosen.size} of ${items.length} chosen` : everything;
    showCommand();
  }
  function tagBoxes() {
    const tags = [...new Set(items.flatMap((item) => item.tags || []))].sort();
    const tagBox = (tag, at) => box(`tag-${at}`, items.filter((item) => (item.tags || []).includes(tag)), tag);
    return tags.length > 0 && h("fieldset.row.tags", h("legend", "Tags"), tags.map(tagBox));
  }
  async function showCommand() {
    const mine = ++asked;
    const answers = await send("/api/command").catch((error) => error);
    if (mine !== asked || signal.aborted) return;
    const line = ({ line }) => h("div.row", foreign(line, "code"), copyButton(line));
    fill(command, answers.message ? problem(answers.message) : answers.map(line));
  }
  // A box for one item, or for all of a file or a tag.
  function box(id, group, name) {
    const checked = group.every((item) => chosen.has(item));
    const onchange = () => draw(group.forEach((item) => chosen[checked ? "delete" : "add"](item)));
    const input = h("input", { type: "checkbox", id, checked, onchange, data: id === group[0].id && { step: "" } });
    input.indeterminate = !checked && group.some((item) => chosen.has(item));
    return h("label", input, " ", foreign(name));
  }
  async function send(path) {
    const answers = [];
    for (const body of wanted(items, chosen, options)) answers.push(await ask(path, { method: "POST", body, signal }));
    return answers;
  }
  async function each(path, then) {
    fill(said, h("p", "…"));
    try {
      fill(said, then(await send(path)));
    } catch (error) {
      if (!signal.aborted) fill(said, problem(error.message));
    }
  }
  const started = (answers) => (announce("Started"), h("p", `${count(answers.length, "run")} started.`));
  const estimated = (answers) => answers.map((answer) => h("pre", { tabindex: "0" }, foreign(answer.text)));
  const button = (name, text, path, then) => h("button", { type: "button", class: name, onclick: () => each(path, then) }, text);

  draw();
  fill(
    place,
    h("h1", "Start"),
    found.error && problem(found.error),
    found.sets.map((set) => set.error && foreign(set.error, "p.problem")),
    found.problems.map(mistake),
    h("div.desk",
      h("div", h("div.row", search.element, total), list),
      h("div.asking",
        options,
        command,
        h("div.row", button("primary", "Start", "/api/jobs", started), button("", "What may it cost?", "/api/estimate", estimated)),
        said,
        jobs.element)),
  );
  await whenServed(jobs.load, signal, () => {});
}

const NOTHING = () => h("p", "There is nothing to run yet. ", h("code", "agentest init"), " writes a first scenario.");

// Most messages begin with their place.
function mistake({ file, line, name, message }) {
  const place = message.includes(`${file}:`) ? "" : `${file}:${line} `;
  return foreign(`${place}${name} ${message}`, "p.problem");
}

// Scenarios, and the cases of evaluation sets.
function itemsOf(found) {
  const kindOf = (each) => (each.kind === "simulated" ? `simulated × ${each.conversations}` : "scripted");
  const scenarios = found.scenarios.map((each) => ({ ...each, about: [kindOf(each), ...each.tags].join(" · ") }));
  const cases = found.sets.flatMap(({ file, cases }) => cases.map((name) => ({ file, name, about: "case" })));
  return [...scenarios, ...cases].map((item, at) => ({ ...item, id: `pick-${at}`, text: [item.file, item.name, item.about].join(" ") }));
}

function groups(items) {
  const found = new Map();
  for (const item of items) found.set(item.file, [...(found.get(item.file) || []), item]);
  return [...found];
}

// Scenarios are one command, each evaluation set another. A file of which all are chosen is named alone.
function wanted(items, chosen, options) {
  const paths = [];
  const bodies = [];
  const more = optionsIn(options);
  for (const [file, group] of groups(items)) {
    const picked = group.filter((item) => chosen.has(item)).map((item) => item.name);
    const whole = picked.length === group.length;
    if (group[0].about !== "case") paths.push(...(whole ? [file] : picked.map((name) => `${file}::${name}`)));
    else if (picked.length) bodies.push({ kind: "eval", file, cases: whole ? [] : picked, ...more });
  }
  return paths.length || !bodies.length ? [{ kind: "run", paths, ...more }, ...bodies] : bodies;
}

function optionFields(agents, oninput) {
  const option = (value, text) => h("option", { value }, text);
  const agent = h("select", { name: "agent" }, option("", "as configured"), agents.map((name) => option(name, name)));
  const times = h("input", { type: "number", min: 1, max: 10000, name: "conversations", placeholder: "as configured" });
  const flag = (name, text) => h("label", h("input", { type: "checkbox", name }), ` ${text}`);
  return h(
    "form",
    { oninput, onsubmit: (event) => event.preventDefault() },
    h(
      "fieldset",
      { class: "row" },
      h("legend", "Options"),
      agents.length > 1 && h("label", "Agent ", agent),
      h("label", "Conversations ", times),
      flag("offline", "Offline: ask no model"),
      flag("failFast", "Stop at the first failure"),
    ),
  );
}

function optionsIn(form) {
  const given = Object.fromEntries([...new FormData(form)].filter(([, value]) => value));
  if (given.conversations) given.conversations = Number(given.conversations);
  for (const flag of ["offline", "failFast"]) if (given[flag]) given[flag] = true;
  return given;
}
