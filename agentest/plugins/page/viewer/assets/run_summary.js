// The top of the Run view: the verdict in one line as the console says it, what nobody may miss, and the figures.

import { address, read } from "./address.js";
import { foreign, h, svg } from "./dom.js";
import { folded, list, notice } from "./folding.js";
import { cost, count, decimal, duration, figure, grouped, moment, percent, turnName } from "./format.js";
import { badge, copyButton } from "./parts.js";
import { bars, figureTable, forest, heatMap, histogram, lineOfShares, matrix } from "./pictures.js";
import { conversationAddress, kinds } from "./run_list.js";
import { offered } from "./source.js";

const ORDER = ["failed", "errored", "passed", "skipped", "unfinished", "running"];

export function head(overview) {
  const { run } = overview;
  return [
    h("div.row.between", h("h1", badge(run.state), " ", verdict(overview)), h("div.row.no-print", firstFailure(overview), offered("run", run))),
    run.state === "under way" && run.planned > 0 && progress(run),
    earlyEnd(overview),
    h("p.quiet.small", foreign(context(overview))),
    told(notices(overview)),
  ];
}

// Several notices are one folded line, so that failures come first.
function told([first, ...more]) {
  if (!more.length) return first && notice(foreign(first));
  return folded("details.notice", [foreign(first), ` (and ${count(more.length, "more notice")})`], () => list(more.map((text) => foreign(text, "li"))));
}

function verdict({ run, head, scenarios: rows }) {
  const of = new Map();
  for (const kind of rows.flatMap(kinds)) of.set(kind, (of.get(kind) || 0) + 1);
  const said = ORDER.filter((kind) => of.has(kind)).map((kind) => `${grouped(of.get(kind))} ${kind}`);
  const held = rows.reduce((sum, row) => sum + row.conversations, 0);
  const extent = [extentOf(rows), count(held, "conversation"), of.has("flaky") && `${of.get("flaky")} flaky`];
  const ms = head ? head.summary.durationMs : run.durationMs;
  const usd = head ? head.summary.usage.cost : run.cost;
  const took = ms > 0 ? ` in ${duration(ms)}` : "";
  const price = usd === null ? " · cost unknown" : usd > 0 ? ` · ${cost(usd)}` : "";
  return [said.join(", ") || "0 passed", h("small.quiet", ` (${extent.filter(Boolean).join(", ")})${took}${price}`)];
}

// The one thing that most want of a run that did not pass.
function firstFailure({ causes, scenarios: rows }) {
  const worst = causes[0] && causes[0].example;
  const row = worst ? { ...worst, name: worst.scenario } : rows.find((each) => each.status === "failed" && each.conversations);
  if (!row) return null;
  const more = worst && worst.conversationId ? { id: worst.conversationId, turn: worst.turnIndex ?? "" } : {};
  return h("a.button.primary.small", { href: conversationAddress(row, more), id: "first-failure" }, "Open the first failure");
}

const KILLED = "killed before its end"; // what results say of a run that was killed

// Why the run has less than was planned, and the command that goes on.
function earlyEnd({ run, head, scenarios: rows }) {
  const { interrupted, stopped } = head || {};
  const killed = run.state === "killed" || stopped === KILLED;
  if (!killed && !interrupted && !stopped) return null;
  const why = killed
    ? "This run was killed: its process ended without writing its reports."
    : interrupted
      ? "This run was interrupted, by Ctrl-C or a signal to end."
      : `This run was stopped before its end: ${stopped}.`;
  const all = (of) => rows.reduce((sum, row) => sum + of(row), 0);
  const finished = all((row) => row.conversations);
  const planned = Math.max(run.conversations || 0, all((row) => Math.max(row.planned || 0, row.conversations)));
  const left = planned > finished && `${grouped(finished)} of ${count(planned, "conversation")} finished; they are below.`;
  const command = run.resume && planned > finished && run.resume;
  return h(
    "div.notice.early-end",
    h("p", h("strong", foreign(why)), left && ` ${left}`),
    command && h("p.row", "Go on with the rest: ", foreign(command, "code"), copyButton(command, "Copy command")),
  );
}

