// The form of one case, drawn from tables: name, label, kind of field, and what that kind needs.

import { isObject } from "./calls.js";
import { fill, h } from "./dom.js";
import { disclosure, json } from "./parts.js";

function snakeCase(name) {
  return name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
}

function keyIn(holder, name, camel) {
  if (typeof name === "number") return name;
  return [name, snakeCase(name)].find((key) => key in holder) ?? (camel ? name : snakeCase(name));
}

function get(value, path) {
  return path.reduce((holder, name) => (isHolder(holder) ? holder[keyIn(holder, name)] : undefined), value);
}

// Objects and lists on the way that are not there come to be; `undefined` takes a key out.
function put(value, path, wanted, camel) {
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
function rest(holder, names) {
  const known = names.flatMap((name) => [name, snakeCase(name)]);
  const kept = Object.entries(holder).filter(([key]) => !known.includes(key));
  return kept.length ? Object.fromEntries(kept) : null;
}

// A value of ours with all its keys as the file spells them.
function spelt(value, camel) {
  if (Array.isArray(value)) return value.map((each) => spelt(each, camel));
  if (!isObject(value)) return value;
  return Object.fromEntries(Object.entries(value).map(([name, each]) => [keyIn({}, name, camel), spelt(each, camel)]));
}

// What was typed in place of JSON. It stands in the draft, so that it moves with what is around it.
class Unparsed {
  constructor(typed, wrong) {
    Object.assign(this, { typed, wrong });
  }
}

const LONG_NUMBER = /(^|[^\w.])-?\d{16,}/;

const WANTED = { list: "a list: […]", object: "an object: {…}", either: "an object: {…}, or a list: […]" };

// The value of a text, an "object", a "list" or "either"; undefined where there is none.
function parsed(text, wanted) {
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

let count = 0;

class Fields {
  all = [];

  // `write` takes the text and returns what is wrong with it, if anything is.
  add({ label, path, value, write, hint, code, line, wrong = "" }) {
    const id = `field-${++count}`;
    const props = { id, value, dir: code ? "ltr" : "auto", spellcheck: "false", class: code && "code" };
    const rows = Math.min(14, Math.max(2, value.split("\n").length));
    const control = line ? h("input", props) : h("textarea", { ...props, rows });
    const slot = h("p", { id: `${id}-said` });
    const field = { path, control, slot, broken: wrong, hint: hint && `${id}-hint` };
    control.addEventListener("input", () => {
      field.broken = write(control.value) || "";
      say(field, field.broken);
    });
    say(field, wrong);
    this.all.push(field);
    const about = hint && h("span", { id: field.hint, class: "quiet" }, ` ${hint}`);
    return h("div.field", h("label", { for: id }, label), about, control, slot);
  }

  // Say each beside the field that it is about; returns those that are about none.
  show(problems, kind) {
    for (const field of this.all) say(field, field.broken);
    return problems.filter(({ path, message }) => {
      const field = path && path.length && this.near(path);
      if (field && !field.broken) say(field, [field.slot.textContent, message].filter(Boolean).join("; "), kind);
      return !field;
    });
  }

  near(path) {
    const around = this.all.filter((field) => begins(path, field.path));
    const nearest = around.sort((one, other) => other.path.length - one.path.length)[0];
    return nearest || this.all.find((field) => begins(field.path, path));
  }

  get broken() {
    return this.all.some((field) => field.broken);
  }

  focusWrong() {
    const wrong = this.all.find((field) => field.control.getAttribute("aria-invalid") === "true");
    if (wrong) focusOn(wrong.control);
  }
}

function say({ control, slot, hint }, message, kind = "problem") {
  slot.hidden = !message;
  slot.textContent = message;
  slot.className = kind;
  control.setAttribute("aria-describedby", [hint, message && slot.id].filter(Boolean).join(" "));
  control.setAttribute("aria-invalid", String(Boolean(message) && kind === "problem"));
}

function begins(path, start) {
  return start.every((key, place) => key === path[place]);
}

// What is folded away is unfolded for it.
function focusOn(control) {
  for (let at = control.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
  control.focus();
}

const CALL = [["name", "Tool", "line"], ["args", "Arguments", "object", "JSON"]];
const RUBRIC = [
  ["rubricId", "Id of the rubric", "line"],
  ["rubricContent", "", "inner", { table: [["textProperty", "What must be true", "text"]] }],
];
const RUBRICS = ["rubrics", "Rubric", "entries", {
  table: RUBRIC, blank: () => ({ rubricId: "", rubricContent: { textProperty: "" } }), keep: false,
}];
const DATA = [
  ["toolUses", "Call", "entries", { table: CALL, blank: () => ({ name: "", args: {} }), unless: "invocationEvents" }],
  ["invocationEvents", "", "events"],
  ["", "Recorded answers and earlier replies", "folded", [
    ["toolResponses", "Answers of tools", "list", 'JSON: [{"name": …, "response": {…}}]'],
    ["intermediateResponses", "Replies before the last", "list", 'JSON: [["author", [{"text": …}]]]'],
  ]],
];
const TURN = [
  ["userContent", "User says", "message"],
  ["intermediateData", "Expect tool calls, in this order (none given: no call)", "optional", {
    table: DATA, blank: () => ({ toolUses: [] }),
  }],
  ["finalResponse", "Expected reply", "message", "empty: any reply will do"],
  ["", "Rubrics of this turn", "folded", [RUBRICS]],
];
const SESSION = [
  ["appName", "App", "line"],
  ["userId", "User", "line"],
  ["state", "State at the start", "object", "JSON"],
];
const SIMULATED = [
  ["startingPrompt", "First message", "text"],
  ["conversationPlan", "Plan", "text", "what the user wants, and how the conversation goes"],
  ["userPersona", "Persona", "line", "a name, such as NOVICE; empty: none"],
];
const WORDS = [
  ["trajectory", "Calls of the whole conversation", "either", 'JSON: {"expected": ["lookup"]}, or a list of several'],
  ["expect", "What is said, or never", "either", 'JSON: {"says": "on its way", "never_says": "sorry"}'],
  ["state", "State of the mocks at the start", "object", "JSON"],
  ["finalState", "State of the mocks at the end", "object", "JSON; empty: any"],
  ["thresholds", "Thresholds", "object", 'JSON: {"pass_rate": 0.8}'],
  ["criteria", "Criteria that a judge decides", "list", 'JSON: ["Never asks for a card number."]'],
  ["tags", "Tags", "list", 'JSON: ["smoke"]'],
];
const newTurn = () => ({ userContent: { role: "user", parts: [{ text: "" }] } });
const CASE = [
  ["evalId", "Id", "line", "by which the case is run"],
  ["conversation", "Turn", "entries", { table: TURN, blank: newTurn, least: 1, unless: "conversationScenario" }],
  ["conversationScenario", "Simulated user", "inner", { table: SIMULATED, unless: "conversation" }],
  ["", "Session and rubrics", "folded", [
    ["sessionInput", "A session of its own", "optional", {
      table: SESSION, blank: () => ({ appName: "app", userId: "user", state: {} }),
    }],
    ["finalSessionState", "Expected state at the end", "object", "JSON; empty: any"],
    RUBRICS,
  ]],
  ["", "What must happen, in the words of scenario files; tags", "folded", [["agentest", "", "inner", { table: WORDS }]]],
];

export function newCase(evalId, simulated, camel) {
  const scenario = { conversationScenario: { startingPrompt: "", conversationPlan: "" } };
  return spelt({ evalId, ...(simulated ? scenario : { conversation: [newTurn()] }) }, camel);
}

// `draft` is changed in place, and the form tells it by the event "input".
export function caseForm(draft, camel) {
  const fields = new Fields();
  const element = h("div.case-form");
  const at = (path) => get(draft, path);
  const set = (path, value) => put(draft, path, value, camel);
  const isInstead = (path, name) => name && (at([...path.slice(0, -1), name]) ?? null) !== null;

  function draw() {
    fields.all = [];
    fill(element, object([], CASE));
  }

  // After a change of the form itself; the first of the selectors that is there gets the focus.
  function redraw(...selectors) {
    const open = [...element.querySelectorAll("details")].map((each) => each.open);
    draw();
    const now = element.querySelectorAll("details");
    if (now.length === open.length) now.forEach((each, place) => (each.open = open[place]));
    focusOn(selectors.map((each) => element.querySelector(each)).find(Boolean));
    element.dispatchEvent(new Event("input"));
  }

  function object(path, table) {
    const value = at(path) ?? {};
    if (!isObject(value)) return json(value);
    const others = rest(value, table.flatMap(names));
    return [rows(path, table), others && disclosure("Other keys, kept as they are", json(others))];
  }

  function rows(path, table) {
    return table.map(([name, label, kind, more]) => kinds[kind](name ? [...path, name] : path, label, more));
  }

  // A text. One that has a hint can do without: emptied, it is taken out.
  function text(path, label, hint, line) {
    const value = at(path) ?? "";
    if (isObject(value)) return inJson("object")(path, label, hint);
    const write = (typed) => set(path, typed || !hint ? typed : undefined);
    return fields.add({ label, hint, path, value: String(value), line, write });
  }

  function inJson(wanted) {
    return (path, label, hint) => {
      const value = at(path);
      const { typed, wrong } = value instanceof Unparsed ? value : { typed: JSON.stringify(value, null, 2) };
      const write = (text) => {
        const found = parsed(text, wanted);
        set(path, found);
        return found instanceof Unparsed && found.wrong;
      };
      return fields.add({ label, hint, path, value: typed ?? "", wrong, write, code: true });
    };
  }

  // A field for each part that is a text.
  function message(path, label, hint) {
    const found = at(path);
    const whole = isObject(found) ? found : { role: hint ? "model" : "user" };
    const parts = Array.isArray(whole.parts) ? whole.parts : [];
    const texts = [...parts.keys()].filter((n) => typeof get(parts, [n, "text"]) === "string");
    const others = parts.filter((_, n) => !texts.includes(n));
    const part = (n, nth) => {
      const write = (typed) => {
        parts[n] = { ...parts[n], text: typed };
        whole.parts = parts;
        set(path, hint && !typed && parts.length === 1 ? undefined : whole);
      };
      const place = texts.length ? [...path, "parts", n, "text"] : path;
      return fields.add({ label: label + (nth ? ` (${nth + 1})` : ""), hint, path: place, value: at(place) ?? "", write });
    };
    const files = others.length > 0 && disclosure("Files and other parts, kept as they are", json(others));
    return [(texts.length ? texts : [parts.length]).map(part), files];
  }

  // A list of objects, which can be moved, taken out and added; `unless` another key stands in its place.
  function entries(path, label, { table, blank, least = 0, unless, keep = true }) {
    const list = at(path) ?? [];
    if (isInstead(path, unless) && !list.length) return null;
    if (!Array.isArray(list)) return json(list);
    const id = path.join("-");
    const button = (text, name, disabled, n, act) => {
      const onclick = () => {
        act();
        set(path, list.length || keep ? list : undefined);
        redraw(`[data-id="${id}-${n}"] :is(input, textarea)`, `[data-id="${id}"]`);
      };
      const props = { type: "button", class: "small", disabled, "aria-label": name, onclick };
      return h("button", { ...props, data: { id: name ? "" : id } }, text);
    };
    const item = (_, n) => {
      const called = `${label} ${n + 1}`;
      const up = () => list.splice(n - 1, 0, ...list.splice(n, 1));
      const buttons = [
        button("up", `Move up ${called}`, !n, n - 1, up),
        button("Remove", `Remove ${called}`, list.length <= least, Math.max(0, n - 1), () => list.splice(n, 1)),
      ];
      const head = h("div.row", h("strong", called), buttons);
      return h("li.panel", { data: { id: `${id}-${n}` } }, head, object([...path, n], table));
    };
    const add = () => list.push(spelt(blank(), camel));
    const items = list.length > 0 && h("ol.entries", list.map(item));
    return [items, button(`Add a ${label.toLowerCase()}`, null, false, list.length, add)];
  }

  // The newer form of what happens in a turn: calls are parts of the agent's events.
  function events(path) {
    const found = at(path);
    if (!Array.isArray(found)) return null;
    const calls = found.flatMap((event, n) =>
      [...(get(event, ["content", "parts"]) || []).keys()].map((m) => [...path, n, "content", "parts", m, "functionCall"]));
    return [
      calls.filter(at).map((call) => h("div.panel", object(call, CALL))),
      disclosure("All events of the turn: to add or remove a call, edit the case as text", json(found)),
    ];
  }

  function optional(path, label, { table, blank }) {
    const id = path.join("-");
    const toggle = () => {
      set(path, at(path) ? undefined : spelt(blank(), camel));
      redraw(`[data-id="${id}"]`);
    };
    const box = h("input", { type: "checkbox", checked: Boolean(at(path)), onchange: toggle, data: { id } });
    return h("fieldset", h("legend", h("label", box, label)), at(path) && object(path, table));
  }

  function folded(path, label, table) {
    const given = table.some(([name]) => Object.keys(at([...path, name]) || {}).length);
    return !at([...path, "invocationEvents"]) && disclosure(label, rows(path, table), given);
  }

  function inner(path, label, { table, unless }) {
    return isInstead(path, unless) && !at(path) ? null : [label && h("h3", label), object(path, table)];
  }

  const kinds = {
    ...{ text, message, entries, events, optional, folded, inner },
    line: (path, label, hint) => text(path, label, hint, true),
    object: inJson("object"),
    list: inJson("list"),
    either: inJson("either"),
  };
  draw();
  return { element, fields };
}

function names([name, , kind, more]) {
  return kind === "folded" ? more.flatMap(names) : [name];
}
