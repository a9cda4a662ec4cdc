// The form of one case, drawn from tables: name, label, kind of field, and what that kind needs.

import { isObject } from "./calls.js";
import { get, parsed, put, rest, spelt, Unparsed } from "./case_draft.js";
import { Fields, focusOn } from "./case_fields.js";
import { fill, h } from "./dom.js";
import { disclosure, json } from "./parts.js";

const CALL = [["name", "Tool", "line"], ["args", "Arguments", "object", "JSON"]];
const RUBRIC = [
  ["rubricId", "Id of the rubric", "line"],
  ["rubricContent", "", "inner", [["textProperty", "What must be true", "text"]]],
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
  ["userPersona", "Persona", "persona", "a name, such as NOVICE; empty: none"],
];
const newTurn = () => ({ userContent: { role: "user", parts: [{ text: "" }] } });
const CASE = [
  ["evalId", "Id", "line", "by which the case is run"],
  ["conversation", "Turn", "entries", { table: TURN, blank: newTurn, least: 1, unless: "conversationScenario" }],
  ["conversationScenario", "Simulated user", "inner", SIMULATED],
  ["", "Session, rubrics, tags", "folded", [
    ["sessionInput", "A session of its own", "optional", {
      table: SESSION, blank: () => ({ appName: "app", userId: "user", state: {} }),
    }],
    ["finalSessionState", "Expected state at the end", "object", "JSON; empty: any"],
    RUBRICS,
    ["agentest", "Tags", "tags", "words with commas between"],
  ]],
];

export function newCase(evalId, simulated, camel) {
  const scenario = { conversationScenario: { startingPrompt: "", conversationPlan: "" } };
  return spelt({ evalId, ...(simulated ? scenario : { conversation: [newTurn()] }) }, camel);
}

