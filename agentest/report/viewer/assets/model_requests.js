// The requests to its model that an agent made for one turn, as a waterfall: what was new in each prompt, what
// the model answered, and which calls the gateway answered itself.

import { foreign, h } from "./dom.js";
import { bounded, folded, list } from "./folding.js";
import { count, duration } from "./format.js";
import { facts, longText, timeBar } from "./parts.js";

export function modelRequests({ modelRequests: requests = [], modelMs }) {
  if (!requests.length) return null;
  const bar = timeBar(requests.map(({ beginMs, latencyMs }) => [beginMs, latencyMs]));
  const item = (at) => h("li", folded("details", words(requests[at]), () => content(requests[at])), bar(at));
  const failed = requests.filter(({ error }) => error).length;
  const inside = requests.filter(answeredInside).length;
  const summary = [
    `Model: ${count(requests.length, "request")}, ${duration(modelMs)}`,
    inside > 0 && `, ${inside} answered inside`,
    failed > 0 && `, ✗ ${failed} failed`,
  ];
  const make = () => bounded(h("ul.plain.spans"), requests.length, item, { noun: "request" });
  return folded("details.box", summary, make);
}

function answeredInside({ calls = [] }) {
  return calls.some((call) => call.answeredInside);
}

function words(request) {
  const { model, latencyMs, round, error, calls = [], answer = "", usage } = request;
  const [first] = answer.split("\n", 1);
  const said = [first.slice(0, 100), ...calls.map(({ name }) => `→ ${name}`)].filter(Boolean).join(" ");
  const figures = [model, duration(latencyMs), tokens(usage)].filter(Boolean).join(" · ");
  return [
    error && h("strong.low", "✗ "),
    foreign(error ? error.slice(0, 100) : said || "(no text)"),
    " ",
    foreign(figures, "span.quiet"),
    round > 0 && [" ", h("span.tag", `round ${round}`)],
    answeredInside(request) && [" ", h("span.tag", "answered inside")],
  ];
}

function tokens({ promptTokens, completionTokens, cachedTokens }) {
  if (!promptTokens && !completionTokens) return "";
  const cached = cachedTokens > 0 ? ` (${cachedTokens.toLocaleString("en")} cached)` : "";
  return `${promptTokens.toLocaleString("en")}${cached} → ${count(completionTokens, "token")}`;
}

function content({ prompt, promptMore, answer, calls = [], status, error, round, usage }) {
  const message = ({ role, text }) => h("li", h("span.who", foreign(role), ": "), longText(text, "pre"));
  const more = promptMore > 0 && h("p.quiet", `${count(promptMore, "new message")} before these`);
  const made = ({ name, args, answeredInside: inside }) =>
    h("li", "→ ", foreign(`${name} ${args}`, "code"), inside && [" ", h("span.tag", "answered inside")]);
  return facts([
    ["Sent by", round > 0 ? "the gateway, with results of mocked calls" : "the agent"],
    ["New in the prompt", prompt.length > 0 ? [more, list(prompt.map(message))] : "nothing"],
    ["Answer", answer && longText(answer, "pre")],
    ["Calls", calls.length > 0 ? list(calls.map(made)) : ""],
    ["Tokens", tokens(usage)],
    ["Status", status],
    ["Error", error && longText(error, "pre")],
  ]);
}
