// The form of one case, drawn from tables: name, label, kind of field, and what that kind needs.

import { isObject } from "./calls.js";
import { get, parsed, put, rest, spelt, Unparsed } from "./case_draft.js";
import { Fields, focusOn } from "./case_fields.js";
import { fill, h } from "./dom.js";
import { disclosure, json } from "./parts.js";

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
