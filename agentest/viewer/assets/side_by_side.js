// One scenario on both sides of a comparison: two conversations turn by turn, with what differs marked.

import { address, amend, note } from "./address.js";
import { callItem, short } from "./calls.js";
import { allTurns } from "./chat.js";
import { aligned, marked } from "./differences.js";
import { append, fill, foreign, h, visible } from "./dom.js";
import { bounded } from "./folding.js";
import { decimal } from "./format.js";
import { badge, problem } from "./parts.js";
import { turnScores, wholeScores } from "./scores.js";
import { source } from "./source.js";
import { statusOf, troubles } from "./troubles.js";

const NAMES = ["base", "new"];

// `found`: the answer of source().compare.
export async function sideBySide(place, params, found, signal) {
  const { scenario, agent, b, n, ...rest } = params;
  const isIt = (row) => row.name === scenario && (!agent || row.agent === agent);
  const row = found.comparison.scenarios.find(isIt);
  const back = address("compare", rest);
  const head = [h("a", { href: back }, "← Comparison"), h("h1", {}, foreign(scenario))];
  if (!row) return void fill(place, head, problem("This comparison has no such scenario."));
  const sides = await Promise.all(NAMES.map((name, at) => opened(name, row.sides[at], found, params)));
  choose(sides, params);
  if (signal.aborted) return;
  note(Object.fromEntries(sides.map(({ name, row }) => [name[0], row && row.conversationId])));
  await Promise.all(sides.map(read));
  const turns = sides.map(({ conversation }) => (conversation ? allTurns(conversation) : []));
  const most = Math.max(...turns.map((all) => all.length));
  const make = (at) => turn(sides, turns.map((all) => all[at]));
  fill(
    place,
    head,
    foreign(row.story, "p"),
    h("div", { class: "pair" }, sides.map(heading)),
    bounded(h("ul", { class: "plain pairs" }), most, make, { noun: "turn" }),
    h("h2", {}, "The conversation as a whole"),
    h("div", { class: "pair" }, sides.map(scoresOfAll)),
    differing(sides.map(({ conversation }) => conversation && metricsOfAll(conversation.evaluation))),
  );
}

function scoresOfAll(side) {
  return cell("Scores", side, side.conversation && wholeScores(side.conversation, side.scenario));
}

function metricsOfAll({ goalCompletion, conversationMetrics }) {
  return { goal_completion: goalCompletion, ...conversationMetrics };
}

async function opened(name, agent, found, { scenario }) {
  const run = found.between === "runs" ? found[name] : found.of;
  const from = found.between === "runs" ? await source().ofRun(run) : source();
  const side = { name, agent, run, from, label: found[name], conversations: [] };
  return { ...side, ...(agent !== null && from && (await there(from.scenario(scenario, agent)))) };
}

async function there(answer) {
  return answer.catch((error) => {
    if (error.status === 404) return null;
    throw error;
  });
}

// Those of the address; else the first that failed, of the new side before the base, and its counterpart.
function choose(sides, params) {
  const find = (fits) => sides.map((side) => side.conversations.findIndex((row) => fits(row, side.name[0])));
  const wanted = find((row, key) => row.conversationId === params[key]);
  const failed = find((row) => !row.passed);
  const first = [wanted[1], wanted[0], failed[1], failed[0], 0].find((at) => at >= 0);
  sides.forEach((side, at) => {
    const { conversations: rows } = side;
    side.row = rows[wanted[at] >= 0 ? wanted[at] : Math.min(first, rows.length - 1)];
  });
}

async function read(side) {
  const { row, from, scenario, agent } = side;
  const found = row && (await there(from.conversation(scenario.name, agent, row.conversationId)));
  side.conversation = found && found.conversation;
}

function heading({ name, label, agent, from, run, conversations, row, conversation, scenario }) {
  const title = h("h2", {}, `${name}: `, foreign(label));
  const lacks = (words) => h("div", {}, title, problem(`This side ${words}.`));
  if (agent === null) return lacks("does not have the scenario");
  if (!from) return lacks("has its transcripts not in this file; `agentest ui` shows both");
  if (!row) return lacks("held no conversation");
  const { conversationId: now } = row;
  const option = ({ conversationId: id, passed }) =>
    h("option", { value: id, selected: id === now }, `${visible(id)} ${passed ? "✓" : "✗"}`);
  const choice = { id: `of-${name}`, "aria-label": `Conversation, ${name}` };
  const onchange = (event) => amend({ [name[0]]: event.target.value });
  const to = address("conversation", { of: run, scenario: scenario.name, agent, id: now });
  const why = conversation ? [...troubles(conversation, scenario)].slice(0, 5) : [];
  return h(
    "div",
    {},
    title,
    h(
      "p",
      { class: "row" },
      h("select", { ...choice, onchange }, conversations.map(option)),
      conversation && badge(statusOf(conversation, scenario)),
      h("a", { href: to }, "Whole conversation"),
    ),
    !conversation && problem("Its transcript is not here."),
    h("ul", {}, why.map(({ what, text }) => foreign(short(`${what}: ${text}`), "li"))),
  );
}

