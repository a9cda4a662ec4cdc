// What judges, checks and criteria say: of one turn, and of the whole conversation.

import { short } from "./calls.js";
import { foreign, h } from "./dom.js";
import { folded, table } from "./folding.js";
import { decimal } from "./format.js";
import { longText } from "./parts.js";
import { isBelow } from "./troubles.js";

const CRITERIA = { met: "✓ met", violated: "✗ violated", "cannot tell": "? cannot tell" };

// The scores and checks of a turn; open where one of them is low or did not hold.
export function turnScores({ metrics, checks }, scenario, failures) {
  const { shown, skipped } = sorted(metrics, scenario, failures);
  const glance = ({ name, result, low }, at) => [
    at > 0 && " · ",
    h("span", { class: low && "low" }, low && "✗ ", foreign(short(name, 60)), " ", foreign(value(result))),
  ];
  const props = { class: "scores", open: shown.some((row) => row.low) };
  return [
    shown.length > 0 && folded(["Scores: ", shown.slice(0, 12).map(glance)], () => scoreTable(shown), props),
    skipped,
    checks.length > 0 && h("ul", { class: "plain" }, checks.map(check)),
  ];
}

export function wholeScores({ evaluation, criteria = [] }, scenario) {
  const { goalCompletion: goal, conversationMetrics } = evaluation;
  const metrics = { ...(goal ? { goal_completion: goal } : {}), ...conversationMetrics };
  const { shown, skipped } = sorted(metrics, scenario, []);
  const isEmpty = !shown.length && !criteria.length;
  return [
    shown.length > 0 && scoreTable(shown),
    skipped,
    h(
      "ul",
      { class: "plain" },
      criteria.map((each) => criterion(each, true)),
    ),
    isEmpty && h("p", { class: "quiet" }, "Nothing was judged of the conversation as a whole."),
  ];
}

export function criterion({ result, turnIndex, samples, text, required, reason }, withTurn) {
  const where = withTurn && turnIndex !== null ? ` (turn ${turnIndex})` : "";
  const words = h("strong", { class: result.replace(" ", "-") }, CRITERIA[result]);
  const rest = [
    !required && " (not required)",
    ". ",
    foreign(reason),
    samples && ` Answers: ${samples.join(", ")}.`,
  ];
  return h("li", {}, words, where, ": ", foreign(text), rest);
}

// The metrics that were evaluated, as rows, and those that were skipped, in words.
function sorted(metrics, scenario, failures) {
  const rows = Object.entries(metrics).map(([name, result]) => {
    const limit = scenario.thresholds[name];
    const isBad =
      result.error || result.outcome === "not reached" || failures.some((each) => each.metric === name);
    return { name, result, limit, low: Boolean(isBad) || isBelow(result, limit) };
  });
  const skipped = rows.filter(({ result }) => result.skipped !== undefined);
  const text = skipped.map(({ name, result }) => `${name} (${result.skipped})`).join(", ");
  return {
    shown: rows.filter(({ result }) => result.skipped === undefined),
    skipped: text && h("p", { class: "quiet" }, "Not evaluated: ", foreign(text)),
  };
}

function value(result) {
  return result.error ? "no score" : result.outcome || short(decimal(result.value), 60);
}

function scoreTable(rows) {
  return table("score-table stacked", ["Metric", "Score", "Reason"], rows.length, (at) => line(rows[at]));
}

function line({ name, result, limit, low }) {
  const { labels = [], samples = [], evidence } = result;
  const more = [
    labels.length > 1 && `All labels: ${labels.join(", ")}.`,
    samples.length > 1 && `Answers of the judge: ${samples.map(decimal).join(", ")}.`,
    evidence && `Known facts: ${evidence}.`,
  ];
  const wanted = limit !== undefined && ` ${isBelow(result, limit) ? "below" : "of at least"} ${limit}`;
  const score = [h("strong", {}, low && "✗ ", foreign(value(result))), wanted];
  const reason = [
    longText(result.error || result.reason || "", "span"),
    " ",
    foreign(more.filter(Boolean).join(" "), "span", { class: "quiet" }),
  ];
  const cell = (head, content) => h("td", { data: { head } }, content);
  return h(
    "tr",
    { class: low && "low" },
    h("th", { scope: "row" }, foreign(name)),
    cell("Score", score),
    cell("Reason", reason),
  );
}

function check({ passed, error, check: name, reason }) {
  const words = passed ? ["✓", "holds"] : error ? ["?", `cannot be told: ${error}`] : ["✗", "does not hold"];
  return h(
    "li",
    { class: !passed && "low" },
    h("strong", {}, `${words[0]} `, foreign(`${name} ${words[1]}`)),
    ": ",
    longText(reason, "span"),
  );
}
