// Rows of the Run view: one for each scenario with an agent, and what is unfolded below it.

import { address, read } from "./address.js";
import { fill, foreign, h } from "./dom.js";
import { table } from "./folding.js";
import { cost, count, decimal, duration, figure, turnName } from "./format.js";
import { thin } from "./run_filters.js";
import { badge, problem } from "./parts.js";
import { source } from "./source.js";

const SHOWN = 20;
const cell = (content, kind) => h("td", { class: kind }, content);

export function conversationAddress(row, more = {}) {
  return address("conversation", { of: read().params.of, scenario: row.name, agent: row.agent, ...more });
}

// What sorts by it, title, class, and what a row has there.
export const COLUMNS = [
  ["status", "Status", "state narrow", status],
  ["name", "Scenario", ""],
  [null, "Agent", "narrow", (row) => foreign(row.agent)],
  ["passed", "Passed", "number narrow", passed],
  ["time", "Time", "number wide", (row) => duration(row.durationMs)],
  ["cost", "Cost", "number wide", (row) => (row.cost === null ? "unknown" : row.cost ? cost(row.cost) : "–")],
];

// The row of a scenario, and the one below it where it is unfolded; `unfolded`: keys → the rows below.
export function lines(row, columns, unfolded) {
  const key = JSON.stringify([row.name, row.agent]);
  const label = `Details of ${row.name}`.slice(0, 120);
  const fold = h("button.plain.fold", { type: "button", "aria-label": label, id: `fold ${key}`, onclick: turn });
  const text = foreign(row.name || "(no name)");
  const link = { href: conversationAddress(row), data: { step: "" }, id: key };
  const name = row.conversations
    ? h("a", link, text)
    : h("button.link.name", { ...link, href: null, type: "button", onclick: turn }, text);
  const cells = columns.map(([, title, kind, content]) =>
    title === "Scenario" ? h("th", { scope: "row" }, name, about(row)) : cell([title === "Status" && fold, content(row)], kind),
  );
  const line = h("tr", { class: row.status }, cells);

  function turn() {
    if (unfolded.has(key)) unfolded.get(key).remove();
    if (!unfolded.delete(key)) unfolded.set(key, h("tr.below", h("td", { colspan: columns.length })));
    draw();
    if (unfolded.has(key)) line.after(unfolded.get(key));
  }

  // Asks for the details of a scenario that has gone on since they were drawn.
  function draw() {
    const below = unfolded.get(key);
    fold.setAttribute("aria-expanded", String(!!below));
    fold.textContent = below ? "▾" : "▸";
    const stamp = `${row.status} ${row.conversations}`;
    if (!below || below.dataset.stamp === stamp) return;
    below.dataset.stamp = stamp;
    const show = (...parts) => fill(below.firstChild, parts);
    details(row, columns).then(show, (error) => show(problem(error.message)));
  }
  draw();
  return [line, unfolded.get(key)];
}

function status(row) {
  const shown = row.unfinished ? badge("interrupted", "unfinished") : badge(row.status);
  return [shown, row.flaky && [" ", badge("medium", "flaky")], thin(row) && [" ", badge("medium", "close")]];
}

function about(row) {
  const tags = row.tags.slice(0, 8).map((tag) => [" ", foreign(tag, "span.tag")]);
  const place = row.evalId ? `${row.evalSetId}:${row.evalId}` : `${row.file}:${row.line}`;
  const more = row.failures > 1 && h("span.quiet", ` and ${count(row.failures - 1, "more reason")}`);
  const why = row.failure ? [foreign(row.failure), more] : row.warnings > 0 && count(row.warnings, "warning");
  return [
    h("div.quiet.small", foreign(place), tags, row.tags.length > 8 && ` and ${row.tags.length - 8} more tags`),
    why && h("div.why", why),
  ];
}

function passed(row) {
  const rate = row.passRate && row.passRate.n > 1 && row.passRate;
  return [
    `${row.passed}/${Math.max(row.planned || 0, row.conversations)}`,
    rate && h("div.quiet.small", figure(rate, true)),
  ];
}

// --- what is unfolded

async function details(row, columns) {
  const found = await source().scenario(row.name, row.agent);
  if (!found) return h("p", "Nothing is known of it yet.");
  const all = [...found.conversations].sort((a, b) => a.passed - b.passed);
  const compare = address("compare", { of: read().params.of, scenario: row.name });
  const several = columns.some(([, title]) => title === "Agent");
  return [
    several && h("p", h("a", { href: compare }, "Compare the agents side by side")),
    reasons(found.scenario),
    averages(found.scenario),
    all.length > 0 && conversations(row, all),
  ];
}

function reasons({ failures, warnings = [], verdictWarnings = [] }) {
  const questions = verdictWarnings.map(({ code, message }) => `${code}: ${message}`);
  const told = questions.filter((text) => !failures.includes(text));
  const all = [...failures, ...[...warnings, ...told].map((text) => `Warning: ${text}`)];
  const left = all.length - SHOWN;
  return h("ul", all.slice(0, SHOWN).map((text) => foreign(text, "li")), left > 0 && h("li", `${left} more`));
}

function averages(scenario) {
  const said = ([metric, value], at) => {
    const least = scenario.thresholds[metric];
    const known = (scenario.intervals || {})[metric] || { value };
    const limit = least === undefined ? "" : value < least ? ` ✗ below ${decimal(least)}` : ` (at least ${decimal(least)})`;
    return [at > 0 && " · ", foreign(metric), ` ${figure(known)}${limit}`];
  };
  return h("p.small", Object.entries(scenario.averages).map(said));
}

function conversations(row, all) {
  const more = { step: 50, noun: "conversation" };
  return table("", ["Conversation", "Turns", "Agent's time"], all.length, (at) => conversation(row, all[at]), { more });
}

function conversation(row, each) {
  const state = each.invalid || each.errorSource ? "errored" : each.passed ? "passed" : "failed";
  const href = conversationAddress(row, { id: each.conversationId, turn: each.broke });
  const why = each.why || each.invalid;
  const broke = each.broke === null ? "" : `${turnName(each.broke)}: `;
  return h(
    "tr",
    h(
      "th",
      { scope: "row" },
      [badge(state), " ", h("a", { href, data: { step: "" } }, foreign(each.conversationId))],
      h("div.quiet.small", foreign(each.first)),
      why && h("div.why", broke, foreign(why)),
    ),
    cell(each.turns, "number"),
    cell(duration(each.agentMs), "number"),
  );
}
