// The head of the Run view: the verdict in one line as the console says it, and what nobody may miss.

import { foreign, h } from "./dom.js";
import { cost, count, duration, moment } from "./format.js";
import { kinds } from "./run_filters.js";
import { badge, copyButton } from "./parts.js";
import { offered } from "./source.js";

const ORDER = ["failed", "errored", "passed", "skipped", "unfinished", "running"];

export function head(overview) {
  const { run } = overview;
  return [
    h("h1", "Run ", foreign(run.id || "")),
    h("p.verdict", badge(run.state), " ", verdict(overview)),
    run.state === "under way" && run.planned > 0 && progress(run),
    earlyEnd(overview),
    h("p.quiet.small", foreign(context(overview))),
    h("div.row.no-print", offered("run", run)),
    notices(overview).map((text) => h("p.notice", foreign(text))),
  ];
}

function verdict({ run, head, scenarios: rows }) {
  const of = new Map();
  for (const kind of rows.flatMap(kinds)) of.set(kind, (of.get(kind) || 0) + 1);
  const said = ORDER.filter((kind) => of.has(kind)).map((kind) => `${of.get(kind).toLocaleString("en")} ${kind}`);
  const held = rows.reduce((sum, row) => sum + row.conversations, 0);
  const extent = [scenarios(rows), count(held, "conversation"), of.has("flaky") && `${of.get("flaky")} flaky`];
  const ms = head ? head.summary.durationMs : run.durationMs;
  const usd = head ? head.summary.usage.cost : run.cost;
  const took = ms > 0 ? ` in ${duration(ms)}` : "";
  const price = usd === null ? " · cost unknown" : usd > 0 ? ` · ${cost(usd)}` : "";
  return [h("strong", said.join(", ") || "0 passed"), ` (${extent.filter(Boolean).join(", ")})${took}${price}`];
}

const KILLED = "killed before its end"; // what results say of a run that was killed

// Why the run has less than was planned, and the command that goes on.
function earlyEnd({ run, head, scenarios: rows }) {
  const { interrupted, stopped } = head || {};
  const killed = run.state === "killed" || stopped === KILLED;
  if (!killed && !interrupted && !stopped) return null;
  const why = killed
    ? "This run was killed: its process ended without a word, as by kill -9, a lost machine or too little memory."
    : interrupted
      ? "This run was interrupted, by Ctrl-C or a signal to end."
      : `This run was stopped before its end: ${stopped}.`;
  const all = (of) => rows.reduce((sum, row) => sum + of(row), 0);
  const finished = all((row) => row.conversations);
  const planned = Math.max(run.conversations || 0, all((row) => Math.max(row.planned || 0, row.conversations)));
  const left = planned > finished && `${finished.toLocaleString("en")} of ${count(planned, "conversation")} finished; they are below.`;
  const command = run.resume && planned > finished && run.resume;
  return h(
    "div.notice.early-end",
    h("p", h("strong", foreign(why)), left && ` ${left}`),
    command && h("p.row", "Go on with the rest: ", foreign(command, "code"), copyButton(command, "Copy command")),
  );
}

function scenarios(rows) {
  const agents = new Set(rows.map((row) => row.agent).filter(Boolean)).size;
  if (agents < 2) return count(rows.length, "scenario");
  const names = new Set(rows.map((row) => `${row.file} ${row.name}`)).size;
  return `${count(names, "scenario")} × ${count(agents, "agent")}`;
}

function progress({ planned, finished = 0 }) {
  const text = `${finished.toLocaleString("en")} of ${count(planned, "conversation")} done`;
  return h("p.row", h("progress", { max: planned, value: String(finished), "aria-label": text }), text);
}

function context({ run, head }) {
  const { models, startedAt, version } = { ...run, ...head };
  const used = Object.entries(models || {}).filter(([, model]) => model);
  return [
    moment(startedAt),
    used.map(([role, model]) => `${role}: ${model}`).join(", "),
    run.commit && `commit ${String(run.commit).slice(0, 12)}`,
    version && `Agentest ${version}`,
  ].filter(Boolean).join(" · ");
}

// What is to be known whatever the verdict.
function notices({ run, head, scenarios: rows, figures, leftOut, show }) {
  const { unclaimedCalls = [], silentAgents = [], unansweredCalls = [], warnings = [] } = (head && head.summary) || {};
  const unclaimed = unclaimedCalls.map(({ message }) => message);
  const questions = warnings.filter((each) => each.code);
  const told = [...silentAgents, ...unansweredCalls].map(({ message }) => message)
    .filter((text) => !questions.some(({ message }) => message === text));
  const shard = (head && head.shard) || run.shard;
  return [
    nothing(run, rows),
    shard && `This is part ${shard} of a run that was split: it says nothing of the other parts.`,
    ...(run.problems || []),
    ...unclaimed.map((text) => `Error: ${text}`),
    ...told.map((text) => `Warning: ${text}`),
    ...inQuestion(questions),
    ...figures.skipped.map((each) => `Metrics skipped in ${count(each.scenarios, "scenario")}: ${each.why} (${each.metrics.join(", ")})`),
    leftOut > 0 && `${count(leftOut, "transcript")} left out, as the file would have become too large: ${show} prints them.`,
  ].filter(Boolean);
}

// What questions verdicts: a line for each code, with its first message.
function inQuestion(warnings) {
  const codes = [...new Set(warnings.map(({ code }) => code))];
  return codes.map((code) => {
    const [first, ...more] = warnings.filter((each) => each.code === code);
    const left = more.length > 0 ? ` (and ${count(more.length, "more warning")})` : "";
    return `Warning: ${code}: ${first.scenario}: ${first.message}${left}`;
  });
}

function nothing(run, rows) {
  const under = run.state === "under way";
  if (!rows.length) return under ? "No scenario has begun yet." : "No scenario was run: this run is not a pass.";
  if (under || rows.some((row) => row.status === "passed")) return "";
  const files = rows.length === 1 ? "The only file" : `All ${rows.length} files`;
  if (rows.every((row) => row.broken)) return `${files} could not be loaded: no scenario was run.`;
  const skipped = rows.every((row) => row.status === "skipped" && !row.unfinished);
  return skipped ? "Every scenario was skipped: this run is not a pass." : "No scenario passed.";
}
