// The transcript in the form of a chat, with the verdict in one line above it.

import { callItem, known, short } from "./calls.js";
import { foreign, h } from "./dom.js";
import { bounded, list, notice } from "./folding.js";
import { count, duration, grouped } from "./format.js";
import { tree } from "./json_tree.js";
import { markdown } from "./markdown.js";
import { badge, longText } from "./parts.js";
import { allTurns, BLAME, httpError } from "./reasons.js";
import { rowsByCall } from "./trajectory.js";

const NO_TEXT = "(no text; the agent called tools only)";
const TURNS_AT_ONCE = 100;
const MANY_TURNS = 40;
const MOST_NAMED = 3;

// The turns with what is needed to show one: its place among the calls, the rows of trajectories, the state before.
export function turnsOf(view) {
  const { conversation } = view;
  const rows = rowsByCall(conversation.trajectory);
  let [position, before] = [0, conversation.initialState];
  return allTurns(conversation).map((turn, at) => {
    const own = rowsByCall(conversation.perTurnTrajectory.find((each) => each.turnIndex === turn.turnIndex));
    const from = position;
    const mine = { turn, at, position, before, row: (place) => own.get(place) || rows.get(from + place) };
    position += turn.toolCalls.length;
    before = turn.stateAfter;
    return mine;
  });
}

// The verdict in one line, which stays in sight: what broke at the turn that is opened, or first.
export function verdictLine({ troubles, status, first, turnLink, showWhole }) {
  const reason = troubles.find(({ turn }) => turn === first) || troubles[0];
  if (!reason) return h("p.verdict-line", badge(status), status === "passed" && "Everything held.");
  const { turn, what, text, brief } = reason;
  const more = troubles.length - 1;
  return h(
    "p.verdict-line",
    { class: status },
    badge(status),
    h("strong.reason", status === "passed" && "but ", foreign(short(brief || [what, text].filter(Boolean).join(": ")))),
    Number.isInteger(turn) && turnLink(turn),
    more > 0 && h("button.link", { type: "button", onclick: showWhole }, count(more, "more reason")),
  );
}

// Turns far from the first wanted one come on demand.
export function transcript(view) {
  const { conversation, first, turns } = view;
  const wanted = Math.max(0, turns.findIndex(({ turn }) => turn.turnIndex === first));
  const many = { first: wanted - (wanted % TURNS_AT_ONCE), step: TURNS_AT_ONCE, noun: "turn" };
  const items = h("ol.chat", { class: turns.length > MANY_TURNS && "many" });
  const shown = bounded(items, turns.length, (at) => turnItem(view, turns[at]), many);
  const earlier = (conversation.history || []).map(({ role, text }) => said(role === "user" ? role : "agent", ["Before: ", role], text));
  return [earlier, shown, ownCalls(conversation, turns.length, ", before it ended")];
}

function turnItem(view, { turn, position, row }) {
  const { conversation } = view;
  const index = turn.turnIndex;
  const open = turn === conversation.unfinishedTurn;
  const agent = ["Agent", turn.author && [" ", foreign(turn.author)]];
  return h(
    "li.turn",
    { id: `turn-${index}`, tabindex: "-1", data: { step: "" }, "aria-labelledby": `turn-${index}-name` },
    turnHead(view, turn, open),
    ownCalls(conversation, index),
    said("user", "User", turn.userMessage),
    between(turn, position, row),
    open ? unfinished(turn, conversation) : said("agent", agent, turn.agentMessage || NO_TEXT),
  );
}

function turnHead({ troubles, turnLink }, turn, open) {
  const index = turn.turnIndex;
  const wrong = troubles.filter((each) => each.turn === index).map(({ what }) => what);
  const named = wrong.slice(0, MOST_NAMED).join(" · ");
  const more = wrong.length > MOST_NAMED ? ` and ${wrong.length - MOST_NAMED} more` : "";
  return h(
    "div.turn-head",
    h("h3", { id: `turn-${index}-name` }, turnLink(index), open && " (unfinished)"),
    wrong.length > 0 && h("strong.low", "✗ ", foreign(named), more),
    h("span.quiet.small", duration(turn.latencyMs)),
  );
}

// A message that is JSON is shown as a tree.
function said(who, name, text) {
  const data = parsed(text);
  return [h(`div.who.${who}`, name), data && typeof data === "object" ? h(`div.message.${who}`, tree(data, "the message")) : markdown(text, `div.message.${who}`)];
}

// What the simulated user did with its own tools before it spoke in a turn, or before it ended.
function ownCalls({ userToolCalls = [] }, index, when = "") {
  const items = userToolCalls.filter((each) => each.turnIndex === index).map((call, at) => callItem(call, { id: `own-${index}-${at}`, brief: true }));
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
  const calls = toolCalls.map((call, at) => [until(at), callItem(call, { id: `call-${position + at}`, row: row(at), brief: true })]);
  const why = callRefused || callsHidden;
  const hidden = redacted && notice("Secrets were said in this turn: [redacted] is in their place.");
  const failed = faults.map(({ kind, at }) =>
    notice("The scenario made request ", String(at), " to the agent's model fail: ", foreign(kind)),
  );
  return [failed, list(attachments.map(attachment), calls, left.map(remark)), why && notice(foreign(why)), hidden];
}

function attachment({ name, mimeType, bytes, uri }) {
  const size = known(bytes) ? `${grouped(bytes)} bytes` : uri;
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
    h("div.who.agent", BLAME[errorSource] || "No reply"),
    h(
      "div.message.agent.error",
      status && h("p", h("strong", `Status ${status}`), advice && [" ", foreign(`(${advice})`)], " from ", foreign(address, "code")),
      error && longText(status ? readable(body) : error, "pre"),
      h("p.quiet.small", sent),
    ),
    serverOutput.map(printed),
  ];
}

export function readable(body) {
  const data = parsed(body);
  return data === undefined ? body : JSON.stringify(data, null, 2);
}

function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return undefined;
  }
}

export function printed({ server, lines, linesBefore, exitStatus }) {
  const status = known(exitStatus) && ` and had ended with status ${exitStatus}`;
  const before = linesBefore > 0 ? [`… ${count(linesBefore, "line")} before`] : [];
  return [
    h("div.who", "Server ", foreign(server), " printed meanwhile", status),
    longText([...before, ...lines].join("\n") || "(nothing)", "pre"),
  ];
}
