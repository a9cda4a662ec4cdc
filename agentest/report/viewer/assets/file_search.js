// Looks for a text in all transcripts of a report, one list after another, so that the page stays usable.

import { unpackText } from "./packed.js";

const MOST_HITS = 200;
const AROUND = 60;
const PLAIN = /^[ !#-[\]-~]*$/; // stands in JSON as it is

// Resolves to [{name, agent, conversationId, turn, excerpt}], with `more` where there are more hits than are looked for.
// `progress` is told how many lists of how many were looked through.
export async function searchChunks(ids, text, signal, progress = () => {}) {
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
