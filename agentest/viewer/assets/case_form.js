// The form of one case, drawn from tables: key, label, kind of field, and what that kind needs.

import { Fields, focusOn } from "./case_fields.js";
import { camelCase, get, isObject, put, rest, spelt } from "./case_keys.js";
import { fill, h } from "./dom.js";
import { disclosure, json } from "./parts.js";

const TEXT = [{ text: "" }];
const CALL = [["name", "Tool", "line"], ["args", "Arguments", "object", "JSON"]];
const RUBRIC = [
  ["rubric_id", "Id of the rubric", "line"],
  ["rubric_content", "", "inner", [["text_property", "What must be true", "text"]]],
];
const NEW_RUBRIC = { rubric_id: "", rubric_content: { text_property: "" } };
const RUBRICS = ["rubrics", "Rubric", "entries", { table: RUBRIC, blank: NEW_RUBRIC }];
const DATA = [
  ["tool_uses", "Call", "entries", { table: CALL, blank: { name: "", args: {} }, unless: "invocation_events" }],
  ["invocation_events", "", "events"],
  ["", "Recorded answers and earlier replies", "folded", [
    ["tool_responses", "Answers of tools", "list", 'JSON: [{"name": …, "response": {…}}]'],
    ["intermediate_responses", "Replies before the last", "list", 'JSON: [["author", [{"text": …}]]]'],
  ]],
];
const TURN = [
  ["user_content", "User says", "message"],
  ["intermediate_data", "Expect tool calls, in this order (none given: no call)", "optional", {
    table: DATA, blank: { tool_uses: [] },
  }],
  ["final_response", "Expected reply", "message", "empty: any reply will do"],
  ["", "Rubrics of this turn", "folded", [RUBRICS]],
];
const SESSION = [
  ["app_name", "App", "line"],
  ["user_id", "User", "line"],
  ["state", "State at the start", "object", "JSON"],
];
const NEW_SESSION = { app_name: "app", user_id: "user", state: {} };
const SIMULATED = [
  ["starting_prompt", "First message", "text"],
  ["conversation_plan", "Plan", "text", "what the user wants, and how the conversation goes"],
  ["user_persona", "Persona", "persona", "a name, such as NOVICE; empty: none"],
];
const CASE = [
  ["eval_id", "Id", "line", "by which the case is run"],
  ["conversation", "Turn", "entries", {
    table: TURN, blank: { user_content: { role: "user", parts: TEXT } }, least: 1, unless: "conversation_scenario",
  }],
  ["conversation_scenario", "Simulated user", "inner", SIMULATED],
  ["", "Session, rubrics, tags", "folded", [
    ["session_input", "A session of its own", "optional", { table: SESSION, blank: NEW_SESSION }],
    ["final_session_state", "Expected state at the end", "object", "JSON; empty: any"],
    RUBRICS,
    ["agentest", "", "tags"],
  ]],
];

export function newCase(id, simulated, camel) {
  const conversation = { conversation: [CASE[1][3].blank] };
  const scenario = { conversation_scenario: { starting_prompt: "", conversation_plan: "" } };
  return spelt({ eval_id: id, ...(simulated ? scenario : conversation) }, camel);
}

