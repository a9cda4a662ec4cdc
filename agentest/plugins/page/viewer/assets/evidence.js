// The evidence: of one turn, and of the conversation as a whole. What is wrong comes first.

import { callDetails, callTags, isWrong, mark } from "./calls.js";
import { argumentsDiff, marked } from "./diff.js";
import { foreign, h } from "./dom.js";
import { bounded, folded, list, table } from "./folding.js";
import { count, duration, turnName } from "./format.js";
import { tree } from "./json_tree.js";
import { modelRequests, spansOfTurn, timeline } from "./waterfall.js";
import { copyButton, disclosure, facts, json, longText } from "./parts.js";
import { turnScores, wholeScores } from "./scores.js";
import { stateChange } from "./session_state.js";
import { comparison, invocation } from "./trajectory.js";
import { printed, readable } from "./transcript.js";
import { allTurns, lacksMock } from "./reasons.js";

function part(name, ...content) {
  const there = content.flat(Infinity).filter((each) => (each instanceof Node ? each.hasChildNodes() : each));
  return there.length > 0 && h("section", h("h3", name), there);
}

// --- one turn

export function turnEvidence(view, mine) {
  const { conversation, scenario, opened, callLink, troubles, urlOf } = view;
  const { turn, at, position, before, row } = mine;
  const index = turn.turnIndex;
  const isHere = (each) => each.turnIndex === index;
  const { evalMetricResultPerInvocation: invocations = [], perTurnTrajectory } = conversation;
  const own = perTurnTrajectory.find(isHere);
  const copy = copyButton(() => urlOf(index), "Copy link");
  copy.setAttribute("aria-label", `Copy the link to ${turnName(index)}`);
  const wrong = troubles.filter((each) => each.turn === index);
  const calls = turn.toolCalls.map((call, place) => callEvidence(call, row(place)));
  const compared = own && comparison(own, turn.toolCalls, (place, ...more) => callLink(position + place, ...more), "Expected and actual calls of this turn");
  return [
    h("div.row", h("h2", turnName(index)), h("span.quiet.small", figures(turn)), copy),
    wrong.length > 0 && part("Why it broke", list(wrong.map(reason))),
    part("Calls", calls, compared),
    invocations[at] && part("Expected and actual", invocation(invocations[at])),
    part("Scores and checks", turnScores(conversation, scenario, index)),
    part("Server output", lacksMock(conversation) ? [] : (turn.serverOutput || []).map(printed)),
    part("Request and response", (turn.exchanges || []).map(exchange)),
    part("Session state", stateChange(before, turn)),
    part("Model and spans", modelRequests(turn), spansOfTurn((opened.spans || []).filter(isHere))),
    part("Record", folded("details.no-print", "This turn as it is stored", () => tree(turn, turnName(index)))),
  ];
}

// One HTTP request to the agent, as it was sent, and what came back.
function exchange({ method, url, status, request, response }) {
  const body = (name, text) => [h("div.row", h("span.who", name), copyButton(text, `Copy ${name}`)), json(readable(text))];
  const state = h("span", { class: status < 400 && status !== null ? "quiet" : "low" }, ` ${status ?? "no response"}`);
  return folded("details.box", [foreign(`${method} ${url}`, "code"), state], () => [body("request", request), body("response", response)]);
}

function figures({ latencyMs, firstTokenMs, modelCalls, modelMs, requests, retries, usage }) {
  const tokens = usage ? usage.promptTokens + usage.completionTokens : 0;
  const found = [
    duration(latencyMs),
    firstTokenMs >= 0 && `first text after ${duration(firstTokenMs)}`,
    modelMs >= 0 && `model ${duration(modelMs)}`,
    modelCalls >= 0 && count(modelCalls, "model call"),
    requests > 1 && count(requests, "request"),
    retries > 0 && count(retries, "retry", "retries"),
    tokens > 0 && count(tokens, "token"),
  ];
  return found.filter(Boolean).join(" · ");
}

function reason({ what, text }) {
  return h("li.low", h("strong", "✗ ", foreign(what)), text && [": ", longText(text, "span")]);
}

