// The Label view: a person answers the judge's questions. What the judge said to one is shown beside the
// person's own answer when that is saved; before that it is not even here.

import { go, note } from "./address.js";
import { agreementPart } from "./agreement.js";
import { addView } from "./app.js";
import { ask } from "./client.js";
import { fill, foreign, h } from "./dom.js";
import { count, turnName } from "./format.js";
import { announce, badge, disclosure, longText, problem } from "./parts.js";

const KEYS = [
  ["1 … 9, 0", "choose an answer"],
  ["y / n", "the best, the worst answer"],
  ["Enter", "save; once more: the next question"],
  ["s / b", "skip; back to the question before"],
  ["z", "take the last answer back"],
];
const FIELDS = [
  ["How many questions", "most", { type: "number", min: 1, max: 1000, required: true }],
  ["Only scenarios with", "text", { type: "search" }],
  ["Your name", "by", { list: "people" }],
  ["Labels file", "file", { required: true }],
];
const PURPOSE = "in all: first those that people or the judge's samples answer differently, then others that it was asked. Its answer is shown when yours is saved.";

export function addLabelView() {
  addView("label", { title: "Label", nav: true, show, keys: KEYS });
}

async function show(place, params, signal) {
  const title = h("h1", "Label");
  fill(place, title, h("p.quiet", "Reading the run …"));
  const given = { metric: "", text: "", most: "20", file: "labels.jsonl", by: "", ...params, run: params.of || "latest" };
  const list = await ask(`/api/labels?${new URLSearchParams(given)}`, { signal });
  const parts = params.most ? sit(list, given, signal) : {};
  fill(place, h("div.row", title, parts.state), h("div.row.lists", setup(params, given, list), parts.all), parts.place);
}

function setup(params, given, list) {
  const options = (values) => values.map((value) => h("option", { value }, value || "all"));
  const metric = h("select", { name: "metric" }, options(["", ...list.metrics]));
  metric.value = given.metric;
  const field = ([label, name, more]) => h("label", label, h("input", { name, value: given[name], autocomplete: "off", ...more }));
  const form = h(
    "form",
    { class: "row setup", onsubmit: begin },
    h("label", "Metric", metric),
    FIELDS.map(field),
    h("datalist", { id: "people" }, options(list.people)),
    h("button", { class: !params.most && "primary" }, params.most ? "Change" : "Begin"),
  );
  function begin(event) {
    event.preventDefault();
    go("label", { of: params.of, ...Object.fromEntries(new FormData(form)) });
  }
  const said = `The judge's questions about the conversations of this run, ${list.total} ${PURPOSE}`;
  const notes = list.notes.map((each) => foreign(each, "li"));
  const summary = ["What is asked", notes.length > 0 && ` · ${count(notes.length, "note")}`];
  return disclosure(summary, [h("p.quiet", said), form, h("ul.quiet", notes)], !params.most);
}

