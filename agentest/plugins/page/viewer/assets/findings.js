// What an exploration found: how often it happens, what was changed, and the smallest conversation.

import { foreign, h } from "./dom.js";
import { count, percent, turnName } from "./format.js";
import { badge, copyButton } from "./parts.js";

export function findings({ head }) {
  const found = (head && head.findings) || [];
  return found.length > 0 && [h("h2", "Findings ", h("span.quiet", found.length)), h("ol.causes", found.map(finding))];
}

function finding({ id, title, severity, status, rate, fault, injection, mutation, attack, scenario, file, text, hint, transcript }) {
  const often = rate && `fails in ${rate.k} of ${count(rate.n, "conversation")} (${percent(rate.low)}–${percent(rate.high)})`;
  const facts = [status, often, fault || injection || mutation || attack, scenario, file].filter(Boolean).join(" · ");
  const said = (turn) => [
    h("dt", turnName(turn.turnIndex)),
    h("dd", foreign(turn.userMessage)),
    turn.toolCalls.map(({ name, args, result }) => h("dd", foreign(`${name}(${JSON.stringify(args)}) → ${result === String(result) ? result : JSON.stringify(result)}`, "code"))),
    h("dd", foreign(turn.agentMessage)),
  ];
  const turns = transcript && h("details", h("summary", "The smallest conversation"), h("dl", transcript.turns.map(said)));
  const more = [h("p", foreign(text)), h("p.quiet.small", foreign(facts)), h("p.small", hint), turns];
  return h("li", badge(severity), h("div", h("strong", foreign(title)), more), copyButton(`agentest explore --replay ${id}`, "Copy replay"));
}
