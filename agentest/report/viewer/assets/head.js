// The head of a conversation: what it is, whether it held, and why not, before anything else.

import { address } from "./address.js";
import { short } from "./calls.js";
import { foreign, h } from "./dom.js";
import { bounded, list } from "./folding.js";
import { count, duration, turnName } from "./format.js";
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

// The verdict in one line, which stays in sight above the transcript: what broke at the turn that is opened, or first.
export function verdictLine({ troubles, status, first, turnLink }) {
  const reason = troubles.find(({ turn }) => turn === first) || troubles[0];
  const mark = badge(status, { passed: "passed", failed: "failed" }[status] || status);
  if (!reason) return h("p.verdict-line", mark, status === "passed" && " Everything held.");
  const { turn, what, text, brief } = reason;
  const more = troubles.length - 1;
  return h(
    "p.verdict-line",
    { class: status },
    mark,
    h("strong.reason", foreign(short(brief || `${what}: ${text}`))),
    Number.isInteger(turn) && turnLink(turn),
    more > 0 && h("button.link", { type: "button", onclick: toReasons }, count(more, "more reason")),
  );
}

function toReasons() {
  const box = document.getElementById("why");
  box.focus({ preventScroll: true });
  box.scrollIntoView({ block: "start" });
}

// What speaks against the conversation, and what the scenario as a whole failed for.
export function why({ scenario: { reasons, failures }, troubles, status, turnLink }) {
  const ofScenario = (each) => !each.conversationId;
  const whole = reasons ? reasons.filter(ofScenario).map(({ message }) => message) : failures;
  if (!troubles.length && !whole.length) return null;
  const mine = ({ turn, what, text }) => {
    const where = Number.isInteger(turn) && [turnLink(turn), ": "];
    return h("li", where, h("strong", foreign(what)), ": ", longText(text, "span"));
  };
  const rest = () => list(whole.map((message) => h("li", longText(message, "span"))));
  const held = troubles.length ? "What to look at" : "This conversation holds; its scenario does not";
  const words = `Of the scenario as a whole: ${count(whole.length, "reason")}`;
  return h(
    "section.panel.why-box",
    { class: status, id: "why", tabindex: "-1" },
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
