// The Talk view: a person talks to an agent through a scenario's mocks, and answers calls by hand.

import { address, go, read } from "./address.js";
import { addView } from "./app.js";
import { callItem } from "./calls.js";
import { ask, follow } from "./client.js";
import { announce, attempt, badge, disclosure, facts, json, longText, problem } from "./parts.js";
import { append, fill, foreign, h } from "./dom.js";
import { duration } from "./format.js";
import { saveConversation } from "./talk_save.js";

// The element of a call as the server tells it (`web/talks.py`). `send(body)` answers it where it waits.
function callElement(event, send) {
  const { call, waiting, answered, byHand } = event;
  if (answered) return append(callItem(call, {}), byHand && [badge("passed", "answered by hand")]);
  const state = waiting ? badge("errored", "waits for your answer") : badge("running", "under way");
  const asked = disclosure("Arguments", json(call.args), true);
  const wrong = call.invalidArguments && h("p.notice", foreign(call.invalidArguments));
  return h("li.call", "→ ", foreign(call.name, "code"), " ", state, wrong, asked, waiting && answerForm(event, send));
}

// An answer is a value, or the error with which the tool fails.
function answerForm({ call, number, proposed }, send) {
  const { error, resultText } = proposed || {};
  const value = error ?? resultText ?? "";
  const option = (name, text) => h("option", { value: name, selected: name === "error" && Boolean(error) }, text);
  const kind = h("select", { "aria-label": "The tool" }, option("resultText", "answers (JSON)"), option("error", "fails with"));
  const rows = Math.min(14, Math.max(3, value.split("\n").length + 1));
  const text = h("textarea.code", { rows, spellcheck: "false", "aria-label": `Answer of ${call.name}`, value });
  const said = h("div");
  const deliver = (answer) => attempt(said, () => send({ call: number, ...answer }));
  const keys = ({ key, ctrlKey, metaKey }) => key === "Enter" && (ctrlKey || metaKey) && form.requestSubmit();
  const onsubmit = (event) => {
    event.preventDefault();
    deliver({ [kind.value]: text.value });
  };
  const form = h(
    "form", { onsubmit, onkeydown: keys },
    !proposed && h("p", "Nothing mocks this tool: write what it answers."),
    kind, text, said,
    h("div.row",
      h("button.primary", { "aria-keyshortcuts": "Control+Enter" }, "Send this answer"),
      proposed && h("button", { type: "button", onclick: () => deliver({}) }, "As the mock answers")),
  );
  return form;
}

const KEYS = [
  ["Enter", "send the message"],
  ["Shift+Enter", "a new line in it"],
  ["Ctrl+Enter", "send a call's answer"],
];

export function addTalkView() {
  addView("talk", { title: "Talk", nav: true, show, keys: KEYS });
}

async function show(place, params, signal) {
  if (params.id) return void talk(place, params.id, signal);
  const found = await ask("/api/talks", { signal });
  const what = "Play the user yourself: write to the agent, see each call, and save the conversation as a scenario or case. The mocks of the scenario answer the agent's tools; you can change every answer.";
  const broken = found.broken.map((each) => problem(each));
  fill(place, h("h1", "Talk"), h("p.quiet", what), beginning(found, params), others(found.talks), broken);
}

const to = (id) => address("talk", { of: read().params.of, id });

// --- begin

function beginning({ scenarios, agents }, params) {
  const option = (text, value, selected) => h("option", { value, selected }, text);
  const scenario = h("select", option("none: you answer every call", ""), byFile(scenarios, params, option));
  const named = agents.map((name) => option(name, name, name === params.agent));
  const agent = h("select", option("as configured", ""), named);
  const said = h("div");
  const button = h("button.primary", "Begin");
  const onsubmit = (event) => {
    event.preventDefault();
    attempt(said, async () => {
      const { file, name } = scenarios[scenario.value || -1] || {};
      const { id } = await ask("/api/talks", { method: "POST", body: { file, scenario: name, agent: agent.value } });
      go("talk", { of: params.of, id });
    }, button);
  };
  const field = (name, control) => h("label.field", name, " ", control);
  const none = !scenarios.length && h("p.quiet", "There is no scenario yet: ", h("code", "agentest init"), " writes a first one.");
  return h("form.panel", { onsubmit }, h("div.row", field("Scenario", scenario), field("Agent", agent), button), none, said);
}

function byFile(scenarios, params, option) {
  const files = new Map();
  scenarios.forEach(({ file, name, skip }, number) => {
    if (skip !== null) return;
    const selected = name === params.scenario && (!params.file || file === params.file);
    files.set(file, [...(files.get(file) || []), option(name, String(number), selected)]);
  });
  return [...files].map(([label, options]) => h("optgroup", { label }, options));
}

function others(talks) {
  const item = ({ id, scenario, agent, ended }) =>
    h("li", h("a", { href: to(id), data: { step: "" } }, foreign(scenario), " with ", foreign(agent)), " ",
      ended ? badge("skipped", "ended") : badge("running", "under way"));
  return talks.length > 0 && [h("h2", "Conversations of this server"), h("ul", talks.map(item))];
}

// --- talk

