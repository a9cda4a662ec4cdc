// The shop's agent as a plain service of Node, as a team would write it, sessions in memory:
// POST /chat {message, sessionId} → {reply, toolCalls: [{name, args, result}]}
import { nextStep, tools } from "./shop.mjs";
import { sendJson, serve } from "./serving.mjs";

const sessions = new Map();

async function chat({ message, sessionId }) {
  const texts = [...(sessions.get(sessionId) ?? []), message];
  sessions.set(sessionId, texts);
  const toolCalls = [];
  for (;;) {
    const step = await nextStep(texts, toolCalls.map((call) => call.result));
    if (typeof step === "string") return { reply: step, toolCalls };
    toolCalls.push({ ...step, result: tools[step.name](step.args) });
  }
}

serve({ "/chat": async (body, response) => sendJson(response, 200, await chat(body)) });
