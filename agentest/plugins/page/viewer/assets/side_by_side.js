// One scenario on both sides of a comparison: two conversations turn by turn, with what differs marked.

import { address, amend, note } from "./address.js";
import { callItem, isObject, short, valueText } from "./calls.js";
import { aligned, likeness, marked, wordsOf } from "./diff.js";
import { append, fill, foreign, h, visible } from "./dom.js";
import { bounded, list } from "./folding.js";
import { decimal, turnName } from "./format.js";
import { badge, problem } from "./parts.js";
import { turnScores, wholeScores } from "./scores.js";
import { source, there } from "./source.js";
import { allTurns, statusOf, troubles, wholeMetrics } from "./reasons.js";

const NAMES = ["base", "new"];
const MOST_REASONS = 5;
// How much the user's message, the calls and the reply say of whether two turns are the same.
const WEIGHTS = [0.5, 0.25, 0.25];

// `found`: the answer of source().compare; `back`: the address of its table.
export async function sideBySide(place, params, found, back, signal) {
  const { scenario: name, agent } = params;
  const wanted = (each) => each.name === name && (!agent || each.agent === agent);
  const row = found.comparison.scenarios.find(wanted);
  const head = [h("p", h("a", { href: back }, "← Comparison")), h("h1", foreign(name))];
  if (!row) return void fill(place, head, problem("This comparison has no such scenario."));
  const sides = await Promise.all(NAMES.map((side, at) => opened(side, row.sides[at], found, name)));
  choose(sides, params);
  if (signal.aborted) return;
  note(Object.fromEntries(sides.map((side) => [side.name[0], side.row && side.row.conversationId])));
  await Promise.all(sides.map(fetchSide));
  const turns = sides.map(({ conversation }) => (conversation ? allTurns(conversation) : []));
  const places = alignedTurns(...turns);
  const pairs = h("ul.plain.pairs");
  const whole = ({ conversation, scenario }) => conversation && wholeScores(conversation, scenario);
  fill(
    place,
    head,
    foreign(row.story, "p"),
    pair(sides.map(heading)),
    bounded(pairs, places.length, (at) => turn(sides, places[at].map((place, side) => turns[side][place])), { noun: "turn" }),
    h("h2", "The conversation as a whole"),
    pair(sides.map((side) => cell("Scores", side, whole(side)))),
    differing(sides.map(({ conversation }) => conversation && wholeMetrics(conversation))),
  );
}

function pair(...content) {
  return h("div.pair", content);
}

async function opened(name, agent, found, scenario) {
  const ofRuns = found.between === "runs";
  const run = ofRuns ? found[name] : found.of;
  const from = ofRuns ? await source().ofRun(run) : source();
  const held = agent !== null && from && (await there(from.scenario(scenario, agent)));
  return { name, agent, run, from, label: found[name], conversations: [], ...held };
}

// Those of the address; else the first that failed, of the new side before the base, and its counterpart.
function choose(sides, params) {
  const at = (fits) => sides.map((side) => side.conversations.findIndex((row) => fits(row, side)));
  const wanted = at((row, { name }) => row.conversationId === params[name[0]]);
  const failed = at((row) => !row.passed);
  const first = [wanted[1], wanted[0], failed[1], failed[0], 0].find((each) => each >= 0);
  for (const [i, side] of sides.entries()) {
    const { conversations } = side;
    side.row = conversations[wanted[i] >= 0 ? wanted[i] : Math.min(first, conversations.length - 1)];
  }
}

async function fetchSide(side) {
  const { from, row, scenario, agent } = side;
  const found = row && (await there(from.conversation(scenario.name, agent, row.conversationId)));
  side.conversation = found && found.conversation;
}

function heading({ name, label, agent, from, run, conversations, row, conversation, scenario }) {
  const title = h("h2", `${name}: `, foreign(label));
  const lacking =
    agent === null
      ? "does not have the scenario"
      : !from
        ? "has its transcripts not in this file; `agentest ui` shows both"
        : !row && "has no conversation";
  if (lacking) return h("div", title, problem(`This side ${lacking}.`));
  const { conversationId } = row;
  const option = ({ conversationId: id, passed }) =>
    h("option", { value: id, selected: id === conversationId }, `${visible(id)} ${passed ? "✓" : "✗"}`);
  const onchange = (event) => amend({ [name[0]]: event.target.value });
  const props = { id: `of-${name}`, "aria-label": `Conversation, ${name}`, onchange };
  const href = address("conversation", { of: run, scenario: scenario.name, agent, id: conversationId });
  const reasons = conversation ? troubles(conversation, scenario).slice(0, MOST_REASONS) : [];
  return h(
    "div",
    title,
    h(
      "p.row",
      h("select", props, conversations.map(option)),
      badge(statusOf(conversation || row, scenario)),
      h("a", { href }, "Whole conversation"),
    ),
    !conversation && problem("Its transcript is not here."),
    h("ul", reasons.map(({ what, text }) => foreign(short(`${what}: ${text}`), "li"))),
  );
}

