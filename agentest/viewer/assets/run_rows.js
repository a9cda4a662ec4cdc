// Rows of the Run view: a scenario, or a scenario with several agents, and what is unfolded below it.

import { address, read } from "./address.js";
import { append, fill, foreign, h } from "./dom.js";
import { cost, count, decimal, duration, figure } from "./format.js";
import { thin } from "./run_filters.js";
import { badge, problem } from "./parts.js";
import { source } from "./source.js";

const SHOWN_CONVERSATIONS = 50;
const SHOWN_FAILURES = 20;

export const keyOf = (row) => JSON.stringify([row.name, row.agent]);

export function conversationAddress(row, more = {}) {
  return address("conversation", { of: read().params.of, scenario: row.name, agent: row.agent, ...more });
}

// `unfolded`: keys → what is shown of them; `turn(item)` unfolds and folds; `opened(key)` is told of what is opened.
export function rowMaker({ span, agents, unfolded, turn, opened }) {
  function scenario(row) {
    const key = keyOf(row);
    const line = h(
      "tr",
      { class: row.status },
      h("td", { class: "state" }, folder(row, key), status(row)),
      h("th", { scope: "row" }, name(row, key), about(row), failure(row)),
      agents > 1 && h("td", {}, foreign(row.agent)),
      h("td", { class: "number" }, passed(row)),
      h("td", { class: "number wide" }, duration(row.durationMs)),
      h("td", { class: "number wide" }, row.cost === null ? "unknown" : row.cost ? cost(row.cost) : "–"),
    );
    return [line, ...below(key)];
  }

  function group(item) {
    const cells = item.agents.map((row) => h("td", {}, row ? cell(row) : h("span", { class: "quiet" }, "not run")));
    const first = item.agents.find(Boolean);
    return [h("tr", {}, h("th", { scope: "row" }, folder(item, item.key), " ", foreign(item.name || "(no name)"), about(first)), cells), ...below(item.key)];
  }

  function cell(row) {
    return [h("div", {}, row.conversations ? link(row, keyOf(row), status(row)[0]) : status(row)[0], status(row).slice(1), " ", passed(row)), failure(row)];
  }

  function link(row, key, content) {
    const more = { href: conversationAddress(row), data: { step: "", key }, onclick: () => opened(key) };
    return h("a", more, content);
  }

  function name(row, key) {
    const text = foreign(row.name || "(no name)");
    if (row.conversations) return link(row, key, text);
    return h("button", { type: "button", class: "link name", data: { step: "", key }, onclick: () => turn(row) }, text);
  }

  function folder(item, key) {
    const open = unfolded.has(key);
    const label = `Details of ${item.name}`.slice(0, 120);
    return h("button", { type: "button", class: "plain fold", "aria-expanded": String(open), "aria-label": label, data: { key: `fold ${key}` }, onclick: () => turn(item) }, open ? "▾" : "▸");
  }

  function below(key) {
    return unfolded.has(key) ? [h("tr", { class: "below" }, h("td", { colspan: span }, unfolded.get(key)))] : [];
  }

  return { scenario, group };
}

function status(row) {
  const shown = row.unfinished ? badge("interrupted", "unfinished") : badge(row.status);
  return [shown, row.flaky && [" ", badge("medium", "flaky")], thin(row) && [" ", badge("medium", "close")]];
}

function about(row) {
  const tags = row.tags.slice(0, 8).map((tag) => [" ", foreign(tag, "span", { class: "tag" })]);
  const place = row.evalId ? `${row.evalSetId}:${row.evalId}` : `${row.file}:${row.line}`;
  return h("div", { class: "quiet small" }, foreign(place), tags, row.tags.length > 8 && ` and ${row.tags.length - 8} more tags`);
}

function failure(row) {
  if (row.failure) return h("div", { class: "why" }, foreign(row.failure), row.failures > 1 && h("span", { class: "quiet" }, ` and ${count(row.failures - 1, "more reason")}`));
  return row.warnings ? h("div", { class: "why" }, count(row.warnings, "warning")) : null;
}

function passed(row) {
  const planned = row.planned > row.conversations ? row.planned : row.conversations;
  const rate = row.passRate && row.passRate.n > 1 && row.passRate;
  return [`${row.passed}/${planned}`, rate && h("div", { class: "quiet small" }, figure(rate, true))];
}

// --- what is unfolded

// Asked of the source when it is unfolded, and no sooner.
export function details(rows) {
  const place = h("div", {}, "…");
  Promise.all(rows.map(one)).then(
    (parts) => fill(place, parts),
    (error) => fill(place, problem(error.message)),
  );
  return place;
}

async function one(row) {
  const found = await source().scenario(row.name, row.agent);
  if (!found) return h("p", {}, "Nothing is known of it yet.");
  const all = [...found.conversations].sort((a, b) => a.passed - b.passed);
  return [row.several && h("h3", {}, foreign(row.agent)), reasons(found.scenario), averages(found.scenario), all.length > 0 && conversations(row, all)];
}

function reasons(scenario) {
  const all = [...scenario.failures, ...(scenario.warnings || []).map((warning) => `Warning: ${typeof warning === "string" ? warning : warning.message}`)];
  const left = all.length - SHOWN_FAILURES;
  return all.length > 0 && h("ul", {}, all.slice(0, SHOWN_FAILURES).map((text) => foreign(text, "li")), left > 0 && h("li", {}, `${left} more`));
}

function averages(scenario) {
  const all = Object.entries(scenario.averages);
  if (!all.length) return null;
  return h("p", { class: "small" }, all.map(([metric, value], at) => {
    const least = scenario.thresholds[metric];
    const known = (scenario.intervals || {})[metric] || { value };
    const limit = least === undefined ? "" : value < least ? ` ✗ below ${decimal(least)}` : ` (at least ${decimal(least)})`;
    return [at > 0 && " · ", foreign(metric), ` ${figure(known)}${limit}`];
  }));
}

function conversations(row, all) {
  const body = h("tbody", {});
  const more = h("button", { type: "button", class: "small", onclick: add });
  let shown = 0;
  function add() {
    append(body, all.slice(shown, shown + SHOWN_CONVERSATIONS).map((each) => conversation(row, each)));
    shown = Math.min(all.length, shown + SHOWN_CONVERSATIONS);
    more.textContent = `Show more (${(all.length - shown).toLocaleString("en")} left)`;
    more.hidden = shown === all.length;
  }
  add();
  const head = ["Conversation", "Turns", "Agent's time"].map((text) => h("th", { scope: "col" }, text));
  return h("div", { class: "scroll" }, h("table", {}, h("thead", {}, h("tr", {}, head)), body), more);
}

function conversation(row, each) {
  const state = each.invalid || each.errorSource ? "errored" : each.passed ? "passed" : "failed";
  const to = conversationAddress(row, { id: each.conversationId, turn: each.broke });
  const broke = each.broke === null ? "" : `turn ${each.broke}: `;
  return h(
    "tr",
    {},
    h("th", { scope: "row" }, badge(state), " ", h("a", { href: to, data: { step: "" } }, foreign(each.conversationId)), h("div", { class: "quiet small" }, foreign(each.first)), (each.why || each.invalid) && h("div", { class: "why" }, broke, foreign(each.why || each.invalid))),
    h("td", { class: "number" }, each.turns),
    h("td", { class: "number" }, duration(each.agentMs)),
  );
}
