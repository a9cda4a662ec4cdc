// Failures by their cause: in the Run view, and beside a conversation, where all scenarios follow.

import { address } from "./address.js";
import { fill, foreign, h } from "./dom.js";
import { bounded, folded } from "./folding.js";
import { count, grouped, turnName } from "./format.js";
import { STATUS_MARKS, badge, wordSearch } from "./parts.js";
import { NO_CAUSE, conversationAddress, kinds, sorted, withoutCause } from "./run_list.js";

const CAUSES_SHOWN = 20;

// `counts`: cause → how many of the scenarios that are looked for have it.
export function causes(known, counts, { of, cause: chosen }) {
  const found = known.filter(({ id }) => counts.has(id));
  const entry = (id, kind, title, more, where) => {
    const here = id === chosen;
    const only = { href: address("run", { of, cause: here ? "" : id }), id: `only ${id}`, "aria-current": here && "true" };
    return h(
      "li",
      { class: here && "here" },
      h("div.row", h("a.only.small", only, here ? "List all scenarios" : where), badge(kind)),
      h("h3", title),
      more && h("p.quiet.small", more),
    );
  };
  const one = (each) => {
    const { id, kind, title, severity, scenarios, conversations, example, places } = each;
    const text = textOf(each);
    const more = [placeName({ ...example, ...places[0] }), text && [": ", foreign(text)]];
    const where = conversations ? `${count(conversations, "conversation")} in ${count(scenarios, "scenario")}` : count(scenarios, "scenario");
    const link = h("a", { href: placeAddress({ ...example, name: example.scenario }), id: `cause ${id}`, data: { step: "" } }, foreign(title));
    return entry(id, kind === "errored" ? "errored" : severity, link, more, where);
  };
  const all = found.map((each) => () => one(each));
  const left = counts.get(NO_CAUSE);
  if (left) all.push(() => entry(NO_CAUSE, "failed", h("a", { href: address("run", { of, cause: NO_CAUSE }), data: { step: "" } }, "Other failures"), "", count(left, "scenario")));
  return all.length
    ? [h("h2", "Failures by cause ", h("span.quiet", String(all.length))), bounded(h("ol.causes"), all.length, (at) => all[at](), { step: CAUSES_SHOWN, noun: "cause" })]
    : !document.querySelector(".found *") && h("p.quiet", known.length ? "No failure fits the filters." : ["Nothing failed. ", h("code", "agentest explore"), " tries more."]);
}

const letters = (words) => words.replace(/\W/g, "");

// What the example says beyond the title.
function textOf({ title, example: { text } }) {
  return text && letters(text) !== letters(title) && text;
}

// The conversations that failed for a cause, each with the turn that broke.
export function causePlaces(cause) {
  const { places, scenarios } = cause;
  const [text, left] = [textOf(cause), scenarios - places.length];
  return [text && foreign(text, "p.why"), h("ul.places", places.map(causePlace)), left > 0 && h("p.quiet", `and ${count(left, "more scenario")}`)];
}

function placeAddress({ name, agent, conversationId: id, turnIndex }) {
  return conversationAddress({ name, agent }, id ? { id, turn: turnIndex ?? "" } : {});
}

const placeName = ({ scenario: name, turnIndex }) => [foreign(name), Number.isInteger(turnIndex) && `, ${turnName(turnIndex)}`];

function causePlace(place) {
  const link = h("a", { href: placeAddress({ ...place, name: place.scenario }) }, placeName(place));
  return h("li", link, place.conversations > 1 && ` ×${place.conversations}`);
}

const KINDS = ["failed", "errored", "flaky", "passed", "skipped", "unfinished", "running"];
const STEP = 50;

// What was chosen stays from one conversation to the next.
let chosen = { text: "", kind: "" };

export function navigator({ scenarios, causes }, params) {
  const rows = sorted(scenarios);
  const place = h("div");
  const search = wordSearch("Find", chosen.text, draw);
  const there = KINDS.map((kind) => [kind, rows.filter((row) => kinds(row).includes(kind)).length]).filter(([, number]) => number);
  const option = ([value, number]) => h("option", { value, selected: value === chosen.kind }, `${value} (${grouped(number)})`);
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
      h("h2", "Scenarios ", h("span.quiet.small", `${grouped(kept.length)} of ${grouped(rows.length)}`)),
      bounded(h("ul.plain"), kept.length, (at) => scenario(kept[at], params), { step: STEP, noun: "scenario" }),
    );
  }

  draw();
  return [h("a", { href: address("run", { of: params.of }) }, "← Run"), h("div.row", { role: "search" }, search.element, select), place];
}

function cause({ title, kind, conversations, scenarios, places }, params) {
  const here = places.some((each) => each.scenario === params.scenario && each.agent === params.agent);
  const number = grouped(conversations || scenarios);
  const made = () => [
    h("ul.plain", places.map((each) => place(each, params))),
    scenarios > places.length && h("p.quiet.small", `and ${count(scenarios - places.length, "more scenario")}`),
  ];
  return h("li", folded("details", [h("strong", { class: kind === "errored" ? "cannot-tell" : "low" }, `${number} × `), foreign(title, "span", { class: "title" })], made, here));
}

function rest(rows, params) {
  const made = () => bounded(h("ul.plain"), rows.length, (at) => scenario(rows[at], params), { step: STEP, noun: "scenario" });
  return h("li", folded("details", [h("strong.low", `${grouped(rows.length)} × `), "Other failures"], made));
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
  const mark = h("span", { class: row.status === "failed" ? "low" : row.status === "passed" ? "met" : "cannot-tell" }, STATUS_MARKS[row.status] || "…", h("span.off-screen", row.status), " ");
  return h("li", mark, link(to, here, foreign(row.name || "(no name)")), row.conversations > 1 && h("span.quiet.small", ` ${row.passed}/${row.conversations}`));
}

function link(href, here, content) {
  return h("a", { href, data: { row: "" }, "aria-current": here && "true" }, content);
}
