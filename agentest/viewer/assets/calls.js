// One tool call: what was asked and answered at a glance, and all of it when it is opened.

import { foreign, h } from "./dom.js";
import { folded } from "./folding.js";
import { duration } from "./format.js";
import { facts, json } from "./parts.js";

// What a row of an alignment says of a call: a sign and words.
export const MARKS = {
  matched: ["=", "as expected"],
  free: ["·", "allowed"],
  different: ["≠", "differs"],
  missing: ["−", "missing"],
  extra: ["+", "not expected"],
  forbidden: ["✗", "forbidden"],
  out_of_order: ["↕", "out of order"],
  unknown: ["?", "cannot be told"],
};
const SEEN = {
  caller: "handed to us",
  agent: "told by the agent",
  "mock-server": "asked of a mock server",
  spans: "seen in spans",
};
const UNTOLD = "the agent does not tell its arguments";
const GLANCE_CHARS = 240;

export function mark(status) {
  const [sign, words] = MARKS[status] || ["?", status];
  return h("span", { class: `mark ${status}` }, h("span", { "aria-hidden": "true" }, sign), ` ${words}`);
}

export function callText(call) {
  if (call.args === null && call.invalidArguments === UNTOLD) return `${call.name}(arguments not told)`;
  if (!isObject(call.args)) return `${call.name}(invalid arguments: ${glance(call.args)})`;
  return `${call.name}(${argumentsText(call.args)})`;
}

export function argumentsText(args) {
  return Object.entries(args).map(([key, value]) => `${key}=${short(asPython(value))}`).join(", ");
}

// As scenarios and reports write values.
function asPython(value) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value === "string") return value.includes("'") ? JSON.stringify(value) : `'${JSON.stringify(value).slice(1, -1).replaceAll('\\"', '"')}'`;
  if (Array.isArray(value)) return `[${value.map(asPython).join(", ")}]`;
  if (typeof value !== "object") return String(value);
  return `{${Object.entries(value).map(([key, each]) => `${asPython(key)}: ${asPython(each)}`).join(", ")}}`;
}

// `row`: of the alignment, if a trajectory looked at the call; `id`: by which it is found on the page.
export function callItem(call, { id, row }) {
  const head = [h("span", { "aria-hidden": "true" }, "→ "), foreign(short(callText(call)), "code"), " ", badges(call, row)];
  return h(
    "li",
    { class: "call", id, tabindex: "-1" },
    folded(head, () => details(call)),
    (call.result !== null || !call.error) && answer(call.result),
    call.error && h("div", { class: "went-wrong" }, "✗ its answer was an error: ", foreign(short(call.error))),
    call.invalidArguments && h("div", { class: "went-wrong" }, "✗ invalid arguments: ", foreign(short(call.invalidArguments))),
    row && row.difference && h("div", { class: "went-wrong" }, foreign(row.difference)),
  );
}

function answer(result) {
  return h(
    "div",
    { class: "answer" },
    h("span", { "aria-hidden": "true" }, "← "),
    h("span", { class: "off-screen" }, "answer: "),
    foreign(glance(result), "code"),
  );
}

function badges(call, row) {
  const mocked = call.mocked ? "mocked" : call.seenBy === "caller" ? "no mock" : "not mocked";
  return [
    h("span", { class: "tag" }, mocked),
    call.seenBy && call.seenBy !== "caller" && [" ", h("span", { class: "tag" }, SEEN[call.seenBy] || call.seenBy)],
    known(call.durationMs) && [" ", h("span", { class: "quiet" }, duration(call.durationMs))],
    row && row.status !== "matched" && row.status !== "free" && [" ", mark(row.status)],
  ];
}

function details(call) {
  const others = (call.alsoSeenBy || []).map((each) => SEEN[each] || each).join(", ");
  return h(
    "div",
    { class: "call-details" },
    h("div", { class: "label" }, "Arguments"),
    json(call.args),
    h("div", { class: "label" }, call.mocked ? "Result, from a mock" : "Result"),
    json(call.result),
    facts([
      ["Known from", call.seenBy && [SEEN[call.seenBy] || call.seenBy, others && `; also ${others}`]],
      ["Took", known(call.durationMs) ? duration(call.durationMs) : "unknown"],
      ["Id", call.id && foreign(call.id)],
    ]),
  );
}

export function known(number) {
  return number !== null && number !== undefined;
}

export function glance(value) {
  return short(value === undefined ? "null" : JSON.stringify(value));
}

export function short(text, most = GLANCE_CHARS) {
  return text.length <= most ? text : `${text.slice(0, most).replace(/[\ud800-\udbff]$/, "")}…`;
}

function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}
