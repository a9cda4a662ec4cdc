// The spans that an agent sent of one turn, as a tree: what called what, when, and for how long.

import { foreign, h } from "./dom.js";
import { bounded, folded } from "./folding.js";
import { count, duration } from "./format.js";
import { json } from "./parts.js";

const MOST_DEPTH = 12;

export function spansOfTurn(spans) {
  if (!spans.length) return null;
  const rows = tree(spans.filter((span) => span.spanId));
  const failed = rows.filter(({ span }) => isError(span)).length;
  const from = Math.min(...rows.map(({ span }) => start(span) || Infinity));
  const length = Math.max(...rows.map(({ span }) => start(span) + span.durationMs)) - from || 1;
  const item = ({ span, depth }) => {
    const element = h(
      "li",
      {},
      folded(words(span, depth), () => json(span)),
      waterfall(span, from, length),
    );
    element.style.setProperty("--depth", Math.min(depth, MOST_DEPTH));
    return element;
  };
  const make = () => [
    bounded(h("ul", { class: "plain spans" }), rows.length, (at) => item(rows[at]), { noun: "span" }),
    spans.some((span) => span.cut) && h("p", { class: "notice" }, "The agent sent more spans than are kept."),
  ];
  return folded(`Spans: ${count(rows.length, "span")}${failed ? `, ✗ ${failed} failed` : ""}`, make, {
    class: "trace",
  });
}

// The spans in the order of a walk through their tree, each with its depth. None is lost where parents are
// missing or go in a circle.
function tree(spans) {
  const ids = new Set(spans.map((span) => span.spanId));
  const below = new Map();
  for (const span of spans.toSorted((left, right) => start(left) - start(right))) {
    const parent = ids.has(span.parentSpanId) ? span.parentSpanId : null;
    if (!below.has(parent)) below.set(parent, []);
    below.get(parent).push(span);
  }
  const seen = new Map();
  const walk = (roots) => {
    const waiting = roots.map((span) => ({ span, depth: 0 })).reverse();
    while (waiting.length) {
      const each = waiting.pop();
      if (seen.has(each.span)) continue;
      seen.set(each.span, each);
      const children = below.get(each.span.spanId) || [];
      waiting.push(...children.map((span) => ({ span, depth: each.depth + 1 })).reverse());
    }
  };
  walk(below.get(null) || []);
  for (const span of spans) walk([span]);
  return [...seen.values()];
}

function start(span) {
  return Date.parse(span.startedAt) || 0;
}

function isError(span) {
  return Boolean(span.error) || /error/i.test(span.status);
}

function words(span, depth) {
  const about = [span.about, span.kind, duration(span.durationMs)].filter(Boolean).join(" · ");
  return [
    h("span", { class: "off-screen" }, `level ${depth + 1}: `),
    isError(span) && h("strong", { class: "low" }, "✗ "),
    foreign(span.name),
    " ",
    foreign(about, "span", { class: "quiet" }),
    span.error && [" ", foreign(span.error, "span", { class: "low" })],
  ];
}

function waterfall(span, from, length) {
  const share = (ms) => `${Math.min(100, Math.max(0, (ms / length) * 100))}%`;
  const style = { "margin-left": share(start(span) - from), width: share(span.durationMs) };
  return (
    start(span) > 0 &&
    h("div", { class: "fall", "aria-hidden": "true" }, h("span", { class: "piece", style }))
  );
}
