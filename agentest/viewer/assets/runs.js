// The Runs view: what was started from the page, and the kept runs, live ones first; two of them are compared.

import { address, go, note } from "./address.js";
import { addView } from "./app.js";
import { ask } from "./client.js";
import { fill, foreign, h } from "./dom.js";
import { cost, count, duration, moment } from "./format.js";
import { jobsPanel } from "./jobs.js";
import { announce, badge, problem } from "./parts.js";

export function addRunsView() {
  addView("runs", { title: "Runs", nav: true, show, keys: [["c", "compare the two that are marked"]] });
}

async function show(place, params, signal) {
  const list = h("div", {});
  const marked = new Set((params.marked || "").split(",").filter(Boolean));
  const search = h("input", { type: "search", id: "runs-filter", value: params.text || "", oninput: filter });
  const compare = h("button", { type: "button", onclick: compareThem }, "Compare the two marked");
  const jobs = jobsPanel();
  let runs = [];

  function compareThem() {
    const [base, last] = [...marked].sort();
    if (marked.size === 2) go("compare", { base, new: last });
  }
  function filter() {
    note({ text: search.value });
    draw();
  }
  function mark(id, chosen) {
    if (chosen) marked.add(id);
    else marked.delete(id);
    note({ marked: [...marked].join(",") });
    compare.disabled = marked.size !== 2;
  }
  function draw() {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const shown = runs.filter((run) => words.every((word) => textOf(run).includes(word)));
    const focused = document.activeElement && document.activeElement.dataset.run;
    fill(list, shown.length ? table(shown, marked, mark) : nothing(runs.length, words));
    const again = focused && [...list.querySelectorAll("[data-run]")].find((each) => each.dataset.run === focused);
    if (again) again.focus();
  }
  async function load() {
    const found = await ask("/api/runs", { signal });
    runs = found.runs;
    draw();
  }

  compare.disabled = marked.size !== 2;
  fill(
    place,
    h("h1", {}, "Runs"),
    jobs.element,
    h("div", { class: "row" }, h("label", { for: "runs-filter" }, "Filter"), search, compare, h("a", { class: "button", href: address("start") }, "Start a run")),
    list,
  );
  await Promise.all([load(), jobs.load()]);
  const changed = () => Promise.all([load(), jobs.load()]).catch((error) => signal.aborted || fill(list, problem(error.message)));
  addEventListener("served", changed, { signal });
  addEventListener("viewkey", (event) => event.detail === "c" && compareThem(), { signal });
}

function textOf(run) {
  return [run.id, run.state, run.kind, run.commit, run.shard, run.startedAt, ...Object.values(run.models || {})].join(" ").toLowerCase();
}

function nothing(kept, words) {
  if (kept && words.length) return h("p", {}, "No kept run has these words.");
  return h("p", {}, "No run is kept yet. ", h("a", { href: address("start") }, "Start one"), " here, or with ", h("code", {}, "agentest run"), ".");
}

function table(runs, marked, mark) {
  const heads = ["Compare", "Run", "State", "Passed", "Failed", "Errored", "Cost", "Time", "Commit"];
  return h(
    "div",
    { class: "scroll" },
    h(
      "table",
      { class: "runs" },
      h("caption", { class: "off-screen" }, "Kept runs, the latest first"),
      h("thead", {}, h("tr", {}, heads.map((head, i) => h("th", { scope: "col", class: i > 2 && i < 8 && "number" }, head)))),
      h("tbody", {}, runs.map((run) => row(run, marked, mark))),
    ),
  );
}

function row(run, marked, mark) {
  const ended = run.ended || {};
  const box = h("input", { type: "checkbox", "aria-label": `Compare ${run.id}`, checked: marked.has(run.id), onchange: () => mark(run.id, box.checked) });
  const link = h("a", { href: address("run", { of: run.id }), data: { step: "", run: run.id } }, moment(run.startedAt) || run.id);
  return h(
    "tr",
    {},
    h("td", {}, box),
    h("th", { scope: "row" }, link, h("div", { class: "quiet" }, run.id)),
    h("td", {}, badge(run.state), " ", h("span", { class: "quiet" }, besides(run))),
    [ended.passed, ended.failed, ended.errored].map((number) => h("td", { class: "number" }, number ?? "")),
    h("td", { class: "number" }, run.ended ? cost(ended.cost) : ""),
    h("td", { class: "number" }, run.ended ? duration(ended.durationMs) : ""),
    h("td", { class: "number" }, foreign((run.commit || "").slice(0, 7), "code")),
  );
}

function besides(run) {
  const live = run.state === "under way" && run.planned ? `${run.finished} of ${count(run.planned, "scenario")}` : "";
  return [live, run.kind === "run" ? "" : run.kind, run.shard && `shard ${run.shard}`, run.partial && "a selection", run.resumed && "resumed"]
    .filter(Boolean)
    .join(" · ");
}
