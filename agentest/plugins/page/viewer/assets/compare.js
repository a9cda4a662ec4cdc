// The Compare view: two runs, or two agents of one: what became better or worse, and how sure that is.

import { address, amend, note, read } from "./address.js";
import { addView } from "./app.js";
import { fill, foreign, h, visible } from "./dom.js";
import { table } from "./folding.js";
import { count } from "./format.js";
import { badge, problem } from "./parts.js";
import { sideBySide } from "./side_by_side.js";
import { source } from "./source.js";
import { forest } from "./pictures.js";

const STATUS = { broke: "failed", regressed: "failed", fixed: "passed", improved: "passed", "not compared": "errored" };
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
  if (found && found.comparison && params.scenario) return sideBySide(place, params, found, up(params), signal);
  fill(
    place,
    h("h1", "Compare"),
    found ? choice(found) : h("p", "This report has one agent and no baseline. `agentest ui` compares stored runs; `agentest run --baseline RUN --reporter html` writes a report with both."),
    found && found.problem && problem(found.problem),
    found && found.comparison && whole(found),
  );
}

// --- what is compared

// A run beside an agent is no pair: what does not fit is left to the source.
function choice({ choices, agents, ...found }) {
  const select = (own, other) => {
    const kept = found[other];
    const isPair = (chosen) => chosen !== kept && agents.includes(chosen) === agents.includes(kept);
    const choose = ({ target: { value } }) => amend({ [own]: value, [other]: isPair(value) ? kept : "" });
    const option = ([value, text]) => h("option", { value, selected: value === found[own] }, visible(text));
    return h("label", `${own}: `, h("select", { id: own, onchange: choose }, choices[own].map(option)));
  };
  const swap = () => amend({ base: found.new, new: found.base });
  const button = source().served && h("button", { type: "button", id: "swap", onclick: swap }, "Swap");
  return h("div.row", select("base", "new"), select("new", "base"), button);
}

// --- what came of it

function whole(found) {
  const { verdict, headline, besides, notes, overall, totals, differences } = found.comparison;
  return [
    h("p", badge(verdict.status, verdict.text), " ", headline),
    h("ul", [...besides, ...notes].map((text) => foreign(text, "li"))),
    scenarios(found),
    h("h2", "Over all scenarios"),
    differences.length > 0 && forest("Difference of pass rates in points, with 95% intervals", differences, "Difference"),
    table("figures", ["Figure", ...HEAD], overall.length, (at) => figure(overall[at])),
    table("figures", ["All conversations", ...HEAD.slice(0, 3)], totals.length, (at) => cells(totals[at])),
  ];
}

function cells([name, ...values], verdict) {
  const rest = [...values, verdict].map((each) => each !== undefined && h("td", each));
  return h("tr", h("th", { scope: "row" }, foreign(name)), rest);
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
    const { name: scenario, agent } = row;
    const to = address("compare", { ...read().params, of, base, new: next, scenario, agent });
    const link = h("a", { href: to, data: { step: "" } }, foreign(scenario));
    const tag = agent && foreign(agent, "span.tag");
    const story = foreign(row.story, STATUS[row.change] === "failed" || row.story.startsWith("passed → failed") ? "div.bad" : "div.quiet");
    const head = h("th", { scope: "row", colspan: 6 }, link, " ", tag, story);
    return h("tr.scenario", head, h("td", changed(row.change)));
  }

  function draw() {
    const { change, text = "" } = read().params;
    const named = (row) => row.name.toLowerCase().includes(text.toLowerCase());
    const fits = (row) => (!change || row.change === change) && named(row);
    const kept = all.filter(fits);
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
    h("h2", "Scenarios"),
    h(
      "div",
      { class: "row no-print", role: "search" },
      h("label", "Change ", h("select", { onchange: filter("change") }, changes.map(option))),
      h("label", "Name ", h("input", { type: "search", value: text, oninput: filter("text") })),
      said,
    ),
    place,
  ];
}
