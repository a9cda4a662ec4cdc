// The turns: what was said and called, and what judges, checks, the session's state and spans say of each.

import { callItem, known } from "./calls.js";
import { foreign, h } from "./dom.js";
import { bounded } from "./folding.js";
import { count, duration } from "./format.js";
import { invocation } from "./invocations.js";
import { copyButton, longText } from "./parts.js";
import { criterion, turnScores } from "./scores.js";
import { spansOfTurn } from "./spans.js";
import { stateChange, statesBefore } from "./state.js";
import { comparison, rowsByCall } from "./trajectory.js";

const NO_TEXT = "(no text; the agent called tools only)";
const TURNS_AT_ONCE = 300;
const MANY_TURNS = 40;

// `context`: {opened, scenario, troubles, first, turnLink(index, content), copyAddress(index), callLink(id, content)}.
export function chat(context) {
  const { conversation } = context.opened;
  const turns = allTurns(conversation);
  const befores = statesBefore(conversation);
  const starts = callStarts(turns);
  const rows = rowsByCall(conversation.trajectory);
  const list = h("ol", { class: `chat ${turns.length > MANY_TURNS ? "many" : ""}` });
  const make = (at) => turnItem({ ...context, turn: turns[at], before: befores[at], start: starts[at], rows, at });
  const wanted = turns.findIndex((turn) => turn.turnIndex === context.first);
  const first = Math.max(0, Math.floor(Math.max(0, wanted) / TURNS_AT_ONCE) * TURNS_AT_ONCE);
  return bounded(list, turns.length, make, { first, step: TURNS_AT_ONCE, noun: "turn" });
}

export function allTurns(conversation) {
  return [...conversation.turns, ...(conversation.unfinishedTurn ? [conversation.unfinishedTurn] : [])];
}

// The place of each turn's first call among all of the conversation.
export function callStarts(turns) {
  let start = 0;
  return turns.map((turn) => {
    const mine = start;
    start += turn.toolCalls.length;
    return mine;
  });
}

export function callId(position) {
  return `call-${position}`;
}

function turnItem(all) {
  const { turn, opened, at } = all;
  const { conversation, spans } = opened;
  const index = turn.turnIndex;
  const isOpen = turn === conversation.unfinishedTurn;
  const trajectory = conversation.perTurnTrajectory.find((each) => each.turnIndex === index);
  const mine = rowsByCall(trajectory);
  const rows = (position) => mine.get(position - all.start) || all.rows.get(position);
  return h(
    "li",
    { class: "turn", id: `turn-${index}`, tabindex: "-1", data: { step: "" }, "aria-labelledby": `turn-${index}-name` },
    head(all, isOpen),
    said("user", "User", turn.userMessage),
    attachments(turn),
    between(turn, all.start, rows),
    isOpen ? unfinished(turn) : said("agent", turn.author ? ["Agent ", foreign(turn.author)] : "Agent", turn.agentMessage || NO_TEXT),
    !isOpen && stateChange(all.before, turn),
    trajectory && comparison(trajectory, turn.toolCalls, (position, text) => all.callLink(callId(all.start + position), text), { title: "Expected and actual calls of this turn" }),
    judged(all),
    conversation.evalMetricResultPerInvocation && conversation.evalMetricResultPerInvocation[at] && invocation(conversation.evalMetricResultPerInvocation[at]),
    spansOfTurn((spans || []).filter((span) => span.turnIndex === index)),
  );
}

function head({ turn, troubles, turnLink, copyAddress }, isOpen) {
  const index = turn.turnIndex;
  const wrong = troubles.filter((each) => each.turn === index);
  const copy = copyButton(() => copyAddress(index), "Copy link");
  copy.setAttribute("aria-label", `Copy the link to turn ${index}`);
  return h(
    "div",
    { class: "turn-head" },
    h("h3", { id: `turn-${index}-name` }, turnLink(index, `Turn ${index}`), isOpen && " (unfinished)"),
    wrong.length > 0 && h("strong", { class: "low" }, `✗ ${wrong.length === 1 ? wrong[0].what : `${wrong.length} problems`}`),
    h("span", { class: "quiet" }, facts(turn, isOpen)),
    copy,
  );
}

