// Expected and actual tool calls side by side, as the matching of the verdict has paired them.

import { callText, mark, short } from "./calls.js";
import { foreign, h } from "./dom.js";
import { bounded, folded } from "./folding.js";
import { count } from "./format.js";
import { facts } from "./parts.js";
import { summaryOf } from "./troubles.js";

const MODES = { in_order: "in this order", strict: "exactly these", contains: "at least these", unordered: "these in any order", within: "none but these" };

// `calls` are those that the trajectory looked at; `link(position, content)` leads to the call; `isTold`: what is
// wrong stands above already.
export function comparison(trajectory, calls, link, { title = "Expected and actual calls", isTold = false } = {}) {
  const words = trajectory.matched === true ? "✓ as expected" : trajectory.matched === false ? "✗ differ" : "? cannot be told";
  const class_ = `comparison ${trajectory.matched === true ? "held" : "not-held"}`;
  return folded([`${title}: `, h("strong", {}, words)], () => content(trajectory, calls, link, isTold), { class: class_, open: trajectory.matched !== true });
}

// Row of the alignment by position of its call.
export function rowsByCall(trajectory) {
  const rows = (trajectory && trajectory.alignment) || [];
  return new Map(rows.filter((row) => row.call !== null && row.call !== undefined).map((row) => [row.call, row]));
}

function content(trajectory, calls, link, isTold) {
  return [
    (!isTold || trajectory.matched === true) && h("p", {}, foreign(summaryOf(trajectory))),
    trajectory.vacuous && h("p", { class: "notice" }, "This held only because no call of the agent was seen in the whole run."),
    trajectory.error && trajectory.error !== summaryOf(trajectory) && h("p", { class: "notice" }, foreign(trajectory.error)),
    trajectory.alignment && trajectory.alignment.length ? table(trajectory, calls, link) : sides(trajectory),
  ];
}

function table(trajectory, calls, link) {
  const rows = trajectory.alignment;
  const body = h("tbody", {});
  const head = ["", `Expected (${MODES[trajectory.mode] || trajectory.mode || "no calls by name"})`, "Actual"];
  const shown = h(
    "table",
    { class: "aligned stacked" },
    h("thead", {}, h("tr", {}, head.map((text) => h(text ? "th" : "td", { scope: text && "col" }, text)))),
    body,
  );
  const scroll = h("div", { class: "scroll", tabindex: "0", role: "group", "aria-label": "Expected and actual calls" }, shown);
  const more = bounded(body, rows.length, (at) => line(rows[at], calls, link), { step: 60, shown: scroll });
  const left = trajectory.alignmentMore || trajectory.alignmentOmitted || 0;
  return [more, left > 0 && h("p", { class: "quiet" }, `${count(left, "more row")} of which nothing is wrong are not kept.`)];
}

function line(row, calls, link) {
  const made = row.call === null || row.call === undefined ? null : calls[row.call];
  const none = (words) => h("span", { class: "quiet" }, words);
  return h(
    "tr",
    { class: row.status },
    h("th", { scope: "row" }, mark(row.status)),
    h("td", { data: { head: "Expected" } }, row.expected === null || row.expected === undefined ? none("nothing") : foreign(row.expected, "code")),
    h("td", { data: { head: "Actual" } }, made ? link(row.call, foreign(short(callText(made)), "code")) : none("not made"), row.difference && h("div", { class: "difference" }, foreign(row.difference))),
  );
}

// Results of older versions have no rows, only both sides as text.
function sides(trajectory) {
  if (!trajectory.expected && !trajectory.actual && !trajectory.forbidden) return null;
  const text = (value) => value && foreign(value, "code");
  const expected = h("div", {}, h("div", { class: "label" }, `Expected (${MODES[trajectory.mode] || trajectory.mode || ""})`), text(trajectory.expected));
  const actual = h("div", {}, h("div", { class: "label" }, "Actual"), text(trajectory.actual));
  const lists = ["missing", "extra", "ordering", "forbidden"];
  const names = (kind) => (trajectory[`${kind}Calls`] || trajectory[`${kind}Issues`] || []).join(", ");
  return [
    h("div", { class: "columns" }, trajectory.expected && expected, actual),
    facts([...lists.map((kind) => [kind, names(kind) && foreign(names(kind))]), ["forbidden are", text(trajectory.forbidden)]]),
  ];
}
