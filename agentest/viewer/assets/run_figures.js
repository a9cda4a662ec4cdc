// The figures of a run, folded: how sure they are, where time and money went, and how it has been lately.

import { address, read } from "./address.js";
import { fill, foreign, h, svg } from "./dom.js";
import { cost, count, decimal, duration, figure, moment, percent } from "./format.js";
import { conversationAddress } from "./run_rows.js";
import { badge } from "./parts.js";

const clamp = (value) => Math.max(0, Math.min(100, value * 100));
const num = (content) => h("td", { class: "number" }, content);
const line = (first, ...cells) => h("tr", {}, h("th", { scope: "row" }, first), cells.map((each) => (each instanceof Node || !each ? each : h("td", {}, each))));

// Heads that begin with `#` are of numbers.
function table(heads, rows) {
  const head = heads.filter((text) => text !== false).map((text) => h("th", { scope: "col", class: text[0] === "#" ? "number" : "" }, text.replace("#", "")));
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows)));
}

export function figuresPart({ figures }) {
  const several = new Set([...figures.rates, ...figures.averages].map((each) => each.agent)).size > 1;
  const missed = figures.averages.filter((each) => each.missed).length;
  const first = figures.rates.map((each) => [several && [foreign(each.agent), " "], `pass rate ${figure(each.passRate, true)}`]);
  if (!figures.rates.length && !figures.averages.length) return null;
  const summary = [first.map((each, at) => [at > 0 && " · ", each]), missed > 0 && [" · ", h("strong", { class: "bad" }, `✗ ${count(missed, "average")} below a threshold`)]];
  const head = ["Metric", several && "Agent", "Average", "#Threshold", "Missed by", "Lowest in"];
  return {
    id: "figures",
    title: "Figures",
    summary,
    content: () => [figures.rates.map((each) => rate(each, several)), figures.averages.length > 0 && table(head, figures.averages.map((each) => average(each, several))), h("p", { class: "quiet small" }, "In brackets: 95% intervals. The average of several scenarios is the mean of theirs.")],
  };
}

function rate(each, several) {
  const all = Object.entries(each.passHatK).map(([k, value]) => ` · pass^${k} ${percent(value)}`);
  const where = each.scenarios > 1 ? ` in ${count(each.scenarios, "scenario")}` : "";
  return h("p", {}, several && [foreign(each.agent), ": "], interval(each.passRate, [0, 1]), ` ${figure(each.passRate, true)} of ${count(each.passRate.n, "conversation")} passed${where}${all.join("")}`);
}

function average(each, several) {
  const { of } = read().params;
  const filter = address("run", { of, metric: each.metric, agent: several ? each.agent : "" });
  const n = each.n ? h("span", { class: "quiet" }, ` n ${each.n.toLocaleString("en")}`) : "";
  const limits = each.thresholds.map(decimal).join("–");
  const missed = each.missed ? h("a", { href: filter, class: "bad" }, `✗ ${count(each.missed, "scenario")}`) : limits ? "✓ none" : "–";
  const value = [each.scale && interval(each, each.scale, each.thresholds[0]), ` ${figure(each)}`, n];
  const lowest = [h("a", { href: conversationAddress(each.lowest) }, foreign(each.lowest.name)), ` ${decimal(each.lowest.value)}`];
  return line(foreign(each.metric), several && [foreign(each.agent)], value, num(limits || "–"), [missed], lowest);
}

// A value on its scale: the bar, its interval, the threshold.
function interval(each, [low, high], threshold) {
  const at = (value) => clamp((value - low) / (high - low));
  const mark = (x, kind) => svg("rect", { x: x - 0.75, y: 0, width: 1.5, height: 10, class: kind });
  return svg(
    "svg",
    { viewBox: "0 0 100 10", class: "bar", "aria-hidden": "true", preserveAspectRatio: "none" },
    svg("rect", { x: 0, y: 3, width: at(each.value), height: 4, class: "value" }),
    typeof each.low === "number" && svg("rect", { x: at(each.low), y: 4.5, width: Math.max(1, at(each.high) - at(each.low)), height: 1, class: "sure" }),
    threshold !== undefined && mark(at(threshold), "limit"),
  );
}

// --- time and cost

const WAITED = [["agent", "agentMs"], ["user", "userMs"], ["judges", "judgesMs"], ["tools", "toolsMs"], ["Agentest itself", "ownMs"]];

export function costPart({ head }) {
  if (!head) return null;
  const { time, usage, slowestTurns } = head.summary;
  const shares = time.totalMs > 0 ? WAITED.map(([who, key]) => [who, time[key], time[key] / time.totalMs]) : [];
  const roles = Object.entries(usage.byRole || {}).filter(([, role]) => role.calls);
  const tokens = usage.totalTokens ? `${usage.totalTokens.toLocaleString("en")} tokens` : "";
  const said = shares.filter(([, , share]) => share >= 0.005).map(([who, , share]) => `${who} ${percent(share)}`).join(", ");
  if (!said && !roles.length && !slowestTurns.length) return null;
  return { id: "cost", title: "Time and cost", summary: [said, tokens, cost(usage.cost)].filter(Boolean).join(" · "), content: () => h("div", { class: "columns" }, shares.length > 0 && spent(shares), roles.length > 0 && models(roles), slowestTurns.length > 0 && slowest(slowestTurns)) };
}

function spent(shares) {
  const rows = shares.map(([who, ms, share]) => line(who, [interval({ value: share }, [0, 1])], num(percent(share)), num(duration(ms))));
  return h("section", {}, h("h3", {}, "Where time went"), table(["Waited for", "Part", "#Share", "#In all"], rows));
}

