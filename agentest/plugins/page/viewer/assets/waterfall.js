// Where the time of a conversation went: its turns as bars, and the spans and model requests of one turn.

import { known } from "./calls.js";
import { foreign, h } from "./dom.js";
import { bounded, folded, list, notice, table, tableRow } from "./folding.js";
import { count, duration, grouped, turnName } from "./format.js";
import { facts, json, longText, timeBar } from "./parts.js";
import { allTurns } from "./reasons.js";

const MOST_DEPTH = 12;

export function spansOfTurn(spans) {
  if (!spans.length) return null;
  const rows = spanTree(spans.filter((span) => span.spanId));
  const failed = rows.filter(({ span }) => isError(span)).length;
  const bar = timeBar(rows.map(({ span }) => [startOf(span) || NaN, span.durationMs]));
  const item = (at) => {
    const { span, depth } = rows[at];
    const indent = { "--depth": Math.min(depth, MOST_DEPTH) };
    return h("li", { style: indent }, folded("details", spanWords(span, depth), () => json(span)), bar(at));
  };
  const make = () => [
    bounded(h("ul.plain.spans"), rows.length, item, { noun: "span" }),
    spans.some((span) => span.cut) && notice("The agent sent more spans than are kept."),
  ];
  const summary = ["Spans: ", count(rows.length, "span"), failed > 0 && `, ✗ ${failed} failed`];
  return folded("details.box", summary, make);
}

// The spans in the order of a walk through their tree, each with its depth. None is lost where parents are
// missing or go in a circle.
function spanTree(spans) {
  const ids = new Set(spans.map((span) => span.spanId));
  const below = new Map([[null, []]]);
  const latestFirst = [...spans].reverse().sort((left, right) => startOf(right) - startOf(left));
  for (const span of latestFirst) {
    const parent = ids.has(span.parentSpanId) ? span.parentSpanId : null;
    if (!below.has(parent)) below.set(parent, []);
    below.get(parent).push(span);
  }
  const found = new Map();
  const waiting = [...latestFirst, ...below.get(null)].map((span) => ({ span, depth: 0 }));
  while (waiting.length) {
    const { span, depth } = waiting.pop();
    if (found.has(span)) continue;
    found.set(span, { span, depth });
    waiting.push(...(below.get(span.spanId) || []).map((each) => ({ span: each, depth: depth + 1 })));
  }
  return [...found.values()];
}

function startOf(span) {
  return Date.parse(span.startedAt) || 0;
}

function isError(span) {
  return Boolean(span.error) || /error/i.test(span.status);
}

function spanWords({ name, about, kind, durationMs, error, status }, depth) {
  return [
    h("span.off-screen", `level ${depth + 1}: `),
    isError({ error, status }) && h("strong.low", "✗ "),
    foreign(name),
    " ",
    foreign([about, kind, duration(durationMs)].filter(Boolean).join(" · "), "span.quiet"),
    error && [" ", foreign(error, "span.low")],
  ];
}

export function modelRequests({ modelRequests: requests = [], modelMs }) {
  if (!requests.length) return null;
  const bar = timeBar(requests.map(({ beginMs, latencyMs }) => [beginMs, latencyMs]));
  const item = (at) => h("li", folded("details", requestWords(requests[at]), () => requestContent(requests[at])), bar(at));
  const failed = requests.filter(({ error }) => error).length;
  const inside = requests.filter(answeredInside).length;
  const summary = [
    `Model: ${count(requests.length, "request")}, ${duration(modelMs)}`,
    inside > 0 && `, ${inside} answered inside`,
    failed > 0 && `, ✗ ${failed} failed`,
  ];
  const make = () => bounded(h("ul.plain.spans"), requests.length, item, { noun: "request" });
  return folded("details.box", summary, make);
}

function answeredInside({ calls = [] }) {
  return calls.some((call) => call.answeredInside);
}

function requestWords(request) {
  const { model, latencyMs, round, error, calls = [], answer = "", usage } = request;
  const [first] = answer.split("\n", 1);
  const said = [first.slice(0, 100), ...calls.map(({ name }) => `→ ${name}`)].filter(Boolean).join(" ");
  const figures = [model, duration(latencyMs), tokens(usage)].filter(Boolean).join(" · ");
  return [
    error && h("strong.low", "✗ "),
    foreign(error ? error.slice(0, 100) : said || "(no text)"),
    " ",
    foreign(figures, "span.quiet"),
    round > 0 && [" ", h("span.tag", `round ${round}`)],
    answeredInside(request) && [" ", h("span.tag", "answered inside")],
  ];
}