function talk(place, id, signal) {
  const base = `/api/talks/${encodeURIComponent(id)}`;
  const post = (what, body = {}) => ask(`${base}/${what}`, { method: "POST", body });
  const top = h("div");
  const link = h("div", { role: "status" });
  const chat = h("ol.chat");
  const state = h("div.quiet", { role: "status" }, "The agent is being opened…");
  const box = composer(post);
  const turns = new Map();
  const calls = new Map();
  let seen = 0;
  let about = null;
  let ended = false;
  const dialog = () => saveConversation(about, (body) => post("save", body));
  const save = h("button", { type: "button", onclick: dialog, disabled: true }, "Save…");
  const after = h("div.row", save, h("a", { href: to() }, "Another conversation"));
  fill(place, h("h1", "Talk"), top, link, chat, state, box.element, after);

  const hear = {
    connection({ up, gone }) {
      const away = "The server does not answer; it is asked again and again.";
      const why = gone ? "This conversation is gone: the server was started anew." : away;
      fill(link, !up && !ended && h("p.notice", why));
      if (gone) box.element.hidden = true;
    },
    ready(event) {
      about = event;
      fill(top, head(event));
      box.ready(event);
    },
    listening() {
      fill(state, "Your turn.");
      box.listen(true);
    },
    user({ turnIndex, text }) {
      turnOf(turnIndex, text);
      fill(state, badge("running", "the agent is at work"));
      box.listen(false);
    },
    call(event) {
      const made = callElement(event, (body) => post("answer", body));
      const old = calls.get(event.number);
      const hadFocus = old?.contains(document.activeElement);
      if (old) old.replaceWith(made);
      else turnOf(event.call.turnIndex).calls.append(made);
      calls.set(event.number, made);
      if (event.waiting) waits(event, made);
      else if (hadFocus) box.focus();
    },
    turn({ turn: { turnIndex, userMessage, agentMessage, latencyMs } }) {
      const reply = longText(agentMessage || "(no text; the agent called tools only)", "p", { class: "message agent" });
      const time = h("p.quiet", duration(latencyMs));
      append(turnOf(turnIndex, userMessage).item, [reply, time]);
      time.scrollIntoView({ block: "nearest" });
      announce(`The agent said: ${agentMessage.slice(0, 300)}`);
      save.disabled = false;
    },
    note: ({ text }) => chat.append(h("li.notice", foreign(text))),
    hold: (event) => box.holds(event.calls),
    ended({ error, endedBy }) {
      ended = true;
      stop();
      fill(link);
      fill(state, error ? problem(error) : ["It has ended", endedBy && `: ${endedBy}`, "."]);
      chat.querySelectorAll(".call form").forEach((form) => form.replaceWith(badge("skipped", "never answered")));
      box.element.hidden = true;
    },
  };

  function turnOf(index, text = "") {
    if (!turns.has(index)) {
      const list = h("ul.plain");
      const item = h("li.turn", longText(text, "p.message.user"), list);
      chat.append(item);
      item.scrollIntoView({ block: "nearest" });
      turns.set(index, { item, calls: list });
    }
    return turns.get(index);
  }

  function waits(event, made) {
    announce(`The call of ${event.call.name} waits for your answer`);
    made.scrollIntoView({ block: "nearest" });
    if (box.idle()) made.querySelector("textarea").focus();
  }

  // A page that connects again is told everything from the first event on.
  const stop = follow(`${base}/events`, (event) => {
    if (event.seq <= seen) return;
    seen = event.seq ?? seen;
    hear[event.type]?.(event);
  });
  signal.addEventListener("abort", stop);
}

function head({ scenario, agent, profile, goal, knowledge, script, reached, aboutCalls }) {
  const list = (tag, texts) => texts.length > 0 && h(tag, texts.map((each) => h("li", foreign(each))));
  const lines = [
    ["Scenario", foreign(scenario)],
    ["Agent", foreign(agent)],
    ["You are", profile && foreign(profile)],
    ["You want", goal && foreign(goal)],
    ["You know", list("ul", knowledge)],
    ["The script says", list("ol", script)],
  ];
  return [facts(lines.filter(([, value]) => value)), !reached && h("p.notice", foreign(aboutCalls))];
}

// What is said, and whether calls wait to be answered.
function composer(post) {
  const said = h("div");
  const act = (what) => attempt(said, what);
  const text = h("textarea", { rows: 2, onkeydown: keys, "aria-label": "Your message" });
  const send = h("button.primary", { disabled: true }, "Send");
  const end = h("button", { type: "button", onclick: () => act(() => post("end")) }, "Stop");
  const hold = h("input", { type: "checkbox", onchange: () => act(() => post("hold", { tools: hold.checked })) });
  const tools = h("label", { hidden: true }, hold, "Hold tool calls, to look at each answer and change it");
  const about = h("p.quiet");
  const element = h("form", { onsubmit: say }, text, said, h("div.row", send, end, tools), about);

  function keys(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    element.requestSubmit();
  }
  function say(event) {
    event.preventDefault();
    const message = text.value;
    if (!message.trim() || send.disabled) return;
    text.value = "";
    act(() => post("say", { text: message }).catch((error) => {
      text.value ||= message;
      throw error;
    }));
  }
  return {
    element,
    focus: () => text.focus(),
    idle: () => !text.value && !document.activeElement.closest(".call, dialog"),
    ready({ reached, aboutCalls }) {
      tools.hidden = !reached;
      fill(about, reached && foreign(aboutCalls));
      text.focus();
    },
    listen(listening) {
      send.disabled = !listening;
      end.textContent = listening ? "End" : "Stop";
    },
    holds: (held) => (hold.checked = held),
  };
}
