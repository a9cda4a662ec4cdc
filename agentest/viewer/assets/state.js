// The state of the agent's session, and what a turn changed in it, by path.

import { glance } from "./calls.js";
import { foreign, h } from "./dom.js";
import { bounded, folded } from "./folding.js";
import { json } from "./parts.js";

const CUT_OFF = "…"; // the key that stands for those that were too long to keep
const MOST_CHANGES = 500;
const MOST_OPEN = 6;
const SIGNS = { added: "+", changed: "~", removed: "−" };

// State before each turn, by its place; undefined where nobody tells of it.
export function statesBefore(conversation) {
  let before = conversation.initialState;
  return conversation.turns.map((turn) => {
    const mine = before;
    before = turn.stateAfter;
    return mine;
  });
}

export function stateChange(before, turn) {
  if (turn.stateError) return h("p", { class: "notice" }, "The session's state could not be read: ", foreign(turn.stateError));
  const after = turn.stateAfter;
  if (!after) return null;
  const whole = () => folded("Whole state after this turn", () => json(after));
  if (!before) return folded("Session state", () => json(after), { class: "state" });
  const found = changes(before, after);
  if (!found.length) return folded("Session state: nothing changed", () => json(after), { class: "state" });
  return folded(["Session state: ", counted(found)], () => [rows(found), whole()], { class: "state", open: found.length <= MOST_OPEN });
}

function counted(found) {
  const number = (kind) => found.filter((each) => each.kind === kind).length;
  const many = found.length >= MOST_CHANGES ? "at least " : "";
  return many + Object.keys(SIGNS).filter(number).map((kind) => `${number(kind)} ${kind}`).join(", ");
}

function rows(found) {
  return bounded(h("ul", { class: "plain changes" }), found.length, (at) => row(found[at]), { noun: "change" });
}

function row({ kind, path, before, after }) {
  return h(
    "li",
    { class: kind },
    h("strong", {}, h("span", { "aria-hidden": "true" }, `${SIGNS[kind]} `), h("span", { class: "off-screen" }, `${kind} `), foreign(path)),
    kind !== "removed" && [" = ", foreign(glance(after), "code")],
    kind !== "added" && h("span", { class: "quiet" }, " was ", foreign(glance(before), "code")),
  );
}

// [{kind, path, before, after}]: objects are looked into, lists and values are compared whole.
export function changes(before, after, path = "", found = []) {
  for (const key of new Set([...Object.keys(before), ...Object.keys(after)])) {
    if (found.length >= MOST_CHANGES) break;
    if (key !== CUT_OFF) change(before, after, key, path ? `${path}.${key}` : key, found);
  }
  return found;
}

function change(before, after, key, path, found) {
  const [was, is] = [Object.hasOwn(before, key), Object.hasOwn(after, key)];
  if (!was && !Object.hasOwn(before, CUT_OFF)) found.push({ kind: "added", path, after: after[key] });
  else if (!is && !Object.hasOwn(after, CUT_OFF)) found.push({ kind: "removed", path, before: before[key] });
  else if (was && is && isObject(before[key]) && isObject(after[key])) changes(before[key], after[key], path, found);
  else if (was && is && form(before[key]) !== form(after[key])) found.push({ kind: "changed", path, before: before[key], after: after[key] });
}

function isObject(value) {
  return value !== null && typeof value === "object" && !Array.isArray(value);
}

// Order of keys is no value.
function form(value) {
  return JSON.stringify(value, (_, each) => (isObject(each) ? Object.fromEntries(Object.entries(each).sort()) : each));
}
