// The Conversation view, a workbench of three panes: failures and scenarios, the transcript under its verdict, and
// the evidence of the turn that is marked. Without an id it shows the scenario's first conversation that did not
// pass, and without a turn it goes to the one that broke. On narrow screens the panes are tabs.

import { address, go, note } from "./address.js";
import { addView } from "./app.js";
import { fill, foreign, h } from "./dom.js";
import { turnEvidence, wholeEvidence } from "./evidence.js";
import { notice, openForPrint } from "./folding.js";
import { turnName } from "./format.js";
import { navigator } from "./failures.js";
import { announce, badge, copyButton, problem, tabRow } from "./parts.js";
import { statusOf, troubles } from "./reasons.js";
import { offered, source, there } from "./source.js";
import { transcript, turnsOf, verdictLine } from "./transcript.js";
import { timeAxis } from "./waterfall.js";

const KEYS = [
  ["j / k, → / ←", "next, previous turn"],
  ["n / p", "next, previous conversation; after the last, the next scenario"],
  ["f", "next turn with a problem"],
  ["↓ / ↑", "next, previous row of the pane that has the focus"],
];
const PANES = [["failures", "Failures"], ["transcript", "Transcript"], ["evidence", "Evidence"]];

let known = { key: null, overview: null };

export function addConversationView() {
  const up = ({ of }) => address("run", { of });
  addView("conversation", { title: "Conversation", nav: false, show, keys: KEYS, up });
}

// The overview of a run that has ended is asked for once. Without a name the latest is meant, which changes.
async function overview(of) {
  if (known.key !== of || !known.overview || (source().served && !of)) {
    const found = source().overview();
    known = { key: of, overview: found };
    found.then(({ run }) => run.state === "under way" && (known = {}), () => (known = {}));
  }
  return known.overview;
}

async function show(place, params, signal) {
  const { scenario: name, agent = "", id } = params;
  const whole = overview(params.of);
  whole.catch(() => null);
  const more = params.credentials ? { credentials: params.credentials } : {};
  const found = await source().scenario(name, agent, more);
  if (!found) return void fill(place, h("h1", "Conversation"), problem("This run has no such scenario."));
  const { scenario, conversations } = found;
  const row = id
    ? conversations.find((each) => each.conversationId === id)
    : conversations.find((each) => !each.passed) || conversations[0];
  if (!row) return void fill(place, h("a", { href: address("run", { of: params.of }) }, "← Run"), h("h1", foreign(name)), without(found, id));
  const opened = await there(source().conversation(name, agent, row.conversationId, more));
  if (!id) note({ id: row.conversationId });
  draw({ place, signal, found, scenario, row, opened, whole, params: { ...params, id: row.conversationId } });
}

function without({ scenario, conversations }, id) {
  const none = "No conversation of this scenario was held.";
  const words = conversations.length ? `This scenario has no conversation ${id}.` : none;
  return [problem(words), scenario.failures.map((message) => foreign(message, "p"))];
}

function draw(view) {
  const { place, signal, found, scenario, row, opened, params, whole } = view;
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
    showWhole: () => evidence.show("whole", true),
  });
  view.first = firstTurn(view);
  view.turns = conversation ? turnsOf(view) : [];
  const tabs = paneTabs(view);
  const evidence = evidencePane(view);
  view.evidence = evidence;
  view.tabs = tabs;
  const rows = h("section.pane.failures.no-print", { id: "pane-failures", "aria-label": "Failures and scenarios", tabindex: "0" });
  fill(
    place,
    h(
      "div.bench",
      { data: { pane: "transcript" } },
      h("div.bench-head", title(view), h("div.sticky", verdictLine(view), tabs.element), conversation && timeAxis(view, (turn) => jump(view, `turn-${turn}`, turn))),
      rows,
      h("section.pane.text", { id: "pane-transcript", "aria-label": "Transcript", tabindex: "0" }, [
        h("h2.off-screen", "Transcript"),
        actions(view),
        opened && opened.hidden && notice(opened.hidden, ". ", h("a", { href: address("conversation", { ...params, credentials: "shown" }), id: "show-credentials" }, "Show")),
        conversation && conversation.shortened && notice("Texts that were too long to be kept lack their ends."),
        conversation ? transcript(view) : missing(found.show),
      ]),
      h("section.pane.evidence", { id: "pane-evidence", "aria-label": "Evidence", tabindex: "0" }, evidence.element),
    ),
  );
  whole.then((overview) => signal.aborted || fill(rows, navigator(overview, params)), (error) => fill(rows, problem(error.message)));
  openForPrint(place, signal);
  const keys = {
    n: () => beside(view, 1),
    p: () => beside(view, -1),
    f: () => nextTrouble(view),
    ArrowRight: () => scrolls() || step(view, 1),
    ArrowLeft: () => scrolls() || step(view, -1),
    "/": () => tabs.show("failures", true),
  };
  addEventListener("viewkey", ({ detail }) => Object.hasOwn(keys, detail) && keys[detail](), { signal });
  const mark = marking(view);
  place.addEventListener("focusin", mark);
  place.addEventListener("click", mark);
  // The frame puts the view on the page, and itself on top, when `show` has ended.
  const { first } = view;
  setTimeout(() => !signal.aborted && Number.isInteger(first) && jump(view, `turn-${first}`, first));
}

