// The spans that an agent sent of one turn, as a tree: what called what, when, and for how long.

import { foreign, h } from "./dom.js";
import { bounded, folded, notice } from "./folding.js";
import { count, duration } from "./format.js";
import { json, timeBar } from "./parts.js";

const MOST_DEPTH = 12;

export function spansOfTurn(spans) {
  if (!spans.length) return null;
  const rows = tree(spans.filter((span) => span.spanId));
  const failed = rows.filter(({ span }) => isError(span)).length;
  const bar = timeBar(rows.map(({ span }) => [start(span) || NaN, span.durationMs]));
  const item = (at) => {
    const { span, depth } = rows[at];
    const indent = { "--depth": Math.min(depth, MOST_DEPTH) };
    return h("li", { style: indent }, folded("details", words(span, depth), () => json(span)), bar(at));
  };
  const make = () => [
    bounded(h("ul.plain.spans"), rows.length, item, { noun: "span" }),
    spans.some((span) => span.cut) && notice("The agent sent more spans than are kept."),
  ];
  const summary = ["Spans: ", count(rows.length, "span"), failed > 0 && `, ✗ ${failed} failed`];
  return folded("details.box", summary, make);
}

// The spans in the order of a walk through their tree, each with its depth. None is lost where parents are
// missing or go in a circle.
function tree(spans) {
  const ids = new Set(spans.map((span) => span.spanId));
  const below = new Map([[null, []]]);
  const latestFirst = [...spans].reverse().sort((left, right) => start(right) - start(left));
  for (const span of latestFirst) {
    const parent = ids.has(span.parentSpanId) ? span.parentSpanId : null;
    if (!below.has(parent)) below.set(parent, []);
    below.get(parent).push(span);
  }
  const found = new Map();
  const waiting = [...latestFirst, ...below.get(null)].map((span) => ({ span, depth: 0 }));
  while (waiting.length) {
    const { span, depth } = waiting.pop();
    if (found.has(span)) continue;
    found.set(span, { span, depth });
    waiting.push(...(below.get(span.spanId) || []).map((each) => ({ span: each, depth: depth + 1 })));
  }
  return [...found.values()];
}

function start(span) {
  return Date.parse(span.startedAt) || 0;
}

function isError(span) {
  return Boolean(span.error) || /error/i.test(span.status);
}

function words({ name, about, kind, durationMs, error, status }, depth) {
  return [
    h("span.off-screen", `level ${depth + 1}: `),
    isError({ error, status }) && h("strong.low", "✗ "),
    foreign(name),
    " ",
    foreign([about, kind, duration(durationMs)].filter(Boolean).join(" · "), "span.quiet"),
    error && [" ", foreign(error, "span.low")],
  ];
}
