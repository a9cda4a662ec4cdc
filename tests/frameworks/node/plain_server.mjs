// The shop's agent as a plain service of Node, as a team would write it, sessions in memory:
// POST /chat {"message": "…", "session_id": "…"} → {"reply": "…", "session_id": "…", "tools": [{name, args, result}]}
import { nextStep, tools } from "./shop.mjs";
import { sendJson, serve } from "./serving.mjs";

const sessions = new Map();

async function chat({ message, session_id = crypto.randomUUID() }) {
  const texts = [...(sessions.get(session_id) ?? []), message];
  sessions.set(session_id, texts);
  const calls = [];
  for (;;) {
    const step = await nextStep(texts, calls.map((call) => call.result));
    if (typeof step === "string") return { reply: step, session_id, tools: calls };
    calls.push({ ...step, result: tools[step.name](step.args) });
  }
}

serve({ "/chat": async (body, response) => sendJson(response, 200, await chat(body)) });