// Which scenario and which conversation of how many, and the way to the others.
function title({ scenario, found: { conversations }, row, ...view }) {
  const step = (by, words) => h("button.plain", { type: "button", "aria-label": `${words} conversation`, onclick: () => beside({ scenario, found: { conversations }, row, ...view }, by) }, by < 0 ? "←" : "→");
  const place = `Conversation ${conversations.indexOf(row) + 1} of ${conversations.length}`;
  return h(
    "div.bench-title",
    h("h1", foreign(scenario.name)),
    scenario.status !== view.status && badge(scenario.status, `scenario ${scenario.status}`),
    h("nav.no-print", { "aria-label": "Conversations" }, step(-1, "Previous"), h("span.small", place), step(1, "Next")),
  );
}

// The turn to go to at once: that of the address, or the one that broke.
function firstTurn({ params, row, troubles: wrong }) {
  if (params.turn !== undefined) return Number(params.turn);
  const turns = wrong.map((each) => each.turn).filter(Number.isInteger);
  return row.broke ?? (turns.length ? Math.min(...turns) : null);
}

// What can be done with the conversation; `save` puts it into a file of the project.
function actions({ scenario, opened, save }) {
  const button = opened && save && h("button.small", { type: "button", onclick: save }, "Save as a case…");
  const all = [...offered("conversation", scenario), button].filter(Boolean);
  return all.length > 0 && h("div.row.no-print", all);
}

// `command`: what prints it where the run is kept.
function missing(command) {
  const words = " This prints it where the run is kept: ";
  const where = [words, foreign(command, "code"), " ", copyButton(command)];
  return notice("The transcript of this conversation is not here.", command && where);
}

// --- panes

function paneTabs({ place }) {
  const row = tabRow("Panes", PANES, (name) => {
    const bench = place.querySelector(".bench");
    if (bench) bench.dataset.pane = name;
  });
  row.show("transcript");
  return row;
}

// The marked turn, or the whole conversation.
function evidencePane(view) {
  const content = h("div", { role: "tabpanel", "aria-label": "Evidence", tabindex: "0" });
  let [index, open] = [null, "whole"];
  const row = tabRow("Evidence", [["turn", "Turn"], ["whole", "Conversation"]], (name, byHand) => {
    open = name;
    const mine = view.turns.find(({ turn }) => turn.turnIndex === index);
    fill(content, name === "turn" && mine ? turnEvidence(view, mine) : wholeEvidence(view));
    if (byHand) view.tabs.show("evidence");
  });
  function turn(next) {
    if (index === next && open === "turn") return;
    index = next;
    row.tabs[0].textContent = turnName(next);
    row.tabs[0].hidden = false;
    row.show("turn");
  }
  row.tabs[0].hidden = true;
  row.show("whole");
  return { element: [row.element, content], turn, show: row.show };
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
  const { turns, params, signal, place } = view;
  const element = document.getElementById(id);
  if (!element) {
    const there = turns.some((each) => each.turn.turnIndex === turn);
    return there ? go("conversation", { ...params, turn }) : announce(`There is no ${turnName(turn)}`);
  }
  view.tabs.show("transcript");
  const bar = place.querySelector(".sticky");
  const bring = () => {
    element.style.scrollMarginTop = getComputedStyle(bar).position === "sticky" ? `${bar.offsetHeight + 8}px` : "0";
    if (!signal.aborted) element.scrollIntoView({ block: "start" });
  };
  element.focus({ preventScroll: true });
  bring();
  requestAnimationFrame(() => requestAnimationFrame(bring));
}

function turnOf(element) {
  const turn = element.closest(".turn");
  return turn && Number(turn.id.slice("turn-".length));
}

// The turn that has the focus, or was clicked, is marked: its evidence is shown, and it stands in the address; not
// at once, as browsers limit how often that may change.
function marking({ place, signal, evidence }) {
  let waiting;
  return ({ target }) => {
    const turn = turnOf(target);
    if (turn === null) return;
    for (const each of place.querySelectorAll(".here")) each.classList.remove("here");
    target.closest(".turn").classList.add("here");
    for (const each of place.querySelectorAll("[data-turn]")) each.classList.toggle("here", Number(each.dataset.turn) === turn);
    evidence.turn(turn);
    clearTimeout(waiting);
    waiting = setTimeout(() => signal.aborted || note({ turn }), 300);
  };
}

// --- keys

// Whether arrows move what has the focus to the side.
function scrolls() {
  return document.activeElement.closest(".scroll, pre") !== null;
}

function now({ place }) {
  const marked = place.querySelector(".turn.here");
  return marked ? turnOf(marked) : -1;
}

function step(view, by) {
  const indexes = view.turns.map(({ turn }) => turn.turnIndex);
  const next = indexes[Math.max(0, Math.min(indexes.length - 1, indexes.indexOf(now(view)) + by))];
  if (next !== undefined) jump(view, `turn-${next}`, next);
}

function nextTrouble(view) {
  const turns = view.troubles.map((each) => each.turn).filter(Number.isInteger);
  if (!turns.length) return announce("No turn has a problem");
  const later = turns.filter((turn) => turn > now(view));
  const next = Math.min(...(later.length ? later : turns));
  return jump(view, `turn-${next}`, next);
}

async function beside({ found, scenario, row, params }, by) {
  const next = found.conversations[found.conversations.indexOf(row) + by];
  if (next) return go("conversation", { ...params, id: next.conversationId, turn: "" });
  const held = (await overview(params.of)).scenarios.filter((each) => each.conversations > 0);
  const here = held.findIndex((each) => each.name === scenario.name && each.agent === scenario.agent);
  const other = held[here + by];
  if (!other) return announce(`This is the ${by > 0 ? "last" : "first"} conversation of the run`);
  return go("conversation", { of: params.of, scenario: other.name, agent: other.agent });
}
