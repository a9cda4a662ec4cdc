// What an exploration found: how often it happens, what was changed, and the smallest conversation.

import { foreign, h } from "./dom.js";
import { count, percent, turnName } from "./format.js";
import { badge, copyButton } from "./parts.js";

export function findings({ head }) {
  const found = (head && head.findings) || [];
  return found.length > 0 && [h("h2", "Findings ", h("span.quiet", found.length)), h("ol.causes", found.map(finding))];
}

// A text as it is, because JSON shows its line breaks as \\n.
const shown = (result) => (typeof result === "string" ? result : JSON.stringify(result));

function finding({ id, title, severity, status, rate, fault, injection, mutation, attack, scenario, file, text, hint, transcript }) {
  const often = rate && `fails in ${rate.k} of ${count(rate.n, "conversation")} (${percent(rate.low)}–${percent(rate.high)})`;
  const facts = [status, often, fault || injection || mutation || attack, scenario, file].filter(Boolean).join(" · ");
  const said = (turn) => [
    h("dt", turnName(turn.turnIndex)),
    h("dd", foreign(turn.userMessage)),
    turn.toolCalls.map((call) => h("dd", foreign(`${call.name}(${JSON.stringify(call.args)}) → ${shown(call.result)}`, "code"))),
    h("dd", foreign(turn.agentMessage)),
  ];
  const turns = transcript && h("details", h("summary", "The smallest conversation"), h("dl", transcript.turns.map(said)));
  const more = [h("p", foreign(text)), h("p.quiet.small", foreign(facts)), h("p.small", hint), turns];
  return h("li", badge(severity), h("div", h("strong", foreign(title)), more), copyButton(`agentest explore --replay ${id}`, "Copy replay"));
}