function tokens({ promptTokens, completionTokens, cachedTokens }) {
  if (!promptTokens && !completionTokens) return "";
  const cached = cachedTokens > 0 ? ` (${grouped(cachedTokens)} cached)` : "";
  return `${grouped(promptTokens)}${cached} → ${count(completionTokens, "token")}`;
}

function requestContent({ prompt, promptMore, answer, calls = [], status, error, round, usage }) {
  const message = ({ role, text }) => h("li", h("span.who", foreign(role), ": "), longText(text, "pre"));
  const more = promptMore > 0 && h("p.quiet", `${count(promptMore, "new message")} before these`);
  const made = ({ name, args, answeredInside: inside }) =>
    h("li", "→ ", foreign(`${name} ${args}`, "code"), inside && [" ", h("span.tag", "answered inside")]);
  return facts([
    ["Sent by", round > 0 ? "the gateway, with results of mocked calls" : "the agent"],
    ["New in the prompt", prompt.length > 0 ? [more, list(prompt.map(message))] : "nothing"],
    ["Answer", answer && longText(answer, "pre")],
    ["Calls", calls.length > 0 ? list(calls.map(made)) : ""],
    ["Tokens", tokens(usage)],
    ["Status", status],
    ["Error", error && longText(error, "pre")],
  ]);
}

const PARTS = ["user", "agent", "tools", "judges", "own"];
const MOST_TURNS_OPEN = 30;
const NOTE =
  "Judges work while the conversation goes on: of all turns together only the wait after the last one " +
  "counts. Own time is measured of whole conversations alone. ? is a time that the results do not tell.";

// [{turnIndex, modelMs, times}]: what each turn waited for, as PARTS name it.
function turnTimes(conversation) {
  const judged = new Map(conversation.evaluation.turnEvaluations.map((each) => [each.turnIndex, each.judgedMs]));
  return allTurns(conversation).map(({ turnIndex, userMs, latencyMs, agentMs, toolsMs, modelMs }) => ({
    turnIndex,
    modelMs,
    times: [userMs, known(latencyMs) ? latencyMs : agentMs, toolsMs, judged.get(turnIndex)],
  }));
}

// One axis of time for all turns: each is as long as it took. A click chooses a turn; figures are in the table below.
export function timeAxis({ conversation, troubles }, select) {
  const wrong = new Set(troubles.map((each) => each.turn));
  const rows = turnTimes(conversation);
  const bars = rows.map(({ turnIndex, times }) => {
    const there = times.map((ms, at) => [PARTS[at], ms]).filter(([, ms]) => ms > 0);
    const words = there.map(([kind, ms]) => [kind, duration(ms)].join(" ")).join(", ") || "time unknown";
    const props = { style: { "flex-grow": total(times) || 1 }, data: { turn: turnIndex }, title: `${turnName(turnIndex)}: ${words}` };
    return h(`div.turn-bar${wrong.has(turnIndex) ? ".wrong" : ""}`, props, there.map(([kind, ms]) => h(`span.${kind}`, { style: { "flex-grow": ms } })));
  });
  const onclick = ({ target }) => target.closest("[data-turn]") && select(Number(target.closest("[data-turn]").dataset.turn));
  const all = total(rows.map(({ times }) => total(times)));
  return h("div.axis.no-print", { "aria-hidden": "true", onclick }, h("div.bars", bars), h("span.quiet.small", all > 0 ? duration(all) : "time unknown"));
}

export function timeline(conversation, turnLink) {
  const { time } = conversation;
  const rows = turnTimes(conversation);
  const all = PARTS.map((name) => time && time[`${name}Ms`]);
  const foot = total(all) > 0 && h("tfoot", timeRow("All", all, time.modelMs));
  const heads = ["Turn", ...PARTS.map((name) => [h(`span.swatch.${name}`), ` ${name}`]), "together"];
  const row = (at) => timeRow(turnLink(rows[at].turnIndex), rows[at].times, rows[at].modelMs);
  const make = () => [
    table("timeline", heads, rows.length, row, { foot, more: { noun: "turn" } }),
    h("p.quiet", NOTE),
  ];
  return folded("details", "Time of each turn", make, rows.length <= MOST_TURNS_OPEN);
}

function total(times) {
  return times.reduce((sum, each) => sum + (each || 0), 0);
}

function timeRow(name, times, modelMs) {
  const unknown = (part) => (part === "own" ? "" : "?");
  const figures = PARTS.map((part, at) => (known(times[at]) ? duration(times[at]) : unknown(part)));
  if (modelMs > 0) figures[1] += ` (model ${duration(modelMs)})`;
  return tableRow("", name, ...figures, total(times) ? duration(total(times)) : "?");
}
