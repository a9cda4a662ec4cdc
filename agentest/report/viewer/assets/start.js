// The Start view: what there is to run, chosen by search and checkbox; what it may cost; and the start.

import { addView } from "./app.js";
import { ask, whenServed } from "./client.js";
import { fill, foreign, h, refill } from "./dom.js";
import { count } from "./format.js";
import { jobsPanel } from "./jobs.js";
import { announce, problem, wordSearch } from "./parts.js";

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
  const [list, said] = [h("div"), h("div", { role: "status" })];
  const total = h("span.quiet", { "aria-live": "polite" });
  const options = optionFields(found.agents);

  function draw() {
    const shown = groups(items.filter((item) => search.fits(item.text)));
    const one = (item) => h("div", box(item.id, [item], item.name), " ", foreign(item.about, "span.quiet"));
    const all = (file, group) => h("legend", box(`all-${group[0].id}`, group, file));
    refill(list, shown.map(([file, group]) => h("fieldset", all(file, group), group.map(one))));
    const everything = `none chosen: all ${count(found.scenarios.length, "scenario")} would run`;
    total.textContent = chosen.size ? `${chosen.size} of ${items.length} chosen` : everything;
  }
  // A box for one item, or for all of a file.
  function box(id, group, name) {
    const checked = group.every((item) => chosen.has(item));
    const onchange = () => draw(group.forEach((item) => chosen[checked ? "delete" : "add"](item)));
    const input = h("input", { type: "checkbox", id, checked, onchange, data: id === group[0].id && { step: "" } });
    return h("label", input, " ", foreign(name));
  }
  async function each(path, then) {
    fill(said, h("p", "…"));
    try {
      const answers = [];
      for (const body of wanted(items, chosen, options)) answers.push(await ask(path, { method: "POST", body, signal }));
      fill(said, then(answers));
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
    found.problems.map((each) => foreign(`${each.file}:${each.line} ${each.name} ${each.message}`, "p", { class: "problem" })),
    h("div.row", search.element, total),
    list,
    options,
    h(
      "div",
      { class: "row" },
      button("primary", "Start", "/api/jobs", started),
      button("", "What may it cost?", "/api/estimate", estimated),
    ),
    said,
    jobs.element,
  );
  await whenServed(jobs.load, signal, () => {});
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

function optionFields(agents) {
  const option = (value, text) => h("option", { value }, text);
  const agent = h("select", { name: "agent" }, option("", "as configured"), agents.map((name) => option(name, name)));
  const times = h("input", { type: "number", min: 1, max: 10000, name: "conversations", placeholder: "as configured" });
  const flag = (name, text) => h("label", h("input", { type: "checkbox", name }), ` ${text}`);
  return h(
    "form",
    { onsubmit: (event) => event.preventDefault() },
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
