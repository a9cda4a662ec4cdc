// The Conversation view: one conversation, first why it failed, then turn by turn. Without an id it shows the
// scenario's first that did not pass, and without a turn it goes to the one that broke.

import { address, go, note } from "./address.js";
import { addView } from "./app.js";
import { allTurns, callId, callStarts, chat } from "./chat.js";
import { fill, foreign, h } from "./dom.js";
import { folded, openForPrint } from "./folding.js";
import { about, others, title, toTake, why } from "./head.js";
import { announce, copyButton, json, problem } from "./parts.js";
import { wholeScores } from "./scores.js";
import { source } from "./source.js";
import { timeline } from "./timeline.js";
import { comparison } from "./trajectory.js";
import { statusOf, troubles } from "./troubles.js";

const KEYS = [
  ["n / p", "next, previous conversation; after the last, the next scenario"],
  ["f", "next turn with a problem"],
];

export function addConversationView() {
  addView("conversation", { title: "Conversation", nav: false, show, keys: KEYS, up: (params) => address("run", { of: params.of }) });
}

async function show(place, params, signal) {
  const found = await source().scenario(params.scenario, params.agent || "");
  if (!found) return void fill(place, h("h1", {}, "Conversation"), problem("This run has no such scenario."));
  const rows = found.conversations;
  const row = params.id ? rows.find((each) => each.conversationId === params.id) : rows.find((each) => !each.passed) || rows[0];
  if (!row) return void fill(place, without(found, params));
  const opened = await transcript(params, row.conversationId);
  const view = new View({ place, params, signal, found, row, opened });
  view.draw();
  if (!params.id) note({ id: row.conversationId });
}

