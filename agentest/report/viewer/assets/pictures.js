// Pictures of figures, as SVG with a title, units and the same figures as a table.

import { foreign, h, svg } from "./dom.js";
import { decimal, percent } from "./format.js";

const [WIDE, HIGH, LEFT, LOW] = [600, 160, 44, 22];
const text = (x, y, content, anchor = "middle") => svg("text", { x, y, "text-anchor": anchor }, content);
const titled = (element, words) => (element.append(svg("title", {}, words)), element);

// One picture: what is seen, the drawing, and its table.
function picture(title, high, content, heads, rows) {
  const drawn = svg("svg", { viewBox: `0 0 ${WIDE} ${high}`, class: "picture", role: "img", "aria-label": title }, content);
  const cells = (row, tag) => h("tr", row.map((each) => h(tag, typeof each === "string" ? foreign(each) : each)));
  const table = h("table", h("thead", cells(heads, "th")), h("tbody", rows.map((row) => cells(row, "td"))));
  return h("figure", h("figcaption", title), drawn, h("details", h("summary", "Table"), h("div.scroll", table)));
}

function axis(low, high, show) {
  const at = (value) => HIGH - LOW - ((value - low) / (high - low || 1)) * (HIGH - LOW - 10);
  const line = (value) => [
    svg("line", { x1: LEFT, x2: WIDE, y1: at(value), y2: at(value), class: "grid" }),
    text(LEFT - 4, at(value) + 4, show(value), "end"),
  ];
  return [at, [low, (low + high) / 2, high].map(line)];
}

// Points {label, value, low, high, words}, oldest first; values are shares.
export function lineOfShares(title, points) {
  const [at, lines] = axis(0, 1, percent);
  const x = (n) => LEFT + 12 + (n * (WIDE - LEFT - 24)) / Math.max(1, points.length - 1);
  const bars = points.map((each, n) => [
    typeof each.low === "number" && svg("line", { x1: x(n), x2: x(n), y1: at(each.low), y2: at(each.high), class: "sure" }),
    titled(svg("circle", { cx: x(n), cy: at(each.value), r: 4, class: "point" }), each.words),
  ]);
  const path = points.map((each, n) => `${n ? "L" : "M"}${x(n)} ${at(each.value)}`).join("");
  const ends = [text(x(0), HIGH - 4, points[0].label, "start"), text(x(points.length - 1), HIGH - 4, points.at(-1).label, "end")];
  const rows = points.map((each) => [each.label, percent(each.value), each.words]);
  return picture(title, HIGH, [lines, svg("path", { d: path, class: "trend" }), bars, ends], ["Run", "Share", ""], rows);
}

// Bins {from, to, n} of equal width in the drawing; marks [[label, value]].
export function histogram(title, bins, marks, show) {
  const most = Math.max(...bins.map((each) => each.n));
  const [at, lines] = axis(0, most, (value) => decimal(value));
  const wide = (WIDE - LEFT) / bins.length;
  const place = (value) => {
    const n = bins.findIndex((each) => value <= each.to);
    const bin = bins[n < 0 ? bins.length - 1 : n];
    return LEFT + wide * ((n < 0 ? bins.length - 1 : n) + (value - bin.from) / (bin.to - bin.from || 1));
  };
  const bar = (each, n) => {
    const box = svg("rect", { x: LEFT + n * wide, y: at(each.n), width: Math.max(1, wide - 1), height: HIGH - LOW - at(each.n), class: "value" });
    return titled(box, `${show(each.from)} to ${show(each.to)}: ${each.n}`);
  };
  const mark = ([label, value]) => [
    svg("line", { x1: place(value), x2: place(value), y1: 10, y2: HIGH - LOW, class: "mark" }),
    text(place(value), 9, `${label} ${show(value)}`),
  ];
  const ends = [text(LEFT, HIGH - 4, show(bins[0].from), "start"), text(WIDE, HIGH - 4, show(bins.at(-1).to), "end")];
  const rows = bins.map((each) => [`${show(each.from)} to ${show(each.to)}`, String(each.n)]);
  return picture(title, HIGH, [lines, bins.map(bar), marks.map(mark), ends], ["From, to", "Count"], rows);
}

// Rows {label, value, words}, largest first.
export function bars(title, rows) {
  const most = Math.max(...rows.map((each) => each.value)) || 1;
  const row = ({ label, value, words }, n) => [
    text(200, 20 * n + 14, label.length > 32 ? `${label.slice(0, 31)}…` : label, "end"),
    titled(svg("rect", { x: 206, y: 20 * n + 3, width: Math.max(1, (280 * value) / most), height: 14, class: "value" }), label),
    text(212 + (280 * value) / most, 20 * n + 14, words, "start"),
  ];
  return picture(title, 20 * rows.length + 4, rows.map(row), ["", ""], rows.map((each) => [each.label, each.words]));
}

// Rows {label, states} and the labels of the columns; "" where nothing is known.
export function heatMap(title, columns, rows) {
  const wide = (WIDE - 206) / columns.length;
  const row = ({ label, states }, n) => [
    text(200, 16 * n + 12, label.length > 32 ? `${label.slice(0, 31)}…` : label, "end"),
    states.map((state, at) =>
      titled(
        svg("rect", { x: 206 + at * wide, y: 16 * n, width: Math.max(1, wide - 1), height: 15, class: `state ${state || "none"}` }),
        `${label}, ${columns[at]}: ${state || "not run"}`,
      ),
    ),
  ];
  const table = rows.map((each) => [each.label, each.states.map((state) => state || "–").join(", ")]);
  return picture(title, 16 * rows.length + 4, rows.map(row), ["Scenario", "Oldest run first"], table);
}

// Rows {label, value, low, high, words}: differences with their intervals around 0.
export function forest(title, rows) {
  const most = Math.max(...rows.flatMap((each) => [Math.abs(each.low), Math.abs(each.high), Math.abs(each.value)])) || 1;
  const x = (value) => 400 + (190 * value) / most;
  const row = ({ label, value, low, high, words }, n) => [
    text(200, 20 * n + 14, label.length > 32 ? `${label.slice(0, 31)}…` : label, "end"),
    svg("line", { x1: x(low), x2: x(high), y1: 20 * n + 10, y2: 20 * n + 10, class: "sure" }),
    titled(svg("circle", { cx: x(value), cy: 20 * n + 10, r: 4, class: high < 0 ? "point bad" : low > 0 ? "point good" : "point" }), words),
  ];
  const zero = svg("line", { x1: 400, x2: 400, y1: 0, y2: 20 * rows.length, class: "mark" });
  return picture(title, 20 * rows.length + 4, [zero, rows.map(row)], ["", "Difference"], rows.map((each) => [each.label, each.words]));
}
