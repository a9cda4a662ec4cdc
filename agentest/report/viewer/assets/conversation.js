// The Conversation view: one conversation, first why it failed, then turn by turn. Without an id it shows the
// scenario's first that did not pass, and without a turn it goes to the one that broke.

import { address, go, note } from "./address.js";
import { addView } from "./app.js";
import { chat } from "./chat.js";
import { fill, foreign, h } from "./dom.js";
import { folded, notice, openForPrint } from "./folding.js";
import { turnName } from "./format.js";
import { about, others, title, toTake, verdictLine, why } from "./head.js";
import { announce, copyButton, json, problem } from "./parts.js";
import { wholeScores } from "./scores.js";
import { source, there } from "./source.js";
import { timeline } from "./timeline.js";
import { comparison } from "./trajectory.js";
import { allTurns, statusOf, troubles } from "./troubles.js";

const KEYS = [
  ["n / p", "next, previous conversation; after the last, the next scenario"],
  ["f", "next turn with a problem"],
];

export function addConversationView() {
  const up = ({ of }) => address("run", { of });
  addView("conversation", { title: "Conversation", nav: false, show, keys: KEYS, up });
}

async function show(place, params, signal) {
  const { scenario: name, agent = "", id } = params;
  const found = await source().scenario(name, agent);
  if (!found) return void fill(place, h("h1", "Conversation"), problem("This run has no such scenario."));
  const { scenario, conversations } = found;
  const row = id
    ? conversations.find((each) => each.conversationId === id)
    : conversations.find((each) => !each.passed) || conversations[0];
  if (!row) return void fill(place, title(params, scenario), without(found, id));
  const opened = await there(source().conversation(name, agent, row.conversationId));
  if (!id) note({ id: row.conversationId });
  draw({ place, signal, found, scenario, row, opened, params: { ...params, id: row.conversationId } });
}

function without({ scenario, conversations }, id) {
  const none = "No conversation of this scenario was held.";
  const words = conversations.length ? `This scenario has no conversation ${id}.` : none;
  return [problem(words), scenario.failures.map((message) => foreign(message, "p"))];
}

function draw(view) {
  const { place, signal, found, scenario, row, opened, params } = view;
  const conversation = opened && opened.conversation;
  const told = row.why ? [{ what: "First of all", text: row.why }] : [];
  Object.assign(view, {
    conversation,
    status: statusOf(conversation || row, scenario),
    troubles: conversation ? troubles(conversation, scenario) : told,
    save: source().save && (() => source().save(scenario, params.agent || "", row.conversationId)),
    urlOf: (turn) => location.href.split("#")[0] + address("conversation", { ...params, turn }),
    turnLink: (index, content = turnName(index)) => link(view, `turn-${index}`, content, index),
    callLink: (at, content, call) => link(view, `call-${at}`, content, call.turnIndex),
  });
  view.first = firstTurn(view);
  fill(
    place,
    title(params, scenario),
    verdictLine(view),
    others(view, (by) => beside(view, by)),
    conversation && conversation.shortened && notice("Texts that were too long to be kept lack their ends."),
    why(view),
    about(view),
    toTake(view),
    conversation ? parts(view) : missing(found.show),
  );
  openForPrint(place, signal);
  const keys = { n: () => beside(view, 1), p: () => beside(view, -1), f: () => nextTrouble(view) };
  addEventListener("viewkey", ({ detail }) => keys[detail] && keys[detail](), { signal });
  place.addEventListener("focusin", remember(signal));
  // The frame puts the view on the page, and itself on top, when `show` has ended.
  const { first } = view;
  setTimeout(() => !signal.aborted && Number.isInteger(first) && jump(view, `turn-${first}`, first));
}

// The turn to go to at once: that of the address, or the one that broke.
function firstTurn({ params, row, troubles: wrong }) {
  if (params.turn !== undefined) return Number(params.turn);
  const turns = wrong.map((each) => each.turn).filter(Number.isInteger);
  return row.broke ?? (turns.length ? Math.min(...turns) : null);
}

function parts(view) {
  const { conversation, scenario, callLink, turnLink } = view;
  const { trajectory } = conversation;
  const part = (name, ...content) => h("section", h("h2", name), content);
  const record = () => JSON.stringify(conversation, null, 2);
  const stored = folded("details.no-print", "As it is stored", () => json(record()));
  const calls = allTurns(conversation).flatMap((turn) => turn.toolCalls);
  return [
    trajectory && comparison(trajectory, calls, callLink),
    part("Turns", chat(view)),
    part("The conversation as a whole", wholeScores(conversation, scenario)),
    part("Time", timeline(conversation, turnLink)),
    part("Record", copyButton(record, "Copy as JSON"), stored),
  ];
}

// `command`: what prints it where the run is kept.
function missing(command) {
  const words = " This prints it where the run is kept: ";
  const where = [words, foreign(command, "code"), " ", copyButton(command)];
  return notice("The transcript of this conversation is not here.", command && where);
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
function jump({ conversation, params, signal, place }, id, turn) {
  const element = document.getElementById(id);
  if (!element) {
    const known = conversation && allTurns(conversation).some((each) => each.turnIndex === turn);
    return known ? go("conversation", { ...params, turn }) : announce(`There is no ${turnName(turn)}`);
  }
  const bar = place.querySelector(".verdict-line");
  const bring = () => {
    element.style.scrollMarginTop = `${bar.offsetHeight + 8}px`;
    if (!signal.aborted) element.scrollIntoView({ block: "start" });
  };
  for (const each of place.querySelectorAll(".here")) each.classList.remove("here");
  element.classList.add("here");
  element.focus({ preventScroll: true });
  bring();
  requestAnimationFrame(() => requestAnimationFrame(bring));
}

function turnOf(element) {
  const turn = element.closest(".turn");
  return turn && Number(turn.id.slice("turn-".length));
}

// The turn that has the focus stands in the address; not at once: browsers limit how often that may change.
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

async function beside({ found, scenario, row, params }, by) {
  const next = found.conversations[found.conversations.indexOf(row) + by];
  if (next) return go("conversation", { ...params, id: next.conversationId, turn: "" });
  const held = (await source().overview()).scenarios.filter((each) => each.conversations > 0);
  const here = held.findIndex((each) => each.name === scenario.name && each.agent === scenario.agent);
  const other = held[here + by];
  if (!other) return announce(`This is the ${by > 0 ? "last" : "first"} conversation of the run`);
  return go("conversation", { of: params.of, scenario: other.name, agent: other.agent });
}