// `draft` is changed in place, and the form tells it by the event "input". An object that is not there yet comes to be when something is written into it.
export function caseForm(draft, camel) {
  const fields = new Fields();
  const element = h("div", { class: "case-form" });

  function draw() {
    fields.all = [];
    fill(element, object({ value: draft, path: [], attach: () => {} }, CASE));
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

  function write(node, name, value) {
    put(node.value, name, value, camel);
    node.attach();
  }

  function object(node, table) {
    const others = rest(node.value, table.flatMap(keys));
    return [rows(node, table), others && disclosure("Other keys, kept as they are", json(others))];
  }

  function rows(node, table) {
    return table.map(([name, label, kind, more]) => kinds[kind](node, name, label, more, get(node.value, name)));
  }

  function at(node, name) {
    return [...node.path, camelCase(name)];
  }

  function inside(node, name) {
    const found = get(node.value, name);
    const value = isObject(found) ? found : {};
    return { value, path: at(node, name), attach: () => write(node, name, value) };
  }

  function field(node, name, label, hint, value, more) {
    const text = typeof value === "string" ? value : JSON.stringify(value ?? "");
    const writing = (typed) => write(node, name, typed);
    return fields.add({ label, hint, path: at(node, name), value: value ? text : "", write: writing, ...more });
  }

  function inJson(wanted) {
    return (node, name, label, hint, value) => {
      const writing = (found) => write(node, name, found);
      return fields.json({ holder: node.value, name, label, hint, wanted, value, path: at(node, name), write: writing });
    };
  }

  const kinds = {
    text: field,
    line: (node, name, label, hint, value) => field(node, name, label, hint, value, { line: true }),
    object: inJson("object"),
    list: inJson("list"),
    message,
    entries,
    events,
    folded: (node, _, label, table) => {
      const given = table.some(([name]) => Object.keys(get(node.value, name) || {}).length);
      return !get(node.value, "invocation_events") && disclosure(label, rows(node, table), given);
    },
    inner: (node, name, label, table, value) =>
      isObject(value) && [label && h("h3", {}, label), object(inside(node, name), table)],
    optional,
    persona: (node, name, label, hint, value) =>
      isObject(value)
        ? kinds.object(node, name, label, "JSON", value)
        : field(node, name, label, hint, value, { line: true, write: (text) => write(node, name, text || undefined) }),
    tags: (node, name) => {
      const own = inside(node, name);
      const split = (text) => text.split(",").map((tag) => tag.trim()).filter(Boolean);
      return field(own, "tags", "Tags", "words with commas between", (own.value.tags || []).join(", "), {
        line: true,
        write: (text) => {
          write(own, "tags", split(text).length ? split(text) : undefined);
          if (!Object.keys(own.value).length) write(node, name, undefined);
        },
      });
    },
  };

  // A field for each part that is a text. A reply that is emptied is expected no more.
  function message(node, name, label, hint, value) {
    const whole = isObject(value) ? value : { role: hint ? "model" : "user" };
    const parts = whole.parts || [];
    const texts = parts.filter((part) => isObject(part) && typeof part.text === "string");
    const others = parts.filter((part) => !texts.includes(part));
    const writing = (part) => (text) => {
      part.text = text;
      whole.parts ||= [];
      if (!whole.parts.includes(part)) whole.parts.push(part);
      write(node, name, hint && !text && whole.parts.length === 1 ? undefined : whole);
    };
    return [
      (texts.length ? texts : [{ text: "" }]).map((part, nth) => {
        const path = parts.includes(part) ? [...at(node, name), "parts", parts.indexOf(part), "text"] : at(node, name);
        const called = nth ? `${label} (${nth + 1})` : label;
        return fields.add({ label: called, hint, path, value: part.text, write: writing(part) });
      }),
      others.length > 0 && disclosure("Files and other parts, kept as they are", json(others)),
    ];
  }

  // A list of objects, which can be moved, taken out and added; `unless` another key stands in its place.
  function entries(node, name, label, { table, blank, least = 0, unless }, value) {
    if (value === undefined && get(node.value, unless)) return null;
    const list = Array.isArray(value) ? value : [];
    const id = at(node, name).join("-");
    const change = (act, focused) => {
      act();
      write(node, name, list.length || name !== "rubrics" ? list : undefined);
      redraw(focused, `[data-id="${id}"]`);
    };
    const buttons = (place) => [["up", place - 1], ["down", place + 1], ["Remove", null]].map(([text, to]) => {
      const act = to === null ? () => list.splice(place, 1) : () => ([list[place], list[to]] = [list[to], list[place]]);
      const focused = `[data-id="${id}-${to ?? Math.max(0, place - 1)}"] button:not(:disabled)`;
      return h("button", {
        type: "button",
        class: "small",
        disabled: to === null ? list.length <= least : !list[to],
        "aria-label": `${to === null ? text : `Move ${text}`} ${label} ${place + 1}`,
        onclick: () => change(act, focused),
      }, text);
    });
    const item = (each, place) => h("li", { class: "panel", data: { id: `${id}-${place}` } },
      h("div", { class: "row" }, h("strong", {}, `${label} ${place + 1}`), buttons(place)),
      isObject(each) ? object({ value: each, path: [...at(node, name), place], attach: () => {} }, table) : json(each));
    const add = () => {
      const focused = `[data-id="${id}-${list.length}"] :is(input, textarea)`;
      change(() => list.push(spelt(blank, camel)), focused);
    };
    return [
      list.length > 0 && h("ol", { class: "entries" }, list.map(item)),
      h("button", { type: "button", class: "small", data: { id }, onclick: add }, `Add a ${label.toLowerCase()}`),
    ];
  }

  // The newer form of what happens in a turn: calls are parts of the agent's events.
  function events(node, name, _, __, value) {
    if (!Array.isArray(value)) return null;
    const calls = value.flatMap((event, n) => ((event.content || {}).parts || []).map((part, m) => {
      const path = [...at(node, name), n, "content", "parts", m, "functionCall"];
      return { value: get(part, "function_call"), path, attach: () => {} };
    }));
    return [
      calls.filter((call) => isObject(call.value)).map((call) => h("div", { class: "panel" }, object(call, CALL))),
      disclosure("All events of the turn: to add or remove a call, edit the case as text", json(value)),
    ];
  }

  function optional(node, name, label, { table, blank }, value) {
    const id = at(node, name).join("-");
    const toggle = () => {
      write(node, name, value ? undefined : spelt(blank, camel));
      redraw(`[data-id="${id}"]`);
    };
    const box = h("input", { type: "checkbox", checked: Boolean(value), onchange: toggle, data: { id } });
    const legend = h("legend", {}, h("label", {}, box, ` ${label}`));
    return h("fieldset", {}, legend, value && object(inside(node, name), table));
  }

  draw();
  return { element, fields };
}

function keys([name, , kind, more]) {
  return kind === "folded" ? more.flatMap(keys) : [name];
}
