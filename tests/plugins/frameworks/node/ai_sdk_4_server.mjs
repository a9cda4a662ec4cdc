// The shop's agent in version 4 of the AI SDK, whose data streams are lines: POST /api/chat.
import { simulateReadableStream, streamText, tool } from "ai4";
import { MockLanguageModelV1 } from "ai4/test";
import { z } from "zod";
import { nextStep, tools as shop } from "./shop.mjs";
import { serve } from "./serving.mjs";

const usage = { promptTokens: 10, completionTokens: 5 };

// The user's texts, and the results since the last of them.
function read(prompt) {
  const texts = [];
  let results = [];
  for (const part of prompt.flatMap(({ role, content }) => (role === "system" ? [] : content.map((p) => ({ role, ...p }))))) {
    if (part.role === "user" && part.type === "text") {
      texts.push(part.text);
      results = [];
    }
    if (part.type === "tool-result") results.push(part.result);
  }
  return [texts, results];
}

function chunksOf(step) {
  if (typeof step === "string") {
    const deltas = step.split(/(?<= )/).map((textDelta) => ({ type: "text-delta", textDelta }));
    return [...deltas, { type: "finish", finishReason: "stop", usage }];
  }
  const call = { toolCallType: "function", toolCallId: `call_${crypto.randomUUID()}`, toolName: step.name };
  const finish = { type: "finish", finishReason: "tool-calls", usage };
  return [{ type: "tool-call", ...call, args: JSON.stringify(step.args) }, finish];
}

const model = new MockLanguageModelV1({
  doStream: async ({ prompt }) => ({
    stream: simulateReadableStream({ chunks: chunksOf(await nextStep(...read(prompt))), chunkDelayInMs: null }),
    rawCall: { rawPrompt: null, rawSettings: {} },
  }),
});

const parameters = {
  check_stock: z.object({ item: z.string() }),
  reserve_item: z.object({ item: z.string(), quantity: z.number() }),
  search: z.object({ query: z.string() }),
};
const toolOf = ([name, schema]) => [name, tool({ parameters: schema, execute: async (args) => shop[name](args) })];
const tools = Object.fromEntries(Object.entries(parameters).map(toolOf));

serve({
  "/api/chat": async ({ messages }, response) =>
    streamText({ model, messages, tools, maxSteps: 10, maxRetries: 0, onError: () => {} }).pipeDataStreamToResponse(
      response,
    ),
});
