// Where the time went: a bar and figures for each turn. What is not known is said and not drawn.

import { known } from "./calls.js";
import { h } from "./dom.js";
import { bounded, folded } from "./folding.js";
import { duration } from "./format.js";

const PARTS = ["user", "agent", "tools", "judges", "own"];
const HEADS = { user: "User", agent: "Agent", tools: "Tools", judges: "Judges", own: "Own" };
const MOST_OPEN = 30;

export function timeline(conversation, turnLink) {
  const turns = conversation.turns.map((turn) => ofTurn(turn, conversation));
  const left = conversation.unfinishedTurn;
  const rows = left ? [...turns, { index: left.turnIndex, user: left.userMs, agent: left.agentMs, tools: left.toolsMs }] : turns;
  const most = Math.max(...rows.map(total), 1e-9);
  const body = h("tbody", {});
  const heads = PARTS.map((part) => h("th", { scope: "col", class: "number" }, h("span", { class: `swatch ${part}` }), ` ${HEADS[part]}`));
  const table = h(
    "table",
    { class: "timeline" },
    h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Turn"), h("td", {}), heads, h("th", { scope: "col", class: "number" }, "Together"))),
    body,
    whole(conversation),
  );
  const scroll = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Time of each turn" }, table);
  const rest = [bounded(body, rows.length, (at) => line(rows[at], most, turnLink), { shown: scroll, noun: "turn" }), note(rows)];
  return folded("Time of each turn", () => rest, { open: rows.length <= MOST_OPEN });
}

function ofTurn(turn, conversation) {
  const scores = conversation.evaluation.turnEvaluations.find((each) => each.turnIndex === turn.turnIndex);
  return { index: turn.turnIndex, user: turn.userMs, agent: turn.latencyMs, tools: turn.toolsMs, judges: scores && scores.judgedMs, first: turn.firstTokenMs };
}

function total(row) {
  return PARTS.reduce((sum, part) => sum + (row[part] || 0), 0);
}

function line(row, most, turnLink) {
  return h("tr", {}, h("th", { scope: "row" }, turnLink(row.index)), h("td", { class: "bar-cell" }, bar(row, most)), figures(row), h("td", { class: "number" }, total(row) > 0 ? duration(total(row)) : "?"));
}

function bar(row, most) {
  const piece = (part) => known(row[part]) && h("span", { class: `piece ${part}`, style: { width: `${(row[part] / most) * 100}%` } });
  return h("div", { class: "bar", "aria-hidden": "true" }, PARTS.map(piece));
}

function figures(row) {
  return PARTS.map((part) => h("td", { class: "number" }, figure(row, part)));
}

// Own time is measured of whole conversations alone.
function figure(row, part) {
  if (known(row[part])) return duration(row[part]);
  return part === "own" ? "" : h("span", { class: "quiet" }, "?");
}

function whole(conversation) {
  const time = conversation.time;
  if (!time || !time.totalMs) return null;
  const row = Object.fromEntries(PARTS.map((part) => [part, time[`${part}Ms`]]));
  return h("tfoot", {}, h("tr", {}, h("th", { scope: "row" }, "All"), h("td", { class: "bar-cell" }, bar(row, total(row))), figures(row), h("td", { class: "number" }, duration(time.totalMs))));
}

function note(rows) {
  const unknown = rows.some((row) => ["user", "agent", "tools", "judges"].some((part) => !known(row[part])));
  const words = "Judges work while the conversation goes on; in the last row only the wait after the last turn counts. Own time is measured over the whole conversation.";
  return h("p", { class: "quiet" }, words, unknown && " ? is a time that the results do not tell.");
}
