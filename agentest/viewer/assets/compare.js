// The Compare view: two runs, or two agents of one: what became better or worse, and how sure that is.

import { address, amend, note, read } from "./address.js";
import { addView } from "./app.js";
import { fill, foreign, h, visible } from "./dom.js";
import { table } from "./folding.js";
import { count, moment } from "./format.js";
import { badge, problem } from "./parts.js";
import { sideBySide } from "./side_by_side.js";
import { source } from "./source.js";

const STATUS = { regressed: "failed", improved: "passed", "not compared": "errored" };
const HEAD = ["Base", "New", "Difference", "95 % interval", "p", "Verdict"];

export function addCompareView() {
  addView("compare", { title: "Compare", nav: true, show, keys: [], up });
}

function up({ scenario, b, n, ...rest }) {
  return scenario ? address("compare", rest) : address("run", { of: rest.of });
}

async function show(place, params, signal) {
  const found = await source().compare(params);
  if (signal.aborted) return;
  if (found && found.comparison && params.scenario) return sideBySide(place, params, found, up(params));
  fill(
    place,
    h("h1", {}, "Compare"),
    found ? choice(found) : h("p", {}, "This file has a run of one agent without a baseline: `agentest ui` compares kept runs."),
    found && found.problem && problem(found.problem),
    found && found.comparison && whole(found),
  );
}

// --- what is compared

function choice({ runs, agents, base, new: next }) {
  const ids = runs.map((run) => run.id);
  const texts = new Map([...runs.map((run) => [run.id, told(run)]), ...agents.map((name) => [name, `agent ${name}`])]);
  const pick = (own, other) => (event) => {
    const chosen = event.target.value;
    const group = agents.includes(chosen) ? agents : ids;
    amend({ [own]: chosen, [own === "base" ? "new" : "base"]: group.includes(other) && other !== chosen ? other : group.find((each) => each !== chosen) });
  };
  const side = (id, value, other) => {
    const options = [...texts].map(([name, text]) => h("option", { value: name, selected: name === value }, visible(text)));
    return h("label", {}, `${id}: `, source().served ? h("select", { id, onchange: pick(id, other) }, options) : foreign(value, "strong"));
  };
  return h(
    "div",
    { class: "row" },
    side("base", base, next),
    side("new", next, base),
    source().served && h("button", { type: "button", id: "swap", onclick: () => amend({ base: next, new: base }) }, "Swap"),
    !source().served && agents.slice(1).map((each) => each !== next && h("a", { href: address("compare", { new: each }) }, "with ", foreign(each))),
  );
}

function told(run) {
  return [moment(run.startedAt), run.state, run.commit && run.commit.slice(0, 7), run.id].filter(Boolean).join(" · ");
}

// --- what came of it

function whole(found) {
  const { verdict, headline, besides, notes, overall, totals } = found.comparison;
  return [
    h("p", {}, badge(verdict.status, verdict.text), " ", headline),
    h("ul", {}, [...besides, ...notes].map((text) => foreign(text, "li"))),
    scenarios(found),
    h("h2", {}, "Over all scenarios"),
    table("figures", ["Figure", ...HEAD], overall.length, (at) => figure(overall[at])),
    table("figures", ["All that was held", "Base", "New", "Difference"], totals.length, (at) => cells(totals[at])),
  ];
}

function cells([name, ...values], verdict) {
  return h("tr", {}, h("th", { scope: "row" }, foreign(name)), values.map((text) => h("td", {}, text)), verdict && h("td", {}, verdict));
}

function figure(row) {
  return cells(row.cells, changed(row.change));
}

function changed(change) {
  return badge(STATUS[change] || "skipped", change);
}

// The scenarios in the order of the comparison, the worst first. Filters change the list alone.
function scenarios({ comparison, of, base, new: next }) {
  const all = comparison.scenarios;
  const said = h("p", { role: "status", class: "quiet" });
  const place = h("div");

  function line(row) {
    const to = address("compare", { ...read().params, of, base, new: next, scenario: row.name, agent: row.agent });
    const link = h("a", { href: to, data: { step: "" } }, foreign(row.name));
    const head = h("th", { scope: "row", colspan: 6 }, link, " ", row.agent && foreign(row.agent, "span", { class: "tag" }), foreign(row.story, "div", { class: "quiet" }));
    return h("tr", { class: "scenario" }, head, h("td", {}, changed(row.change)));
  }

  function draw() {
    const { change, text = "" } = read().params;
    const kept = all.filter((row) => (!change || row.change === change) && row.name.toLowerCase().includes(text.toLowerCase()));
    const rows = kept.flatMap((row) => [() => line(row), ...row.figures.map((each) => () => figure(each))]);
    said.textContent = `${kept.length} of ${count(all.length, "scenario")}`;
    fill(place, table("figures", ["Scenario and figure", ...HEAD], rows.length, (at) => rows[at]()));
  }

  const filter = (name) => (event) => (note({ [name]: event.target.value }), draw());
  const { change, text } = read().params;
  const option = (each) => h("option", { value: each, selected: each === change }, each || "anything");
  const changes = ["", ...new Set(all.map((row) => row.change))];
  draw();
  return [
    h("h2", {}, "Scenarios"),
    h(
      "div",
      { class: "row no-print", role: "search" },
      h("label", {}, "What became of it ", h("select", { onchange: filter("change") }, changes.map(option))),
      h("label", {}, "Name ", h("input", { type: "search", value: text, oninput: filter("text") })),
      said,
    ),
    place,
  ];
}
