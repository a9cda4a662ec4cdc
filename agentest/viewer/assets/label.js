// The Label view: a person answers the judge's questions. What the judge said to one is shown beside the
// person's own answer when that is saved; before that it is not even here.

import { go, note } from "./address.js";
import { addView } from "./app.js";
import { ask } from "./client.js";
import { fill, foreign, h } from "./dom.js";
import { count } from "./format.js";
import { announce, badge, disclosure, longText, problem } from "./parts.js";

const KEYS = [
  ["1 … 9, 0", "choose an answer"],
  ["y / n", "the best, the worst answer"],
  ["Enter", "save; once more: the next question"],
  ["s / b", "skip; back to the question before"],
];
const NONE = "no failure";
const WORST = ["not reached", "violated"];

export function addLabelView() {
  addView("label", { title: "Label", nav: true, show, keys: KEYS });
}

async function show(place, params, signal) {
  fill(place, h("h1", {}, "Label"), h("p", { class: "quiet" }, "Reading the run …"));
  const given = { run: params.of || "latest", file: params.file || "labels.jsonl", by: params.by || "" };
  const filters = { metric: params.metric || "", text: params.text || "", most: params.most || "20" };
  const list = await ask(`/api/labels?${new URLSearchParams({ ...given, ...filters })}`, { signal });
  const set = setup(params, { ...given, ...filters }, list);
  const sitting = params.most ? sit(list, given, Number(params.at) - 1, signal) : null;
  fill(place, h("h1", {}, "Label"), set, sitting);
}

function setup(params, now, list) {
  const option = (value, text = value) => h("option", { value }, text);
  const metric = h("select", { name: "metric" }, option("", "all"), list.metrics.map((each) => option(each)));
  metric.value = now.metric;
  const field = (label, name, more) =>
    h("label", {}, label, h("input", { name, value: now[name], autocomplete: "off", ...more }));
  const form = h(
    "form",
    { class: "row setup", onsubmit: begin },
    h("label", {}, "Metric", metric),
    field("How many questions", "most", { type: "number", min: 1, max: 1000, required: true }),
    field("Only scenarios with", "text", { type: "search" }),
    field("Your name", "by", { list: "people" }),
    field("Labels file", "file", { required: true }),
    h("datalist", { id: "people" }, list.people.map((each) => option(each))),
    h("button", { class: params.most ? "" : "primary" }, params.most ? "Change" : "Begin"),
  );
  function begin(event) {
    event.preventDefault();
    go("label", { of: params.of, ...Object.fromEntries(new FormData(form)) });
  }
  const said =
    `The judge's questions about the conversations of this run, ${list.total} in all, come in an order that ` +
    "tells nothing of what it said. Its answer is shown when yours is saved.";
  const notes = list.notes.map((each) => h("li", {}, foreign(each)));
  const summary = `What is asked${notes.length ? ` · ${count(notes.length, "note")}` : ""}`;
  return disclosure(summary, [h("p", { class: "quiet" }, said), form, h("ul", { class: "quiet" }, notes)], !params.most);
}

// One sitting: the list, the question that is open, and how far it is.
function sit(list, given, first, signal) {
  const { questions, agreement } = list;
  if (!questions.length) return problem("This run has no such question: no conversation that it could be asked of.");
  const state = h("div", { class: "row progress" });
  const place = h("div", {});
  const all = h("ol", {});
  let at = 0;
  let question = null;
  let form = null;
  let opening = 0;

  function progress() {
    const done = questions.filter((each) => each.answer !== null).length;
    const agreed = agreement.of ? ` · you and the judge agree on ${agreement.same} of ${agreement.of}` : "";
    const bar = h("progress", { max: questions.length, "aria-label": "answered" });
    bar.value = done;
    const file = h("span", { class: "quiet" }, "in ", foreign(list.file));
    fill(state, bar, h("span", {}, `${done} of ${questions.length} answered${agreed}`), file);
    fill(all, questions.map(entry));
  }

  function entry(each, index) {
    const said = each.answer === null ? h("span", { class: "quiet" }, "open") : foreign(each.answer);
    const name = `${each.criterion || each.metric}${each.turn === null ? "" : `, turn ${each.turn}`}`;
    const current = { "aria-current": index === at && "step", data: { step: "" } };
    const show = () => open(index);
    return h("li", {}, h("button", { type: "button", class: "link", onclick: show, ...current }, foreign(name)), ": ", said);
  }

  async function open(index) {
    const turn = ++opening;
    const { conversation, turn: of, metric, criterion } = questions[index];
    const query = new URLSearchParams({ ...given, conversation, turn: of === null ? "" : of, metric, criterion });
    try {
      const found = await ask(`/api/labels/question?${query}`, { signal });
      if (turn !== opening) return;
      at = index;
      note({ at: index + 1 });
      draw(found);
    } catch (error) {
      if (!signal.aborted) fill(place, problem(error.message));
    }
  }

  function draw(found) {
    question = found;
    const title = `Question ${at + 1} of ${questions.length}`;
    const heading = h("h2", { tabindex: "-1" }, title, h("span", { class: "quiet" }, " · ", foreign(found.scenario)));
    form = answerForm(found, save, { skip: () => step(1), back: () => step(-1) });
    const answer = h("div", { class: "asking" }, form.element, verdict(found));
    fill(place, heading, h("div", { class: "desk" }, sheet(found), answer));
    progress();
    scrollTo(0, 0);
    heading.focus({ preventScroll: true });
  }

  function step(by) {
    if (at + by >= 0 && at + by < questions.length) open(at + by);
    else announce(by > 0 ? "This is the last question." : "This is the first question.");
  }

  async function save() {
    const value = form.value();
    if (value === null) return form.say("Choose an answer first.");
    const { conversation, turn, metric, criterion, times } = question;
    const body = { ...given, conversation, turn, metric, criterion, times, value, note: form.note() };
    try {
      const saved = await ask("/api/labels", { method: "POST", body });
      tally(question.judge, -1);
      tally(saved.judge, 1);
      questions[at].answer = inWords(saved.mine.value);
      question = saved;
      progress();
      const shown = verdict(saved);
      place.querySelector(".verdict").replaceWith(shown);
      form.say("");
      announce(`Saved. ${saved.judge.said}`);
      shown.querySelector("button, [tabindex]").focus();
    } catch (error) {
      const now = error.status === 409 ? error.body.now : null;
      if (now) question.times = now.times;
      form.say(error.message + (now ? ` You said there: ${inWords(now.mine.value)}. Save again to replace it.` : ""));
    }
  }

  function tally(judge, by) {
    if (!judge || judge.sameSide === null) return;
    agreement.of += by;
    if (judge.sameSide) agreement.same += by;
  }

  // Beside the form: nothing until there is an answer of one's own.
  function verdict(found) {
    if (!found.mine) return h("div", { class: "verdict" });
    const { said, value, reason, sameSide } = found.judge;
    const left = questions.findIndex((each, index) => each.answer === null && index !== at);
    const next = at + 1 < questions.length ? at + 1 : left;
    return h(
      "div",
      { class: "verdict panel" },
      h("p", {}, badge(sameSide === null ? "unknown" : sameSide ? "passed" : "failed", said)),
      h("p", {}, h("strong", {}, "Judge: "), value === null ? "" : foreign(value)),
      longText(reason, "p"),
      next < 0 ? h("p", {}, "Every question is answered. agentest calibrate measures the judge by the labels.") : "",
      next < 0 ? "" : h("button", { type: "button", class: "primary", onclick: () => open(next) }, "Next question"),
      h("p", { class: "quiet", tabindex: "-1" }, "What is changed now is not blind any more."),
    );
  }

  function key(event) {
    const pressed = event.detail;
    if (!form) return;
    if (pressed === "s") step(1);
    else if (pressed === "b") step(-1);
    else if (pressed === "Enter" && !document.activeElement.closest("button, a, summary, form")) save();
    else form.choose(pressed);
  }

  addEventListener("viewkey", key, { signal });
  const firstOpen = questions.findIndex((each) => each.answer === null);
  open(first >= 0 && first < questions.length ? first : Math.max(0, firstOpen));
  return [state, place, disclosure("All questions", all)];
}