// One turn of both; undefined: that side has none.
function turn(sides, turns) {
  const scores = sides.map((side, i) => turns[i] && judged(side, turns[i]));
  const made = (make) => (side, i) => (turns[i] && make(side, turns[i], turns[1 - i], i)) || nothing();
  const both = (make) => sides.map(made(make));
  const text = (each, key) => each[key] || "";
  const said = (who, name, key) =>
    both((side, mine, other) =>
      cell(name, side, message(side, who, text(mine, key), text(other || mine, key))),
    );
  const only = turns.findIndex((each) => !each);
  return h(
    "li",
    { tabindex: "-1", data: { step: "" } },
    h("h2", {}, `Turn ${(turns[0] || turns[1]).turnIndex}`, only >= 0 && `, only in ${NAMES[1 - only]}`),
    h(
      "div",
      { class: "pair" },
      said("user", "User", "userMessage"),
      calls(sides, turns.map((each) => (each ? each.toolCalls : []))),
      said("agent", "Agent", "agentMessage"),
      both((side, mine, other, i) => scores[i] && scoresOf(side, mine, scores[i])),
    ),
    differing(scores.map((each) => each && each.metrics)),
  );
}

function judged({ conversation }, { turnIndex }) {
  return conversation.evaluation.turnEvaluations.find((each) => each.turnIndex === turnIndex);
}

function scoresOf(side, { turnIndex }, scores) {
  const failures = side.conversation.labelledFailures.filter((each) => each.turnIndex === turnIndex);
  return cell("Scores", side, turnScores(scores, side.scenario, failures));
}

function nothing() {
  return h("div", { class: "none" });
}

function cell(name, side, content) {
  return h("div", {}, content && h("div", { class: "who" }, `${name}, ${side.name}`), content);
}

function message(side, who, text, other) {
  return marked(text, other, side.name === "base" ? "del" : "ins", { class: `message ${who}` });
}

// Calls of the same name stand side by side, in their order.
function calls(sides, both) {
  const names = both.map((all) => all.map((call) => call.name));
  const at = (places, i) => both[i][places[i]];
  const row = (places) => sides.map((side, i) => call(side, at(places, i), at(places, 1 - i)));
  return aligned(...names).map(row);
}

function call(side, mine, other) {
  if (!mine) return nothing();
  const item = callItem(mine, { row: other && otherwise(mine, other) });
  const only = `${side.name === "base" ? "−" : "+"} only in ${side.name}`;
  if (!other) append(item, [h("strong", { class: "mark extra" }, only)]);
  return cell("Call", side, h("ul", { class: "plain calls" }, item));
}

function otherwise(mine, other) {
  const differ = (a, b) => JSON.stringify(a) !== JSON.stringify(b);
  const args = [mine.args, other.args].map((each) => (each && typeof each === "object" ? each : {}));
  const keys = Object.keys({ ...args[0], ...args[1] }).filter((key) => differ(args[0][key], args[1][key]));
  const found = [
    differ(mine.args, other.args) && `arguments ${keys.join(", ")}`,
    differ([mine.result, mine.error], [other.result, other.error]) && "answer",
  ];
  const difference = short(found.filter(Boolean).join("; "));
  return difference ? { status: "different", difference } : undefined;
}

function differing([base, next]) {
  if (!base || !next) return null;
  const value = (score) => (score && score.value !== undefined ? decimal(score.value) : "no score");
  const names = Object.keys({ ...base, ...next }).filter((name) => value(base[name]) !== value(next[name]));
  const by = (name) => decimal(Number(value(next[name])) - Number(value(base[name])));
  const step = (name) => (by(name) === "NaN" ? "" : ` (${by(name)})`);
  const text = (name) => `≠ ${name}: ${value(base[name])} → ${value(next[name])}${step(name)}`;
  const items = names.map((name) => foreign(short(text(name)), "li"));
  const props = { class: "plain", "aria-label": "Scores that differ" };
  return names.length > 0 && h("ul", props, items);
}
