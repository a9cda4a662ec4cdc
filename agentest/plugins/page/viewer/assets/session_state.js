// The state of the agent's session, and what a turn changed in it, by path.

import { glance, isObject } from "./calls.js";
import { foreign, h } from "./dom.js";
import { bounded, folded, list, notice } from "./folding.js";
import { json } from "./parts.js";

const CUT_OFF = "…"; // the key that stands for those that were too long to keep
const MOST_CHANGES = 500;
const MOST_OPEN = 6;
const SIGNS = { added: "+", changed: "~", removed: "−" };

export function stateChange(before, { stateAfter: after, stateError }) {
  if (stateError) return notice("The session's state could not be read: ", foreign(stateError));
  if (!after) return null;
  const found = before ? changes(before, after) : [];
  const number = (kind) => found.filter((each) => each.kind === kind).length;
  const counts = Object.keys(SIGNS).filter(number).map((kind) => `${number(kind)} ${kind}`).join(", ");
  const least = found.length >= MOST_CHANGES ? "at least " : "";
  const make = () => [
    bounded(list(), found.length, (at) => row(found[at]), { noun: "change" }),
    folded("details", "The whole state after this turn", () => json(after)),
  ];
  const words = ["Session state", before && `: ${least}${counts || "no change"}`];
  return folded("details.box", words, make, found.length > 0 && found.length <= MOST_OPEN);
}

function row({ kind, path, before, after }) {
  return h(
    "li",
    h("strong", { class: kind }, `${SIGNS[kind]} ${kind} `, foreign(path)),
    kind !== "removed" && [" = ", foreign(glance(after), "code")],
    kind !== "added" && h("span.quiet", " was ", foreign(glance(before), "code")),
  );
}

// [{kind, path, before, after}]: objects are looked into, lists and values are compared whole.
function changes(before, after, path = "", found = []) {
  const has = (state, key) => Object.hasOwn(state, key);
  for (const key of new Set([...Object.keys(before), ...Object.keys(after)])) {
    if (found.length >= MOST_CHANGES) break;
    if (key === CUT_OFF) continue;
    const [was, is] = [before[key], after[key]];
    const add = (kind) => found.push({ kind, path: path + key, before: was, after: is });
    if (!has(before, key)) has(before, CUT_OFF) || add("added");
    else if (!has(after, key)) has(after, CUT_OFF) || add("removed");
    else if (isObject(was) && isObject(is)) changes(was, is, `${path}${key}.`, found);
    else if (form(was) !== form(is)) add("changed");
  }
  return found;
}

// Order of keys is not a value.
function form(value) {
  const inOrder = (each) => Object.fromEntries(Object.entries(each).sort());
  return JSON.stringify(value, (_, each) => (isObject(each) ? inOrder(each) : each));
}
