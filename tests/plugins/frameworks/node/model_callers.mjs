// Agents of frameworks for Node that call their model over HTTP and have two functions as tools.
// POST /chat takes {session, message}. Guests e to h (`look e1`) are answered by streams. Tools that have really
// run are noted in the file REAL_CALLS.
//   node model_callers.mjs --port PORT --framework ai_sdk --api chat
import { appendFileSync } from "node:fs";
import { option, sendJson, serve } from "./serving.mjs";

const api = option("api");
const rule = "Help.";
for (const name of ["OPENAI", "ANTHROPIC", "GOOGLE_GENERATIVE_AI"]) process.env[`${name}_API_KEY`] = "none";

const schema = { type: "object", properties: { q: { type: "string" } }, required: ["q"], additionalProperties: false };
const run = (name) => async ({ q }) => {
  appendFileSync(process.env.REAL_CALLS, `${name} ${q}\n`);
  return { real: q };
};
const histories = new Map();
const historyOf = (session) => histories.get(session) ?? histories.set(session, []).get(session);

const answerSchema = {
  type: "object",
  properties: { answer: { type: "string" } },
  required: ["answer"],
  additionalProperties: false,
};

async function aiSdk(output) {
  const { generateText, jsonSchema, Output, stepCountIs, streamText, tool } = await import("ai");
  const { anthropic } = await import("@ai-sdk/anthropic");
  const { createGoogleGenerativeAI } = await import("@ai-sdk/google");
  const { openai } = await import("@ai-sdk/openai");
  const make = {
    chat: () => openai.chat("m"),
    responses: () => openai("m"),
    anthropic: () => anthropic("m"),
    gemini: () => createGoogleGenerativeAI({ baseURL: `${process.env.MODEL_URL}/google/v1beta` })("gemini-2.5-flash"),
  };
  const model = make[api]();
  const tools = {};
  for (const name of ["find", "send"]) {
    tools[name] = tool({ description: name, inputSchema: jsonSchema(schema), execute: run(name) });
  }
  return async (session, message, streams) => {
    const messages = [...historyOf(session), { role: "user", content: message }];
    const call = { model, tools, messages, stopWhen: stepCountIs(8) };
    if (output) call.output = Output.object({ schema: jsonSchema(answerSchema) });
    const result = streams ? streamText(call) : await generateText(call);
    if (streams) await result.consumeStream();
    histories.set(session, [...messages, ...(await result.responseMessages)]);
    return output ? (await result.output).answer : await result.text;
  };
}

async function openaiAgents() {
  const { Agent, run: runAgent, setOpenAIAPI, setTracingDisabled, tool } = await import("@openai/agents");
  setTracingDisabled(true);
  setOpenAIAPI(api === "chat" ? "chat_completions" : "responses");
  const tools = ["find", "send"].map((name) => tool({ name, description: name, parameters: schema, execute: run(name) }));
  const agent = new Agent({ name: "a", instructions: rule, model: "m", tools });
  return async (session, message, streams) => {
    const input = [...historyOf(session), { role: "user", content: message }];
    const result = await runAgent(agent, input, streams ? { stream: true } : {});
    if (streams) await result.completed;
    histories.set(session, result.history);
    return result.finalOutput;
  };
}

async function mastra() {
  const { Agent } = await import("@mastra/core/agent");
  const { createTool } = await import("@mastra/core/tools");
  const { z } = await import("zod");
  const tools = {};
  for (const name of ["find", "send"]) {
    tools[name] = createTool({ id: name, description: name, inputSchema: z.object({ q: z.string() }), execute: run(name) });
  }
  const agent = new Agent({ id: "a", name: "a", instructions: rule, model: "openai/gpt-4o", tools });
  return async (session, message, streams) => {
    const messages = [...historyOf(session), { role: "user", content: message }];
    const result = streams ? await agent.stream(messages, { maxSteps: 8 }) : await agent.generate(messages, { maxSteps: 8 });
    const text = await result.text;
    histories.set(session, [...messages, ...(await result.response).messages]);
    return text;
  };
}

const reply = await { ai_sdk: aiSdk, ai_sdk_output: () => aiSdk(true), openai_agents: openaiAgents, mastra }[option("framework")]();
serve({
  "/chat": async ({ session, message }, response) => {
    const streams = "efgh".includes(message.split(" ").at(-1)[0]);
    sendJson(response, 200, { reply: await reply(session, message, streams) });
  },
});
