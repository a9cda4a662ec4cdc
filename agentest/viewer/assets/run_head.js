// The head of the Run view: the verdict in one line as the console says it, and what nobody may miss.

import { foreign, h } from "./dom.js";
import { cost, count, duration, moment } from "./format.js";
import { kinds } from "./run_filters.js";
import { badge } from "./parts.js";

const ORDER = ["failed", "errored", "passed", "skipped", "unfinished", "running"];

export function head(overview) {
  return [
    h("h1", {}, "Run ", foreign(overview.run.id || "")),
    h("p", { class: "verdict" }, badge(overview.run.state), " ", verdict(overview)),
    progress(overview.run),
    context(overview),
    notices(overview).map((text) => h("p", { class: "notice" }, foreign(text))),
  ];
}

function verdict({ run, head, scenarios: rows }) {
  const number = (kind) => rows.filter((row) => kinds(row).includes(kind)).length;
  const counts = ORDER.map((kind) => [number(kind), kind]).filter(([n]) => n);
  const said = counts.map(([n, kind]) => `${n.toLocaleString("en")} ${kind}`).join(", ") || "0 passed";
  const held = rows.reduce((sum, row) => sum + row.conversations, 0);
  const flaky = number("flaky");
  const extent = `${scenarios(rows)}, ${count(held, "conversation")}${flaky ? `, ${flaky} flaky` : ""}`;
  const ms = head ? head.summary.durationMs : run.durationMs;
  const usd = head ? head.summary.usage.cost : run.cost;
  return [h("strong", {}, said), ` (${extent})`, ms > 0 && ` in ${duration(ms)}`, usd === null ? " · cost unknown" : usd > 0 && ` · ${cost(usd)}`];
}

function scenarios(rows) {
  const agents = new Set(rows.map((row) => row.agent).filter(Boolean)).size;
  if (agents < 2) return count(rows.length, "scenario");
  const names = new Set(rows.map((row) => `${row.file} ${row.name}`)).size;
  return `${count(names, "scenario")} × ${count(agents, "agent")}`;
}

function progress(run) {
  if (run.state !== "under way" || !run.planned) return null;
  const text = `${(run.finished || 0).toLocaleString("en")} of ${count(run.planned, "conversation")} done`;
  return h("p", { class: "row" }, h("progress", { max: run.planned, value: String(run.finished || 0), "aria-label": text }), h("span", { id: "progress" }, text));
}

function context({ run, head }) {
  const models = Object.entries((head || run).models || {}).filter(([, model]) => model);
  const parts = [
    moment((head || run).startedAt),
    models.map(([role, model]) => `${role}: ${model}`).join(", "),
    run.commit && `commit ${String(run.commit).slice(0, 12)}`,
    head && `Agentest ${head.version}`,
  ];
  return h("p", { class: "quiet small" }, parts.filter(Boolean).map((part, at) => [at > 0 && " · ", foreign(part)]));
}

// What is to be known whatever the verdict.
function notices({ run, head, scenarios: rows, figures, leftOut }) {
  const summary = (head && head.summary) || {};
  const shard = (head && head.shard) || run.shard;
  return [
    ...nothing(run, rows),
    head && head.interrupted && "This run was interrupted: what it had not come to is listed as unfinished.",
    head && head.stopped && `This run ended before its end: ${head.stopped}.`,
    run.state === "killed" && "This run was killed: what it had finished is here.",
    shard && `This is part ${shard} of a run that was split: it says nothing of the other parts.`,
    ...(summary.unclaimedCalls || []).map(warned("Error")),
    ...(summary.warnings || []).filter((each) => !told(summary, each)).map(warned("Warning")),
    ...figures.skipped.map((each) => `Metrics skipped in ${count(each.scenarios, "scenario")}: ${each.why} (${each.metrics.join(", ")})`),
    leftOut > 0 && `${count(leftOut, "transcript")} left out, as the file would have become too large: agentest show ${run.id || "RUN"} --verbose shows them.`,
  ].filter(Boolean);
}

const words = (each) => (typeof each === "string" ? each : each.message);
const warned = (kind) => (each) => `${kind}: ${words(each)}`;
const told = (summary, each) => (summary.unclaimedCalls || []).some((other) => words(other) === words(each));

function nothing(run, rows) {
  const under = run.state === "under way";
  if (!rows.length) return [under ? "No scenario has begun yet." : "No scenario was run: this run is not a pass."];
  if (under || rows.some((row) => row.status === "passed")) return [];
  if (rows.every((row) => row.broken)) return [`${rows.length === 1 ? "The only file" : `All ${rows.length} files`} could not be loaded: no scenario was run.`];
  if (rows.every((row) => row.status === "skipped" && !row.unfinished)) return ["Every scenario was skipped: this run is not a pass."];
  return ["No scenario passed."];
}
