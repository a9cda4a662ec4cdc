// A case that is edited, by paths of names in camelCase. Files spell their keys in either way: both are read, and a
// new key is spelt as its file spells them.

import { isObject } from "./calls.js";

function snakeCase(name) {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

function keyIn(holder, name, camel) {
  if (typeof name === "number") return name;
  return [name, snakeCase(name)].find((key) => key in holder) ?? (camel ? name : snakeCase(name));
}

export function get(value, path) {
  return path.reduce((holder, name) => (isHolder(holder) ? holder[keyIn(holder, name)] : undefined), value);
}

// Objects and lists on the way that are not there come to be; `undefined` takes a key out.
export function put(value, path, wanted, camel) {
  const holder = path.slice(0, -1).reduce((around, name, depth) => {
    const key = keyIn(around, name, camel);
    if (!isHolder(around[key])) around[key] = typeof path[depth + 1] === "number" ? [] : {};
    return around[key];
  }, value);
  const key = keyIn(holder, path.at(-1), camel);
  if (wanted === undefined) delete holder[key];
  else holder[key] = wanted;
}

function isHolder(value) {
  return isObject(value) || Array.isArray(value);
}

// What an object holds besides these names; null where that is nothing.
export function rest(holder, names) {
  const known = names.flatMap((name) => [name, snakeCase(name)]);
  const kept = Object.entries(holder).filter(([key]) => !known.includes(key));
  return kept.length ? Object.fromEntries(kept) : null;
}

// A value of ours with all its keys as the file spells them.
export function spelt(value, camel) {
  if (Array.isArray(value)) return value.map((each) => spelt(each, camel));
  if (!isObject(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [keyIn({}, name, camel), spelt(each, camel)]));
}

// What was typed in place of JSON. It stands in the draft, so that it moves with what is around it.
export class Unparsed {
  constructor(typed, wrong) {
    Object.assign(this, { typed, wrong });
  }
}

const LONG_NUMBER = /(^|[^\w.])-?\d{16,}/;

const WANTED = { list: "a list: […]", object: "an object: {…}", either: "an object: {…}, or a list: […]" };

// The value of a text, an "object", a "list" or "either"; undefined where there is none.
export function parsed(text, wanted) {
  if (!text.trim()) return undefined;
  try {
    const found = JSON.parse(text);
    const isWanted = (wanted !== "object" && Array.isArray(found)) || (wanted !== "list" && isObject(found));
    if (!isWanted) throw new Error(`expected ${WANTED[wanted]}`);
    if (!LONG_NUMBER.test(text.replace(/"(?:[^"\\]|\\.)*"/g, '""'))) return found;
    throw new Error("a browser cannot keep a number of so many digits; edit the case as text");
  } catch ({ name, message }) {
    return new Unparsed(text, `${name === "SyntaxError" ? "is not JSON: " : ""}${message}`);
  }
}
