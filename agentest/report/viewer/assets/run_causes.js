// Failures by their cause: what went wrong how often, and the way to each place.

import { address, read } from "./address.js";
import { foreign, h } from "./dom.js";
import { bounded, folded } from "./folding.js";
import { count, turnName } from "./format.js";
import { badge } from "./parts.js";
import { NO_CAUSE, withoutCause } from "./run_filters.js";
import { conversationAddress } from "./run_rows.js";

const SHOWN = 5;

export function causes({ causes: found, scenarios }) {
  const others = scenarios.filter(withoutCause);
  const all = [...found.map((each) => () => cause(each)), ...(others.length ? [() => rest(others)] : [])];
  if (!all.length) return null;
  const list = h("ol.causes");
  const title = h("h2", "Failures by cause ", h("span.quiet", String(all.length)));
  return h("section", { "aria-label": "Failures by cause" }, title, bounded(list, all.length, (at) => all[at](), { step: SHOWN, noun: "cause" }));
}

// A cause: how many conversations it has, its title, which opens the first of them, and all its places.
function cause({ id, kind, title, severity, scenarios, conversations, example, places }) {
  const { scenario: name, agent, conversationId, turnIndex, text } = example;
  const times = conversations || scenarios;
  const where = conversations ? `${count(conversations, "conversation")} in ${count(scenarios, "scenario")}` : count(scenarios, "scenario");
  const more = text && text !== title && h("p.quiet", foreign(text));
  const made = () => [
    h("ul.places", places.map(place)),
    scenarios > places.length && h("p", `and ${scenarios - places.length} more`),
  ];
  const only = h("a", { href: address("run", { of: read().params.of, cause: id }) }, "List only these scenarios");
  return entry(times, kind === "errored" ? "errored" : severity, [
    h("h3", h("a", { href: placeAddress({ name, agent, conversationId, turnIndex }), data: { step: "" } }, foreign(title))),
    more,
    h("div.row", folded("details", where, made), scenarios > 1 && only),
  ]);
}

// Scenarios that did not pass for a reason that belongs to no cause.
function rest(rows) {
  const href = address("run", { of: read().params.of, cause: NO_CAUSE });
  const link = h("a", { href, data: { step: "" } }, "Other failures");
  return entry(rows.length, "failed", [h("h3", link), h("p.quiet", count(rows.length, "scenario"))]);
}

function entry(times, kind, content) {
  return h("li", { class: kind }, h("span.times", `${times.toLocaleString("en")} ×`), h("div", content), badge(kind));
}

function placeAddress({ name, agent, conversationId: id, turnIndex }) {
  return conversationAddress({ name, agent }, id ? { id, turn: turnIndex ?? "" } : {});
}

function place({ scenario: name, agent, conversations, conversationId, turnIndex }) {
  const turn = Number.isInteger(turnIndex) && `, ${turnName(turnIndex)}`;
  const link = h("a", { href: placeAddress({ name, agent, conversationId, turnIndex }) }, foreign(name), turn);
  return h("li", link, conversations > 1 && ` ×${conversations}`);
}
