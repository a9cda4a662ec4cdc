// The Talk view: a person talks to an agent through a scenario's mocks, and answers calls by hand.

import { address, go, read } from "./address.js";
import { addView } from "./app.js";
import { ask, follow } from "./client.js";
import { append, fill, foreign, h } from "./dom.js";
import { duration } from "./format.js";
import { announce, badge, disclosure, facts, longText, problem } from "./parts.js";
import { answerField, attempt, callElement } from "./talk_calls.js";
import { saveTalk } from "./talk_save.js";

export function addTalkView() {
  const keys = [
    ["Enter", "send the message"],
    ["Shift+Enter", "a new line in it"],
    ["Ctrl+Enter", "send a call's answer"],
  ];
  addView("talk", { title: "Talk", nav: true, show, keys });
}

async function show(place, params, signal) {
  if (params.id) return void talk(place, params.id, signal);
  const found = await ask("/api/talks", { signal });
  const what = "The mocks of a scenario answer the agent's tools; you can change every answer.";
  fill(
    place,
    h("h1", "Talk"),
    h("p.quiet", what),
    beginning(found, params),
    others(found.talks),
    found.broken.map((each) => problem(each)),
  );
}

const to = (id) => address("talk", { of: read().params.of, id });

// --- begin

function beginning({ scenarios, agents }, params) {
  const none = (text) => h("option", { value: "" }, text);
  const scenario = h("select", { onchange: tell }, none("none: you answer every call"), byFile(scenarios, params));
  const option = (name) => h("option", { value: name, selected: name === params.agent }, name);
  const agent = h("select", none("as configured"), agents.map(option));
  const about = h("div", { "aria-live": "polite" });
  const wrong = h("div");
  const button = h("button.primary", "Begin");
  const chosen = () => scenarios[scenario.value || -1];
  function tell() {
    const it = chosen();
    const tools = it && (it.tools.join(", ") || "none");
    const lines = [["Goal", it?.goal && foreign(it.goal)], ["Mocked tools", foreign(tools)], ["Agent", it?.agent]];
    fill(about, it && facts(lines));
  }
  async function begin(event) {
    event.preventDefault();
    button.disabled = true;
    const it = chosen();
    const body = { file: it?.file, scenario: it?.name, agent: agent.value };
    await attempt(wrong, async () => {
      const { id } = await ask("/api/talks", { method: "POST", body });
      go("talk", { of: params.of, id });
    });
    button.disabled = false;
  }
  tell();
  const field = (name, control) => h("label", name, h("br"), control);
  const row = h("div.row", field("Scenario", scenario), field("Agent", agent), button);
  return h("form.panel", { onsubmit: begin }, row, about, wrong);
}

function byFile(scenarios, { scenario, file }) {
  const files = new Map();
  scenarios.forEach((each, number) => {
    if (each.skip !== null) return;
    const selected = each.name === scenario && (!file || file === each.file);
    const option = h("option", { value: String(number), selected }, each.name);
    files.set(each.file, [...(files.get(each.file) || []), option]);
  });
  return [...files].map(([label, options]) => h("optgroup", { label }, options));
}