function facts(turn, isOpen) {
  const found = [
    !isOpen && duration(turn.latencyMs),
    known(turn.firstTokenMs) && `first text after ${duration(turn.firstTokenMs)}`,
    known(turn.modelCalls) && count(turn.modelCalls, "model call"),
    turn.requests > 1 && count(turn.requests, "request"),
    turn.retries > 0 && count(turn.retries, "retry", "retries"),
    turn.usage && turn.usage.promptTokens + turn.usage.completionTokens > 0 && count(turn.usage.promptTokens + turn.usage.completionTokens, "token"),
  ];
  return found.filter(Boolean).join(" · ");
}

function said(who, name, text) {
  return h("div", { class: `said ${who}` }, h("div", { class: "who" }, name), longText(text, "p", { class: `message ${who}` }));
}

function attachments(turn) {
  const found = turn.attachments || [];
  if (!found.length) return null;
  const size = (file) => (known(file.bytes) ? `${file.bytes.toLocaleString("en")} bytes` : file.uri);
  const one = (file) => h("li", {}, "Attached: ", foreign([file.name, file.mimeType, size(file)].filter(Boolean).join(", ")));
  return h("ul", { class: "plain attached" }, found.map(one));
}

// Calls and what was said between them, in their order as far as the agent's protocol tells it.
function between(turn, start, rows) {
  const items = [];
  const remarks = [...(turn.remarks || [])];
  const place = (remark) => (known(remark.callsBefore) ? remark.callsBefore : Infinity);
  turn.toolCalls.forEach((call, at) => {
    while (remarks.length && place(remarks[0]) <= at) items.push(remarkItem(remarks.shift()));
    items.push(callItem(call, { id: callId(start + at), row: rows(start + at) }));
  });
  items.push(...remarks.map(remarkItem));
  const refused = turn.callRefused || turn.callsHidden;
  return [
    items.length > 0 && h("ul", { class: "plain calls", "aria-label": "Tool calls and remarks" }, items),
    refused && h("p", { class: "notice" }, foreign(refused)),
  ];
}

function remarkItem(remark) {
  return h("li", { class: "remark" }, h("span", { class: "who" }, foreign(remark.author), " on the way: "), longText(remark.text, "span"));
}

function unfinished(turn) {
  const printed = (turn.serverOutput || []).map(output);
  const asked = `${count(turn.requests || 0, "request")}, ${count(turn.retries || 0, "retry", "retries")}`;
  return [h("p", { class: "notice" }, `No reply came (${asked}).`), printed];
}

function output(each) {
  const status = known(each.exitStatus) && ` and had ended with status ${each.exitStatus}`;
  const before = each.linesBefore > 0 && `… ${count(each.linesBefore, "line")} before\n`;
  const text = [before, each.lines.join("\n")].filter(Boolean).join("");
  return h("div", {}, h("div", { class: "label" }, "Server ", foreign(each.server), " printed meanwhile", status), longText(text || "(nothing)", "pre"));
}

function judged({ turn, opened, scenario }) {
  const index = turn.turnIndex;
  const { evaluation, labelledFailures, criteria } = opened.conversation;
  const scores = evaluation.turnEvaluations.find((each) => each.turnIndex === index);
  const deciding = (criteria || []).filter((each) => each.turnIndex === index);
  return [
    scores && turnScores(scores, scenario, labelledFailures.filter((each) => each.turnIndex === index)),
    deciding.length > 0 && h("ul", { class: "plain", "aria-label": "Criteria that this turn decides" }, deciding.map((each) => criterion(each))),
  ];
}
