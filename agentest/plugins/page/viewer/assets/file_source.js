// The source of a report: all data are in the page, packed. They are unpacked when they are opened, and searched
// one list after another, so that the page stays usable.


const LAST = "end";

function arrived() {
  return document.readyState !== "loading";
}

export function isCut() {
  return arrived() && !document.getElementById(LAST);
}

export const CUT = "This file is cut: it ends before its data do. Get it again, or write it anew: agentest show RUN --reporter html=PATH";

// An element is whole when the next one has begun, or the page has come to its end.
function element(id) {
  const element = document.getElementById(id);
  return element && (arrived() || document.querySelector(`#${id} ~ script`)) ? element : null;
}

// Calls `look` whenever more of the page has arrived, until that returns true.
function watch(look) {
  if (look()) return;
  const observer = new MutationObserver(again);
  function again() {
    if (!look()) return;
    observer.disconnect();
    document.removeEventListener("readystatechange", again);
  }
  observer.observe(document.body, { childList: true });
  document.addEventListener("readystatechange", again);
}

export function whenArrived() {
  return new Promise((resolve) => watch(() => arrived() && (resolve(), true)));
}

function awaited(id) {
  return new Promise((resolve) => watch(() => (element(id) || arrived()) && (resolve(element(id)), true)));
}

// The JSON text of an element; null: the file does not hold it.
async function unpackText(id) {
  if (!("DecompressionStream" in window)) throw new Error("This browser cannot unpack the data: it needs Chrome 93, Firefox 113, Safari 16.4 or later.");
  const element = await awaited(id);
  if (element === null && isCut()) throw new Error(CUT);
  if (element === null) return null;
  try {
    const stream = new Blob([decoded(element.textContent)]).stream().pipeThrough(new DecompressionStream("gzip"));
    return await new Response(stream).text();
  } catch {
    throw new Error(isCut() ? CUT : "This file is damaged: a part of it cannot be unpacked.");
  }
}

async function unpack(id) {
  const text = await unpackText(id);
  return text === null ? null : JSON.parse(text);
}

function decoded(base64) {
  const text = atob(base64);
  const made = new Uint8Array(text.length);
  for (let at = 0; at < text.length; at++) made[at] = text.charCodeAt(at);
  return made;
}

const MOST_HITS = 200;
const AROUND = 60;
const PLAIN = /^[ !#-[\]-~]*$/; // stands in JSON as it is

// Resolves to [{name, agent, conversationId, turn, excerpt}], with `more` where there are more hits than are looked for.
// `progress` is told how many lists of how many were looked through.
async function searchChunks(ids, text, signal, progress = () => {}) {
  const wanted = text.toLowerCase();
  const hits = [];
  for (const [at, id] of ids.entries()) {
    if ((signal && signal.aborted) || hits.more) break;
    look((await unpackText(id)) || "[]", wanted, hits);
    progress(at + 1, ids.length);
    await new Promise((resolve) => setTimeout(resolve));
  }
  return hits;
}

function look(raw, wanted, hits) {
  if (PLAIN.test(wanted) && !raw.toLowerCase().includes(wanted)) return;
  for (const { name, agent, conversation } of JSON.parse(raw)) {
    const found = inConversation(conversation, wanted);
    if (!found) continue;
    if (hits.length === MOST_HITS) return void (hits.more = true);
    hits.push({ name, agent, conversationId: conversation.conversationId, ...found });
  }
}

// Turns first, so that a hit leads to the turn; then all that is said of the conversation.
function inConversation({ turns, unfinishedTurn, ...rest }, wanted) {
  for (const turn of [...turns, unfinishedTurn].filter(Boolean)) {
    const excerpt = inValue(turn, wanted);
    if (excerpt) return { turn: turn.turnIndex, excerpt };
  }
  const excerpt = inValue(rest, wanted);
  return excerpt && { turn: null, excerpt };
}

function inValue(value, wanted) {
  if (typeof value === "string") return excerptOf(value, wanted);
  if (value === null || typeof value !== "object") return null;
  for (const each of Object.values(value)) {
    const found = inValue(each, wanted);
    if (found) return found;
  }
  return null;
}

function excerptOf(text, wanted) {
  const at = text.toLowerCase().indexOf(wanted);
  if (at < 0) return null;
  const [from, to] = [Math.max(0, at - AROUND), at + wanted.length + AROUND];
  return `${from ? "…" : ""}${text.slice(from, to)}${to < text.length ? "…" : ""}`;
}

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
