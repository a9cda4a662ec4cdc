// The shop's agent in the AI SDK, with a mock language model. `--sdk` says which of package.json: ai (7), ai6, ai5.
//   POST /api/chat          tools run on the server; place_order asks for approval (6 and later)
//   POST /api/client-tools  tools without `execute`: the client answers them
//   POST /api/completion          a text stream
import { z } from "zod";
import { nextStep, tools as shop } from "./shop.mjs";
import { option, serve } from "./serving.mjs";

const version = option("sdk");
const ai = await import(version);
const mocks = await import(`${version}/test`);
const Model = mocks.MockLanguageModelV4 ?? mocks.MockLanguageModelV3 ?? mocks.MockLanguageModelV2;
const old = Model === mocks.MockLanguageModelV2;
const usage = old
  ? { inputTokens: 10, outputTokens: 5, totalTokens: 15 }
  : { inputTokens: { total: 10 }, outputTokens: { total: 5 } };

// The user's texts, and the results since the last of them.
function read(prompt) {
  const texts = [];
  let results = [];
  for (const part of prompt.flatMap(({ role, content }) => (role === "system" ? [] : content.map((p) => ({ role, ...p }))))) {
    if (part.role === "user" && part.type === "text") {
      texts.push(part.text);
      results = [];
    }
    if (part.type === "tool-result") results.push(part.output.value ?? part.output);
  }
  return [texts, results];
}

const finish = (reason) => ({ type: "finish", usage, finishReason: old ? reason : { unified: reason, raw: reason } });

function chunksOf(step) {
  if (typeof step === "string") {
    const deltas = step.split(/(?<= )/).map((delta) => ({ type: "text-delta", id: "t1", delta }));
    return [{ type: "text-start", id: "t1" }, ...deltas, { type: "text-end", id: "t1" }, finish("stop")];
  }
  const id = `call_${crypto.randomUUID()}`;
  const input = JSON.stringify(step.args);
  return [
    { type: "tool-input-start", id, toolName: step.name },
    { type: "tool-input-delta", id, delta: input },
    { type: "tool-input-end", id },
    { type: "tool-call", toolCallId: id, toolName: step.name, input },
    finish("tool-calls"),
  ];
}

const model = new Model({
  doStream: async ({ prompt }) => {
    const chunks = chunksOf(await nextStep(...read(prompt)));
    return { stream: ai.simulateReadableStream({ chunks, chunkDelayInMs: null }) };
  },
});

const schemas = {
  check_stock: z.object({ item: z.string() }),
  reserve_item: z.object({ item: z.string(), quantity: z.number() }),
  search: z.object({ query: z.string() }),
  place_order: z.object({ item: z.string() }),
};

function toolSet(execute) {
  const made = Object.entries(schemas).map(([name, inputSchema]) => {
    const own = execute && { execute: shop[name], needsApproval: name === "place_order" };
    return [name, ai.tool({ description: name, inputSchema, ...own })];
  });
  return Object.fromEntries(made);
}

const answer = async (messages, execute) =>
  ai.streamText({
    model,
    messages: await ai.convertToModelMessages(messages),
    tools: toolSet(execute),
    maxRetries: 0,
    stopWhen: (ai.isStepCount ?? ai.stepCountIs)(10),
    onError: () => {},
  });

serve({
  "/api/chat": async ({ messages }, response) => (await answer(messages, true)).pipeUIMessageStreamToResponse(response),
  "/api/client-tools": async ({ messages }, response) =>
    (await answer(messages, false)).pipeUIMessageStreamToResponse(response),
  "/api/completion": async ({ messages }, response) => (await answer(messages, true)).pipeTextStreamToResponse(response),
});
