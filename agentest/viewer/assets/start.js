// The Start view: what there is to run, chosen by search and checkbox; what it may cost; and the start.

import { addView } from "./app.js";
import { ask } from "./client.js";
import { fill, foreign, h } from "./dom.js";
import { count } from "./format.js";
import { jobsPanel } from "./jobs.js";
import { announce, problem } from "./parts.js";

export function addStartView() {
  addView("start", { title: "Start", nav: true, show, keys: [] });
}

async function show(place, params, signal) {
  fill(place, h("h1", {}, "Start"), h("p", { role: "status" }, "Reading the project's scenarios…"));
  const found = await ask("/api/scenarios", { signal });
  const jobs = jobsPanel();
  const said = h("div", { role: "status" });
  const options = optionFields(found.agents);
  const list = h("div", {});
  const chosen = new Set();
  const items = itemsOf(found);
  const search = h("input", { type: "search", id: "start-filter", oninput: draw, value: params.text || "" });
  const total = h("span", { class: "quiet", "aria-live": "polite" });

  const shown = () => items.filter((item) => search.value.toLowerCase().split(/\s+/).every((word) => item.text.includes(word)));
  function draw() {
    fill(list, groups(shown()).map(([file, group]) => fieldset(file, group)));
    tellTotal();
  }
  function tellTotal() {
    const scenarios = items.filter((item) => chosen.has(item)).length;
    total.textContent = scenarios ? `${scenarios} of ${items.length} chosen` : `none chosen: all ${count(found.scenarios.length, "scenario")} would run`;
  }
  function fieldset(file, group) {
    const boxes = group.map((item) => box(item, () => (all.checked = group.every((each) => chosen.has(each)))));
    const all = h("input", { type: "checkbox", checked: group.every((each) => chosen.has(each)), onchange: () => choose(group, all.checked) });
    return h("fieldset", {}, h("legend", {}, h("label", {}, all, " ", foreign(file))), boxes);
  }
  function choose(group, wanted) {
    for (const item of group) chosen[wanted ? "add" : "delete"](item);
    draw();
  }
  function box(item, changed) {
    const input = h("input", { type: "checkbox", checked: chosen.has(item), data: { step: "" }, onchange: () => (chosen[input.checked ? "add" : "delete"](item), tellTotal(), changed()) });
    return h("div", {}, h("label", {}, input, " ", foreign(item.name)), " ", h("span", { class: "quiet" }, foreign(item.about)));
  }
  async function each(path, then) {
    fill(said, h("p", {}, "…"));
    try {
      const bodies = wanted(found, items, chosen, options.read());
      const answers = [];
      for (const body of bodies) answers.push(await ask(path, { method: "POST", body, signal }));
      fill(said, then(answers));
      await jobs.load();
    } catch (error) {
      if (!signal.aborted) fill(said, problem(error.message));
    }
  }
  const started = (answers) => (announce("Started"), h("p", {}, `${count(answers.length, "run")} started.`));
  const estimated = (answers) => answers.map((answer) => h("pre", { tabindex: "0" }, foreign(answer.text)));

  draw();
  fill(
    place,
    h("h1", {}, "Start"),
    found.error && problem(found.error),
    found.problems.map((each) => h("p", { class: "problem" }, foreign(`${each.file}:${each.line} ${each.name} ${each.message}`))),
    h("div", { class: "row" }, h("label", { for: "start-filter" }, "Search"), search, total),
    list,
    options.element,
    h(
      "div",
      { class: "row" },
      h("button", { type: "button", class: "primary", onclick: () => each("/api/jobs", started) }, "Start"),
      h("button", { type: "button", onclick: () => each("/api/estimate", estimated) }, "What may it cost?"),
    ),
    said,
    jobs.element,
  );
  await jobs.load();
  addEventListener("served", () => jobs.load().catch(() => {}), { signal });
}

function itemsOf(found) {
  const scenarios = found.scenarios.map((each) => ({ ...each, kind: "run", about: [each.kind === "simulated" ? `simulated × ${each.conversations}` : "scripted", ...each.tags].join(" · ") }));
  const cases = found.sets.flatMap((set) =>
    set.error ? [] : set.cases.map((name) => ({ kind: "eval", file: set.file, name, about: "case", tags: [] })),
  );
  return [...scenarios, ...cases].map((item) => ({ ...item, text: [item.file, item.name, item.about].join(" ").toLowerCase() }));
}

function groups(items) {
  const found = new Map();
  for (const item of items) found.set(item.file, [...(found.get(item.file) || []), item]);
  return [...found];
}

// Scenarios are one command, each evaluation set another. A file of which all are chosen is named alone.
function wanted(found, items, chosen, options) {
  const run = [];
  const bodies = [];
  for (const [file, group] of groups(items)) {
    const picked = group.filter((item) => chosen.has(item));
    if (!picked.length) continue;
    const whole = picked.length === group.length;
    if (group[0].kind === "run") run.push(...(whole ? [file] : picked.map((item) => `${file}::${item.name}`)));
    else bodies.push({ kind: "eval", file, cases: whole ? [] : picked.map((item) => item.name), ...options });
  }
  if (run.length || !bodies.length) bodies.unshift({ kind: "run", paths: run, ...options });
  return bodies;
}

function optionFields(agents) {
  const agent = h("select", { id: "start-agent" }, h("option", { value: "" }, "as configured"), agents.map((name) => h("option", { value: name }, name)));
  const times = h("input", { type: "number", min: "1", max: "10000", id: "start-times", placeholder: "as configured" });
  const flag = (text) => {
    const input = h("input", { type: "checkbox" });
    return [input, h("label", {}, input, ` ${text}`)];
  };
  const [offline, offlineLabel] = flag("Offline: ask no model");
  const [failFast, failFastLabel] = flag("Stop at the first failure");
  const element = h(
    "fieldset",
    { class: "row" },
    h("legend", {}, "Options"),
    agents.length > 1 && [h("label", { for: "start-agent" }, "Agent"), agent],
    h("label", { for: "start-times" }, "Conversations"),
    times,
    offlineLabel,
    failFastLabel,
  );
  const read = () => ({
    ...(agent.value && { agent: agent.value }),
    ...(times.value && { conversations: Number(times.value) }),
    ...(offline.checked && { offline: true }),
    ...(failFast.checked && { failFast: true }),
  });
  return { element, read };
}
