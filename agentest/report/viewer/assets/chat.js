// The turns: what was said and called, and what judges, checks, the session's state and spans say of each.

import { callItem, known } from "./calls.js";
import { foreign, h } from "./dom.js";
import { bounded, list, notice } from "./folding.js";
import { count, duration, turnName } from "./format.js";
import { modelRequests } from "./model_requests.js";
import { copyButton, longText } from "./parts.js";
import { turnScores } from "./scores.js";
import { spansOfTurn } from "./spans.js";
import { stateChange } from "./state.js";
import { comparison, invocation, rowsByCall } from "./trajectory.js";
import { allTurns, BLAME, httpError } from "./troubles.js";

const NO_TEXT = "(no text; the agent called tools only)";
const TURNS_AT_ONCE = 100;
const MANY_TURNS = 40;
const MOST_NAMED = 3;

// `view`: of conversation.js. Turns far from the first wanted one come on demand.
export function chat(view) {
  const { conversation, first } = view;
  const rows = rowsByCall(conversation.trajectory);
  let [position, before] = [0, conversation.initialState];
  const turns = allTurns(conversation).map((turn) => {
    const mine = { ...view, turn, rows, position, before };
    position += turn.toolCalls.length;
    before = turn.stateAfter;
    return mine;
  });
  const wanted = Math.max(0, turns.findIndex(({ turn }) => turn.turnIndex === first));
  const many = { first: wanted - (wanted % TURNS_AT_ONCE), step: TURNS_AT_ONCE, noun: "turn" };
  const items = h("ol.chat", { class: turns.length > MANY_TURNS && "many" });
  const shown = bounded(items, turns.length, (at) => turnItem(turns[at], at), many);
  return [shown, ownCalls(conversation, turns.length, ", before it ended")];
}

function turnItem(mine, at) {
  const { turn, conversation, opened, position, rows, before, callLink, scenario } = mine;
  const { evalMetricResultPerInvocation: invocations = [], perTurnTrajectory, unfinishedTurn } = conversation;
  const index = turn.turnIndex;
  const isHere = (each) => each.turnIndex === index;
  const trajectory = perTurnTrajectory.find(isHere);
  const own = rowsByCall(trajectory);
  const link = (place, ...more) => callLink(position + place, ...more);
  const agent = ["Agent ", turn.author && foreign(turn.author)];
  return h(
    "li.turn",
    { id: `turn-${index}`, tabindex: "-1", data: { step: "" }, "aria-labelledby": `turn-${index}-name` },
    head(mine, turn === unfinishedTurn),
    ownCalls(conversation, index),
    said("user", "User", turn.userMessage),
    between(turn, position, (place) => own.get(place) || rows.get(position + place)),
    turn === unfinishedTurn
      ? unfinished(turn, conversation)
      : [said("agent", agent, turn.agentMessage || NO_TEXT), stateChange(before, turn)],
    trajectory && comparison(trajectory, turn.toolCalls, link, "Expected and actual calls of this turn"),
    turnScores(conversation, scenario, index),
    invocations[at] && invocation(invocations[at]),
    modelRequests(turn),
    spansOfTurn((opened.spans || []).filter(isHere)),
  );
}

function head({ turn, troubles, turnLink, urlOf }, isOpen) {
  const index = turn.turnIndex;
  const wrong = troubles.filter((each) => each.turn === index).map(({ what }) => what);
  const named = wrong.slice(0, MOST_NAMED).join(" · ");
  const more = wrong.length > MOST_NAMED ? ` and ${wrong.length - MOST_NAMED} more` : "";
  const copy = copyButton(() => urlOf(index), "Copy link");
  copy.setAttribute("aria-label", `Copy the link to ${turnName(index)}`);
  return h(
    "div.turn-head",
    h("h3", { id: `turn-${index}-name` }, turnLink(index), isOpen && " (unfinished)"),
    wrong.length > 0 && h("strong.low", "✗ ", foreign(named), more),
    h("span.quiet", figures(turn)),
    copy,
  );
}

