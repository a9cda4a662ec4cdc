// One tool call: what was asked and answered at a glance, and all of it when it is opened.

import { foreign, h } from "./dom.js";
import { folded } from "./folding.js";
import { duration } from "./format.js";
import { tree } from "./json_tree.js";
import { facts } from "./parts.js";

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
  caller: "the agent handed it over",
  agent: "the agent reported it",
  "mock-server": "a mock server was asked",
  model: "the agent's model asked for it",
  spans: "its spans show it",
};
const UNTOLD = /^the agent does not (tell|report) its arguments$/;
const WORDS = { true: "True", false: "False", null: "None" };

export function mark(status) {
  return h("span.mark", { class: status }, MARKS[status] || status);
}

export function isWrong({ status }) {
  return status !== "matched" && status !== "free";
}

export function callText({ name, args, invalidArguments }) {
  if (args === null && UNTOLD.test(invalidArguments)) return `${name}(arguments not told)`;
  if (!isObject(args)) return `${name}(invalid arguments: ${glance(args)})`;
  return `${name}(${Object.entries(args).map(argument).join(", ")})`;
}

// As scenarios and reports write values.
function argument([key, value]) {
  return `${key}=${short(valueText(value))}`;
}

export function valueText(value) {
  const quoted = (text) => WORDS[text] || (/'|\\"/.test(text) ? text : `'${text.slice(1, -1)}'`);
  return JSON.stringify(value).replace(/"(?:[^"\\]|\\.)*"|true|false|null/g, quoted);
}

// How a call became known.
export function callTags({ mocked, simulated, seenBy }) {
  const tags = [simulated ? "simulated" : mocked ? "mocked" : seenBy === "caller" ? "no mock" : "not mocked", seenBy !== "caller" && SEEN[seenBy]];
  return tags.map((text) => text && [" ", h("span.tag", text)]);
}

// `row`: of the alignment, if a trajectory looked at the call; `id`: by which it is found on the page. What is
// `brief` has its details elsewhere.
export function callItem(call, { id, row, brief }) {
  const { error, result, durationMs, invalidArguments } = call;
  const head = [
    "→ ",
    foreign(short(callText(call)), "code"),
    !brief && [callTags(call), h("span.quiet", " ", duration(durationMs))],
    row && isWrong(row) && [" ", mark(row.status)],
  ];
  const wrong = (words, text) => text && h("div.low", words, foreign(short(text)));
  return h(
    "li.call",
    { id, tabindex: "-1" },
    brief ? h("div", head) : folded("details", head, () => callDetails(call)),
    (result !== null || !error) && answer(result, brief),
    wrong("✗ its answer was an error: ", error),
    wrong("✗ invalid arguments: ", !UNTOLD.test(invalidArguments) && invalidArguments),
    row && wrong("", isWrong(row) && row.difference),
  );
}

function answer(result, unfolds) {
  const shown = ["← ", foreign(glance(result), "code")];
  return unfolds && Object(result) === result ? folded("details.answer", shown, () => tree(result, "the result")) : h("div.answer", shown);
}

export function callDetails({ seenBy, alsoSeenBy = [], args, mocked, simulated, result, id, approval }) {
  return facts([
    ["Arguments", tree(args, "the arguments")],
    [simulated ? "Result, simulated by a model" : mocked ? "Result, from a mock" : "Result", tree(result, "the result")],
    ["Seen", [seenBy, ...alsoSeenBy].map((each) => SEEN[each]).join("; also ")],
    ["Approval", approval],
    ["Id", id && foreign(id)],
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
