// The source of a report: all data are in the page.

import { searchChunks } from "./file_search.js";
import { unpack } from "./packed.js";

const KEPT = 24; // lists that stay unpacked

export function fileSource() {
  const lists = new Map();
  let whole = null;
  let numbers = null;
  let compared = null;

  // The latest ones that were asked for are kept.
  function list(id) {
    const found = lists.get(id) || unpack(id);
    lists.delete(id);
    lists.set(id, found);
    if (lists.size > KEPT) lists.delete(lists.keys().next().value);
    return found;
  }

  function overview() {
    whole ||= unpack("overview");
    return whole;
  }

  async function number(name, agent) {
    const { scenarios } = await overview();
    numbers ||= new Map(scenarios.map((row, at) => [key(row.name, row.agent), at]));
    return numbers.get(key(name, agent));
  }

  async function scenario(name, agent) {
    const found = await number(name, agent);
    if (found === undefined) return null;
    const { packed, absent } = await overview();
    const [chunk, at] = packed[found];
    const detail = (await list(`details-${chunk}`))[at];
    const places = detail.places.map((place) => (place && !absent.includes(place[0]) ? place : null));
    return { ...detail, places };
  }

  async function conversation(name, agent, id) {
    const found = await scenario(name, agent);
    const place = found && found.places[found.conversations.findIndex((row) => row.conversationId === id)];
    return place ? (await list(`chunk-${place[0]}`))[place[1]] : null;
  }

  async function search(text, signal, progress) {
    const { chunks, absent, leftOut } = await overview();
    const present = [...Array(chunks).keys()].filter((each) => !absent.includes(each));
    const hits = await searchChunks(present.map((each) => `chunk-${each}`), text, signal, progress);
    return Object.assign(hits, { leftOut });
  }

  async function compare(params) {
    compared ||= unpack("comparison");
    const all = (await compared) || [];
    const comparison = all.find((each) => each.new.run === params.new) || all[0];
    if (!comparison) return null;
    const { between, base, new: next } = comparison;
    const agents = between === "agents" ? [base.run, ...all.map((each) => each.new.run)] : [];
    const choices = { base: [[base.run, base.run]], new: all.map((each) => [each.new.run, each.new.run]) };
    return { comparison, between, agents, choices, base: base.run, new: next.run };
  }

  // Of a run that this one is compared with, no transcript is here.
  const here = { served: false, overview, scenario, conversation, search, compare, changes: () => () => {} };
  here.ofRun = async (id) => ((await overview()).run.id === id ? here : null);
  return here;
}

function key(name, agent) {
  return JSON.stringify([name, agent]);
}
