// The shop's agent as a program of Node, a process a conversation, lines of JSON in and out. It asks for its tools:
//   {type: "user", text} → {type: "tool", id, name, input}, ← {type: "tool_result", id, output}, then
//   {type: "text", text} for each word, and {type: "end"}
import { createInterface } from "node:readline";
import { nextStep } from "./shop.mjs";

const say = (event) => process.stdout.write(`${JSON.stringify(event)}\n`);
const lines = createInterface({ input: process.stdin })[Symbol.asyncIterator]();
const read = async () => {
  const { value, done } = await lines.next();
  return done ? null : JSON.parse(value);
};

async function ask({ name, args }) {
  const id = crypto.randomUUID();
  say({ type: "tool", id, name, input: args });
  const answer = await read();
  if (answer.id !== id) throw new Error(`no answer to ${id}: ${JSON.stringify(answer)}`);
  return answer.output;
}

const texts = [];
for (let message = await read(); message; message = await read()) {
  texts.push(message.text);
  const results = [];
  let step = await nextStep(texts, results);
  while (typeof step !== "string") {
    results.push(await ask(step));
    step = await nextStep(texts, results);
  }
  for (const word of step.split(/(?<= )/)) say({ type: "text", text: word });
  say({ type: "end" });
}
