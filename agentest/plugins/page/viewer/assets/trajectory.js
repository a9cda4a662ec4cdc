// Expected and actual side by side: tool calls as the matching of the verdict has paired them, and the
// invocations of a case of an evaluation set.

import { callText, isWrong, known, mark, short } from "./calls.js";
import { foreign, h } from "./dom.js";
import { folded, list, notice, table, tableRow } from "./folding.js";
import { count, decimal } from "./format.js";
import { facts, json, longText } from "./parts.js";
import { partsOf, reasonOf } from "./reasons.js";

const MODES = {
  in_order: "in this order",
  strict: "exactly these",
  contains: "at least these",
  unordered: "these in any order",
  within: "none but these",
};

// `calls` are those that the trajectory looked at; `link(position, content, call)` leads to one of them.
// Several trajectories are one below the other.
export function comparison(trajectory, calls, link, title = "Expected and actual calls") {
  return partsOf(trajectory).map((part) => oneComparison(part, calls, link, title));
}

function oneComparison(trajectory, calls, link, title) {
  const { matched, counted, vacuous, mode, alignment = [], alignmentMore, name, score } = trajectory;
  const differ = counted ? "≠ differ, which the threshold counts" : "✗ differ";
  const words = matched ? "✓ as expected" : matched === false ? differ : "? cannot be told";
  const reason = reasonOf(trajectory);
  const sides = ({ expected, call, difference }) => [
    ...(mode ? [known(expected) ? foreign(expected, "code") : "nothing"] : []),
    [
      calls[call] ? link(call, foreign(short(callText(calls[call])), "code"), calls[call]) : "not made",
      difference && difference !== reason && h("em", " ", foreign(difference)),
    ],
  ];
  const row = (each) => tableRow(each.status, mark(each.status), ...sides(each));
  const make = () => [
    foreign(reason, "p"),
    score && h("p.quiet", scoreText(score)),
    vacuous && notice("It held only because no call of the agent was ever seen."),
    alignment.length > 0
      ? alignedRows(mode && (MODES[mode] || mode), alignment, row)
      : bothSides(trajectory),
    alignmentMore > 0 && notice(count(alignmentMore, "more row"), " of which nothing is wrong are not kept."),
  ];
  const head = [title, name && [", ", foreign(name)], ": ", h("strong", words)];
  return folded(`details.box${matched || counted ? "" : ".wrong"}`, head, make, !matched);
}

function scoreText({ met, precision, recall, f1 }) {
  return `Met ${decimal(met)}, precision ${decimal(precision)}, recall ${decimal(recall)}, F1 ${decimal(f1)}`;
}

// Where nothing is expected by name, calls have no column beside them.
function alignedRows(mode, rows, row) {
  const heads = ["", ...(mode ? [`Expected (${mode})`] : []), "Actual"];
  return table("aligned stacked", heads, rows.length, (at) => row(rows[at]));
}

// Row of the alignment by position of its call; of several trajectories that which has something wrong.
export function rowsByCall(trajectory) {
  const found = trajectory ? partsOf(trajectory).flatMap(({ alignment = [] }) => alignment) : [];
  const wrongLast = [...found.filter((row) => !isWrong(row)), ...found.filter(isWrong)];
  return new Map(wrongLast.filter((row) => known(row.call)).map((row) => [row.call, row]));
}

// Results of older versions have no rows, only both sides as text.
function bothSides({ mode, expected, forbidden, actual }) {
  const text = (value) => value && foreign(value, "code");
  return facts([
    [`Expected (${MODES[mode] || mode})`, text(expected)],
    ["Forbidden", text(forbidden)],
    ["Actual", text(actual)],
  ]);
}

// --- a turn of a case of an evaluation set

export function invocation(found) {
  const { expectedInvocation: expected, actualInvocation: actual, evalMetricResults: metrics } = found;
  const scores = metrics.flatMap(({ details }) => (details && details.rubricScores) || []);
  const text = (each) => (known(each) ? longText(each, "span") : "none");
  const row = ([name, left, right]) => {
    const one = known(left) ? "missing" : "extra";
    const status = left === right ? "matched" : known(left) && known(right) ? "different" : one;
    return tableRow(status, [name, " ", mark(status)], text(left), text(right));
  };
  const make = () => [
    expected ? alignedRows("of the set", pairs(expected, actual), row) : "The set expects nothing of this turn.",
    list(scores.map(rubric)),
    folded("details.no-print", "Both as JSON", () => h("div.columns", json(expected), json(actual))),
  ];
  const failed = metrics.some((each) => each.evalStatus === "FAILED");
  return folded("details.box", "Expected and actual invocation", make, failed);
}

function rubric({ rubricId, score, rationale }) {
  const words = score === null ? "? no answer" : score ? "✓ yes" : "✗ no";
  return h("li", foreign(rubricId), `: ${words}. `, foreign(rationale));
}

// Calls that are the same stand side by side first; the others in their order.
function pairs(expected, actual) {
  const right = uses(actual);
  const rows = uses(expected).map((each) => {
    const same = right.indexOf(each);
    return ["Call", each, same < 0 ? undefined : right.splice(same, 1)[0]];
  });
  for (const row of rows) row[2] = row[2] || right.shift();
  rows.push(...right.map((each) => ["Call", undefined, each]));
  return [...rows, ["Response", reply(expected), reply(actual)]];
}

function uses({ intermediateData }) {
  const found = (intermediateData && intermediateData.toolUses) || [];
  return found.map(({ name, args }) => callText({ name, args: args || {} }));
}

function reply({ finalResponse }) {
  return finalResponse ? (finalResponse.parts || []).map((part) => part.text || "").join("") : undefined;
}