// `draft` is changed in place, and the form tells it by the event "input".
export function caseForm(draft, camel) {
  const fields = new Fields();
  const element = h("div", { class: "case-form" });
  const at = (path) => get(draft, path);
  const set = (path, value) => put(draft, path, value, camel);

  function draw() {
    fields.all = [];
    fill(element, object([], CASE));
  }

  // After a change of the form itself; the selectors say what gets the focus.
  function redraw(...focused) {
    const open = [...element.querySelectorAll("details")].map((each) => each.open);
    draw();
    const now = element.querySelectorAll("details");
    if (now.length === open.length) now.forEach((each, place) => (each.open = open[place]));
    focusOn(focused.map((each) => element.querySelector(each)).find(Boolean));
    element.dispatchEvent(new Event("input"));
  }

  function object(path, table) {
    const value = at(path);
    if (!isObject(value)) return json(value ?? null);
    const others = rest(value, table.flatMap(names));
    return [rows(path, table), others && disclosure("Other keys, kept as they are", json(others))];
  }

  function rows(path, table) {
    return table.map(([name, label, kind, more]) => kinds[kind](name ? [...path, name] : path, label, more));
  }

  function field(path, label, hint, more) {
    const value = at(path) ?? "";
    const text = typeof value === "string" ? value : JSON.stringify(value);
    return fields.add({ label, hint, path, value: text, write: (typed) => set(path, typed), ...more });
  }

  function inJson(path, label, hint, wanted) {
    const value = at(path);
    const { text, wrong } = value instanceof Unparsed ? value : { text: JSON.stringify(value, null, 2) };
    const write = (typed) => {
      const found = parsed(typed, wanted);
      set(path, found);
      return found instanceof Unparsed && found.wrong;
    };
    return fields.add({ label, hint, path, value: text ?? "", wrong, write, code: true });
  }

  function persona(path, label, hint) {
    if (isObject(at(path))) return inJson(path, label, "JSON", "object");
    return field(path, label, hint, { line: true, write: (text) => set(path, text || undefined) });
  }

  function tags(path, label, hint) {
    const write = (text) => {
      const words = text.split(",").map((tag) => tag.trim()).filter(Boolean);
      set([...path, "tags"], words.length ? words : undefined);
      if (!Object.keys(at(path)).length) set(path, undefined);
    };
    return field([...path, "tags"], label, hint, { line: true, value: (at([...path, "tags"]) || []).join(", "), write });
  }

  // A field for each part that is a text. A reply that is emptied is expected no more.
  function message(path, label, hint) {
    const found = at(path);
    const whole = isObject(found) ? found : { role: hint ? "model" : "user" };
    const parts = Array.isArray(whole.parts) ? whole.parts : [];
    const texts = parts.flatMap((part, place) => (isObject(part) && typeof part.text === "string" ? [place] : []));
    const others = parts.filter((_, place) => !texts.includes(place));
    const write = (place) => (text) => {
      parts[place] = { ...parts[place], text };
      whole.parts = parts;
      set(path, hint && !text && parts.length === 1 ? undefined : whole);
    };
    return [
      (texts.length ? texts : [parts.length]).map((place, nth) => {
        const own = texts.length ? [...path, "parts", place, "text"] : path;
        const value = texts.length ? parts[place].text : "";
        return fields.add({ label: nth ? `${label} (${nth + 1})` : label, hint, path: own, value, write: write(place) });
      }),
      others.length > 0 && disclosure("Files and other parts, kept as they are", json(others)),
    ];
  }

  // A list of objects, which can be moved, taken out and added; `unless` another key stands in its place.
  function entries(path, label, { table, blank, least = 0, unless, keep = true }) {
    const value = at(path) ?? null;
    if (value === null && unless && at([...path.slice(0, -1), unless])) return null;
    const list = Array.isArray(value) ? value : [];
    const id = path.join("-");
    const change = (act, place, what) => {
      act();
      set(path, list.length || keep ? list : undefined);
      redraw(`[data-id="${id}-${place}"] ${what}`, `[data-id="${id}"]`);
    };
    const button = (text, name, usable, place, act, what = "button:not(:disabled)") => {
      const onclick = () => change(act, place, what);
      return h("button", { type: "button", class: "small", disabled: !usable, "aria-label": name, onclick }, text);
    };
    const move = (from, to) => () => list.splice(to, 0, ...list.splice(from, 1));
    const item = (_, n) => {
      const called = `${label} ${n + 1}`;
      const buttons = [
        button("up", `Move up ${called}`, n > 0, n - 1, move(n, n - 1)),
        button("down", `Move down ${called}`, n + 1 < list.length, n + 1, move(n, n + 1)),
        button("Remove", `Remove ${called}`, list.length > least, Math.max(0, n - 1), () => list.splice(n, 1)),
      ];
      const head = h("div", { class: "row" }, h("strong", {}, called), buttons);
      return h("li", { class: "panel", data: { id: `${id}-${n}` } }, head, object([...path, n], table));
    };
    const push = () => list.push(spelt(blank(), camel));
    const add = button(`Add a ${label.toLowerCase()}`, null, true, list.length, push, ":is(input, textarea)");
    add.dataset.id = id;
    return [list.length > 0 && h("ol", { class: "entries" }, list.map(item)), add];
  }

  // The newer form of what happens in a turn: calls are parts of the agent's events.
  function events(path) {
    const found = at(path);
    if (!Array.isArray(found)) return null;
    const calls = found.flatMap((event, n) => (get(event, ["content", "parts"]) || []).map((_, m) =>
      [...path, n, "content", "parts", m, "functionCall"]));
    return [
      calls.filter((call) => isObject(at(call))).map((call) => h("div", { class: "panel" }, object(call, CALL))),
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
    const legend = h("legend", {}, h("label", {}, box, ` ${label}`));
    return h("fieldset", {}, legend, at(path) && object(path, table));
  }

  function folded(path, label, table) {
    const given = table.some(([name]) => Object.keys(at([...path, name]) || {}).length);
    return !at([...path, "invocationEvents"]) && disclosure(label, rows(path, table), given);
  }

  const kinds = {
    message, entries, events, optional, folded, persona, tags,
    text: field,
    line: (path, label, hint) => field(path, label, hint, { line: true }),
    object: (path, label, hint) => inJson(path, label, hint, "object"),
    list: (path, label, hint) => inJson(path, label, hint, "list"),
    inner: (path, label, table) =>
      isObject(at(path)) && [label && h("h3", {}, label), object(path, table)],
  };
  draw();
  return { element, fields };
}

function names([name, , kind, more]) {
  return kind === "folded" ? more.flatMap(names) : [name];
}
