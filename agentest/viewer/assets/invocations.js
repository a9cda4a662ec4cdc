// A turn of a case of an evaluation set: the invocation that the set expects beside the one that was made.

import { callText, mark } from "./calls.js";
import { foreign, h } from "./dom.js";
import { folded, table } from "./folding.js";
import { json, longText } from "./parts.js";
import { sideBySide } from "./trajectory.js";

export function invocation({
  expectedInvocation: expected,
  actualInvocation: actual,
  evalMetricResults: metrics,
}) {
  const failed = metrics.some((each) => each.evalStatus === "FAILED");
  const rows = expected ? pairs(expected, actual) : [];
  const scores = metrics.flatMap((each) => (each.details && each.details.rubricScores) || []);
  const make = () => [
    expected
      ? table("aligned stacked", ["", "Expected", "Actual"], rows.length, (at) => line(rows[at]))
      : h("p", {}, "The set expects nothing of this turn."),
    h("ul", { class: "plain" }, scores.map(rubric)),
    folded("Both as JSON", () => h("div", { class: "columns" }, json(expected), json(actual)), {
      class: "no-print",
    }),
  ];
  return folded("Expected and actual invocation", make, { class: "comparison", open: failed });
}

function rubric({ rubricId, score, rationale }) {
  const words = score === null ? "? no answer" : score ? "✓ yes" : "✗ no";
  return h("li", {}, foreign(rubricId), `: ${words}. `, foreign(rationale));
}

function line([name, left, right]) {
  const status =
    left === right ? "matched" : left === undefined ? "extra" : right === undefined ? "missing" : "different";
  const text = (each) => (each === undefined ? "none" : longText(each, "span"));
  return sideBySide([name, " ", mark(status)], status, text(left), text(right));
}

// Calls that are the same stand side by side first; the others in their order.
function pairs(expected, actual) {
  const [left, right] = [uses(expected), uses(actual)];
  const rows = [];
  for (const each of left) {
    const same = right.indexOf(each);
    rows.push(["Call", each, same < 0 ? undefined : right.splice(same, 1)[0]]);
  }
  for (const row of rows) if (row[2] === undefined && right.length) row[2] = right.shift();
  return [
    ...rows,
    ...right.map((each) => ["Call", undefined, each]),
    ["Response", reply(expected), reply(actual)],
  ];
}

function uses({ intermediateData }) {
  return ((intermediateData && intermediateData.toolUses) || []).map(({ name, args }) =>
    callText({ name, args: args || {} }),
  );
}

function reply({ finalResponse }) {
  return finalResponse ? (finalResponse.parts || []).map((part) => part.text || "").join("") : undefined;
}
