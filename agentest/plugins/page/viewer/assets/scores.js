// What judges, checks and criteria say: of one turn, and of the whole conversation.

import { known, short } from "./calls.js";
import { foreign, h } from "./dom.js";
import { folded, list, table, tableRow } from "./folding.js";
import { decimal, turnName } from "./format.js";
import { longText } from "./parts.js";
import { isBelow, wholeMetrics } from "./reasons.js";

const CRITERIA = { met: "✓ met", violated: "✗ violated", "cannot tell": "? cannot tell" };
const GLANCED = 12;

// The scores, checks and criteria of a turn; open where a score is low.
export function turnScores({ evaluation, labelledFailures, criteria = [] }, scenario, index) {
  const isHere = (each) => each.turnIndex === index;
  const { metrics, checks } = evaluation.turnEvaluations.find(isHere) || { metrics: {}, checks: [] };
  const { shown, skipped } = scoresOf(metrics, scenario, labelledFailures.filter(isHere));
  const glance = ({ name, result, low }, at) => [
    at > 0 && " · ",
    h("span", { class: low }, low && "✗ ", foreign(short(name, 60)), " ", foreign(value(result))),
  ];
  const more = shown.length > GLANCED && ` · and ${shown.length - GLANCED} more`;
  const words = ["Scores: ", shown.slice(0, GLANCED).map(glance), more];
  return [
    shown.length > 0 && folded("details.box", words, () => scoreTable(shown), shown[0].low),
    skipped,
    list(checks.map(check), criteria.filter(isHere).map((each) => criterion(each))),
  ];
}

export function wholeScores(conversation, scenario) {
  const { checks = [], criteria = [] } = conversation;
  const { shown, skipped } = scoresOf(wholeMetrics(conversation), scenario, []);
  const met = criteria.map((each) => criterion(each, true));
  const said = checks.map(check);
  if (!shown.length && !skipped && !met.length && !said.length) return "Nothing was judged of the conversation as a whole.";
  return [shown.length > 0 && scoreTable(shown), skipped, list(said, met)];
}

function criterion({ result, turnIndex, samples, text, required, reason }, withTurn) {
  return h(
    "li",
    h("strong", { class: result.replace(" ", "-") }, CRITERIA[result]),
    withTurn && known(turnIndex) && ` (${turnName(turnIndex)})`,
    ": ",
    foreign(text),
    !required && " (not required)",
    ". ",
    foreign(reason),
    samples && ` Answers: ${samples.join(", ")}.`,
  );
}

// The metrics that were evaluated, as rows, the low ones first, and those that were skipped, in words.
function scoresOf(metrics, { thresholds }, failures) {
  const rows = Object.entries(metrics).map(([name, result]) => {
    const limit = thresholds[name];
    const missed = ["not reached", "reached wrongly"].includes(result.outcome);
    const failed = missed || failures.some(({ metric }) => metric === name);
    return { name, result, limit, low: (result.error || failed || isBelow(result, limit)) && "low" };
  });
  const skipped = rows.filter(({ result }) => known(result.skipped));
  const text = skipped.map(({ name, result }) => `${name} (${result.skipped})`).join(", ");
  const shown = rows.filter((row) => !skipped.includes(row));
  return {
    shown: [...shown.filter(({ low }) => low), ...shown.filter(({ low }) => !low)],
    skipped: text && h("p.quiet", "Not evaluated: ", foreign(text)),
  };
}

function value(result) {
  return result.outcome || (result.error ? "no score" : short(decimal(result.value), 60));
}

function scoreTable(rows) {
  return table("score-table stacked", ["Metric", "Score", "Reason"], rows.length, (at) => line(rows[at]));
}

function line({ name, result, limit, low }) {
  const { labels = [], samples = [], evidence, error, reason } = result;
  const more = [
    labels.length > 1 && `All labels: ${labels.join(", ")}.`,
    samples.length > 1 && `Answers of the judge: ${samples.map(decimal).join(", ")}.`,
    evidence && `Known facts: ${evidence}.`,
  ];
  const wanted = known(limit) && ` ${isBelow(result, limit) ? "below" : "of at least"} ${limit}`;
  return tableRow(
    low,
    foreign(name),
    [h("strong", low && "✗ ", foreign(value(result))), wanted],
    [longText(error || reason || "", "span"), " ", foreign(more.filter(Boolean).join(" "), "span.quiet")],
  );
}

function check({ passed, error, check: name, reason, turnIndex }) {
  const failed = error ? ["?", "cannot be told"] : ["✗", "does not hold"];
  const [sign, said] = passed ? ["✓", "holds"] : failed;
  const where = known(turnIndex) ? ` (${turnName(turnIndex)})` : "";
  const words = h("strong", `${sign} `, foreign(`${name} ${said}`), where);
  const why = reason.replace(/^could not be (?:decided|told): /, "");
  return h("li", { class: !passed && "low" }, words, ": ", longText(why, "span"));
}