function others(talks) {
  if (!talks.length) return null;
  const item = (each) => {
    const link = h("a", { href: to(each.id), data: { step: "" } }, foreign(each.scenario), " with ", foreign(each.agent));
    return h("li", link, " ", each.ended ? badge("skipped", "ended") : badge("running", "under way"));
  };
  return [h("h2", "Conversations of this server"), h("ul", talks.map(item))];
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
  const dialog = () => saveTalk(about, (body) => post("save", body));
  const save = h("button", { type: "button", onclick: dialog, disabled: true }, "Save…");
  const after = h("div.row.talk-after", save, h("a", { href: to() }, "Another conversation"));
  fill(place, h("h1", "Talk"), top, link, chat, state, box.form, after, box.tools);

  const hear = {
    connection({ up, gone }) {
      const away = "The server does not answer; it is asked again and again.";
      const why = gone ? "This conversation is gone: the server was started anew." : away;
      fill(link, !up && !ended && h("p.notice", why));
      if (gone) box.end();
    },
    ready(event) {
      about = event;
      fill(top, head(event));
      box.know(event);
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
    turn({ turn }) {
      const text = turn.agentMessage || "(no text; the agent called tools only)";
      const reply = longText(text, "p", { class: "message agent" });
      const time = h("p.quiet.talk-time", duration(turn.latencyMs));
      append(turnOf(turn.turnIndex, turn.userMessage).item, [reply, time]);
      time.scrollIntoView({ block: "nearest" });
      announce(`The agent said: ${turn.agentMessage.slice(0, 300)}`);
      save.disabled = false;
    },
    note: ({ text }) => chat.append(h("li.notice", foreign(text))),
    hold: ({ calls: held }) => box.holds(held),
    next: ({ tools }) => box.nextOf(tools),
    ended({ error, endedBy }) {
      ended = true;
      stop();
      fill(link);
      fill(state, error ? problem(error) : `It has ended${endedBy ? `: ${endedBy}` : ""}.`);
      chat.querySelectorAll(".call form").forEach((form) => form.replaceWith(badge("skipped", "never answered")));
      box.end();
    },
  };

  function turnOf(index, text = "") {
    if (!turns.has(index)) {
      const list = h("div");
      const item = h("li.turn", longText(text, "p", { class: "message user" }), list);
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

function head(about) {
  const list = (tag, texts) => texts.length > 0 && h(tag, {}, texts.map((each) => h("li", foreign(each))));
  const lines = [
    ["Scenario", foreign(about.scenario)],
    ["Agent", foreign(about.agent)],
    ["You are", about.profile && foreign(about.profile)],
    ["You want", about.goal && foreign(about.goal)],
    ["You know", list("ul", about.knowledge)],
    ["The script says", list("ol", about.script)],
  ];
  const past = !about.reached && h("p.notice", foreign(about.aboutCalls));
  return [facts(lines.filter(([, value]) => value)), past];
}

// What is said, and how calls are answered.
function composer(post) {
  const text = h("textarea", { id: "talk-text", rows: 2, onkeydown: keys });
  const send = h("button.primary", { disabled: true }, "Send");
  const end = h("button", { type: "button", onclick: () => act(() => post("end")) }, "Stop");
  const wrong = h("div");
  const act = (what) => attempt(wrong, what);
  const label = h("label", { for: text.id }, "Your message");
  const buttons = h("div.row", send, end);
  const form = h("form.talk-box", { onsubmit: say }, label, text, wrong, buttons);
  const hold = h("input", { type: "checkbox", onchange: () => act(() => post("hold", { tools: hold.checked })) });
  const about = h("p.quiet");
  const set = h("p", { role: "status" });
  const tool = h("input", { list: "talk-tools", required: true });
  const names = h("datalist", { id: "talk-tools" });
  const answer = answerField("Answer of the next call");
  const which = h("label", "The next call of ", tool);
  const next = h("form", { onsubmit: setNext }, which, names, answer.shown, h("button", "Set"), set);
  const tools = h(
    "section",
    { class: "panel", "aria-label": "Tool calls", hidden: true },
    h("label", hold, " Hold tool calls, to look at each answer and change it"),
    about,
    disclosure("Answer the next call of a tool otherwise", next),
  );

  function keys(event) {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    event.preventDefault();
    form.requestSubmit();
  }
  function say(event) {
    event.preventDefault();
    const said = text.value;
    if (!said.trim() || send.disabled) return;
    act(async () => {
      text.value = "";
      try {
        await post("say", { text: said });
      } catch (error) {
        text.value ||= said;
        throw error;
      }
    });
  }
  function setNext(event) {
    event.preventDefault();
    act(() => post("next", { tool: tool.value, ...answer.written() }));
  }
  return {
    form,
    tools,
    focus: () => text.focus(),
    idle: () => !text.value && !document.activeElement.closest(".call, .panel, dialog"),
    know(it) {
      tools.hidden = !it.reached;
      fill(about, foreign(it.aboutCalls));
      append(names, it.tools.map((name) => h("option", { value: name })));
      text.focus();
    },
    listen(listening) {
      send.disabled = !listening;
      end.textContent = listening ? "End" : "Stop";
    },
    holds: (calls) => (hold.checked = calls),
    nextOf: (list) => fill(set, list.length > 0 && ["Set for the next call of ", foreign(list.join(", "))]),
    end() {
      form.hidden = tools.hidden = true;
    },
  };
}
