// One tool call of a talk, as the Conversation view shows it; where it waits, with the form for an answer.

import { callItem } from "./calls.js";
import { attempt } from "./doing.js";
import { append, foreign, h } from "./dom.js";
import { badge, disclosure, json } from "./parts.js";

// The element of a call as the server tells it (`web/talks.py`). `send(body)` answers it where it waits.
export function callElement(event, send) {
  const { call, waiting, answered, byHand } = event;
  if (answered) return append(callItem(call, {}), byHand && [badge("passed", "answered by hand")]);
  const state = waiting ? badge("errored", "waits for your answer") : badge("running", "under way");
  const asked = disclosure("Arguments", json(call.args), true);
  const wrong = call.invalidArguments && h("p.notice", foreign(call.invalidArguments));
  return h("li.call", "→ ", foreign(call.name, "code"), " ", state, wrong, asked, waiting && answerForm(event, send));
}

// An answer is a value, or the error with which the tool fails.
function answerForm({ call, number, proposed }, send) {
  const { error, resultText } = proposed || {};
  const value = error ?? resultText ?? "";
  const option = (name, text) => h("option", { value: name, selected: name === "error" && Boolean(error) }, text);
  const kind = h("select", { "aria-label": "The tool" }, option("resultText", "answers (JSON)"), option("error", "fails with"));
  const rows = Math.min(14, Math.max(3, value.split("\n").length + 1));
  const text = h("textarea.code", { rows, spellcheck: "false", "aria-label": `Answer of ${call.name}`, value });
  const said = h("div");
  const deliver = (answer) => attempt(said, () => send({ call: number, ...answer }));
  const keys = ({ key, ctrlKey, metaKey }) => key === "Enter" && (ctrlKey || metaKey) && form.requestSubmit();
  const onsubmit = (event) => {
    event.preventDefault();
    deliver({ [kind.value]: text.value });
  };
  const form = h(
    "form", { onsubmit, onkeydown: keys },
    !proposed && h("p", "Nothing mocks this tool: write what it answers."),
    kind, text, said,
    h("div.row",
      h("button.primary", { "aria-keyshortcuts": "Control+Enter" }, "Send this answer"),
      proposed && h("button", { type: "button", onclick: () => deliver({}) }, "As the mock answers")),
  );
  return form;
}
