// The turns: what was said and called, and what judges, checks, the session's state and spans say of each.

import { callItem, known } from "./calls.js";
import { foreign, h } from "./dom.js";
import { bounded } from "./folding.js";
import { count, duration } from "./format.js";
import { invocation } from "./invocations.js";
import { copyButton, longText } from "./parts.js";
import { criterion, turnScores } from "./scores.js";
import { spansOfTurn } from "./spans.js";
import { stateChange } from "./state.js";
import { comparison, rowsByCall } from "./trajectory.js";

const NO_TEXT = "(no text; the agent called tools only)";
const TURNS_AT_ONCE = 300;
const MANY_TURNS = 40;

export function allTurns({ turns, unfinishedTurn }) {
  return [...turns, ...(unfinishedTurn ? [unfinishedTurn] : [])];
}

// `context`: {opened, scenario, troubles, first, turnLink(index, content), urlOf(index),
// callLink(position, content, call)}.
export function chat(context) {
  const { conversation } = context.opened;
  const rows = rowsByCall(conversation.trajectory);
  let [position, state] = [0, conversation.initialState];
  const turns = allTurns(conversation).map((turn) => {
    const mine = { ...context, turn, rows, position, before: state };
    position += turn.toolCalls.length;
    state = turn.stateAfter;
    return mine;
  });
  const wanted = Math.max(
    0,
    turns.findIndex(({ turn }) => turn.turnIndex === context.first),
  );
  const many = { first: wanted - (wanted % TURNS_AT_ONCE), step: TURNS_AT_ONCE, noun: "turn" };
  const list = h("ol", { class: `chat ${turns.length > MANY_TURNS ? "many" : ""}` });
  return bounded(list, turns.length, (at) => turnItem(turns[at], at), many);
}

function turnItem(mine, at) {
  const { turn, opened, position, rows } = mine;
  const { conversation, spans = [] } = opened;
  const index = turn.turnIndex;
  const isHere = (each) => each.turnIndex === index;
  const trajectory = conversation.perTurnTrajectory.find(isHere);
  const own = rowsByCall(trajectory);
  const link = (place, ...more) => mine.callLink(position + place, ...more);
  const isOpen = turn === conversation.unfinishedTurn;
  const invocations = conversation.evalMetricResultPerInvocation || [];
  return h(
    "li",
    {
      class: "turn",
      id: `turn-${index}`,
      tabindex: "-1",
      data: { step: "" },
      "aria-labelledby": `turn-${index}-name`,
    },
    head(mine, isOpen),
    said("user", "User", turn.userMessage),
    between(turn, position, (place) => own.get(place) || rows.get(position + place)),
    isOpen
      ? unfinished(turn)
      : said("agent", ["Agent ", turn.author && foreign(turn.author)], turn.agentMessage || NO_TEXT),
    isOpen || stateChange(mine.before, turn) || null,
    trajectory && comparison(trajectory, turn.toolCalls, link, "Expected and actual calls of this turn"),
    judged(mine, isHere),
    invocations[at] && invocation(invocations[at]),
    spansOfTurn(spans.filter(isHere)),
  );
}

function head({ turn, troubles, turnLink, urlOf }, isOpen) {
  const index = turn.turnIndex;
  const wrong = troubles.filter((each) => each.turn === index);
  const copy = copyButton(() => urlOf(index), "Copy link");
  copy.setAttribute("aria-label", `Copy the link to turn ${index}`);
  return h(
    "div",
    { class: "turn-head" },
    h("h3", { id: `turn-${index}-name` }, turnLink(index), isOpen && " (unfinished)"),
    wrong.length > 0 &&
      h(
        "strong",
        { class: "low" },
        "✗ ",
        wrong.length === 1 ? foreign(wrong[0].what) : `${wrong.length} problems`,
      ),
    h("span", { class: "quiet" }, figures(turn)),
    copy,
  );
}

function figures({ latencyMs, firstTokenMs, modelCalls, requests, retries, usage }) {
  const tokens = usage ? usage.promptTokens + usage.completionTokens : 0;
  const found = [
    duration(latencyMs),
    known(firstTokenMs) && `first text after ${duration(firstTokenMs)}`,
    known(modelCalls) && count(modelCalls, "model call"),
    requests > 1 && count(requests, "request"),
    retries > 0 && count(retries, "retry", "retries"),
    tokens > 0 && count(tokens, "token"),
  ];
  return found.filter(Boolean).join(" · ");
}

function said(who, name, text) {
  return [h("div", { class: `who ${who}` }, name), longText(text, "p", { class: `message ${who}` })];
}

// Files, calls and what was said between them, in their order as far as the agent's protocol tells it.
function between(turn, position, row) {
  const remarks = [...(turn.remarks || [])];
  const until = (place) => {
    const later = remarks.findIndex(({ callsBefore }) => !known(callsBefore) || callsBefore > place);
    return remarks.splice(0, later < 0 ? remarks.length : later).map(remark);
  };
  const calls = turn.toolCalls.map((call, at) => [
    until(at),
    callItem(call, { id: `call-${position + at}`, row: row(at) }),
  ]);
  const why = turn.callRefused || turn.callsHidden;
  return [
    h("ul", { class: "plain" }, (turn.attachments || []).map(attachment), calls, remarks.map(remark)),
    why && h("p", { class: "notice" }, foreign(why)),
  ];
}

function attachment({ name, mimeType, bytes, uri }) {
  const size = known(bytes) ? `${bytes.toLocaleString("en")} bytes` : uri;
  return h("li", {}, "Attached: ", foreign([name, mimeType, size].filter(Boolean).join(", ")));
}

function remark({ author, text }) {
  return h(
    "li",
    { class: "remark" },
    h("span", { class: "who" }, foreign(author), " on the way: "),
    longText(text, "span"),
  );
}

function unfinished({ requests, retries, serverOutput = [] }) {
  const words = `No reply came (${count(requests, "request")}, ${count(retries, "retry", "retries")}).`;
  return [h("p", { class: "notice" }, words), serverOutput.map(printed)];
}

function printed({ server, lines, linesBefore, exitStatus }) {
  const status = known(exitStatus) && ` and had ended with status ${exitStatus}`;
  const before = linesBefore > 0 ? [`… ${count(linesBefore, "line")} before`] : [];
  return [
    h("div", { class: "who" }, "Server ", foreign(server), " printed meanwhile", status),
    longText([...before, ...lines].join("\n") || "(nothing)", "pre"),
  ];
}

function judged({ opened, scenario }, isHere) {
  const { evaluation, labelledFailures, criteria = [] } = opened.conversation;
  const scores = evaluation.turnEvaluations.find(isHere);
  return [
    scores && turnScores(scores, scenario, labelledFailures.filter(isHere)),
    h(
      "ul",
      { class: "plain" },
      criteria.filter(isHere).map((each) => criterion(each)),
    ),
  ];
}
