// The Runs view: what was started from the page, and the kept runs, live ones first; two of them are compared.

import { address, go, note } from "./address.js";
import { addView } from "./app.js";
import { ask, whenServed } from "./client.js";
import { foreign, h, refill } from "./dom.js";
import { table } from "./folding.js";
import { cost, count, duration, grouped, moment } from "./format.js";
import { jobsPanel, runAgain } from "./jobs.js";
import { badge, problem, wordSearch } from "./parts.js";

const HEADS = ["Compare", "Run", "State", "Scenarios", "Cost", "Time", "Commit"];

export function addRunsView() {
  addView("runs", { title: "Runs", nav: true, show, keys: [["c", "compare the two that are marked"]] });
}

async function show(place, params, signal) {
  const list = h("div");
  const marked = new Set((params.marked || "").split(",").filter(Boolean));
  const search = wordSearch("Filter", params.text, () => draw(note({ text: search.text() })));
  const compare = h("button", { type: "button", onclick: compareThem }, "Compare the two marked");
  const jobs = jobsPanel();
  const start = h("a.button", { href: address("start") }, "Start a run");
  let runs = [];

  function compareThem() {
    const [base, last] = [...marked].sort();
    if (marked.size === 2) go("compare", { base, new: last });
  }
  function mark(id, chosen) {
    marked[chosen ? "add" : "delete"](id);
    note({ marked: [...marked].join(",") });
    compare.disabled = marked.size !== 2;
  }
  function draw() {
    const shown = runs.filter((run) => search.fits(textOf(run)));
    refill(list, shown.length ? table("runs stacked", HEADS, shown.length, (at) => row(shown[at], marked, mark)) : nothing(runs));
  }
  async function load() {
    const found = await ask("/api/runs", { signal });
    runs = found.runs;
    draw();
    await jobs.load();
  }

  compare.disabled = marked.size !== 2;
  place.append(h("h1", "Runs"), jobs.element, h("div.row", search.element, compare, start), list);
  await whenServed(load, signal, (error) => refill(list, problem(error.message)));
  addEventListener("viewkey", (event) => event.detail === "c" && compareThem(), { signal });
}

function textOf(run) {
  return [run.id, run.state, run.kind, run.commit, run.shard, run.startedAt, ...Object.values(run.models || {})].join(" ");
}

function nothing(runs) {
  if (runs.length) return h("p", "No kept run has these words.");
  return h("p", "No run is kept yet. ", h("a", { href: address("start") }, "Start one"), " here, or with ", h("code", "agentest run"), ".");
}

function row(run, marked, mark) {
  const ended = run.ended || {};
  const [id, checked, onchange] = [`mark-${run.id}`, marked.has(run.id), () => mark(run.id, box.checked)];
  const box = h("input", { type: "checkbox", "aria-label": `Compare ${run.id}`, id, checked, onchange });
  const link = { href: address("run", { of: run.id }), data: { step: "" }, id: `run-${run.id}` };
  const name = [h("a", link, moment(run.startedAt) || run.id), h("div.quiet", run.id)];
  const numbers = [run.ended && cost(ended.cost), duration(ended.durationMs)];
  return h(
    "tr",
    h("td", box),
    h("th", { scope: "row" }, name),
    h("td", badge(run.state), " ", h("span.quiet", besides(run)), h("span.on-demand", runAgain(run.id, run.state, "run"))),
    h("td", run.ended && shares(ended)),
    [...numbers, foreign((run.commit || "").slice(0, 7), "code")].map((each) => h("td.number", each)),
  );
}

// A bar of the scenarios by outcome, with the numbers in words.
function shares(ended) {
  const there = ["passed", "failed", "errored"].filter((kind) => ended[kind]);
  const part = (kind) => h("span", { class: kind, style: { "flex-grow": ended[kind] } });
  return [h("div.bar.outcomes", { "aria-hidden": "true" }, there.map(part)), h("span.small", there.map((kind) => `${grouped(ended[kind])} ${kind}`).join(", ") || "none")];
}

function besides(run) {
  const live = run.state === "under way" && run.planned ? `${run.finished} of ${count(run.planned, "scenario")}` : "";
  const facts = [live, run.kind === "run" ? "" : run.kind, run.shard && `shard ${run.shard}`, run.partial && "a selection"];
  return [...facts, run.resumed && "resumed"].filter(Boolean).join(" · ");
}
