// One tool call of a talk: what it asks, what it was answered, and, where it waits, the form for an answer.

import { foreign, h } from "./dom.js";
import { badge, disclosure, json } from "./parts.js";

// The element of a call as the server tells it (`web/talks.py`). `send(body)` answers it where it waits.
export function callElement(event, send) {
  const { call } = event;
  const state = event.waiting ? badge("errored", "waits for your answer") : event.answered ? said(event) : badge("running", "under way");
  return h(
    "div",
    { class: "call" },
    h("div", { class: "row" }, h("span", {}, "tool ", foreign(call.name, "code")), state),
    call.invalidArguments ? h("p", { class: "notice" }, foreign(call.invalidArguments)) : null,
    disclosure("Arguments", json(call.args), true),
    event.waiting ? answerForm(event, send) : event.answered && disclosure(call.error ? "Error" : "Answer", json(call.result ?? call.error), true),
  );
}

function said({ call, byHand }) {
  if (byHand) return badge("passed", "answered by hand");
  if (call.mocked) return badge("passed", "answered by the mock");
  return badge("skipped", "not mocked: the agent's own tool");
}

function answerForm(event, send) {
  const { proposed } = event;
  const wrong = h("p", { class: "problem", role: "alert", hidden: true });
  const kind = answerKind(proposed?.error ? "error" : "result");
  const value = proposed ? (proposed.error ?? proposed.resultText) : "";
  const rows = Math.min(14, Math.max(3, value.split("\n").length + 1));
  const text = h("textarea", { class: "code", rows, spellcheck: "false", "aria-label": `Answer of ${event.call.name}`, value });
  const plain = proposed && h("button", { type: "button", onclick: () => deliver({}) }, "As the mock answers");
  async function deliver(answer) {
    wrong.hidden = true;
    try {
      await send({ call: event.number, ...answer });
    } catch (error) {
      wrong.textContent = error.message;
      wrong.hidden = false;
      text.focus();
    }
  }
  return h(
    "form",
    {
      onsubmit: (submitted) => {
        submitted.preventDefault();
        deliver(written(kind, text));
      },
      onkeydown: (pressed) => pressed.key === "Enter" && (pressed.ctrlKey || pressed.metaKey) && deliver(written(kind, text)),
    },
    proposed ? null : h("p", {}, "Nothing mocks this tool: write what it answers."),
    h("div", { class: "row" }, kind),
    text,
    wrong,
    h("div", { class: "row" }, h("button", { class: "primary", "aria-keyshortcuts": "Control+Enter" }, "Send this answer"), plain),
  );
}

// Whether an answer is a value or an error: used wherever one is written.
export function answerKind(chosen = "result") {
  const option = (value, label) => h("option", { value, selected: value === chosen }, label);
  return h("select", { "aria-label": "The tool" }, option("result", "answers (JSON)"), option("error", "fails with the message"));
}

export function written(kind, text) {
  return kind.value === "error" ? { error: text.value } : { resultText: text.value };
}
