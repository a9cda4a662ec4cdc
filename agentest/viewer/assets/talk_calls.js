// One tool call of a talk: what it asks, what it was answered, and, where it waits, the form for an answer.

import { fill, foreign, h } from "./dom.js";
import { badge, disclosure, json, problem } from "./parts.js";

// Does what the server may refuse, and says why it did.
export async function attempt(wrong, act) {
  fill(wrong);
  try {
    await act();
  } catch (error) {
    fill(wrong, problem(error.message));
  }
}

// The element of a call as the server tells it (`web/talks.py`). `send(body)` answers it where it waits.
export function callElement(event, send) {
  const { call, waiting, answered } = event;
  const came = call.result ?? call.error;
  const answer = answered && disclosure(call.error ? "Error" : "Answer", json(came), true);
  return h(
    "div",
    { class: "call" },
    h("div.row", h("span", "tool ", foreign(call.name, "code")), state(event)),
    call.invalidArguments && h("p.notice", foreign(call.invalidArguments)),
    disclosure("Arguments", json(call.args), true),
    waiting ? answerForm(event, send) : answer,
  );
}

function state({ call, byHand, waiting, answered }) {
  if (waiting) return badge("errored", "waits for your answer");
  if (!answered) return badge("running", "under way");
  if (byHand) return badge("passed", "answered by hand");
  if (call.mocked) return badge("passed", "answered by the mock");
  return badge("skipped", "not mocked: the agent's own tool");
}

function answerForm({ call, number, proposed }, send) {
  const wrong = h("div");
  const value = proposed ? (proposed.error ?? proposed.resultText) : "";
  const field = answerField(`Answer of ${call.name}`, value, proposed?.error ? "error" : "result");
  const deliver = (answer) => attempt(wrong, () => send({ call: number, ...answer }));
  const form = h(
    "form",
    {},
    proposed ? null : h("p", "Nothing mocks this tool: write what it answers."),
    field.shown,
    wrong,
    h(
      "div",
      { class: "row" },
      h("button.primary", { "aria-keyshortcuts": "Control+Enter" }, "Send this answer"),
      proposed && h("button", { type: "button", onclick: () => deliver({}) }, "As the mock answers"),
    ),
  );
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    deliver(field.written());
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
  return form;
}

// Where an answer is written: a value, or the error with which the tool fails.
export function answerField(label, value = "", chosen = "result") {
  const option = (name, text) => h("option", { value: name, selected: name === chosen }, text);
  const options = [option("result", "answers (JSON)"), option("error", "fails with")];
  const kind = h("select", { "aria-label": "The tool" }, options);
  const rows = Math.min(14, Math.max(3, value.split("\n").length + 1));
  const text = h("textarea.code", { rows, spellcheck: "false", "aria-label": label, value });
  const key = () => (kind.value === "error" ? "error" : "resultText");
  return { shown: [kind, text], written: () => ({ [key()]: text.value }) };
}
