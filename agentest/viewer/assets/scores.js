// What judges, checks and criteria say: of one turn, and of the whole conversation.

import { short } from "./calls.js";
import { foreign, h } from "./dom.js";
import { folded } from "./folding.js";
import { decimal } from "./format.js";
import { longText } from "./parts.js";
import { isBelow } from "./troubles.js";

const CRITERIA = { met: "✓ met", violated: "✗ violated", "cannot tell": "? cannot tell" };

// The scores and checks of a turn; open where one of them is low or did not hold.
export function turnScores(scores, scenario, failures) {
  const rows = Object.entries(scores.metrics).map(([name, result]) => ({ name, result, low: isLow(name, result, scenario, failures) }));
  const shown = rows.filter(({ result }) => result.skipped === undefined);
  const parts = [
    shown.length > 0 && folded(["Scores: ", glance(shown)], () => table(shown, scenario), { class: "scores", open: shown.some((row) => row.low) }),
    notScored(rows),
    scores.checks.length > 0 && h("ul", { class: "plain checks" }, scores.checks.map(check)),
  ];
  return parts;
}

export function wholeScores(conversation, scenario) {
  const { goalCompletion: goal, conversationMetrics } = conversation.evaluation;
  const all = Object.entries({ ...(goal ? { goal_completion: goal } : {}), ...conversationMetrics });
  const rows = all.map(([name, result]) => ({ name, result, low: isLow(name, result, scenario, []) }));
  const shown = rows.filter(({ result }) => result.skipped === undefined);
  const criteria = conversation.criteria || [];
  return [
    shown.length > 0 && table(shown, scenario),
    notScored(rows),
    criteria.length > 0 && [h("h3", {}, "Criteria"), h("ul", { class: "plain" }, criteria.map((each) => criterion(each, true)))],
    !shown.length && !criteria.length && h("p", { class: "quiet" }, "Nothing was judged of the conversation as a whole."),
  ];
}

export function criterion(each, withTurn = false) {
  const where = withTurn && each.turnIndex !== null ? ` (turn ${each.turnIndex})` : "";
  const samples = each.samples && each.samples.length > 1 && foreign(` Answers: ${each.samples.join(", ")}.`);
  const words = h("strong", { class: each.result.replace(" ", "-") }, CRITERIA[each.result] || each.result);
  return h("li", {}, words, where, ": ", foreign(each.text), !each.required && " (not required)", ". ", foreign(each.reason), samples);
}

function isLow(name, result, scenario, failures) {
  return isBelow(result, scenario.thresholds[name]) || Boolean(result.error) || result.outcome === "not reached" || failures.some((each) => each.metric === name);
}

function glance(rows) {
  const text = ({ name, result, low }) => h("span", { class: low ? "low" : "" }, low && "✗ ", foreign(short(name, 60)), " ", foreign(value(result)));
  return rows.slice(0, 12).flatMap((row, at) => [at > 0 && " · ", text(row)]);
}

function value(result) {
  if (result.error !== undefined) return "no score";
  return result.outcome || short(String(decimal(result.value)), 60);
}

function table(rows, scenario) {
  const head = ["Metric", "Score", "Reason"].map((text) => h("th", { scope: "col" }, text));
  return h("div", { class: "scroll" }, h("table", { class: "score-table stacked" }, h("thead", {}, h("tr", {}, head)), h("tbody", {}, rows.map((row) => line(row, scenario)))));
}

function line({ name, result, low }, scenario) {
  const reason = result.error === undefined ? longText(result.reason || "", "div") : longText(`Not scored: ${result.error}`, "div");
  const threshold = scenario.thresholds[name];
  return h(
    "tr",
    { class: low ? "low" : "" },
    h("th", { scope: "row" }, foreign(name)),
    h("td", { data: { head: "Score" } }, h("strong", {}, low && "✗ ", foreign(value(result))), threshold !== undefined && h("div", { class: "quiet" }, isBelow(result, threshold) ? `below ${threshold}` : `at least ${threshold} wanted`)),
    h("td", { data: { head: "Reason" } }, reason, more(result)),
  );
}

function more(result) {
  const labels = (result.labels || []).length > 1 && `All labels: ${result.labels.join(", ")}.`;
  const samples = (result.samples || []).length > 1 && `Answers of the judge: ${result.samples.map(decimal).join(", ")}.`;
  const evidence = result.evidence && `Known facts: ${result.evidence}.`;
  const found = [labels, samples, evidence].filter(Boolean);
  return found.length > 0 && foreign(found.join(" "), "div", { class: "quiet" });
}

// Metrics that were skipped, those of one reason in one line.
function notScored(rows) {
  const byReason = new Map();
  for (const { name, result } of rows) {
    if (result.skipped !== undefined) byReason.set(result.skipped, [...(byReason.get(result.skipped) || []), name]);
  }
  return [...byReason].map(([why, names]) => h("p", { class: "quiet" }, "Not evaluated: ", foreign(names.join(", ")), " (", foreign(why), ")"));
}

function check(each) {
  const sign = each.passed ? "✓" : each.error ? "?" : "✗";
  const words = each.passed ? "holds" : each.error ? "cannot be told" : "does not hold";
  return h("li", { class: each.passed ? "" : "low" }, h("strong", {}, `${sign} `, foreign(each.check), ` ${words}`), ": ", longText(each.reason, "span"), each.error && foreign(` ${each.error}`));
}
