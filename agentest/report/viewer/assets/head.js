// The head of a conversation: what it is, whether it held, and why not, before anything else.

import { address } from "./address.js";
import { foreign, h } from "./dom.js";
import { bounded, list } from "./folding.js";
import { count, duration } from "./format.js";
import { offered } from "./offers.js";
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
  return [
    h(
      "p.quiet",
      h("a", { href: address("run", { of }) }, "← Run"),
      " ",
      foreign(`${file}:${line}`, "code"),
      agent && [" with agent ", foreign(agent)],
      tags.map((tag) => [" ", foreign(tag, "span.tag")]),
    ),
    h("h1", foreign(name), " ", badge(status)),
  ];
}

// Which conversation of how many, and the way to the others.
export function others({ found: { conversations }, row, status }, beside) {
  const step = (by, words) => h("button", { type: "button", onclick: () => beside(by) }, words);
  const words = `Conversation ${conversations.indexOf(row) + 1} of ${conversations.length}: `;
  const parts = [step(-1, "← Previous"), h("span", words, badge(status)), step(1, "Next →")];
  return h("nav.row.no-print", { "aria-label": "Conversations" }, parts);
}

// What speaks against the conversation, and what the scenario as a whole failed for.
export function why({ scenario: { reasons, failures }, troubles, status, turnLink }) {
  const ofScenario = (each) => !each.conversationId;
  const whole = reasons ? reasons.filter(ofScenario).map(({ message }) => message) : failures;
  if (!troubles.length && !whole.length) return null;
  const mine = ({ turn, what, text }) => {
    const where = Number.isInteger(turn) && [turnLink(turn, `turn ${turn}`), ": "];
    return h("li", where, h("strong", foreign(what)), ": ", longText(text, "span"));
  };
  const rest = () => list(whole.map((message) => h("li", longText(message, "span"))));
  const held = troubles.length ? "What to look at" : "This conversation holds; its scenario does not";
  const words = `Of the scenario as a whole: ${count(whole.length, "reason")}`;
  return h(
    "section.panel.why-box",
    { class: status },
    h("h2", status === "passed" ? held : "Why it did not pass"),
    bounded(list(), troubles.length, (at) => mine(troubles[at]), { step: 12, noun: "reason" }),
    whole.length > 0 && disclosure(words, rest(), !troubles.length),
  );
}

export function about({ scenario, row }) {
  const { goal, profile, evalId, evalSetId } = scenario;
  const { endedBy, turns, toolCalls, totalMs } = row;
  const length = [count(turns, "turn"), count(toolCalls, "tool call"), duration(totalMs)];
  return facts([
    ["Ended", ENDINGS[endedBy] || foreign(endedBy)],
    ["Goal", goal && longText(goal, "span")],
    ["User", profile && longText(profile, "span")],
    ["Length", length.filter(Boolean).join(", ")],
    ["Case", evalId && foreign(`${evalSetId}: ${evalId}`)],
  ]);
}

// What can be taken along: the command, the script, the link; `save` puts it into a file of the project.
export function toTake({ scenario, found: { command }, opened, params, urlOf, save }) {
  return h(
    "div.row.no-print",
    opened && save && h("button.primary", { type: "button", onclick: save }, "Save as a case…"),
    command && [foreign(command, "code"), copyButton(command, "Copy command")],
    opened && opened.script && copyButton(opened.script, "Copy as scripted scenario"),
    opened && opened.noScript && h("span.quiet", "No scripted scenario: ", foreign(opened.noScript)),
    copyButton(() => urlOf(params.turn), "Copy link"),
    offered("conversation", scenario),
  );
}
