// The scenarios of the Run view: which of them are listed and in which order, and the row of each.

import { address, read } from "./address.js";
import { fill, foreign, h } from "./dom.js";
import { table } from "./folding.js";
import { cost, count, decimal, duration, figure, grouped, turnName } from "./format.js";
import { badge, problem } from "./parts.js";
import { source } from "./source.js";

const STATUSES = ["failed", "errored", "flaky", "running", "unfinished", "passed", "skipped"];
const MENUS = { tag: "Tag", agent: "Agent", metric: "Failed on" };
const THIN = 0.05;
const MOST_CHOICES = 200;

// What a row counts as; some count twice.
export function kinds(row) {
  const kind = row.unfinished ? "unfinished" : row.status;
  return row.flaky ? [kind, "flaky"] : [kind];
}

// Whether it passed with an average that is hardly above its threshold.
function thin(row) {
  return row.status === "passed" && row.margin !== undefined && row.margin < THIN;
}

// The id that stands for no cause at all.
export const NO_CAUSE = "none";

function cause(row) {
  return row.causes.length || !hasFailed(row) ? row.causes : [NO_CAUSE];
}

// Whether a row did not pass for a reason of its own, and belongs to no cause.
export function withoutCause(row) {
  return cause(row)[0] === NO_CAUSE;
}

export function hasFailed(row) {
  return ["failed", "errored"].includes(row.status) && !row.unfinished;
}

// Facet → what a row has of it.
const VALUES = { status: kinds, tag: (row) => row.tags, agent: (row) => [row.agent], metric: (row) => row.metrics, cause };

function wanted(params, facet) {
  const text = params[facet] || "";
  return facet === "status" ? text.split(",").filter(Boolean) : text ? [text] : [];
}

const found = new WeakMap();

function words(row) {
  const all = [row.name, row.file, row.evalId || "", ...row.tags, row.failure];
  if (!found.has(row)) found.set(row, all.join("\n").toLowerCase());
  return found.get(row);
}

// The rows that fit, and how many there would be for each choice of a facet, the others being as they are.
export function chosen(rows, params) {
  const asked = (params.text || "").toLowerCase().split(/\s+/).filter(Boolean);
  const facets = Object.entries(VALUES).map(([name, of]) => ({ of, wanted: wanted(params, name), counts: new Map() }));
  const [status, tag, agent, metric, cause] = facets.map(({ counts }) => counts);
  const kept = rows.filter((row) => {
    if (!asked.every((word) => words(row).includes(word))) return false;
    const against = facets.filter((facet) => facet.wanted.length && !facet.of(row).some((each) => facet.wanted.includes(each)));
    const counted = against.length ? against : facets;
    if (against.length < 2) for (const { of, counts } of counted) for (const each of of(row)) counts.set(each, (counts.get(each) || 0) + 1);
    return !against.length;
  });
  return { kept, counts: { status, tag, agent, metric, cause } };
}

// --- order

// What needs eyes comes first.
function rank(row) {
  if (row.unfinished) return 3;
  if (row.status !== "passed") return { failed: 0, errored: 1, running: 2, skipped: 7 }[row.status] ?? 3;
  return row.flaky ? 3.5 : thin(row) ? 4 : row.warnings ? 5 : 6;
}

const share = (row) => (row.conversations ? row.passed / row.conversations : 0);
const MEASURES = {
  needs: (row) => rank(row) * 10 + share(row),
  name: (row) => row.name,
  status: rank,
  passed: share,
  time: (row) => row.durationMs,
  cost: (row) => row.cost ?? -1,
};
const collator = new Intl.Collator("en", { numeric: true });
const compare = (a, b) => (typeof a === "string" ? collator.compare(a, b) : a - b);

let before = {};

// Rows in order. What was sorted last is kept: one types into the filter, and the order stays.
export function sorted(rows, order = "needs") {
  if (before.rows === rows && before.order === order) return before.all;
  const measure = MEASURES[order.replace("-", "")] || MEASURES.needs;
  const of = new Map(rows.map((row) => [row, measure(row)]));
  const sign = order.startsWith("-") ? -1 : 1;
  before = { rows, order, all: [...rows].sort((a, b) => sign * compare(of.get(a), of.get(b))) };
  return before.all;
}

// --- what is chosen from; `change` is told what the address has to say then

export function facets(rows, counts, params, change) {
  const there = new Set(rows.flatMap(kinds));
  const boxes = STATUSES.filter((each) => there.has(each)).map((each) => box(each, counts.status, wanted(params, "status"), change));
  return [
    h("fieldset.row", h("legend.off-screen", "Status"), boxes),
    Object.keys(MENUS).map((facet) => menu(facet, counts[facet], params[facet] || "", change)),
  ];
}

function box(status, counts, on, change) {
  const others = on.filter((each) => each !== status);
  const onchange = () => change({ status: (input.checked ? [...others, status] : others).join(",") });
  const input = h("input", { type: "checkbox", checked: on.includes(status), id: `status-${status}`, onchange });
  return h("label", input, ` ${status} `, h("span.quiet", grouped(counts.get(status) || 0)));
}

function menu(facet, counts, now, change) {
  if (now && !counts.has(now)) counts.set(now, 0);
  if (counts.size < (facet === "agent" && !now ? 2 : 1)) return null;
  const all = [...counts].sort(([a, n], [b, m]) => (b === now) - (a === now) || m - n);
  const shown = all.slice(0, MOST_CHOICES).sort(([a], [b]) => collator.compare(a, b));
  const option = ([name, n]) => h("option", { value: name }, `${name.slice(0, 60)} (${grouped(n)})`);
  const left = all.length - shown.length;
  const more = left > 0 && h("option", { disabled: true }, `${grouped(left)} rarer ones: use Find`);
  const props = { "aria-label": MENUS[facet], id: facet, onchange: () => change({ [facet]: select.value }) };
  const select = h("select", props, h("option", { value: "" }, `${MENUS[facet]}: any`), shown.map(option), more);
  select.value = now;
  return select;
}

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
  const place = row.evalId ? `${row.evalSetId}:${row.evalId}` : [row.file, row.line].filter(Boolean).join(":");
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

function reasons({ failures, attack, warnings = [], verdictWarnings = [] }) {
  const share = attack && figure({ ...attack, value: attack.successes / attack.attempts }, true);
  const tried = attack ? [`Attack ${attack.strategy}: ${share} of ${count(attack.attempts, "attempt")} succeeded`] : [];
  const told = verdictWarnings.filter(({ code, message }) => !failures.includes(`${code}: ${message}`));
  const said = ({ code, message, note }) => `${note ? "Note" : "Warning"}: ${code}: ${message}`;
  const all = [...tried, ...failures, ...warnings.map((text) => `Warning: ${text}`), ...told.map(said)];
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
