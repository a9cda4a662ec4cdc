// Where the time went: a bar and figures for each turn. What is not known is said and not drawn.

import { known } from "./calls.js";
import { h } from "./dom.js";
import { folded, table } from "./folding.js";
import { duration } from "./format.js";

const PARTS = ["user", "agent", "tools", "judges", "own"];
const MOST_OPEN = 30;
const NOTE =
  "Judges work while the conversation goes on: of all turns together only the wait after the last one counts. " +
  "Own time is measured of whole conversations alone. ? is a time that the results do not tell.";

export function timeline({ turns, unfinishedTurn, evaluation, time }, turnLink) {
  const judged = new Map(evaluation.turnEvaluations.map((each) => [each.turnIndex, each.judgedMs]));
  const rows = [...turns, ...(unfinishedTurn ? [unfinishedTurn] : [])].map((turn) => ({
    name: turnLink(turn.turnIndex),
    user: turn.userMs,
    agent: known(turn.latencyMs) ? turn.latencyMs : turn.agentMs,
    tools: turn.toolsMs,
    judges: judged.get(turn.turnIndex),
  }));
  const most = Math.max(...rows.map(total));
  const all = Object.fromEntries(PARTS.map((part) => [part, time && time[`${part}Ms`]]));
  const foot = time && time.totalMs > 0 && h("tfoot", {}, line({ ...all, name: "All" }, total(all)));
  const heads = [
    "Turn",
    "",
    ...PARTS.map((part) => [h("span", { class: `swatch ${part}` }), ` ${part}`]),
    "together",
  ];
  const make = () => [
    table("timeline", heads, rows.length, (at) => line(rows[at], most), { foot, more: { noun: "turn" } }),
    h("p", { class: "quiet" }, NOTE),
  ];
  return folded("Time of each turn", make, { open: rows.length <= MOST_OPEN });
}

function total(row) {
  return PARTS.reduce((sum, part) => sum + (row[part] || 0), 0);
}

function line(row, most) {
  const number = (text) => h("td", { class: "number" }, text);
  const figure = (part) => number(known(row[part]) ? duration(row[part]) : part === "own" ? "" : "?");
  const drawn = PARTS.filter((part) => row[part] > 0);
  const piece = (part) =>
    h("span", { class: `piece ${part}`, style: { width: `${(row[part] / most) * 100}%` } });
  const bar = h("div", { class: "bar", "aria-hidden": "true" }, drawn.map(piece));
  const whole = number(drawn.length ? duration(total(row)) : "?");
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, row.name),
    h("td", { class: "bar-cell" }, bar),
    PARTS.map(figure),
    whole,
  );
}
