// One scenario on both sides of a comparison: two conversations turn by turn, with what differs marked.

import { address, amend } from "./address.js";
import { aligned, marked } from "./differences.js";
import { allTurns } from "./chat.js";
import { argumentsText, callItem, callText, short } from "./calls.js";
import { append, fill, foreign, h, visible } from "./dom.js";
import { bounded } from "./folding.js";
import { decimal } from "./format.js";
import { badge, longText, problem } from "./parts.js";
import { turnScores, wholeScores } from "./scores.js";
import { source } from "./source.js";
import { statusOf, troubles } from "./troubles.js";

const NAMES = ["base", "new"];
const NO_TURN = { userMessage: "", agentMessage: "", toolCalls: [] };

// `found`: the answer of source().compare; `back`: the address of its table.
export async function sideBySide(place, params, found, back) {
  const row = found.comparison.scenarios.find((each) => each.name === params.scenario && (!params.agent || each.agent === params.agent));
  const head = [h("p", { class: "crumbs" }, h("a", { href: back }, "← Comparison")), h("h1", {}, foreign(params.scenario))];
  if (!row) return void fill(place, head, problem("This comparison has no such scenario."));
  const sides = await Promise.all(NAMES.map((name, at) => opened(name, row.sides[at], found, params)));
  choose(sides, params);
  await Promise.all(sides.map(read));
  const turns = sides.map((side) => (side.conversation ? allTurns(side.conversation) : []));
  const list = h("ol", { class: "plain pairs" });
  const make = (at) => pair(sides, turns.map((all) => all[at]), at);
  fill(
    place,
    head,
    h("p", {}, foreign(row.story)),
    h("div", { class: "pair" }, sides.map(heading)),
    bounded(list, Math.max(...turns.map((all) => all.length)), make, { step: 100, noun: "turn" }),
    h("h2", {}, "The conversation as a whole"),
    h("div", { class: "pair" }, sides.map((side) => cell(side, side.conversation && wholeScores(side.conversation, side.scenario)))),
    differing(sides.map((side) => side.conversation && wholeMetrics(side.conversation))),
  );
}

// --- the two conversations

async function opened(name, agent, found, params) {
  const run = found.between === "runs" ? found[name] : found.of;
  const from = found.between === "runs" ? await source().ofRun(run) : source();
  const side = { name, agent, run, from, label: found[name], rows: [] };
  if (agent === null || !from) return side;
  const { scenario, conversations } = (await missing(from.scenario(params.scenario, agent))) || { conversations: [] };
  return { ...side, scenario, rows: conversations };
}

