// The source of a report: all data are in the page.

import { unpack } from "./packed.js";

export function fileSource() {
  const chunks = new Map();
  let whole = null;

  function chunk(number) {
    if (!chunks.has(number)) chunks.set(number, unpack(`chunk-${number}`));
    return chunks.get(number);
  }

  async function overview() {
    whole ||= await unpack("overview");
    return whole;
  }

  async function place(name, agent) {
    const found = (await overview()).scenarios.findIndex((row) => row.name === name && row.agent === agent);
    return found < 0 ? null : (await overview()).packed[found];
  }

  async function scenario(name, agent) {
    const packed = await place(name, agent);
    return packed === null ? null : (await chunk(packed.chunk)).scenarios[packed.at];
  }

  async function conversation(name, agent, id) {
    const found = await scenario(name, agent);
    const index = found ? found.conversations.findIndex((row) => row.conversationId === id) : -1;
    if (index < 0 || found.places[index] === null) return null;
    const [number, at] = found.places[index];
    return (await chunk(number)).conversations[at];
  }

  return { served: false, overview, scenario, conversation, search: async () => [], compare: async () => null, changes: () => () => {} };
}
