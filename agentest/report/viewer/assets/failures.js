// Failures by their cause: in the Run view, and beside a conversation, where all scenarios follow.

import { address, read } from "./address.js";
import { fill, foreign, h } from "./dom.js";
import { bounded, folded } from "./folding.js";
import { count, turnName } from "./format.js";
import { badge, wordSearch } from "./parts.js";
import { NO_CAUSE, conversationAddress, kinds, sorted, withoutCause } from "./run_list.js";

const CAUSES_SHOWN = 5;

export function causes({ causes: found, scenarios }) {
  const others = scenarios.filter(withoutCause);
  const all = [...found.map((each) => () => causeEntry(each)), ...(others.length ? [() => otherEntry(others)] : [])];
  if (!all.length) return null;
  const list = h("ol.causes");
  const title = h("h2", "Failures by cause ", h("span.quiet", String(all.length)));
  return h("section", { "aria-label": "Failures by cause" }, title, bounded(list, all.length, (at) => all[at](), { step: CAUSES_SHOWN, noun: "cause" }));
}

// A cause: how many conversations it has, its title, which opens the first of them, and all its places.
function causeEntry({ id, kind, title, severity, scenarios, conversations, example, places }) {
  const { scenario: name, agent, conversationId, turnIndex, text } = example;
  const times = conversations || scenarios;
  const where = conversations ? `${count(conversations, "conversation")} in ${count(scenarios, "scenario")}` : count(scenarios, "scenario");
  const letters = (words) => words.replace(/\W/g, "");
  const more = text && letters(text) !== letters(title) && h("p.quiet", foreign(text));
  const made = () => [
    h("ul.places", places.map(causePlace)),
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
function otherEntry(rows) {
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

function causePlace({ scenario: name, agent, conversations, conversationId, turnIndex }) {
  const turn = Number.isInteger(turnIndex) && `, ${turnName(turnIndex)}`;
  const link = h("a", { href: placeAddress({ name, agent, conversationId, turnIndex }) }, foreign(name), turn);
  return h("li", link, conversations > 1 && ` ×${conversations}`);
}

const MARKS = { passed: "✓", failed: "✗", errored: "!", skipped: "–" };
const KINDS = ["failed", "errored", "flaky", "passed", "skipped", "unfinished", "running"];
const STEP = 50;

// What was chosen stays from one conversation to the next.
let chosen = { text: "", kind: "" };

export function navigator({ scenarios, causes }, params) {
  const rows = sorted(scenarios);
  const place = h("div");
  const search = wordSearch("Find", chosen.text, draw);
  const there = KINDS.map((kind) => [kind, rows.filter((row) => kinds(row).includes(kind)).length]).filter(([, number]) => number);
  const option = ([value, number]) => h("option", { value, selected: value === chosen.kind }, `${value} (${number.toLocaleString("en")})`);
  const select = h("select", { "aria-label": "Status", onchange: draw }, h("option", { value: "" }, "any status"), there.map(option));

  function draw() {
    chosen = { text: search.text(), kind: select.value };
    const fits = (row) => (!chosen.kind || kinds(row).includes(chosen.kind)) && search.fits([row.name, row.file, row.failure, ...row.tags].join("\n"));
    const kept = rows.filter(fits);
    const ids = new Set(kept.flatMap((row) => row.causes));
    const found = causes.filter((each) => ids.has(each.id) || (chosen.text && search.fits(each.title)));
    const others = kept.filter(withoutCause);
    const all = [...found.map((each) => () => cause(each, params)), ...(others.length ? [() => rest(others, params)] : [])];
    fill(
      place,
      all.length > 0 && [h("h2", "Failures by cause"), bounded(h("ul.plain"), all.length, (at) => all[at](), { step: 20, noun: "cause" })],
      h("h2", "Scenarios ", h("span.quiet.small", `${kept.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")}`)),
      bounded(h("ul.plain"), kept.length, (at) => scenario(kept[at], params), { step: STEP, noun: "scenario" }),
    );
  }

  draw();
  return [h("a", { href: address("run", { of: params.of }) }, "← Run"), h("div.row", { role: "search" }, search.element, select), place];
}

function cause({ title, kind, conversations, scenarios, places }, params) {
  const here = places.some((each) => each.scenario === params.scenario && each.agent === params.agent);
  const number = (conversations || scenarios).toLocaleString("en");
  const made = () => [
    h("ul.plain", places.map((each) => place(each, params))),
    scenarios > places.length && h("p.quiet.small", `and ${count(scenarios - places.length, "more scenario")}`),
  ];
  return h("li", folded("details", [h("strong", { class: kind === "errored" ? "cannot-tell" : "low" }, `${number} × `), foreign(title, "span", { class: "title" })], made, here));
}

function rest(rows, params) {
  const made = () => bounded(h("ul.plain"), rows.length, (at) => scenario(rows[at], params), { step: STEP, noun: "scenario" });
  return h("li", folded("details", [h("strong.low", `${rows.length.toLocaleString("en")} × `), "Other failures"], made));
}

function place({ scenario: name, agent, conversationId: id, turnIndex, conversations }, params) {
  const turn = Number.isInteger(turnIndex) ? turnIndex : "";
  const here = name === params.scenario && agent === params.agent && (!id || id === params.id);
  const to = address("conversation", { of: params.of, scenario: name, agent, id, turn });
  const where = [turn !== "" && turnName(turn), conversations > 1 && `×${conversations}`].filter(Boolean).join(" · ");
  return h("li", link(to, here, foreign(name)), where && h("span.quiet.small", ` ${where}`));
}

function scenario(row, params) {
  const here = row.name === params.scenario && row.agent === (params.agent || "");
  const to = address("conversation", { of: params.of, scenario: row.name, agent: row.agent });
  const mark = h("span", { class: row.status === "failed" ? "low" : row.status === "passed" ? "met" : "cannot-tell" }, MARKS[row.status] || "…", h("span.off-screen", row.status), " ");
  return h("li", mark, link(to, here, foreign(row.name || "(no name)")), row.conversations > 1 && h("span.quiet.small", ` ${row.passed}/${row.conversations}`));
}

function link(href, here, content) {
  return h("a", { href, data: { row: "" }, "aria-current": here && "true" }, content);
}
