// The Conversation view: one conversation, first why it failed, then turn by turn. Without an id it shows the
// scenario's first that did not pass, and without a turn it goes to the one that broke.

import { address, go, note } from "./address.js";
import { addView } from "./app.js";
import { allTurns, chat } from "./chat.js";
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
  const up = ({ of }) => address("run", { of });
  addView("conversation", { title: "Conversation", nav: false, show, keys: KEYS, up });
}

async function show(place, params, signal) {
  const found = await source().scenario(params.scenario, params.agent || "");
  if (!found) return void fill(place, h("h1", {}, "Conversation"), problem("This run has no such scenario."));
  const rows = found.conversations;
  const named = rows.find((each) => each.conversationId === params.id);
  const row = params.id ? named : rows.find((each) => !each.passed) || rows[0];
  if (!row) return void fill(place, title(params, found.scenario), without(found, params));
  const opened = await transcript(params, row.conversationId);
  if (!params.id) note({ id: row.conversationId });
  draw({ place, signal, found, row, opened, params: { ...params, id: row.conversationId } });
}

async function transcript(params, id) {
  try {
    return await source().conversation(params.scenario, params.agent || "", id);
  } catch (error) {
    if (error.status === 404) return null;
    throw error;
  }
}

function without({ scenario, conversations }, { id }) {
  const named = `This scenario has no conversation ${id}.`;
  return [
    problem(id && conversations.length ? named : "No conversation of this scenario was held."),
    scenario.failures.map((message) => foreign(message, "p")),
  ];
}

function draw(view) {
  const { place, signal, found, row, opened, params } = view;
  const conversation = opened && opened.conversation;
  const { scenario } = found;
  view.troubles = conversation ? troubles(conversation, scenario) : [{ what: "First of all", text: row.why }];
  const urlOf = (turn) => location.href.split("#")[0] + address("conversation", { ...params, turn });
  const turnLink = (index, content = `Turn ${index}`) => link(view, `turn-${index}`, content, index);
  const status = conversation ? statusOf(conversation, scenario) : row.passed ? "passed" : "failed";
  const first = firstTurn(view);
  fill(
    place,
    title(params, scenario),
    others(found, row, status, (by) => beside(view, by)),
    conversation && conversation.shortened && notice("Texts that were too long to be kept lack their ends."),
    why(
      found,
      view.troubles.filter((each) => each.text),
      status,
      turnLink,
    ),
    about(found, row),
    toTake(found.command, opened && opened.script, () => urlOf(params.turn)),
    conversation ? parts(view, { turnLink, urlOf, first }) : missing(found.show),
  );
  openForPrint(place, signal);
  const keys = { n: () => beside(view, 1), p: () => beside(view, -1), f: () => nextTrouble(view) };
  addEventListener("viewkey", ({ detail }) => keys[detail] && keys[detail](), { signal });
  place.addEventListener("focusin", remember(signal));
  // The frame puts the view on the page, and itself on top, when `show` has ended.
  setTimeout(() => !signal.aborted && Number.isInteger(first) && jump(view, `turn-${first}`, first));
}

// The turn to go to at once: that of the address, or the one that broke.
function firstTurn({ params, row, troubles: wrong }) {
  if (params.turn !== undefined) return Number(params.turn);
  const found = wrong.map((each) => each.turn).filter(Number.isInteger);
  return row.broke ?? (found.length ? Math.min(...found) : null);
}

function parts(view, more) {
  const { opened, found } = view;
  const { conversation } = opened;
  const { scenario } = found;
  const callLink = (at, content, call) => link(view, `call-${at}`, content, call.turnIndex);
  const part = (name, ...content) => h("section", {}, h("h2", {}, name), content);
  const record = () => JSON.stringify(conversation, null, 2);
  const calls = allTurns(conversation).flatMap((turn) => turn.toolCalls);
  return [
    conversation.trajectory && comparison(conversation.trajectory, calls, callLink),
    part("Turns", chat({ ...more, opened, scenario, troubles: view.troubles, callLink })),
    part("The conversation as a whole", wholeScores(conversation, scenario)),
    part("Time", timeline(conversation, more.turnLink)),
    part(
      "Record",
      copyButton(record, "Copy as JSON"),
      folded("As it is stored", () => json(conversation), { class: "no-print" }),
    ),
  ];
}

function notice(...content) {
  return h("div", { class: "notice" }, content);
}

// `command`: what prints it where the run is kept.
function missing(command) {
  const where = command && [" This prints it where the run is kept: ", foreign(command, "code"), " ", copyButton(command)];
  return notice("The transcript of this conversation is not here.", where);
}

// --- places

function link(view, id, content, turn) {
  const follow = (event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return;
    event.preventDefault();
    jump(view, id, turn);
  };
  return h("a", { href: address("conversation", { ...view.params, turn }), onclick: follow }, content);
}

// Focus and show an element. What is above it may get its true height only now, so it is shown a second time.
// Turns far away are not on the page: it is drawn anew around this one.
function jump(view, id, turn) {
  const element = document.getElementById(id);
  if (!element) {
    const known = view.opened && allTurns(view.opened.conversation).some((each) => each.turnIndex === turn);
    return known ? go("conversation", { ...view.params, turn }) : announce(`There is no turn ${turn}`);
  }
  const bring = () => !view.signal.aborted && element.scrollIntoView({ block: "start" });
  for (const each of view.place.querySelectorAll(".here")) each.classList.remove("here");
  element.classList.add("here");
  element.focus({ preventScroll: true });
  bring();
  requestAnimationFrame(() => requestAnimationFrame(bring));
}

function turnOf(element) {
  const turn = element.closest(".turn");
  return turn && Number(turn.id.slice("turn-".length));
}

// The turn that has the focus stands in the address; not at once, as browsers limit how often that may change.
function remember(signal) {
  let waiting;
  return ({ target }) => {
    const turn = turnOf(target);
    clearTimeout(waiting);
    if (turn !== null) waiting = setTimeout(() => signal.aborted || note({ turn }), 300);
  };
}

// --- keys

function nextTrouble(view) {
  const turns = view.troubles.map((each) => each.turn).filter(Number.isInteger);
  if (!turns.length) return announce("No turn has a problem");
  const now = turnOf(document.activeElement) ?? -1;
  const later = turns.filter((turn) => turn > now);
  const next = Math.min(...(later.length ? later : turns));
  return jump(view, `turn-${next}`, next);
}

async function beside({ found, row, params }, by) {
  const { conversations, scenario } = found;
  const next = conversations[conversations.indexOf(row) + by];
  if (next) return go("conversation", { ...params, id: next.conversationId, turn: "" });
  const held = (await source().overview()).scenarios.filter((each) => each.conversations > 0);
  const here = held.findIndex((each) => each.name === scenario.name && each.agent === scenario.agent);
  const other = held[here + by];
  if (!other) return announce(`This is the ${by > 0 ? "last" : "first"} conversation of the run`);
  return go("conversation", { of: params.of, scenario: other.name, agent: other.agent });
}