// One call: what differs key by key where something was expected of it, its arguments and its answer.
function callEvidence(call, row) {
  const { name, error, durationMs } = call;
  const wrong = row && isWrong(row);
  const rows = wrong && argumentsDiff(row, call);
  const head = [foreign(name, "code"), callTags(call), h("span.quiet", " ", duration(durationMs)), wrong && [" ", mark(row.status)]];
  const make = () => [
    rows && rows.length > 0 && differences(rows),
    error && h("p.low", "✗ its answer was an error: ", foreign(error)),
    callDetails(call),
  ];
  return folded(`details.box${wrong ? ".wrong" : ""}`, head, make, Boolean(wrong || error));
}

// A key stands alone in its row: what was expected, what came, and the words that differ.
function differences(rows) {
  const cell = (text, other, tag) => (text === undefined ? h("span.quiet", "–") : marked(text, other, tag, "code"));
  const line = ({ key, left, right, status, sign }) => {
    const changed = status === "changed";
    return h(
      "tr",
      { class: status },
      h("th", { scope: "row" }, h("span.mark", { class: status, title: status }, sign, h("span.off-screen", ` ${status}`)), " ", foreign(key)),
      h("td", cell(left, changed ? right : left, "ins")),
      h("td", cell(right, changed ? left : right, "del")),
    );
  };
  return table("keys", ["Argument", "Expected", "Actual"], rows.length, (at) => line(rows[at]));
}

// --- the conversation as a whole

export function wholeEvidence(view) {
  const { conversation, scenario, callLink, turnLink } = view;
  const record = () => JSON.stringify(conversation, null, 2);
  const calls = conversation ? allTurns(conversation).flatMap((turn) => turn.toolCalls) : [];
  const { trajectory } = conversation || {};
  return [
    h("h2", "Whole conversation"),
    why(view),
    toTake(view),
    about(view),
    conversation && [
      trajectory && part("Calls", comparison(trajectory, calls, callLink)),
      part("Scores and checks", wholeScores(conversation, scenario)),
      part("Time", timeline(conversation, turnLink)),
      part("Record", copyButton(record, "Copy as JSON"), folded("details.no-print", "As it is stored", () => tree(conversation, "the conversation"))),
    ],
  ];
}

// What can be taken along: the command, the script, the link.
function toTake({ found: { command }, conversation, opened, params, urlOf }) {
  return h(
    "div.row.no-print",
    command && copyButton(command, "Copy command"),
    opened && opened.script && copyButton(opened.script, `Copy as scripted scenario${conversation.passed ? "" : " that expects this failure"}`),
    copyButton(() => urlOf(params.turn), "Copy link"),
    opened && opened.noScript && h("p.quiet.small", "No scripted scenario: ", foreign(opened.noScript)),
  );
}

// What speaks against the conversation, and what the scenario as a whole failed for.
function why({ scenario: { reasons, failures }, troubles, status, turnLink }) {
  const ofScenario = (each) => !each.conversationId;
  const whole = reasons ? reasons.filter(ofScenario).map(({ message }) => message) : failures;
  if (!troubles.length && !whole.length) return null;
  const mine = ({ turn, what, text }) => {
    const where = Number.isInteger(turn) && [turnLink(turn), ": "];
    return h("li", where, h("strong", foreign(what)), text && [": ", longText(text, "span")]);
  };
  const rest = () => list(whole.map((message) => h("li", longText(message, "span"))));
  const held = troubles.length ? "What to look at" : "This conversation holds; its scenario does not";
  const words = `Of the scenario as a whole: ${count(whole.length, "reason")}`;
  return h(
    "section.panel.why-box",
    { class: status },
    h("h3", status === "passed" ? held : "Why it did not pass"),
    bounded(list(), troubles.length, (at) => mine(troubles[at]), { step: 12, noun: "reason" }),
    whole.length > 0 && disclosure(words, rest(), !troubles.length),
  );
}

function about({ scenario, row }) {
  const { goal, profile, evalId, evalSetId, file, line, agent, tags } = scenario;
  const { ended, turns, toolCalls, totalMs } = row;
  const length = [count(turns, "turn"), count(toolCalls, "tool call"), duration(totalMs)];
  return facts([
    ["Ended", ended],
    ["Goal", goal && longText(goal, "span")],
    ["User", profile && longText(profile, "span")],
    ["Length", length.filter(Boolean).join(", ")],
    ["Case", evalId && foreign(`${evalSetId}: ${evalId}`)],
    ["Agent", agent && foreign(agent)],
    ["Scenario", [foreign(line ? `${file}:${line}` : file, "code"), tags.map((tag) => [" ", foreign(tag, "span.tag")])]],
  ]);
}