function figures({ latencyMs, firstTokenMs, modelCalls, modelMs, requests, retries, usage }) {
  const tokens = usage ? usage.promptTokens + usage.completionTokens : 0;
  const found = [
    duration(latencyMs),
    known(firstTokenMs) && `first text after ${duration(firstTokenMs)}`,
    known(modelMs) && `model ${duration(modelMs)}`,
    known(modelCalls) && count(modelCalls, "model call"),
    requests > 1 && count(requests, "request"),
    retries > 0 && count(retries, "retry", "retries"),
    tokens > 0 && count(tokens, "token"),
  ];
  return found.filter(Boolean).join(" · ");
}

function said(who, name, text) {
  return [h(`div.who.${who}`, name), longText(text, `p.message.${who}`)];
}

// What the simulated user did with its own tools before it spoke in a turn, or before it ended.
function ownCalls({ userToolCalls = [] }, index, when = "") {
  const calls = userToolCalls.filter((each) => each.turnIndex === index);
  const items = calls.map((call, at) => callItem(call, { id: `own-${index}-${at}` }));
  return items.length > 0 && h("div.own", h("div.who.user", "User, with their own tools", when), list(items));
}

// Files, calls and what was said between them, in their order as far as the agent's protocol tells it.
function between(turn, position, row) {
  const { toolCalls, remarks = [], attachments = [], faults = [], callRefused, callsHidden, redacted } = turn;
  const left = [...remarks];
  const until = (place) => {
    const later = left.findIndex(({ callsBefore }) => !known(callsBefore) || callsBefore > place);
    return left.splice(0, later < 0 ? left.length : later).map(remark);
  };
  const item = (call, at) => callItem(call, { id: `call-${position + at}`, row: row(at) });
  const calls = toolCalls.map((call, at) => [until(at), item(call, at)]);
  const why = callRefused || callsHidden;
  const hidden = redacted && notice("Secrets were said in this turn: [redacted] is in their place.");
  const failed = faults.map(({ kind, at }) =>
    notice("The scenario made request ", String(at), " to the agent's model fail: ", foreign(kind)),
  );
  return [failed, list(attachments.map(attachment), calls, left.map(remark)), why && notice(foreign(why)), hidden];
}

function attachment({ name, mimeType, bytes, uri }) {
  const size = known(bytes) ? `${bytes.toLocaleString("en")} bytes` : uri;
  return h("li", "Attached: ", foreign([name, mimeType, size].filter(Boolean).join(", ")));
}

function remark({ author, text }) {
  return h("li.remark", h("span.who", foreign(author), " on the way: "), longText(text, "span"));
}

// Why there is no reply: the agent's error as it answered, or what else ended the turn.
function unfinished({ requests, retries, serverOutput = [] }, { error, errorSource }) {
  const sent = `No reply after ${count(requests, "request")}, ${count(retries, "retry", "retries")}.`;
  const { status, address, advice, body } = httpError(error || "");
  return [
    h("div.who", BLAME[errorSource] || "No reply"),
    h(
      "div.message.agent.error",
      status && h("p", h("strong", `Status ${status}`), advice && [" ", foreign(`(${advice})`)], " from ", foreign(address, "code")),
      error && longText(status ? readable(body) : error, "pre"),
      h("p.quiet.small", sent),
    ),
    serverOutput.map(printed),
  ];
}

function readable(body) {
  try {
    return JSON.stringify(JSON.parse(body), null, 2);
  } catch {
    return body;
  }
}

function printed({ server, lines, linesBefore, exitStatus }) {
  const status = known(exitStatus) && ` and had ended with status ${exitStatus}`;
  const before = linesBefore > 0 ? [`… ${count(linesBefore, "line")} before`] : [];
  return [
    h("div.who", "Server ", foreign(server), " printed meanwhile", status),
    longText([...before, ...lines].join("\n") || "(nothing)", "pre"),
  ];
}
