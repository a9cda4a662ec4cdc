// The spans that an agent sent of one turn, as a tree: what called what, when, and for how long.

import { foreign, h } from "./dom.js";
import { bounded, folded } from "./folding.js";
import { count, duration } from "./format.js";
import { facts, json } from "./parts.js";

const MOST_DEPTH = 12;

export function spansOfTurn(spans) {
  if (!spans.length) return null;
  const cut = spans.some((span) => span.cut);
  const rows = tree(spans.filter((span) => span.spanId));
  const failed = rows.filter(({ span }) => isError(span)).length;
  const [from, length] = extent(rows);
  const list = h("ul", { class: "plain spans" });
  const make = () => [
    bounded(list, rows.length, (at) => item(rows[at], from, length), { noun: "span" }),
    cut && h("p", { class: "notice" }, "The agent sent more spans than are kept of one conversation."),
  ];
  return folded([`Spans: ${count(rows.length, "span")}`, failed > 0 && `, ✗ ${failed} failed`], make, { class: "trace" });
}

// The spans in the order of a walk through their tree, each with its depth. No span is lost where parents
// are missing or go in a circle.
function tree(spans) {
  const ids = new Set(spans.map((span) => span.spanId));
  const below = Map.groupBy ? Map.groupBy(spans, parentIn) : grouped(spans, parentIn);
  const rows = [];
  const seen = new Set();

  function parentIn(span) {
    return ids.has(span.parentSpanId) && span.parentSpanId !== span.spanId ? span.parentSpanId : null;
  }

  function walk(roots) {
    const waiting = roots.toSorted(byStart).reverse().map((span) => ({ span, depth: 0 }));
    while (waiting.length) {
      const each = waiting.pop();
      if (seen.has(each.span)) continue;
      seen.add(each.span);
      rows.push(each);
      const children = (below.get(each.span.spanId) || []).toSorted(byStart).reverse();
      waiting.push(...children.map((span) => ({ span, depth: each.depth + 1 })));
    }
  }

  walk(below.get(null) || []);
  walk(spans.filter((span) => !seen.has(span)));
  return rows;
}

function grouped(list, key) {
  const groups = new Map();
  for (const each of list) groups.set(key(each), [...(groups.get(key(each)) || []), each]);
  return groups;
}

function byStart(left, right) {
  return moment(left) - moment(right);
}

function moment(span) {
  return Date.parse(span.startedAt) || 0;
}

function extent(rows) {
  const starts = rows.map(({ span }) => moment(span)).filter(Boolean);
  const from = starts.reduce((least, each) => Math.min(least, each), Infinity);
  const to = rows.reduce((most, { span }) => Math.max(most, moment(span) + span.durationMs), 0);
  return [from, Math.max(to - from, 0.001)];
}

function isError(span) {
  return Boolean(span.error) || /error/i.test(String(span.status));
}

function item({ span, depth }, from, length) {
  const kind = span.about ? `${span.about} · ` : "";
  const words = [
    h("span", { class: "off-screen" }, `level ${depth + 1}: `),
    isError(span) && h("strong", { class: "low" }, "✗ "),
    foreign(span.name),
    h("span", { class: "quiet" }, ` ${kind}${duration(span.durationMs)}`),
  ];
  const element = h("li", {}, folded(words, () => details(span)), waterfall(span, from, length));
  element.style.setProperty("--depth", String(Math.min(depth, MOST_DEPTH)));
  return element;
}

function waterfall(span, from, length) {
  if (!moment(span)) return null;
  const share = (ms) => `${Math.min(100, Math.max(0, (ms / length) * 100))}%`;
  const style = { "margin-left": share(moment(span) - from), width: share(span.durationMs) };
  return h("div", { class: "fall", "aria-hidden": "true" }, h("span", { class: `piece ${isError(span) ? "low" : ""}`, style }));
}

function details(span) {
  return [
    facts([
      ["Kind", span.kind && foreign(span.kind)],
      ["Status", span.status && foreign(span.status)],
      ["Error", span.error && foreign(span.error)],
      ["Began", span.startedAt && foreign(span.startedAt)],
      ["Service", span.service && foreign(span.service)],
      ["Scope", span.scope && foreign(span.scope)],
    ]),
    json(span.attributes || {}),
    (span.events || []).length > 0 && folded(count(span.events.length, "event"), () => json(span.events)),
  ];
}