// One sitting: the list, the question that is open, and how far it is.
function sit(list, given, signal) {
  const { questions, agreement } = list;
  if (!questions.length) return { place: nothing(given) };
  const [state, place, all] = [h("div.row.progress"), h("div.sitting"), h("ol")];
  const firstOpen = () => questions.findIndex((each) => each.answer === null);
  let [at, opening, question, form, last] = [0, 0, null, null, null];

  function progress() {
    const done = questions.filter((each) => each.answer !== null).length;
    const agreed = agreement.of ? ` · you and the judge agree on ${agreement.same} of ${agreement.of}` : "";
    const bar = h("progress", { max: questions.length, value: done, "aria-label": "answered" });
    const file = foreign(`in ${list.file}`, "span", { class: "quiet" });
    fill(state, bar, h("span", `${done} of ${questions.length} answered${agreed}`), file, h("span.quiet", list.progress));
    fill(all, questions.map(entry));
  }

  function entry({ name, answer }, index) {
    const current = { "aria-current": index === at && "step", data: { step: "" } };
    const link = h("button", { type: "button", class: "link", onclick: () => open(index), ...current }, foreign(name));
    return h("li", link, ": ", foreign(answer ?? "open", "span", { class: answer === null ? "quiet" : "" }));
  }

  async function open(index) {
    if (!questions[index]) return announce(`This is the ${index < 0 ? "first" : "last"} question.`);
    const turn = ++opening;
    try {
      const found = await ask(`/api/labels/question?${new URLSearchParams({ ...given, ...questions[index].key })}`, { signal });
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
    const scenario = foreign(` · ${found.scenario}`, "span", { class: "quiet" });
    const heading = h("h2", { tabindex: "-1" }, `Question ${at + 1} of ${questions.length}`, scenario);
    form = answerForm(found, save, (by) => open(at + by), undo);
    fill(place, heading, h("div.desk", sheet(found), h("div.asking", verdict(found), form.element)));
    progress();
    scrollTo(0, 0);
    const asked = place.querySelector(".asked");
    if (asked) asked.scrollIntoView({ block: "nearest" });
    heading.focus({ preventScroll: true });
  }

  async function save() {
    const value = form.value();
    if (!value.length) return form.say("Choose an answer first.");
    const body = { ...given, ...question.key, times: question.times, value: question.several ? value : value[0], note: form.note() };
    try {
      const saved = await ask("/api/labels", { method: "POST", body });
      tally(question.judge, -1);
      tally(saved.judge, 1);
      questions[at].answer = saved.mine.said;
      list.progress = saved.progress;
      last = { at, judge: saved.judge };
      question = saved;
      progress();
      const shown = verdict(saved);
      place.querySelector(".verdict").replaceWith(shown);
      form.say("");
      form.saved();
      announce(`Saved. ${saved.judge.said}`);
      shown.querySelector("button, [tabindex]").focus();
    } catch (error) {
      if (error.status === 409) question.times = error.body.times;
      form.say(error.message);
    }
  }

  async function undo() {
    if (!last) return announce("There is no answer to take back.");
    const body = { ...given, ...questions[last.at].key };
    try {
      const found = await ask("/api/labels", { method: "DELETE", body });
      tally(last.judge, -1);
      tally(found.judge, 1);
      questions[last.at].answer = found.mine && found.mine.said;
      list.progress = found.progress;
      announce("The answer was taken back.");
      open(last.at);
      last = null;
    } catch (error) {
      form.say(error.message);
    }
  }

  function tally(judge, by) {
    if (!judge || judge.sameSide === null) return;
    agreement.of += by;
    if (judge.sameSide) agreement.same += by;
  }

  // Above the form: nothing until there is an answer of one's own.
  function verdict({ judge }) {
    if (!judge) return h("div.verdict");
    const next = at + 1 < questions.length ? at + 1 : firstOpen();
    return h(
      "div",
      { class: "verdict panel" },
      h("p", badge({ true: "passed", false: "failed", null: "unknown" }[judge.sameSide], judge.said)),
      h("p", h("strong", "Judge: "), foreign(judge.value ?? "")),
      longText(judge.reason, "p"),
      next < 0
        ? h("p", "Every question is answered. ", h("code", `agentest calibrate ${list.file}`), " measures the judge by the labels.")
        : keyButton("Next question", "Enter", () => open(next), "primary"),
      h("p.quiet", { tabindex: "-1" }, "What is changed now is not blind any more."),
    );
  }

  function key({ detail }) {
    if (!form) return;
    if (detail === "s" || detail === "b") open(at + (detail === "s" ? 1 : -1));
    else if (detail === "z") undo();
    else if (detail !== "Enter") form.choose(detail);
    else if (!document.activeElement.closest("button, a, summary, form")) save();
  }

  addEventListener("viewkey", key, { signal });
  open(questions[given.at - 1] ? given.at - 1 : Math.max(0, firstOpen()));
  return { state, place, all: [disclosure("All questions", all), agreementPart(given)] };
}

function nothing({ text }) {
  const why = text ? `no scenario with ${text} in its name has a conversation` : "no conversation of this run is one";
  return h("p", `There is no question: ${why} that a judge could be asked of. `, h("code", "agentest run"), " makes more.");
}

// What judges are shown: what is known, and the conversation up to the turn, of which the beginning is folded.
function sheet({ known, turns }) {
  const row = ([who, text]) => h("div", { class: `line ${who}` }, h("span.quiet", who), longText(text));
  const turn = ({ index, asked, rows }) =>
    h("section", { class: asked && "asked" }, h("h3", turnName(index), asked && " ← this one"), rows.map(row));
  const folded = Math.max(0, turns.findIndex((each) => each.asked) - 1);
  return h(
    "div.sheet", { tabindex: "0", role: "region", "aria-label": "The conversation" },
    known.length > 0 && disclosure("What is known", known.map(row)),
    folded > 0 && disclosure(`${count(folded, "turn")} before`, turns.slice(0, folded).map(turn)),
    turns.slice(folded).map(turn),
  );
}

// A button with its key, which is also read as its shortcut.
function keyButton(text, key, onclick, name = "") {
  const props = { type: onclick ? "button" : "submit", class: name, onclick, "aria-keyshortcuts": key };
  return h("button", props, text, " ", h("kbd", { "aria-hidden": "true" }, key));
}

function answerForm(found, save, go, undo) {
  const mine = found.mine || { value: [], note: "" };
  const given = [mine.value].flat();
  const box = ({ key, value }) =>
    h("input", { type: found.several ? "checkbox" : "radio", name: "answer", value: key, checked: given.includes(value), onchange: only });
  const boxes = found.choices.map(box);
  const said = h("p.failed", { role: "alert" });
  const text = h("textarea", { name: "note", rows: 1, value: mine.note });
  const main = keyButton("Save", "Enter", null, found.judge ? "" : "primary");
  const saved = () => main.classList.remove("primary");
  const choice = ({ key, value, meaning }, index) => {
    const name = String(value) !== key && h("strong", value, " ");
    return h("label.choice", boxes[index], h("kbd", key), h("span", name, meaning));
  };
  const element = h(
    "form",
    { onsubmit: (event) => save(event.preventDefault()) },
    foreign(found.asked, "p"),
    disclosure("The whole question, as the judge is asked it", longText(found.whole, "pre", { tabindex: "0" })),
    h("fieldset", h("legend", `Your answer${found.several ? ", one or several" : ""}`), found.choices.map(choice)),
    h("label.remark", "Note", text),
    said,
    h("div.row", main, keyButton("Skip", "s", () => go(1)), keyButton("Back", "b", () => go(-1)), keyButton("Undo", "z", undo)),
  );

  // That nothing failed, and a failure, exclude each other.
  function only({ target }) {
    if (!target.checked || !found.alone) return;
    for (const box of boxes) if ((target.value === found.alone) !== (box.value === found.alone)) box.checked = false;
  }

  function choose(pressed) {
    const wanted = { y: found.best, n: found.worst }[pressed] || pressed;
    const chosen = boxes.find((each) => each.value === wanted);
    if (!chosen) return;
    chosen.click();
    chosen.focus();
  }

  const value = () => found.choices.filter((_, index) => boxes[index].checked).map((each) => each.value);
  return { element, choose, value, saved, note: () => text.value, say: (words) => fill(said, words) };
}
