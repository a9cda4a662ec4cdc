// Where the time went: a bar and figures for each turn. What is not known is said and not drawn.

import { known } from "./calls.js";
import { h } from "./dom.js";
import { folded, table, tableRow } from "./folding.js";
import { duration } from "./format.js";
import { allTurns } from "./reasons.js";

const PARTS = ["user", "agent", "tools", "judges", "own"];
const MOST_OPEN = 30;
const NOTE =
  "Judges work while the conversation goes on: of all turns together only the wait after the last one " +
  "counts. Own time is measured of whole conversations alone. ? is a time that the results do not tell.";

export function timeline(conversation, turnLink) {
  const { evaluation, time } = conversation;
  const judged = new Map(evaluation.turnEvaluations.map((each) => [each.turnIndex, each.judgedMs]));
  const rows = allTurns(conversation).map(({ turnIndex, userMs, latencyMs, agentMs, toolsMs, modelMs }) => ({
    turnIndex,
    modelMs,
    times: [userMs, known(latencyMs) ? latencyMs : agentMs, toolsMs, judged.get(turnIndex)],
  }));
  const most = Math.max(...rows.map(({ times }) => total(times)));
  const all = PARTS.map((name) => time && time[`${name}Ms`]);
  const foot = total(all) > 0 && h("tfoot", line("All", all, total(all), time.modelMs));
  const heads = ["Turn", "", ...PARTS.map((name) => [h(`span.swatch.${name}`), ` ${name}`]), "together"];
  const row = (at) => line(turnLink(rows[at].turnIndex), rows[at].times, most, rows[at].modelMs);
  const make = () => [
    table("timeline", heads, rows.length, row, { foot, more: { noun: "turn" } }),
    h("p.quiet", NOTE),
  ];
  return folded("details", "Time of each turn", make, rows.length <= MOST_OPEN);
}

function total(times) {
  return times.reduce((sum, each) => sum + (each || 0), 0);
}

function line(name, times, most, modelMs) {
  const piece = (ms, at) => ms > 0 && h(`span.${PARTS[at]}`, { style: { width: `${(ms / most) * 100}%` } });
  const bar = h("div.bar", { "aria-hidden": "true" }, times.map(piece));
  const unknown = (part) => (part === "own" ? "" : "?");
  const figures = PARTS.map((part, at) => (known(times[at]) ? duration(times[at]) : unknown(part)));
  if (modelMs > 0) figures[1] += ` (model ${duration(modelMs)})`;
  return tableRow("", name, bar, ...figures, total(times) ? duration(total(times)) : "?");
}
