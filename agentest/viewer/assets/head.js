// The head of a conversation: what it is, whether it held, and why not, before anything else.

import { address } from "./address.js";
import { foreign, h } from "./dom.js";
import { bounded } from "./folding.js";
import { count, duration } from "./format.js";
import { badge, copyButton, disclosure, facts, longText } from "./parts.js";

const ENDINGS = {
  satisfied: "the user was done",
  refused: "the user was refused",
  "gave up": "the user gave up",
  "handed over": "the user was handed over",
  closed: "the agent closed the chat",
  "cannot provide": "the user could not give what was asked for",
  "max turns": "stopped at max_turns",
  script: "the script was finished",
  error: "ended by an error",
};
const MOST_TO_CHOOSE = 500;

export function title(params, scenario) {
  return [
    h("p", { class: "crumbs" }, h("a", { href: address("run", { of: params.of }) }, "← Run"), " ", foreign(`${scenario.file}:${scenario.line}`, "code"), scenario.agent && [" with agent ", foreign(scenario.agent)]),
    h("h1", {}, foreign(scenario.name), " ", badge(scenario.status)),
    scenario.tags.length > 0 && h("p", { class: "row" }, scenario.tags.map((tag) => foreign(tag, "span", { class: "tag" }))),
  ];
}

// Which conversation of how many, and the way to the others.
export function others(found, row, status, { toRow, beside }) {
  const rows = found.conversations;
  const at = rows.indexOf(row);
  const step = (by, words, key) => h("button", { type: "button", onclick: () => beside(by), "aria-keyshortcuts": key }, words);
  const option = (each, place) => h("option", { value: String(place), selected: place === at }, `${each.conversationId} ${each.passed ? "✓" : "✗"}`);
  const choose = (event) => toRow(rows[Number(event.target.value)]);
  const list = rows.length > 1 && rows.length <= MOST_TO_CHOOSE && h("select", { "aria-label": "Conversation", onchange: choose }, rows.map(option));
  return h("nav", { class: "row no-print", "aria-label": "Conversations" }, step(-1, "← Previous", "p"), h("span", {}, `Conversation ${at + 1} of ${rows.length}: `, badge(status)), list, step(1, "Next →", "n"));
}

// What speaks against the conversation, and what the scenario as a whole failed for.
export function why(found, troubles, status, turnLink) {
  const { scenario } = found;
  const whole = scenario.reasons ? scenario.reasons.filter((each) => !each.conversationId).map((each) => each.message) : scenario.failures;
  const mine = troubles.length > 0 && bounded(h("ul", { class: "why" }), troubles.length, (at) => trouble(troubles[at], turnLink), { step: 12, noun: "reason" });
  const rest = whole.length > 0 && h("ul", {}, whole.map((message) => h("li", {}, longText(message, "span"))));
  if (!mine && !rest) return null;
  const name = status === "passed" ? (mine ? "What to look at" : "This conversation holds; its scenario does not") : "Why it did not pass";
  return h("section", { class: `why-box ${status === "passed" ? "" : "not-passed"}` }, h("h2", {}, name), mine, mine && rest ? disclosure(`Of the scenario as a whole: ${count(whole.length, "reason")}`, rest) : rest);
}

function trouble(each, turnLink) {
  const where = each.turn !== null && each.turn !== undefined && [turnLink(each.turn, `turn ${each.turn}`), ": "];
  return h("li", {}, where, h("strong", {}, foreign(each.what)), ": ", longText(each.text, "span"));
}

export function about(found, row, conversation) {
  const { scenario } = found;
  const time = conversation && conversation.time;
  const ending = ENDINGS[row.endedBy];
  return facts([
    ["Ended", ending || foreign(row.endedBy)],
    ["Goal", scenario.goal && longText(scenario.goal, "span")],
    ["User", scenario.profile && longText(scenario.profile, "span")],
    ["Length", `${count(row.turns, "turn")}, ${count(row.toolCalls, "tool call")}${time && time.totalMs ? `, ${duration(time.totalMs)}` : ""}`],
    ["Case", scenario.evalId && foreign(`${scenario.evalSetId}: ${scenario.evalId}`)],
  ]);
}

// What can be taken along: the command, the script, the link.
export function toTake(found, opened, here) {
  return h(
    "div",
    { class: "row no-print" },
    found.command && [foreign(found.command, "code", { class: "command" }), copyButton(found.command, "Copy command")],
    opened && opened.script && copyButton(opened.script, "Copy as scripted scenario"),
    copyButton(here, "Copy link"),
  );
}
