// The Conversation view: one conversation, turn by turn. Without an id it shows the scenario's first that failed.

import { addView } from "./app.js";
import { fill, foreign, h } from "./dom.js";
import { longText, problem } from "./parts.js";
import { source } from "./source.js";

export function addConversationView() {
  addView("conversation", { title: "Conversation", nav: false, show, keys: [] });
}

async function show(place, params) {
  const found = await source().scenario(params.scenario, params.agent || "");
  if (!found) return void fill(place, h("h1", {}, "Conversation"), problem("This run has no such scenario."));
  const row = found.conversations.find((each) => each.conversationId === params.id) || found.conversations.find((each) => !each.passed) || found.conversations[0];
  const opened = row && (await source().conversation(params.scenario, params.agent || "", row.conversationId));
  fill(place, h("h1", {}, foreign(params.scenario)), opened ? chat(opened.conversation) : problem("Its transcript is not here."));
}

function chat(conversation) {
  return h(
    "ol",
    { class: "chat" },
    conversation.turns.map((turn) =>
      h("li", { class: "turn" }, longText(turn.userMessage, "p", { class: "message user" }), longText(turn.agentMessage, "p", { class: "message agent" })),
    ),
  );
}