// By what was said and called: a turn that only one side has stands alone, and the others stay beside their like. Turns
// that are nothing alike are still a pair where that moves no other.
function alignedTurns(base, next) {
  const parts = ({ userMessage, agentMessage, toolCalls }) =>
    [userMessage, toolCalls.map(({ name }) => name).join(" "), agentMessage].map(wordsOf);
  const [a, b] = [base.map(parts), next.map(parts)];
  return aligned(a, b, (left, right) => 0.05 + WEIGHTS.reduce((sum, weight, at) => sum + weight * likeness(left[at], right[at]), 0));
}

// One turn of both; undefined: that side has none.
function turn(sides, turns) {
  const names = [...new Set(turns.filter(Boolean).map((each) => turnName(each.turnIndex)))];
  const both = (name, make) =>
    sides.map((side, i) => (turns[i] ? cell(name, side, make(side, turns[i], turns[1 - i])) : h("div.none")));
  const text = (each, key) => each[key] || "";
  const said = (who, name, key) =>
    both(name, (side, mine, other = mine) =>
      marked(text(mine, key), text(other, key), tagOf(side), `p.message.${who}`),
    );
  const evaluated = ({ conversation }, mine) =>
    mine && conversation.evaluation.turnEvaluations.find((each) => each.turnIndex === mine.turnIndex);
  const scores = (side, mine) => evaluated(side, mine) && turnScores(side.conversation, side.scenario, mine.turnIndex);
  const metrics = (side, at) => (evaluated(side, turns[at]) || {}).metrics;
  const only = turns.findIndex((each) => !each);
  return h(
    "li",
    { tabindex: "-1", data: { step: "" } },
    h("h2", names.join(" beside "), only >= 0 && `, only in ${NAMES[1 - only]}`),
    pair(
      said("user", "User", "userMessage"),
      calls(sides, turns.map((each) => (each ? each.toolCalls : []))),
      said("agent", "Agent", "agentMessage"),
      both("Scores", scores),
    ),
    differing(sides.map(metrics)),
  );
}

function cell(name, side, content) {
  return h("div", content && h("div.who", `${name}, ${side.name}`), content);
}

function tagOf({ name }) {
  return name === "base" ? "del" : "ins";
}

// Calls of the same name stand side by side, in their order.
function calls(sides, both) {
  const names = both.map((all) => all.map((each) => each.name));
  const one = (places) => sides.map((side, i) => call(side, both[i][places[i]], both[1 - i][places[1 - i]]));
  return aligned(...names).map(one);
}

function call(side, mine, other) {
  if (!mine) return h("div.none");
  const item = callItem(mine, { row: other && otherwise(mine, other) });
  const only = `${side.name === "base" ? "−" : "+"} only in ${side.name}`;
  if (!other) append(item, [h("strong.mark.extra", only)]);
  return cell("Call", side, list(item));
}

function otherwise(mine, other) {
  const differ = (a, b) => JSON.stringify(a) !== JSON.stringify(b);
  const [left, right] = [mine, other].map(({ args }) => (isObject(args) ? args : {}));
  const keys = Object.keys({ ...left, ...right }).filter((key) => differ(left[key], right[key]));
  const text = (value) => (value === undefined ? "nothing" : short(valueText(value), 60));
  const changed = keys.map((key) => `${key}: ${text(left[key])}, not ${text(right[key])}`);
  const found = [
    differ(mine.args, other.args) && `arguments ${changed.join("; ")}`,
    differ([mine.result, mine.error], [other.result, other.error]) && "answer",
  ].filter(Boolean);
  return found.length ? { status: "different", difference: short(found.join("; ")) } : undefined;
}

function differing([base, next]) {
  if (!base || !next) return null;
  const value = (score) => (score && score.value !== undefined ? decimal(score.value) : "no score");
  const found = Object.keys({ ...base, ...next }).flatMap((name) => {
    const [was, is] = [value(base[name]), value(next[name])];
    const by = was === "no score" || is === "no score" ? NaN : Number(is) - Number(was);
    const change = Number.isNaN(by) ? "" : ` (${by > 0 ? "+" : ""}${decimal(by)})`;
    return was === is ? [] : [foreign(short(`≠ ${name}: ${was} → ${is}${change}`), "li")];
  });
  return found.length > 0 && h("ul.plain", { "aria-label": "Scores that differ" }, found);
}