async function transcript(params, id) {
  try {
    return await source().conversation(params.scenario, params.agent || "", id);
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

// A scenario of which no conversation was held, or not this one.
function without(found, params) {
  const { scenario, conversations } = found;
  const words = params.id && conversations.length ? `This scenario has no conversation ${params.id}.` : "No conversation of this scenario was held.";
  const link = (row) => h("li", {}, h("a", { href: address("conversation", { ...params, id: row.conversationId, turn: "" }) }, foreign(row.conversationId)));
  return [
    title(params, scenario),
    problem(words),
    h("ul", {}, scenario.failures.map((message) => foreign(message, "li"))),
    h("ul", {}, conversations.slice(0, 50).map(link)),
  ];
}

class View {
  constructor(given) {
    Object.assign(this, given);
    const { opened, found, row } = this;
    this.troubles = opened ? [...troubles(opened.conversation, found.scenario)] : [{ turn: null, what: "First of all", text: row.why }].filter((each) => each.text);
    this.turnLink = (index, content = `Turn ${index}`) => this.link(`turn-${index}`, content, index);
    this.callLink = (id, content) => this.link(id, content);
  }

  draw() {
    const { place, params, signal, found, row, opened } = this;
    const status = opened ? statusOf(opened.conversation, found.scenario) : row.passed ? "passed" : "failed";
    fill(
      place,
      title(params, found.scenario),
      others(found, row, status, { toRow: (each) => this.toRow(each), beside: (by) => this.beside(by) }),
      row.invalid && h("p", { class: "notice" }, "This conversation is invalid and says nothing of the agent: ", foreign(row.invalid)),
      opened && opened.conversation.shortened && h("p", { class: "notice" }, "Texts that were too long to be kept lack their ends."),
      why(found, this.troubles, status, this.turnLink),
      about(found, row, opened && opened.conversation),
      toTake(found, opened, () => this.urlOf(params.turn)),
      opened ? this.parts() : this.missing(),
    );
    openForPrint(place, signal);
    addEventListener("viewkey", (event) => this.pressed(event.detail), { signal });
    place.addEventListener("focusin", (event) => this.remember(event));
    // The frame puts the view on the page, and itself on top, when `show` has ended.
    setTimeout(() => !signal.aborted && this.first !== null && this.jump(`turn-${this.first}`));
  }

  // The turn to go to at once: that of the address, or the one that broke.
  get first() {
    const { params, row, opened } = this;
    if (params.turn !== undefined) return Number(params.turn);
    if (row.broke !== null && row.broke !== undefined) return row.broke;
    const turns = this.troubles.map((each) => each.turn).filter((turn) => turn !== null && turn !== undefined);
    return opened && turns.length ? Math.min(...turns) : null;
  }

  parts() {
    const { conversation } = this.opened;
    const turns = allTurns(conversation);
    const calls = turns.flatMap((turn) => turn.toolCalls);
    return [
      conversation.trajectory && comparison(conversation.trajectory, calls, (at, text) => this.callLink(callId(at), text), { isTold: true }),
      part("Turns", chat({ ...this.context(), first: this.first || 0 })),
      part("The conversation as a whole", wholeScores(conversation, this.found.scenario)),
      part("Time", timeline(conversation, this.turnLink)),
      part("Record", [copyButton(() => JSON.stringify(conversation, null, 2), "Copy as JSON"), folded("The conversation as it is stored", () => json(conversation), { class: "no-print" })]),
    ];
  }

  context() {
    const { opened, found, turnLink, callLink } = this;
    return { opened, scenario: found.scenario, troubles: this.troubles, turnLink, callLink, copyAddress: (index) => this.urlOf(index) };
  }

  missing() {
    const name = `'=${this.found.scenario.name.replaceAll("'", "'\\''")}'`;
    const command = `agentest show ${this.params.of || "RUN"} --scenario ${name} --verbose`;
    return h("div", { class: "notice" }, "The transcript of this conversation is not in this file. This shows it where the run is kept: ", foreign(command, "code"), " ", copyButton(command));
  }

  // --- links and places

  addressOf(turn) {
    return address("conversation", { ...this.params, id: this.row.conversationId, turn });
  }

  urlOf(turn) {
    return location.href.split("#")[0] + this.addressOf(turn);
  }

  link(id, content, turn) {
    const follow = (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.jump(id);
      if (turn !== undefined) note({ turn });
    };
    return h("a", { href: this.addressOf(turn === undefined ? this.turnOfCall(id) : turn), onclick: follow }, content);
  }

  turnOfCall(id) {
    const turns = allTurns(this.opened.conversation);
    const starts = callStarts(turns);
    const at = starts.findLastIndex((start) => start <= Number(id.slice("call-".length)));
    return at < 0 ? undefined : turns[at].turnIndex;
  }

  // Focus and show an element. What is above it may get its true height only now: it is shown a second time.
  jump(id) {
    const element = document.getElementById(id);
    if (!element) return this.reload(id);
    const bring = () => element.scrollIntoView({ block: "start" });
    for (const each of this.place.querySelectorAll(".here")) each.classList.remove("here");
    element.classList.add("here");
    element.focus({ preventScroll: true });
    bring();
    requestAnimationFrame(() => requestAnimationFrame(() => !this.signal.aborted && bring()));
  }

  // Turns far away are not on the page: it is drawn anew around this one.
  reload(id) {
    const turn = id.startsWith("turn-") ? Number(id.slice("turn-".length)) : this.turnOfCall(id);
    const known = this.opened && allTurns(this.opened.conversation).some((each) => each.turnIndex === turn);
    if (known) go("conversation", { ...this.params, id: this.row.conversationId, turn });
    else announce(`There is no turn ${turn}`);
  }

  // The turn that has the focus stands in the address; not at once, as browsers limit how often that may change.
  remember(event) {
    const turn = event.target.closest(".turn");
    clearTimeout(this.noting);
    if (turn) this.noting = setTimeout(() => !this.signal.aborted && note({ turn: turn.id.slice("turn-".length) }), 300);
  }

  // --- keys

  pressed(key) {
    if (key === "n") this.beside(1);
    else if (key === "p") this.beside(-1);
    else if (key === "f") this.nextTrouble();
  }

  nextTrouble() {
    const turns = [...new Set(this.troubles.map((each) => each.turn))].filter((turn) => turn !== null && turn !== undefined).sort((a, b) => a - b);
    if (!turns.length) return announce("No turn has a problem");
    const here = document.activeElement.closest(".turn");
    const now = here ? Number(here.id.slice("turn-".length)) : -1;
    const next = turns.find((turn) => turn > now);
    this.jump(`turn-${next === undefined ? turns[0] : next}`);
  }

  toRow(row) {
    go("conversation", { ...this.params, id: row.conversationId, turn: "" });
  }

  async beside(by) {
    const rows = this.found.conversations;
    const next = rows[rows.indexOf(this.row) + by];
    if (next) return this.toRow(next);
    const { scenarios } = await source().overview();
    const held = scenarios.filter((each) => each.conversations > 0);
    const { name, agent } = this.found.scenario;
    const other = held[held.findIndex((each) => each.name === name && each.agent === agent) + by];
    if (other) go("conversation", { of: this.params.of, scenario: other.name, agent: other.agent });
    else announce(by > 0 ? "This is the last conversation of the run" : "This is the first conversation of the run");
  }
}

function part(name, content) {
  return h("section", {}, h("h2", {}, name), content);
}
