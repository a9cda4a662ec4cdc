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

export function title({ of }, { file, line, agent, name, status, tags }) {
  const where = [foreign(`${file}:${line}`, "code"), agent && [" with agent ", foreign(agent)]];
  const marks = tags.map((tag) => [foreign(tag, "span", { class: "tag" }), " "]);
  return [
    h("p", { class: "quiet" }, h("a", { href: address("run", { of }) }, "← Run"), " ", where, " ", marks),
    h("h1", {}, foreign(name), " ", badge(status)),
  ];
}

// Which conversation of how many, and the way to the others.
export function others({ conversations }, row, status, beside) {
  const step = (by, words) => h("button", { type: "button", onclick: () => beside(by) }, words);
  const words = `Conversation ${conversations.indexOf(row) + 1} of ${conversations.length}: `;
  const parts = [step(-1, "← Previous"), h("span", {}, words, badge(status)), step(1, "Next →")];
  return h("nav", { class: "row no-print", "aria-label": "Conversations" }, parts);
}

// What speaks against the conversation, and what the scenario as a whole failed for.
export function why({ scenario }, troubles, status, turnLink) {
  const mine = (at) => trouble(troubles[at], turnLink);
  const whole = (scenario.reasons || []).filter((each) => !each.conversationId).map((each) => each.message);
  const messages = scenario.reasons ? whole : scenario.failures;
  if (!troubles.length && !messages.length) return null;
  const rest = h(
    "ul",
    { class: "plain" },
    messages.map((message) => h("li", {}, longText(message, "span"))),
  );
  const held = troubles.length ? "What to look at" : "This conversation holds; its scenario does not";
  return h(
    "section",
    { class: `panel why-box ${status}` },
    h("h2", {}, status === "passed" ? held : "Why it did not pass"),
    bounded(h("ul", { class: "plain" }), troubles.length, mine, { step: 12, noun: "reason" }),
    messages.length > 0 &&
      disclosure(`Of the scenario as a whole: ${count(messages.length, "reason")}`, rest, !troubles.length),
  );
}

function trouble({ turn, what, text }, turnLink) {
  const where = Number.isInteger(turn) && [turnLink(turn, `turn ${turn}`), ": "];
  return h("li", {}, where, h("strong", {}, foreign(what)), ": ", longText(text, "span"));
}

export function about({ scenario }, { endedBy, turns, toolCalls, totalMs }) {
  const { goal, profile, evalId, evalSetId } = scenario;
  const length = [count(turns, "turn"), count(toolCalls, "tool call"), totalMs > 0 && duration(totalMs)];
  return facts([
    ["Ended", ENDINGS[endedBy] || foreign(endedBy)],
    ["Goal", goal && longText(goal, "span")],
    ["User", profile && longText(profile, "span")],
    ["Length", length.filter(Boolean).join(", ")],
    ["Case", evalId && foreign(`${evalSetId}: ${evalId}`)],
  ]);
}

// What can be taken along: the command, the script, the link.
export function toTake(command, script, here) {
  return h(
    "div",
    { class: "row no-print" },
    command && [foreign(command, "code"), copyButton(command, "Copy command")],
    script && copyButton(script, "Copy as scripted scenario"),
    copyButton(here, "Copy link"),
  );
}