async function missing(answer) {
  try {
    return await answer;
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

// Those of the address; else the first that failed, of the new side before the base, and its counterpart.
function choose(sides, params) {
  const wanted = sides.map(({ rows }, at) => rows.findIndex((row) => row.conversationId === params[NAMES[at][0]]));
  const failed = sides.map(({ rows }) => rows.findIndex((row) => !row.passed));
  const first = [wanted[1], wanted[0], failed[1], failed[0], 0].find((at) => at >= 0);
  sides.forEach((side, at) => (side.row = side.rows[wanted[at] >= 0 ? wanted[at] : Math.min(first, side.rows.length - 1)]));
}

async function read(side) {
  const found = side.row && (await missing(side.from.conversation(side.scenario.name, side.agent, side.row.conversationId)));
  side.conversation = found && found.conversation;
}

function heading(side) {
  const { name, rows, row, conversation, scenario } = side;
  const title = h("h2", {}, `${name === "base" ? "Base" : "New"}: `, foreign(side.label));
  if (side.agent === null) return h("div", {}, title, problem("This side does not have the scenario."));
  if (!side.from) return h("div", {}, title, problem("Its transcripts are not in this file: `agentest ui` shows both sides."));
  if (!row) return h("div", {}, title, problem("No conversation of it was held."));
  const option = (each) => h("option", { value: each.conversationId, selected: each === row }, `${visible(each.conversationId)} ${each.passed ? "✓" : "✗"}`);
  const list = h("select", { id: `choose-${name}`, "aria-label": `Conversation, ${name}`, onchange: (event) => amend({ [name[0]]: event.target.value }) }, rows.map(option));
  const to = address("conversation", { of: side.run, scenario: scenario.name, agent: side.agent, id: row.conversationId });
  const status = conversation ? statusOf(conversation, scenario) : row.passed ? "passed" : "failed";
  const why = conversation ? [...troubles(conversation, scenario)].slice(0, 5) : [];
  return h(
    "div",
    {},
    title,
    h("p", { class: "row" }, list, badge(status), h("a", { href: to }, "Whole conversation")),
    !conversation && problem("The transcript of this conversation is not here."),
    why.length > 0 && h("ul", {}, why.map((each) => foreign(short(`${each.what}: ${each.text}`), "li"))),
  );
}

// --- one turn of both

function pair(sides, turns, at) {
  const [base, next] = turns.map((turn) => turn || NO_TURN);
  const said = (who, key, name) => sides.map((side, i) => turns[i] && message(side, who, name, turns[i][key] || "", turns[1 - i] && (turns[1 - i][key] || "")));
  const scores = sides.map(({ conversation }, i) => turns[i] && conversation.evaluation.turnEvaluations.find((each) => each.turnIndex === turns[i].turnIndex));
  const rows = [
    said("user", "userMessage", "User"),
    ...calls(sides, base.toolCalls, next.toolCalls),
    said("agent", "agentMessage", "Agent"),
    sides.map((side, i) => scores[i] && cell(side, turnScores(scores[i], side.scenario, side.conversation.labelledFailures.filter((each) => each.turnIndex === scores[i].turnIndex)))),
  ];
  const cells = rows.filter((row) => row.some(Boolean)).map((row) => row.map((each) => each || h("div", { class: "none" })));
  const index = (turns[0] || turns[1]).turnIndex;
  const only = turns.findIndex((turn) => !turn);
  return h(
    "li",
    { tabindex: "-1", data: { step: "" }, "aria-labelledby": `pair-${at}` },
    h("h2", { id: `pair-${at}` }, `Turn ${index}`, only >= 0 && `, only in ${NAMES[1 - only]}`),
    h("div", { class: "pair" }, cells),
    differing(scores.map((each) => each && each.metrics)),
  );
}

function cell(side, ...content) {
  return h("div", {}, content[0] && h("div", { class: "who" }, side.name), content);
}

// What one says, with the words marked that the other does not say.
function message(side, who, name, text, other) {
  const props = { class: `message ${who}` };
  const shown = other === undefined ? longText(text, "p", props) : marked(text, other, side.name === "base" ? "del" : "ins", props);
  return h("div", {}, h("div", { class: "who" }, `${name}, ${side.name}`), shown);
}

// Rows of calls: those of the same name stand side by side, in their order.
function calls(sides, base, next) {
  return aligned(base.map((call) => call.name), next.map((call) => call.name)).map(([b, n]) => {
    const both = [base[b], next[n]];
    return both.map((call, i) => call && oneCall(sides[i], call, both[1 - i]));
  });
}

function oneCall(side, call, other) {
  const item = callItem(call, { row: other && otherwise(call, other) });
  if (!other) append(item, [h("strong", { class: "mark extra" }, `${side.name === "base" ? "−" : "+"} only in ${side.name}`)]);
  return h("div", {}, h("div", { class: "who" }, `Call, ${side.name}`), h("ul", { class: "plain calls" }, item));
}

function otherwise(call, other) {
  const [mine, its] = [call.args, other.args].map((args) => (args && typeof args === "object" ? args : null));
  const differ = (a, b) => JSON.stringify(a) !== JSON.stringify(b);
  const keys = mine && its && [...new Set([...Object.keys(mine), ...Object.keys(its)])].filter((key) => differ(mine[key], its[key]));
  const args = keys ? keys.filter((key) => key in mine).map((key) => argumentsText({ [key]: mine[key] })).join(", ") || "fewer arguments" : callText(call);
  const found = [(keys ? keys.length : differ(call.args, other.args)) && `here ${args}`, differ([call.result, call.error], [other.result, other.error]) && "another answer"].filter(Boolean);
  return found.length ? { status: "different", difference: short(found.join("; ")) } : undefined;
}

// --- scores

function wholeMetrics({ evaluation }) {
  return { ...(evaluation.goalCompletion ? { goal_completion: evaluation.goalCompletion } : {}), ...evaluation.conversationMetrics };
}

function differing([base, next]) {
  const value = (score) => (score && score.value !== undefined ? decimal(score.value) : "no score");
  const names = Object.keys({ ...base, ...next }).filter((name) => base && next && value(base[name]) !== value(next[name]));
  const step = (name) => {
    const by = next[name] && base[name] && next[name].value - base[name].value;
    return `${name}: ${value(base[name])} → ${value(next[name])}${Number.isFinite(by) ? ` (${by > 0 ? "+" : ""}${decimal(by)})` : ""}`;
  };
  return names.length > 0 && h("ul", { class: "plain", "aria-label": "Scores that differ" }, names.map((name) => h("li", {}, "≠ ", foreign(short(step(name))))));
}