function models(roles) {
  const numbers = (role) => [role.calls, role.promptTokens, role.completionTokens].map((n) => num(n.toLocaleString("en")));
  const again = (role) => (role.retries ? h("div", { class: "quiet small" }, `${role.retries} asked again`) : null);
  const rows = roles.map(([name, role]) => line([foreign(name), again(role)], ...numbers(role), num(role.cost === null ? "unknown" : cost(role.cost))));
  return h("section", {}, h("h3", {}, "Models"), table(["Role", "#Calls", "#Prompt tokens", "#Completion", "#Cost"], rows));
}

function slowest(turns) {
  const item = (turn) => {
    const to = conversationAddress({ name: turn.scenario, agent: turn.agent }, { id: turn.conversationId, turn: turn.turnIndex });
    const token = turn.firstTokenMs === undefined ? "" : `, first token after ${duration(turn.firstTokenMs)}`;
    return h("li", {}, `${duration(turn.latencyMs)}${token}: `, h("a", { href: to }, foreign(turn.scenario), `, turn ${turn.turnIndex}`));
  };
  return h("section", {}, h("h3", {}, "Slowest turns of the agent"), h("ol", {}, turns.map(item)));
}

// --- trend

const share = (each) => (each.passed || 0) / Math.max(1, (each.passed || 0) + (each.failed || 0) + (each.errored || 0));
const CHARTS = [["Passed", share, percent], ["Time", (each) => each.durationMs, duration], ["Cost", (each) => each.cost, cost]];

export function trendPart({ trend, run }, served) {
  if (trend.length < 2) return null;
  const now = trend.at(-1);
  const charts = CHARTS.filter(([, of]) => trend.some((each) => of(each) > 0));
  const head = ["Run", "State", "#Passed", "#Failed", "#Errored", "#Time", "#Cost"];
  const content = () => [
    h("div", { class: "row" }, charts.map(([name, of, text]) => h("div", {}, h("div", { class: "quiet small" }, `${name}: ${text(of(now)) || "not known"}`), bars(trend, of, "chart")))),
    table(head, [...trend].reverse().map((each) => ran(each, run.id, served))),
  ];
  return { id: "trend", title: "Trend", summary: [bars(trend, share, "spark"), ` the last ${trend.length} runs`], content };
}

function bars(trend, of, kind) {
  const most = of === share ? 1 : Math.max(...trend.map((each) => of(each) || 0)) || 1;
  const wide = 100 / trend.length;
  const bar = (each, at) => {
    const high = Math.max(1.5, (30 * (of(each) || 0)) / most);
    return svg("rect", { x: at * wide, y: 30 - high, width: wide * 0.8, height: high, class: each.state === "passed" ? "value" : "limit" });
  };
  return svg("svg", { viewBox: "0 0 100 30", class: kind, "aria-hidden": "true", preserveAspectRatio: "none" }, trend.map(bar));
}

function ran(each, current, served) {
  const name = [foreign(moment(each.startedAt) || each.id), each.id === current && " (this run)"];
  const numbers = [each.passed, each.failed, each.errored].map((n) => num(n ?? "–"));
  const shown = served ? h("a", { href: address("run", { of: each.id }) }, name) : name;
  return line(shown, [badge(each.state || "unknown")], ...numbers, num(duration(each.durationMs)), num(cost(each.cost)));
}

// --- root causes

export function causesPart({ causes }) {
  if (!causes.length) return null;
  const shown = causes.slice(0, 3).map((each, at) => [at > 0 && " · ", badge(each.severity), " ", foreign(each.label), ` ×${each.occurrences}`]);
  const content = () => h("ol", { class: "causes" }, causes.slice(0, 100).map(cause), causes.length > 100 && h("li", {}, `${causes.length - 100} more`));
  return { id: "causes", title: "Root causes", summary: [shown, causes.length > 3 && ` and ${causes.length - 3} more`], content };
}

function cause(each) {
  const places = each.conversations || [];
  return h(
    "li",
    {},
    h("h3", {}, badge(each.severity), " ", foreign(each.label), h("span", { class: "quiet" }, ` ${count(each.occurrences, "time")} in ${count(each.scenarios.length, "scenario")}`)),
    h("p", {}, foreign(each.explanation)),
    each.examples.slice(0, 1).map(example),
    h("ul", { class: "places" }, places.map(place), each.moreConversations > 0 && h("li", {}, `and ${count(each.moreConversations, "more conversation")}`)),
  );
}

function example(each) {
  const calls = each.toolCalls.slice(0, 3).map((call) => ["tool", call]);
  const lines = [["user", each.userMessage], ...calls, ["agent", each.agentMessage]].filter(([, text]) => text);
  return h("dl", { class: "facts small" }, lines.map(([who, text]) => [h("dt", {}, who), foreign(text, "dd")]));
}

function place(each) {
  const turn = each.turnIndex === null || each.turnIndex === undefined ? "" : `, turn ${each.turnIndex}`;
  const to = conversationAddress(each, { id: each.conversationId, turn: each.turnIndex });
  return h("li", {}, h("a", { href: to }, foreign(each.conversationId), turn), each.times > 1 && ` ×${each.times}`);
}

// --- folded

// A part that is made when it is unfolded; `open` and `turned(id, open)`: whether it is.
export function folded(part, open, turned) {
  const place = h("div", { class: "inside" });
  const element = h("details", { open, class: "part", data: { part: part.id } }, h("summary", { data: { key: `part ${part.id}` } }, h("h2", {}, part.title), " ", part.summary), place);
  const make = () => place.firstChild || fill(place, part.content());
  if (open) make();
  element.addEventListener("toggle", () => {
    if (element.open) make();
    turned(part.id, element.open);
  });
  return element;
}
