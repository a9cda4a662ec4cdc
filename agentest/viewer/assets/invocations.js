// A turn of a case of an evaluation set: the invocation that the set expects beside the one that was made.

import { argumentsText, mark } from "./calls.js";
import { foreign, h } from "./dom.js";
import { folded } from "./folding.js";
import { decimal } from "./format.js";
import { json, longText } from "./parts.js";

const SIGNS = { PASSED: "✓ passed", FAILED: "✗ failed", NOT_EVALUATED: "? not evaluated", INFORMATIONAL: "· decides nothing" };

export function invocation(entry) {
  const { expectedInvocation: expected, actualInvocation: actual, evalMetricResults: metrics } = entry;
  const failed = metrics.some((each) => each.evalStatus === "FAILED");
  return folded(["Expected and actual invocation", failed && h("strong", {}, ": ✗ differ")], content, { class: "comparison", open: failed });

  function content() {
    return [
      expected ? table(expected, actual) : h("p", { class: "quiet" }, "The set expects nothing of this turn."),
      h("ul", { class: "plain" }, metrics.map(metric)),
      folded("Both as JSON", () => h("div", { class: "columns" }, json(expected), json(actual)), { class: "no-print" }),
    ];
  }
}

function metric(each) {
  const scores = (each.details && each.details.rubricScores) || [];
  const limit = each.threshold === null ? "" : `, at least ${each.threshold} wanted`;
  const words = `${each.score === null ? "no score" : decimal(each.score)}${limit}: ${SIGNS[each.evalStatus] || each.evalStatus}`;
  return h("li", {}, foreign(each.metricName), ` ${words}`, scores.length > 0 && h("ul", {}, scores.map(rubric)));
}

function rubric(each) {
  const words = each.score === null ? "? no answer" : each.score ? "✓ yes" : "✗ no";
  return h("li", {}, foreign(each.rubricId), `: ${words}. `, foreign(each.rationale || ""));
}

function table(expected, actual) {
  const rows = [...uses(expected, actual), ["Response", textOf(expected.finalResponse), textOf(actual.finalResponse)]];
  const head = ["", "Expected", "Actual"].map((text) => h(text ? "th" : "td", { scope: text && "col" }, text));
  const cell = (text, name) => h("td", { data: { head: name } }, text === null ? h("span", { class: "quiet" }, "none") : longText(text, "span"));
  const line = ([name, left, right]) =>
    h("tr", { class: sameness(left, right) }, h("th", { scope: "row" }, name, " ", mark(sameness(left, right))), cell(left, "Expected"), cell(right, "Actual"));
  return h("div", { class: "scroll" }, h("table", { class: "aligned stacked" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows.map(line))));
}

// By the longest common subsequence of the calls as text; what stands between is put side by side as it comes.
function uses(expected, actual) {
  const left = textsOf(expected);
  const right = textsOf(actual);
  const rows = [];
  let [i, j] = [0, 0];
  for (const [nextI, nextJ] of [...common(left, right), [left.length, right.length]]) {
    while (i < nextI || j < nextJ) rows.push(["Call", i < nextI ? left[i++] : null, j < nextJ ? right[j++] : null]);
    if (i < left.length && j < right.length) rows.push(["Call", left[i++], right[j++]]);
  }
  return rows;
}

const MOST_COMPARED = 100;

function common(left, right) {
  if (left.length > MOST_COMPARED || right.length > MOST_COMPARED) return [];
  const best = Array.from({ length: left.length + 1 }, () => new Array(right.length + 1).fill(0));
  for (let i = left.length - 1; i >= 0; i--) {
    for (let j = right.length - 1; j >= 0; j--) {
      best[i][j] = left[i] === right[j] ? best[i + 1][j + 1] + 1 : Math.max(best[i + 1][j], best[i][j + 1]);
    }
  }
  const pairs = [];
  for (let i = 0, j = 0; i < left.length && j < right.length; ) {
    if (left[i] === right[j]) pairs.push([i++, j++]);
    else if (best[i + 1][j] >= best[i][j + 1]) i++;
    else j++;
  }
  return pairs;
}

function textsOf(one) {
  const found = (one.intermediateData && one.intermediateData.toolUses) || [];
  return found.map((use) => `${use.name}(${argumentsText(use.args || {})})`);
}

function textOf(content) {
  const parts = (content && content.parts) || [];
  return content ? parts.map((part) => part.text || "").join("") : null;
}

function sameness(left, right) {
  if (left === null) return "extra";
  if (right === null) return "missing";
  return left === right ? "matched" : "different";
}
