// The Talk view: a person talks to an agent through a scenario's mocks, and answers calls by hand.

import { address, go, read } from "./address.js";
import { addView } from "./app.js";
import { ask, follow } from "./client.js";
import { append, fill, foreign, h } from "./dom.js";
import { duration } from "./format.js";
import { announce, badge, disclosure, facts, longText, problem } from "./parts.js";
import { answerKind, callElement, written } from "./talk_calls.js";
import { saveTalk } from "./talk_save.js";

export function addTalkView() {
  addView("talk", { title: "Talk", nav: true, show, keys: [["Enter", "send the message"], ["Shift+Enter", "a new line in it"], ["Ctrl+Enter", "send the answer of a call"]] });
}

async function show(place, params, signal) {
  if (params.id) return void talk(place, params.id, signal);
  const found = await ask("/api/talks", { signal });
  fill(place, h("h1", {}, "Talk"), h("p", { class: "quiet" }, "Talk to an agent yourself. The mocks of a scenario answer its tools; you can change every answer."), beginning(found, params), others(found.talks), found.broken.map((each) => problem(each)));
}

// --- begin

const CONFIGURED = "as configured";

function beginning(found, params) {
  const scenario = h("select", { id: "talk-scenario" }, h("option", { value: "" }, "none: you answer every call"), byFile(found.scenarios, params));
  const agent = h("select", { id: "talk-agent" }, h("option", { value: "" }, CONFIGURED), found.agents.map((name) => h("option", { value: name, selected: name === params.agent }, name)));
  const about = h("div", { "aria-live": "polite" });
  const wrong = h("div", {});
  const button = h("button", { class: "primary" }, "Begin");
  const chosen = () => found.scenarios[Number(scenario.value)];
  function tell() {
    const it = scenario.value === "" ? null : chosen();
    fill(about, it && facts([["Goal", it.goal && foreign(it.goal)], ["Mocked tools", it.tools.length ? foreign(it.tools.join(", ")) : "none"], ["Agent", it.agent && foreign(it.agent)]]));
  }
  async function begin(event) {
    event.preventDefault();
    button.disabled = true;
    fill(wrong);
    try {
      const it = scenario.value === "" ? {} : { file: chosen().file, scenario: chosen().name };
      const { id } = await ask("/api/talks", { method: "POST", body: { ...it, agent: agent.value } });
      go("talk", { of: params.of, id });
    } catch (error) {
      button.disabled = false;
      fill(wrong, problem(error.message));
    }
  }
  scenario.addEventListener("change", tell);
  tell();
  const field = (name, control) => h("div", {}, h("label", { for: control.id }, name), h("div", {}, control));
  return h("form", { class: "panel", onsubmit: begin }, h("div", { class: "row" }, field("Scenario", scenario), field("Agent", agent), button), about, wrong);
}

function byFile(scenarios, params) {
  const files = new Map();
  scenarios.forEach((each, number) => {
    if (each.skip === null) files.set(each.file, [...(files.get(each.file) || []), [each, number]]);
  });
  const option = ([each, number]) => h("option", { value: String(number), selected: each.name === params.scenario && (!params.file || params.file === each.file) }, each.name);
  return [...files].map(([file, list]) => h("optgroup", { label: file }, list.map(option)));
}

function others(talks) {
  if (!talks.length) return null;
  const item = (each) => h("li", {}, h("a", { href: address("talk", { of: read().params.of, id: each.id }), data: { step: "" } }, foreign(each.scenario), " with ", foreign(each.agent)), " ", badge(each.ended ? "skipped" : "running", each.ended ? "ended" : "under way"));
  return [h("h2", {}, "Conversations of this server"), h("ul", {}, talks.map(item))];
}

// --- talk

