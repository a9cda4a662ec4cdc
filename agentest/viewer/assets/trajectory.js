// Expected and actual tool calls side by side, as the matching of the verdict has paired them.

import { callText, known, mark, short } from "./calls.js";
import { foreign, h } from "./dom.js";
import { folded, table } from "./folding.js";
import { count } from "./format.js";
import { facts } from "./parts.js";
import { summaryOf } from "./troubles.js";

const MODES = {
  in_order: "in this order",
  strict: "exactly these",
  contains: "at least these",
  unordered: "these in any order",
  within: "none but these",
};

// `calls` are those that the trajectory looked at; `link(position, content, call)` leads to one of them.
export function comparison(trajectory, calls, link, title = "Expected and actual calls") {
  const { matched } = trajectory;
  const words = matched ? "✓ as expected" : matched === false ? "✗ differ" : "? cannot be told";
  const make = () => [
    h("p", {}, foreign(summaryOf(trajectory))),
    trajectory.vacuous &&
      h("p", { class: "notice" }, "It held only because no call of the agent was ever seen."),
    (trajectory.alignment || []).length > 0 ? rows(trajectory, calls, link) : sides(trajectory),
  ];
  const props = { class: `comparison ${matched ? "held" : "not-held"}`, open: matched !== true };
  return folded([`${title}: `, h("strong", {}, words)], make, props);
}

// Row of the alignment by position of its call.
export function rowsByCall(trajectory) {
  const found = (trajectory && trajectory.alignment) || [];
  return new Map(found.filter((row) => known(row.call)).map((row) => [row.call, row]));
}

function rows({ alignment, alignmentMore, mode }, calls, link) {
  const heads = ["", `Expected (${MODES[mode] || mode || "nothing by name"})`, "Actual"];
  const left =
    alignmentMore > 0 && `${count(alignmentMore, "more row")} of which nothing is wrong are not kept.`;
  return [
    table("aligned stacked", heads, alignment.length, (at) => line(alignment[at], calls, link)),
    left && h("p", { class: "quiet" }, left),
  ];
}

function line({ status, expected, call, difference }, calls, link) {
  const made = known(call) && calls[call];
  return sideBySide(mark(status), status, known(expected) ? foreign(expected, "code") : "nothing", [
    made ? link(call, foreign(short(callText(made)), "code"), made) : "not made",
    difference && h("em", {}, " ", foreign(difference)),
  ]);
}

export function sideBySide(name, status, expected, actual) {
  const cell = (head, content) => h("td", { data: { head } }, content);
  return h(
    "tr",
    { class: status },
    h("th", { scope: "row" }, name),
    cell("Expected", expected),
    cell("Actual", actual),
  );
}

// Results of older versions have no rows, only both sides as text.
function sides({ mode, expected, forbidden, actual }) {
  const text = (value) => value && foreign(value, "code");
  return facts([
    [`Expected (${MODES[mode]})`, text(expected)],
    ["Forbidden", text(forbidden)],
    ["Actual", text(actual)],
  ]);
}
