// The form of one case: its turns, or what leads a simulated user; session, rubrics, tags.

import { entries, Fields, plain } from "./case_fields.js";
import { get, isObject, message, newTurn, put, rest } from "./case_keys.js";
import { fill, h } from "./dom.js";
import { disclosure, json } from "./parts.js";

const OF_CASE = ["eval_id", "conversation", "conversation_scenario", "session_input", "rubrics", "final_session_state", "agentest"];
const OF_TURN = ["user_content", "final_response", "intermediate_data", "rubrics"];
const OF_DATA = ["tool_uses", "tool_responses", "intermediate_responses", "invocation_events"];

// `draft` is changed in place.
export function caseForm(draft, camel, changed) {
  const fields = new Fields(changed);
  const element = h("div", { class: "case-form" });

  function draw(focused) {
    fields.reset();
    const conversation = get(draft, "conversation");
    const scenario = get(draft, "conversation_scenario");
    fill(
      element,
      key(draft, "eval_id", "Id", ["evalId"], { single: true, hint: "by which the case is run" }),
      Array.isArray(conversation) && turns(conversation),
      isObject(scenario) && simulated(scenario),
      disclosure("Session, rubrics, tags", about(), Boolean(get(draft, "session_input") || get(draft, "rubrics"))),
      kept(draft, OF_CASE),
    );
    if (focused) focus(element.querySelector(`${focused}:not(:disabled)`) || element.querySelector("input"));
  }

  function redraw(focused) {
    draw(focused);
    changed();
  }

  function key(holder, name, label, path, more = {}) {
    const write = (text) => void put(holder, name, text, camel);
    return fields.add({ label, path, value: textOf(get(holder, name)), write, ...more });
  }

  function jsonKey(holder, name, label, path, wanted, hint) {
    const write = (value) => put(holder, name, value, camel);
    return fields.json({ holder, key: name, label, path, value: get(holder, name), write, wanted, hint });
  }

  function kept(holder, names) {
    const others = rest(holder, names);
    return others && disclosure("Other keys, kept as they are", json(others));
  }

  function addButton(label, act, focused) {
    return h("button", { type: "button", class: "small", onclick: () => { act(); redraw(focused); } }, label);
  }

  // --- turns

  function turns(list) {
    return [
      entries(plain(list, 1), turn, { name: "turn", redraw, className: "turns" }),
      addButton("Add a turn", () => list.push(newTurn(camel)), "ol.turns > li:last-child textarea"),
    ];
  }

  function turn(value, place) {
    const path = ["conversation", place];
    if (!isObject(value)) return json(value);
    return h("fieldset", { class: "panel" }, h("legend", {}, `Turn ${place + 1}`),
      said(value, "user_content", "User says", [...path, "userContent"], "user"),
      calls(value, path, place),
      said(value, "final_response", "Expected reply", [...path, "finalResponse"], "model", "empty: any reply will do"),
      disclosure("Recorded answers, intermediate replies, rubrics", more(value, path), false),
      kept(value, OF_TURN));
  }

  // A message: a field for each part that is a text, or one for a text that is not there yet.
  function said(turnValue, name, label, path, role, hint) {
    const content = get(turnValue, name);
    const parts = isObject(content) && Array.isArray(content.parts) ? content.parts : [];
    const texts = parts.map((part, place) => [part, place]).filter(([part]) => isObject(part) && typeof part.text === "string");
    const others = parts.filter((part) => !isObject(part) || typeof part.text !== "string");
    return [
      texts.length
        ? texts.map(([part, place], nth) => fields.add({
          label: nth ? `${label} (part ${nth + 1})` : label, hint, path: [...path, "parts", place, "text"], value: part.text,
          write: (text) => void writePart(turnValue, name, part, text, Boolean(hint) && parts.length === 1),
        }))
        : fields.add({ label, hint, path, value: "", write: (text) => void writeNew(turnValue, name, role, text) }),
      others.length > 0 && disclosure("Files and other parts, kept as they are", json(others)),
    ];
  }

  // A reply that is emptied is expected no more.
  function writePart(turnValue, name, part, text, optional) {
    part.text = text;
    const content = get(turnValue, name);
    if (optional && !text) put(turnValue, name, undefined, camel);
    else if (optional && !content) put(turnValue, name, { role: "model", parts: [part] }, camel);
  }

  function writeNew(turnValue, name, role, text) {
    const content = get(turnValue, name);
    if (!text && !isObject(content)) return;
    if (!isObject(content)) put(turnValue, name, message(role, text), camel);
    else if (!Array.isArray(content.parts)) content.parts = [{ text }];
    else {
      const part = content.parts.find((each) => isObject(each) && typeof each.text === "string");
      if (part) part.text = text;
      else content.parts.unshift({ text });
    }
  }

  // --- tool calls

  function calls(value, path, place) {
    const items = callsOf(value, path);
    const name = `expected call of turn ${place + 1},`;
    return [
      h("h3", {}, "Expected tool calls, in order"),
      items.list.length
        ? entries(items, (item) => [
          key(item.call, "name", "Tool", [...item.path, "name"], { single: true }),
          jsonKey(item.call, "args", "Arguments", [...item.path, "args"], "object", "JSON"),
          kept(item.call, ["name", "args"]),
        ], { name, redraw, className: `calls calls-${place}` })
        : h("p", { class: "quiet" }, get(value, "intermediate_data") ? "No call may be made." : "Any calls may be made."),
      h("div", { class: "row" },
        addButton("Add a call", items.add, `.calls-${place} > li:last-child input`),
        !items.list.length && !get(value, "intermediate_data") && addButton("Expect no call", items.none),
        !items.list.length && items.empty() && addButton("Allow any calls", items.clear)),
    ];
  }

  function callsOf(value, path) {
    const data = get(value, "intermediate_data");
    const at = [...path, "intermediateData"];
    const shared = {
      none: () => put(put(value, "intermediate_data", {}, camel), "tool_uses", [], camel),
      clear: () => put(value, "intermediate_data", undefined, camel),
      empty: () => isObject(data) && Object.values(data).every((each) => Array.isArray(each) && !each.length),
    };
    if (isObject(data) && Array.isArray(get(data, "invocation_events"))) return { ...eventCalls(data, at), ...shared };
    const uses = (isObject(data) && get(data, "tool_uses")) || [];
    const items = plain(uses);
    const add = () => {
      const kept = isObject(data) ? data : put(value, "intermediate_data", {}, camel);
      if (!Array.isArray(get(kept, "tool_uses"))) put(kept, "tool_uses", uses, camel);
      uses.push({ name: "", args: {} });
    };
    return { ...items, ...shared, add, list: uses.map((call, n) => ({ call, path: [...at, "toolUses", n] })) };
  }

  // The newer form: calls are parts of what the agent's events said. Each keeps its event.
  function eventCalls(data, at) {
    const events = get(data, "invocation_events");
    const list = events.flatMap((event, n) => ((event.content || {}).parts || []).flatMap((part, m) => {
      const call = isObject(part) && get(part, "function_call");
      return isObject(call) ? [{ call, event, part, path: [...at, "invocationEvents", n, "content", "parts", m, "functionCall"] }] : [];
    }));
    return {
      list,
      add: () => {
        const part = {};
        put(part, "function_call", { name: "", args: {} }, camel);
        events.push({ author: (events.at(-1) || {}).author || "agent", content: { role: "model", parts: [part] } });
      },
      remove: (place) => {
        const { event, part } = list[place];
        event.content.parts = event.content.parts.filter((each) => each !== part);
        if (!event.content.parts.length) events.splice(events.indexOf(event), 1);
      },
      swap: (one, other) => {
        put(list[one].part, "function_call", list[other].call, camel);
        put(list[other].part, "function_call", list[one].call, camel);
      },
    };
  }

  function more(value, path) {
    const data = get(value, "intermediate_data");
    const at = [...path, "intermediateData"];
    const events = isObject(data) && get(data, "invocation_events");
    const holder = isObject(data) ? data : {};
    const attached = (name, label, hint, last) => fields.json({
      holder, key: name, label, hint, path: [...at, last], value: get(holder, name), wanted: "list",
      write: (list) => {
        if (!isObject(get(value, "intermediate_data")) && list !== undefined) put(value, "intermediate_data", holder, camel);
        put(holder, name, list, camel);
      },
    });
    return [
      events && disclosure("Events, kept as they are but for their calls", json(events)),
      !events && attached("tool_responses", "What tools answered", 'as JSON: [{"name": …, "response": {…}}]', "toolResponses"),
      !events && attached("intermediate_responses", "Replies before the last", 'as JSON: [["author", [{"text": …}]]]', "intermediateResponses"),
      isObject(data) && kept(data, OF_DATA),
      rubrics(value, [...path, "rubrics"], `rubric of turn ${path[1] + 1},`),
    ];
  }

  // --- the case as a whole

  function simulated(scenario) {
    const path = ["conversationScenario"];
    const persona = get(scenario, "user_persona");
    return h("fieldset", { class: "panel" }, h("legend", {}, "Simulated user"),
      key(scenario, "starting_prompt", "First message", [...path, "startingPrompt"]),
      key(scenario, "conversation_plan", "Plan", [...path, "conversationPlan"], { hint: "what the user wants, and how the conversation goes" }),
      isObject(persona)
        ? jsonKey(scenario, "user_persona", "Persona", [...path, "userPersona"], "object", "JSON")
        : fields.add({
          label: "Persona", hint: "a name, such as NOVICE; empty: none", single: true, path: [...path, "userPersona"], value: textOf(persona),
          write: (text) => void put(scenario, "user_persona", text || undefined, camel),
        }),
      kept(scenario, ["starting_prompt", "conversation_plan", "user_persona"]));
  }

  function about() {
    const session = get(draft, "session_input");
    const own = isObject(draft.agentest) ? draft.agentest : {};
    return [
      isObject(session)
        ? h("fieldset", { class: "panel" }, h("legend", {}, "Session"),
          key(session, "app_name", "App", ["sessionInput", "appName"], { single: true }),
          key(session, "user_id", "User", ["sessionInput", "userId"], { single: true }),
          jsonKey(session, "state", "State at the start", ["sessionInput", "state"], "object", "JSON"),
          kept(session, ["app_name", "user_id", "state"]),
          addButton("Remove the session", () => put(draft, "session_input", undefined, camel), ".add-session"))
        : h("div", { class: "add-session-row" }, addButton("Give it a session", () => put(draft, "session_input", newSession(), camel), "fieldset input")),
      jsonKey(draft, "final_session_state", "Expected state at the end", ["finalSessionState"], "object", "JSON; empty: any"),
      rubrics(draft, ["rubrics"], "rubric"),
      fields.add({
        label: "Tags", hint: "words with commas between", single: true, path: ["agentest"], value: (own.tags || []).join(", "),
        write: (text) => void writeTags(own, text.split(",").map((tag) => tag.trim()).filter(Boolean)),
      }),
    ];
  }

  function newSession() {
    const made = {};
    for (const [name, value] of [["app_name", "app"], ["user_id", "user"], ["state", {}]]) put(made, name, value, camel);
    return made;
  }

  function writeTags(own, tags) {
    if (tags.length) own.tags = tags;
    else delete own.tags;
    if (Object.keys(own).length) draft.agentest = own;
    else delete draft.agentest;
  }

  function rubrics(holder, path, name) {
    const list = get(holder, "rubrics");
    const there = Array.isArray(list) ? list : [];
    const add = () => {
      const made = {};
      put(made, "rubric_id", `rubric_${there.length + 1}`, camel);
      put(put(made, "rubric_content", {}, camel), "text_property", "", camel);
      put(holder, "rubrics", [...there, made], camel);
    };
    const items = { ...plain(there), remove: (place) => put(holder, "rubrics", there.length > 1 ? there.toSpliced(place, 1) : undefined, camel) };
    return [
      h("h3", {}, "Rubrics, which a judge answers with yes or no"),
      there.length > 0 && entries(items, (each, place) => isObject(each) && [
        key(each, "rubric_id", "Rubric's id", [...path, place, "rubricId"], { single: true }),
        isObject(get(each, "rubric_content")) && key(get(each, "rubric_content"), "text_property", "What must be true", [...path, place, "rubricContent", "textProperty"]),
        kept(each, ["rubric_id", "rubric_content"]),
      ], { name, redraw, className: `rubrics ${path.join("-")}` }),
      addButton("Add a rubric", add, `.rubrics.${path.join("-")} > li:last-child input`),
    ];
  }

  draw();
  return { element, fields };
}

// What is folded away is unfolded for it.
function focus(control) {
  for (let at = control.closest("details"); at; at = at.parentElement.closest("details")) at.open = true;
  control.focus();
}

function textOf(value) {
  if (value === undefined || value === null) return "";
  return typeof value === "string" ? value : JSON.stringify(value);
}