function talk(place, id, signal) {
  const base = `/api/talks/${encodeURIComponent(id)}`;
  const post = (what, body = {}) => ask(`${base}/${what}`, { method: "POST", body });
  const parts = {
    head: h("div", {}),
    link: h("div", { role: "status" }),
    chat: h("ol", { class: "chat" }),
    state: h("p", { class: "quiet", role: "status" }, "The agent is being opened…"),
  };
  const now = { seq: 0, turns: new Map(), calls: new Map(), listening: false, ended: false, about: null };
  const box = composer(now, parts, post);
  const save = h("button", { type: "button", onclick: () => saveTalk(now.about, (body) => post("save", body)), disabled: true }, "Save…");
  fill(place, h("h1", {}, "Talk"), parts.head, parts.link, parts.chat, parts.state, box.form, h("div", { class: "row talk-after" }, save, h("a", { href: address("talk", { of: read().params.of }) }, "Another conversation")), box.tools);

  function heard(event) {
    if (event.type === "connection") return void connection(event);
    if (event.seq <= now.seq) return;
    now.seq = event.seq;
    (hear[event.type] || (() => {}))(event);
  }

  function connection({ up, gone }) {
    fill(parts.link, up || now.ended ? null : h("p", { class: "notice" }, gone ? "This conversation is gone: the server was started anew." : "The server does not answer; it is asked again and again."));
    if (gone) box.end();
  }

  const hear = {
    ready(event) {
      now.about = event;
      fill(parts.head, head(event));
      box.know(event);
    },
    listening() {
      now.listening = true;
      fill(parts.state, "Your turn.");
      box.ready();
    },
    user(event) {
      now.listening = false;
      turnOf(event.turnIndex, event.text);
      fill(parts.state, badge("running", "the agent is at work"));
      box.ready();
    },
    call(event) {
      const made = callElement(event, (body) => post("answer", body));
      const old = now.calls.get(event.number);
      const hadFocus = old && old.contains(document.activeElement);
      if (old) old.replaceWith(made);
      else turnOf(event.call.turnIndex).calls.append(made);
      now.calls.set(event.number, made);
      if (event.waiting) waits(event, made);
      else if (hadFocus) box.focus();
    },
    turn({ turn }) {
      const { item } = turnOf(turn.turnIndex, turn.userMessage);
      item.append(longText(turn.agentMessage || "(no text; the agent called tools only)", "p", { class: "message agent" }), h("p", { class: "quiet talk-time" }, duration(turn.latencyMs)));
      item.lastChild.scrollIntoView({ block: "nearest" });
      announce(`The agent said: ${turn.agentMessage.slice(0, 300)}`);
      save.disabled = false;
    },
    note: ({ text }) => parts.chat.append(h("li", { class: "notice" }, foreign(text))),
    hold: ({ calls }) => box.holds(calls),
    next: ({ tools }) => box.nextOf(tools),
    ended(event) {
      now.ended = true;
      stop();
      fill(parts.link);
      fill(parts.state, event.error ? problem(event.error) : ["It has ended", event.endedBy && `: ${event.endedBy}`, "."]);
      parts.chat.querySelectorAll(".call form").forEach((form) => form.replaceWith(badge("skipped", "never answered")));
      box.end();
      announce("The conversation has ended");
    },
  };

  function turnOf(index, text = "") {
    if (!now.turns.has(index)) {
      const calls = h("div", {});
      const item = h("li", { class: "turn" }, longText(text, "p", { class: "message user" }), calls);
      parts.chat.append(item);
      item.scrollIntoView({ block: "nearest" });
      now.turns.set(index, { item, calls });
    }
    return now.turns.get(index);
  }

  function waits(event, made) {
    announce(`The call of ${event.call.name} waits for your answer`);
    made.scrollIntoView({ block: "nearest" });
    if (box.idle()) made.querySelector("textarea").focus();
  }

  const stop = follow(`${base}/events`, heard);
  signal.addEventListener("abort", stop);
}

const list = (tag, texts) => (texts.length ? h(tag, {}, texts.map((each) => h("li", {}, foreign(each)))) : null);

function head(about) {
  const lines = facts([
    ["Scenario", foreign(about.scenario)],
    ["Agent", foreign(about.agent)],
    ["You are", about.profile && foreign(about.profile)],
    ["You want", about.goal && foreign(about.goal)],
    ["You know", list("ul", about.knowledge)],
    ["The script says", list("ol", about.script)],
  ]);
  return about.reached ? lines : [lines, h("p", { class: "notice" }, foreign(about.aboutCalls))];
}

// What is said, and how calls are answered.
function composer(now, parts, post) {
  const text = h("textarea", { id: "talk-text", rows: 2, onkeydown: keys });
  const send = h("button", { class: "primary" }, "Send");
  const end = h("button", { type: "button", onclick: () => attempt(() => post("end")) }, "End");
  const wrong = h("div", {});
  const form = h("form", { class: "talk-box", onsubmit: say }, h("label", { for: "talk-text" }, "Your message"), text, wrong, h("div", { class: "row" }, send, end));
  const hold = h("input", { type: "checkbox", onchange: () => attempt(() => post("hold", { tools: hold.checked })) });
  const about = h("p", { class: "quiet", id: "talk-about" });
  const set = h("p", { role: "status" });
  const tool = h("input", { id: "talk-tool", list: "talk-tools", required: true });
  const names = h("datalist", { id: "talk-tools" });
  const kind = answerKind();
  const answer = h("textarea", { class: "code", rows: 3, spellcheck: "false", "aria-label": "Answer of the next call" });
  const next = h("form", { onsubmit: setNext }, h("div", { class: "row" }, h("label", { for: "talk-tool" }, "The next call of"), tool, names, kind), answer, h("div", { class: "row" }, h("button", {}, "Set"), set));
  const tools = h("section", { class: "panel", "aria-label": "Tool calls", hidden: true }, h("label", {}, hold, " Hold tool calls, to look at each answer and change it"), about, disclosure("Answer the next call of a tool otherwise", next));

  async function attempt(act) {
    fill(wrong);
    try {
      await act();
    } catch (error) {
      fill(wrong, problem(error.message));
    }
  }
  function keys(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  }
  function say(event) {
    event.preventDefault();
    const said = text.value;
    if (!said.trim() || send.disabled) return;
    attempt(async () => {
      await post("say", { text: said });
      if (text.value === said) text.value = "";
    });
  }
  function setNext(event) {
    event.preventDefault();
    attempt(() => post("next", { tool: tool.value, ...written(kind, answer) }));
  }
  return {
    form,
    tools,
    focus: () => text.focus(),
    idle: () => !text.value && [document.body, text, document.getElementById("main")].includes(document.activeElement),
    know(it) {
      tools.hidden = !it.reached;
      fill(about, foreign(it.aboutCalls));
      append(names, it.tools.map((name) => h("option", { value: name })));
      text.focus();
    },
    ready() {
      send.disabled = !now.listening;
      end.textContent = now.listening ? "End" : "Stop";
    },
    holds: (calls) => (hold.checked = calls),
    nextOf: (list) => fill(set, list.length ? ["Set for the next call of ", foreign(list.join(", "))] : null),
    end() {
      form.hidden = true;
      tools.hidden = true;
    },
  };
}
