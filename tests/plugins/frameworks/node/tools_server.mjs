// An agent whose tools are elsewhere: POST /chat {message, mcp_url?, rest_url?} → {reply}.
//   --agent ai-sdk    the AI SDK, with a mock language model; tools from an MCP server by @ai-sdk/mcp
//   --agent sdk       no framework: a loop over the MCP project's TypeScript SDK
//   --tools rest      tools that call REST with fetch; own: tools of its own (noted in SHOP_LOG)
//   --hook            how it forwards what a request says of its conversation: none, url (in the body) or header
import { appendFileSync } from "node:fs";
import { createMCPClient } from "@ai-sdk/mcp";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import * as ai from "ai";
import { MockLanguageModelV4 } from "ai/test";
import { z } from "zod";
import { nextRound } from "./errands.mjs";
import { option, sendJson, serve } from "./serving.mjs";

const HEADER = "x-agentest-conversation";
const [kind, hook] = [option("tools") ?? "mcp", option("hook") ?? "none"];
const mcpUrl = process.env.AGENTEST_MCP_URL || process.env.SHOP_MCP_URL;
const restUrl = process.env.AGENTEST_REST_URL || process.env.SHOP_REST_URL;
const usage = { inputTokens: { total: 10 }, outputTokens: { total: 5 } };

if (option("telemetry")) {
  const { OpenTelemetry } = await import("@ai-sdk/otel");
  ai.registerTelemetry(new OpenTelemetry());
}

// The last text of the user, and the results since.
function read(prompt) {
  let [text, results] = ["", []];
  for (const { role, content } of prompt) {
    for (const part of role === "user" || role === "tool" ? content : []) {
      if (role === "user" && part.type === "text") [text, results] = [part.text, []];
      if (part.type === "tool-result") results.push(JSON.stringify(part.output.value ?? part.output));
    }
  }
  return [text, results];
}

const model = new MockLanguageModelV4({
  doGenerate: async ({ prompt }) => {
    const step = nextRound(...read(prompt));
    const calls = typeof step === "string" ? [] : step;
    const content = calls.map(({ name, args }) => ({
      type: "tool-call", toolCallId: `call_${crypto.randomUUID()}`, toolName: name, input: JSON.stringify(args),
    }));
    const reason = calls.length ? "tool-calls" : "stop";
    return {
      content: calls.length ? content : [{ type: "text", text: step }],
      finishReason: { unified: reason, raw: reason }, usage, warnings: [],
    };
  },
});

async function send(base, headers, method, path, body) {
  const json = body && { body: JSON.stringify(body) };
  const response = await fetch(`${base}${path}`, {
    method, headers: { ...headers, ...(body && { "content-type": "application/json" }) }, ...json,
  });
  return response.ok ? response.json() : { status: response.status, said: await response.text() };
}

function restTools(base, headers) {
  const call = (...request) => send(base.replace(/\/$/, ""), headers, ...request);
  return {
    check_stock: ({ item }) => call("GET", `/stock/${encodeURIComponent(item)}`),
    reserve_item: ({ item, quantity }) => call("POST", "/reservations", { item, quantity }),
    search: ({ query }) => call("GET", `/search?query=${encodeURIComponent(query)}`),
    cancel_order: ({ item }) => call("DELETE", `/orders/${encodeURIComponent(item)}`),
  };
}

function note(name, args) {
  appendFileSync(process.env.SHOP_LOG, `${JSON.stringify({ name, args })}\n`);
  return { ...args, from: "the real shop" };
}

const ownTools = Object.fromEntries(
  ["check_stock", "reserve_item", "search", "cancel_order"].map((name) => [name, (args) => note(name, args)]),
);

const schemas = {
  check_stock: z.object({ item: z.string() }),
  reserve_item: z.object({ item: z.string(), quantity: z.number() }),
  search: z.object({ query: z.string() }),
  cancel_order: z.object({ item: z.string() }),
};

const toolSet = (functions) =>
  Object.fromEntries(
    Object.entries(schemas).map(([name, inputSchema]) => [
      name, ai.tool({ description: name, inputSchema, execute: functions[name] }),
    ]),
  );

async function withTools(asked, use) {
  if (kind === "own") return use(toolSet(ownTools));
  if (kind === "rest") return use(toolSet(restTools(asked.rest_url ?? restUrl, asked.headers)));
  const transport = { type: "http", url: asked.mcp_url ?? mcpUrl, headers: asked.headers };
  const client = await createMCPClient({ transport });
  try {
    return await use(await client.tools());
  } finally {
    await client.close();
  }
}

const byAiSdk = (asked) =>
  withTools(asked, async (tools) => {
    const { text } = await ai.generateText({
      model, tools, prompt: asked.message, maxRetries: 0, stopWhen: ai.isStepCount(10),
    });
    return text;
  });

async function bySdk(asked) {
  const client = new Client({ name: "shop", version: "1.0.0" });
  const requestInit = { headers: asked.headers };
  await client.connect(new StreamableHTTPClientTransport(new URL(asked.mcp_url ?? mcpUrl), { requestInit }));
  try {
    const results = [];
    for (;;) {
      const step = nextRound(asked.message, results);
      if (typeof step === "string") return step;
      const answers = await Promise.all(step.map(({ name, args }) => client.callTool({ name, arguments: args })));
      results.push(...answers.map(({ content }) => content.map(({ text }) => text).join("")));
    }
  } finally {
    await client.close();
  }
}

const answer = option("agent") === "sdk" ? bySdk : byAiSdk;
serve({
  "/chat": async (body, response, request) => {
    const conversation = hook === "header" ? request.headers[HEADER] : undefined;
    const headers = conversation ? { [HEADER]: conversation } : {};
    sendJson(response, 200, { reply: await answer({ ...body, headers }) });
  },
});