function inWords(value) {
  return [value].flat().join(" + ");
}

// What judges are shown: what is known, and the conversation up to the turn.
function sheet(found) {
  const row = ([who, text]) => h("div", { class: `line ${who}` }, h("span", { class: "quiet" }, who), longText(text));
  return h(
    "div",
    { class: "sheet" },
    found.known.length ? disclosure("What is known", found.known.map(row), found.turns.length < 4) : "",
    found.turns.map((turn) => {
      const title = h("h3", {}, `Turn ${turn.index}`, turn.asked ? " ← this one" : "");
      return h("section", { class: turn.asked ? "asked" : "" }, title, turn.rows.map(row));
    }),
  );
}

function answerForm(found, save, { skip, back }) {
  const type = found.several ? "checkbox" : "radio";
  const mine = found.mine ? [found.mine.value].flat() : [];
  const boxes = found.choices.map(({ key, value }) =>
    h("input", { type, name: "answer", value: key, checked: mine.includes(value), onchange: only }),
  );
  const said = h("p", { class: "failed", role: "alert" });
  const text = h("textarea", { name: "note", rows: "2", value: found.mine ? found.mine.note : "" });
  const element = h(
    "form",
    { onsubmit: submit },
    h("p", {}, foreign(found.asked)),
    disclosure("The whole question, as the judge is asked it", longText(found.whole, "pre", { tabindex: "0" })),
    h(
      "fieldset",
      {},
      h("legend", {}, found.several ? "Your answer, one or several" : "Your answer"),
      found.choices.map((each, index) => choice(each, boxes[index])),
    ),
    h("label", { class: "remark" }, "Note", text),
    said,
    h(
      "div",
      { class: "row" },
      h("button", { class: "primary" }, "Save"),
      h("button", { type: "button", onclick: skip }, "Skip"),
      h("button", { type: "button", onclick: back }, "Back"),
    ),
  );

  function choice(each, box) {
    const name = each.value === Number(each.key) ? "" : h("strong", {}, each.value, " ");
    return h("label", { class: "choice" }, box, h("kbd", {}, each.key), h("span", {}, name, each.meaning));
  }

  function submit(event) {
    event.preventDefault();
    save();
  }

  // That nothing failed, and a failure, exclude each other.
  function only(event) {
    const none = boxes[found.choices.findIndex((each) => each.value === NONE)];
    if (!none || !event.target.checked) return;
    for (const box of boxes) if ((event.target === none) !== (box === none)) box.checked = false;
  }

  function choose(key) {
    const index = key === "y" || key === "n" ? extreme(key === "y") : found.choices.findIndex((each) => each.key === key);
    if (!boxes[index]) return;
    boxes[index].click();
    boxes[index].focus();
  }

  // The best answer, or the worst where there is one: of numbers the last and the first.
  function extreme(best) {
    if (typeof found.choices[0].value === "number") return best ? boxes.length - 1 : 0;
    return best ? 0 : found.choices.findIndex((each) => WORST.includes(each.value));
  }

  function value() {
    const chosen = found.choices.filter((each, index) => boxes[index].checked).map((each) => each.value);
    if (!chosen.length) return null;
    return found.several ? chosen : chosen[0];
  }

  return { element, choose, value, note: () => text.value, say: (words) => fill(said, words) };
}
