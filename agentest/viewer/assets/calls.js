// One tool call: what was asked and answered at a glance, and all of it when it is opened.

import { foreign, h } from "./dom.js";
import { folded } from "./folding.js";
import { duration } from "./format.js";
import { facts, json } from "./parts.js";

// What a row of an alignment says of a call: a sign and words.
const MARKS = {
  matched: "= as expected",
  free: "· allowed",
  different: "≠ differs",
  missing: "− missing",
  extra: "+ not expected",
  forbidden: "✗ forbidden",
  out_of_order: "↕ out of order",
  unknown: "? cannot be told",
};
const SEEN = {
  caller: "handed to us",
  agent: "told by the agent",
  "mock-server": "asked of a mock server",
  spans: "seen in spans",
};
const UNTOLD = "the agent does not tell its arguments";
const WORDS = { true: "True", false: "False", null: "None" };

export function mark(status) {
  return h("span", { class: `mark ${status}` }, MARKS[status] || status);
}

export function callText(call) {
  if (call.args === null && call.invalidArguments === UNTOLD) return `${call.name}(arguments not told)`;
  if (!isObject(call.args)) return `${call.name}(invalid arguments: ${glance(call.args)})`;
  return `${call.name}(${Object.entries(call.args).map(argument).join(", ")})`;
}

// As scenarios and reports write values.
function argument([key, value]) {
  const quoted = (text) => WORDS[text] || (/'|\\"/.test(text) ? text : `'${text.slice(1, -1)}'`);
  return `${key}=${short(JSON.stringify(value).replace(/"(?:[^"\\]|\\.)*"|true|false|null/g, quoted))}`;
}

// `row`: of the alignment, if a trajectory looked at the call; `id`: by which it is found on the page.
export function callItem(call, { id, row }) {
  const { status, difference } = row || {};
  const isWrong = status && status !== "matched" && status !== "free";
  const mocked = call.mocked ? "mocked" : call.seenBy === "caller" ? "no mock" : "not mocked";
  const head = [
    "→ ",
    foreign(short(callText(call)), "code"),
    [mocked, call.seenBy !== "caller" && SEEN[call.seenBy]].map(
      (text) => text && [" ", h("span", { class: "tag" }, text)],
    ),
    known(call.durationMs) && h("span", { class: "quiet" }, ` ${duration(call.durationMs)}`),
    isWrong && [" ", mark(status)],
  ];
  const wrong = (words, text) => text && h("div", { class: "low" }, words, foreign(short(text)));
  return h(
    "li",
    { class: "call", id, tabindex: "-1" },
    folded(head, () => details(call)),
    (call.result !== null || !call.error) &&
      h("div", { class: "answer" }, "← ", foreign(glance(call.result), "code")),
    wrong("✗ its answer was an error: ", call.error),
    wrong("✗ invalid arguments: ", call.invalidArguments),
    wrong("", difference),
  );
}

function details(call) {
  const seen = [call.seenBy, ...(call.alsoSeenBy || [])].map((each) => SEEN[each]).join("; also ");
  return facts([
    ["Arguments", json(call.args)],
    [call.mocked ? "Result, from a mock" : "Result", json(call.result)],
    ["Known", seen],
    ["Id", call.id && foreign(call.id)],
  ]);
}

export function known(number) {
  return number !== null && number !== undefined;
}

export function glance(value) {
  return short(JSON.stringify(value === undefined ? null : value));
}

export function short(text, most = 240) {
  return text.length <= most ? text : `${text.slice(0, most).replace(/[\ud800-\udbff]$/, "")}…`;
}

export function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}