function extentOf(rows) {
  const agents = new Set(rows.map((row) => row.agent).filter(Boolean)).size;
  if (agents < 2) return count(rows.length, "scenario");
  const names = new Set(rows.map((row) => `${row.file} ${row.name}`)).size;
  return `${count(names, "scenario")} × ${count(agents, "agent")}`;
}

function progress({ planned, finished = 0 }) {
  const text = `${grouped(finished)} of ${count(planned, "conversation")} done`;
  return h("p.row", h("progress", { max: planned, value: String(finished), "aria-label": text }), text);
}

function context({ run, head }) {
  const { models, startedAt, version } = { ...run, ...head };
  const used = Object.entries(models || {}).filter(([, model]) => model);
  return [
    run.id && `Run ${run.id}`,
    moment(startedAt),
    used.map(([role, model]) => `${role}: ${model}`).join(", "),
    run.commit && `commit ${String(run.commit).slice(0, 12)}`,
    version && `Agentest ${version}`,
  ].filter(Boolean).join(" · ");
}

// What is to be known whatever the verdict.
function notices({ run, head, scenarios: rows, figures, leftOut, show }) {
  const { unclaimedCalls = [], silentAgents = [], unansweredCalls = [], warnings = [], quotas = [] } = (head && head.summary) || {};
  const unclaimed = unclaimedCalls.map(({ message }) => message);
  const questions = warnings.filter((each) => each.code && !each.note);
  const warned = [...silentAgents, ...unansweredCalls].map(({ message }) => message)
    .filter((text) => !questions.some(({ message }) => message === text));
  const shard = (head && head.shard) || run.shard;
  return [
    nothing(run, rows),
    run.hidden && `${run.hidden}: \`agentest ui\` shows them on request.`,
    shard && `This is part ${shard} of a run that was split: it says nothing of the other parts.`,
    ...(run.problems || []),
    ...unclaimed.map((text) => `Error: ${text}`),
    ...warned.map((text) => `Warning: ${text}`),
    ...inQuestion(questions),
    ...quotas.map(({ message }) => message && `Quota of ${message}`),
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
  if (!rows.length) return under ? "No scenario has begun yet." : "No scenario ran, so the run did not pass. `agentest run --list` shows what would run.";
  if (under || rows.some((row) => row.status === "passed")) return "";
  const files = rows.length === 1 ? "The only file" : `All ${rows.length} files`;
  if (rows.every((row) => row.broken)) return `${files} could not be loaded, so no scenario ran.`;
  const skipped = rows.every((row) => row.status === "skipped" && !row.unfinished);
  return skipped ? "Every scenario was skipped, so the run did not pass." : "";
}

const number = (value) => (typeof value === "number" ? grouped(value) : "–");

// What is folded above the list: {id, title, summary, content()}.
export function parts(overview, served) {
  const all = [figuresPart(overview), costPart(overview), coveragePart(overview), trendPart(overview, served)];
  return all.filter(Boolean);
}

const spaced = (pieces) => pieces.map((each, at) => [at > 0 && " · ", each]);
const rect = (x, y, width, height, kind) => svg("rect", { x, y, width, height, class: kind });

function drawing(kind, high, content) {
  return svg("svg", { viewBox: `0 0 100 ${high}`, class: kind, "aria-hidden": "true", preserveAspectRatio: "none" }, content);
}

// A value on its scale: the bar, its interval, the threshold.
function interval({ value, low: least, high: most }, [low, high] = [0, 1], threshold = null) {
  const at = (each) => Math.max(0, Math.min(100, (100 * (each - low)) / (high - low)));
  return drawing("bar", 10, [
    rect(0, 3, at(value), 4, threshold === null ? "plain" : value < threshold ? "limit" : "value"),
    typeof least === "number" && rect(at(least), 4.5, Math.max(1, at(most) - at(least)), 1, "sure"),
    threshold !== null && rect(at(threshold) - 0.75, 0, 1.5, 10, "limit"),
  ]);
}

// --- figures

function figuresPart({ head, figures: { rates, averages }, pictures }) {
  const measured = Object.entries((head && head.calibration) || {});
  const judged = measured.filter(([, each]) => each.low !== null);
  const undrawn = measured.filter(([, each]) => each.low === null).map(([metric]) => metric).join(", ");
  if (!rates.length && !averages.length) return null;
  const several = new Set([...rates, ...averages].map((each) => each.agent)).size > 1;
  const agent = (each) => several && [foreign(each.agent), " "];
  const missed = averages.filter((each) => each.missed).length;
  const first = rates.map((each) => [agent(each), `pass rate ${figure(each.passRate, true)}`]);
  const bad = missed > 0 && h("strong.bad", `✗ ${count(missed, "average")} below a threshold`);
  const heads = ["Metric", "Average", "#Threshold", "Missed by", "Lowest in"];
  const content = () => [
    rates.map((each) => h("p", agent(each), rate(each))),
    averages.length > 0 && figureTable(heads, averages.map((each) => average(each, several))),
    h("p.quiet.small", "In brackets: 95% intervals. The average of several scenarios is the mean of theirs."),
    pictures.scores.map((each) => histogram(`${each.metric}: averages of scenarios`, each.bins, [], decimal)),
    judged.length > 0 && forest("Judge against people: kappa by metric, with 95% intervals; 0 is chance, 1 is full agreement", judged.map(agreement), "Agreement"),
    undrawn && h("p.quiet.small", foreign(`Judge and people gave one answer only, so kappa is not defined: ${undrawn}`)),
  ];
  return { id: "figures", title: "Figures", summary: spaced([...first, bad].filter(Boolean)), content };
}

function agreement([label, { kappa, low, high, n, agreement: share, date }]) {
  const words = `kappa ${figure({ value: kappa, low, high })}, the same in ${percent(share)} of ${count(n, "label")}, ${date}`;
  return { label, value: kappa, low, high, words };
}

function rate({ passRate, scenarios, passHatK }) {
  const all = Object.entries(passHatK).map(([k, value]) => ` · pass^${k} ${percent(value)}`).join("");
  const where = scenarios > 1 ? ` in ${count(scenarios, "scenario")}` : "";
  const of = count(passRate.n, "conversation");
  return [interval(passRate), ` ${figure(passRate, true)} of ${of} passed${where}${all}`];
}

function average(each, several) {
  const href = address("run", { of: read().params.of, metric: each.metric, agent: several ? each.agent : "" });
  const limits = each.thresholds.map(decimal).join("–");
  const bar = each.scale && interval(each, each.scale, each.thresholds[0]);
  return [
    [foreign(each.metric), several && [" ", foreign(each.agent)]],
    [bar, ` ${figure(each)} `, each.n > 0 && h("span.quiet", `n ${number(each.n)}`)],
    limits || "–",
    each.missed ? h("a.bad", { href }, `✗ ${count(each.missed, "scenario")}`) : limits ? "✓ none" : "–",
    [h("a", { href: conversationAddress(each.lowest) }, foreign(each.lowest.name)), ` ${decimal(each.lowest.value)}`],
  ];
}

// --- time and cost

const WAITED = { agentMs: "agent", userMs: "user", judgesMs: "judges", toolsMs: "tools", ownMs: "Agentest itself" };

function costPart({ head, pictures }) {
  if (!head) return null;
  const { time, usage, slowestTurns } = head.summary;
  const waited = time.totalMs > 0 ? Object.entries(WAITED).map(([key, who]) => [who, time[key] / time.totalMs, time[key]]) : [];
  const roles = Object.entries(usage.byRole || {}).filter(([, role]) => role.calls);
  const said = waited.filter(([, share]) => share >= 0.005).map(([who, share]) => `${who} ${percent(share)}`).join(", ");
  if (!said && !roles.length && !slowestTurns.length) return null;
  const tokens = usage.totalTokens > 0 && `${number(usage.totalTokens)} tokens`;
  if (time.modelMs > 0) waited.splice(1, 0, ["of it the agent's model", time.modelMs / time.totalMs, time.modelMs]);
  const shares = waited.map(([who, share, ms]) => [who, interval({ value: share }), percent(share), duration(ms)]);
  const heads = ["Role", "#Calls", "#Prompt tokens", "#Completion", "#Cost"];
  const content = () => [
    waited.length > 0 && figureTable(["Waited for", "Part", "#Share", "#In all"], shares),
    roles.length > 0 && figureTable(heads, roles.map(role)),
    pictures.latencies.map(latency),
    slowestTurns.length > 0 && [h("h3", "Slowest turns of the agent"), h("ol", slowestTurns.map(slow))],
    pictures.costs.length > 1 && bars("Cost of user and judge by scenario, USD", pictures.costs.map(spent)),
  ];
  return { id: "cost", title: "Time and cost", summary: spaced([said, tokens, cost(usage.cost)].filter(Boolean)), content };
}

const latency = ({ agent, p50, p95, bins }) =>
  histogram(`Turns of ${agent} by their time: p50 ${duration(p50)}, p95 ${duration(p95)}`, bins, [p50, p95], duration);
const spent = ({ name, cost: usd }) => ({ label: name, value: usd, words: cost(usd).replace("cost ", "") });

function role([name, { calls, promptTokens, completionTokens, retries, cost: usd }]) {
  const again = retries > 0 && h("div.quiet.small", `${retries} asked again`);
  return [[foreign(name), again], ...[calls, promptTokens, completionTokens].map(number), cost(usd).replace("cost ", "")];
}

function slow({ scenario: name, agent, conversationId: id, turnIndex: turn, latencyMs, firstTokenMs, modelMs }) {
  const token = firstTokenMs === undefined ? "" : `, first token after ${duration(firstTokenMs)}`;
  const model = modelMs === undefined ? "" : `, model ${duration(modelMs)}`;
  const href = conversationAddress({ name, agent }, { id, turn });
  return h("li", `${duration(latencyMs)}${token}${model}: `, h("a", { href }, foreign(name), `, ${turnName(turn)}`));
}

// --- coverage

const OUTCOMES = { ok: "passed", error: "failed", fault: "errored", unseen: "skipped" };

function coveragePart({ pictures: { tools, levels } }) {
  if (!tools.length && !levels.length) return null;
  const row = (each) => ({ label: each.tool, cells: Object.entries(OUTCOMES).map(([name, kind]) => (each[name] ? [number(each[name]), kind] : ["", ""])) });
  const called = tools.filter((each) => each.tool !== "the agent's model");
  const steady = called.filter((each) => !each.error && !each.fault).length;
  const state = ({ name, states }) => ({ label: name, cells: states.map((each) => [each, each]) });
  const content = () => [
    tools.length > 0 && matrix("Calls of each tool by outcome: a fault was injected or broke the mock; an unseen answer is not known", Object.keys(OUTCOMES), tools.map(row)),
    levels.length > 0 && matrix("Tasks and paths by level: the worst status of their scenarios", ["unit", "integration", "scenario"], levels.map(state)),
  ];
  const summary = [called.length > 0 && `${count(called.length, "tool")} called`, steady > 0 && `${number(steady)} never seen failing`, levels.length > 0 && `${count(levels.length, "path")}`];
  return { id: "coverage", title: "Coverage", summary: spaced(summary.filter(Boolean)), content };
}

// --- trend

function trendPart({ trend, run, pictures: { runs, heat } }, served) {
  if (trend.length < 2) return null;
  const ran = (each) => {
    const name = [foreign(moment(each.startedAt) || each.id), each.partial && " (a selection)", each.id === run.id && " (this run)"];
    const counts = [each.passed, each.failed, each.errored].map(number);
    const shown = served ? h("a", { href: address("run", { of: each.id }) }, name) : name;
    return [shown, badge(each.state || "unknown"), ...counts, duration(each.durationMs), cost(each.cost)];
  };
  const heads = ["Run", "State", "#Passed", "#Failed", "#Errored", "#Time", "#Cost"];
  const point = (each) => ({ ...each, label: moment(each.startedAt), words: `${each.passed} of ${each.known} scenarios passed` });
  const more = heat.leftOut ? `; ${heat.leftOut} more are left out` : "";
  const content = () => [
    runs.length > 1 && lineOfShares("Share of scenarios that passed, with 95% intervals", runs.map(point)),
    heat.rows.length > 0 && heatMap(`Scenarios that did not always pass, by run${more}`, heat.runs.map(moment), heat.rows.map(state)),
    figureTable(heads, [...trend].reverse().map(ran)),
  ];
  return { id: "trend", title: "Trend", summary: `the last ${trend.length} runs`, content };
}

const state = ({ name, states }) => ({ label: name, states });
