// Pictures of figures, as SVG with a title, units and the same figures as a table.

import { foreign, h, svg, visible } from "./dom.js";
import { decimal, percent } from "./format.js";

const [WIDE, HIGH, LEFT, LOW, NAMES] = [600, 160, 44, 22, 266];
const text = (x, y, content, anchor) => svg("text", { x, y, "text-anchor": anchor || "middle" }, content);
const line = (x1, y1, x2, y2, kind) => svg("line", { x1, y1, x2, y2, class: kind });
const box = (x, y, width, height, kind, words) => svg("rect", { x, y, width: Math.max(1, width), height, class: kind }, svg("title", {}, words));
const dot = (cx, cy, words) => svg("circle", { cx, cy, r: 4, class: "plain" }, svg("title", {}, words));
const clipped = (label) => (label.length > 42 ? `${label.slice(0, 24)}…${label.slice(-17)}` : label);
const named = (label, y) => text(NAMES - 6, y, clipped(visible(label)), "end");

// Rows are lists of cells, whose first one heads them; heads that begin with `#` are of numbers.
export function figureTable(heads, rows) {
  const kind = (at) => heads[at].startsWith("#") && "number";
  const cell = (content, at) => h(at ? "td" : "th", { scope: !at && "row", class: kind(at) }, content);
  const head = heads.map((text, at) => h("th", { scope: "col", class: kind(at) }, text.replace("#", "")));
  const body = h("tbody", rows.map((cells) => h("tr", cells.map(cell))));
  return h("div.scroll", h("table", h("thead", h("tr", head)), body));
}

// One picture: what is seen, the drawing, and its table.
function picture(title, high, content, heads, rows) {
  const drawn = svg("svg", { viewBox: `0 0 ${WIDE} ${high}`, class: "picture", role: "img", "aria-label": title }, content);
  const figures = figureTable(heads, rows.map((row) => row.map((each) => foreign(String(each)))));
  return h("figure", foreign(title, "figcaption"), drawn, h("details", h("summary", "Table"), figures));
}

function axis(high, show) {
  const at = (value) => HIGH - LOW - (value / high) * (HIGH - LOW - 10);
  return [at, [0, high / 2, high].map((value) => [line(LEFT, at(value), WIDE, at(value), "grid"), text(LEFT - 4, at(value) + 4, show(value), "end")])];
}

const ends = (first, last, x = LEFT, y = HIGH - 4) => [text(x, y, first, "start"), text(WIDE, y, last, "end")];

// Points {label, value, low, high, words}, oldest first; values are shares.
export function lineOfShares(title, points) {
  const [at, lines] = axis(1, percent);
  const x = (n) => LEFT + 12 + (n * (WIDE - LEFT - 24)) / (points.length - 1);
  const drawn = points.map((each, n) => [line(x(n), at(each.low), x(n), at(each.high), "sure"), dot(x(n), at(each.value), each.words)]);
  const d = points.map((each, n) => `${n ? "L" : "M"}${x(n)} ${at(each.value)}`).join("");
  const rows = points.map((each) => [each.label, percent(each.value), each.words]);
  const labels = ends(points[0].label, points.at(-1).label);
  return picture(title, HIGH, [lines, svg("path", { d, class: "trend" }), drawn, labels], ["Run", "Share", ""], rows);
}

// Bins {from, to, n}, drawn equally wide; marks are values.
export function histogram(title, bins, marks, show) {
  const most = Math.max(...bins.map((each) => each.n));
  const [at, lines] = axis(most, decimal);
  const wide = (WIDE - LEFT) / bins.length;
  const span = (each) => `${show(each.from)} to ${show(each.to)}`;
  const bar = (each, n) => box(LEFT + n * wide, at(each.n), wide - 1, HIGH - LOW - at(each.n), "plain", `${span(each)}: ${each.n}`);
  const mark = (value) => {
    const x = LEFT + wide * (Math.max(0, bins.findIndex((each) => value <= each.to)) + 0.5);
    return line(x, 6, x, HIGH - LOW, "mark");
  };
  const labels = ends(show(bins[0].from), show(bins.at(-1).to));
  return picture(title, HIGH, [lines, bins.map(bar), marks.map(mark), labels], ["From, to", "Count"], bins.map((each) => [span(each), each.n]));
}

// Rows {label, value, words}, largest first.
export function bars(title, rows) {
  const wide = (value) => (250 * value) / rows[0].value;
  const row = ({ label, value, words }, n) => [
    named(label, 20 * n + 14),
    box(NAMES, 20 * n + 3, wide(value), 14, "plain", label),
    text(NAMES + 6 + wide(value), 20 * n + 14, words, "start"),
  ];
  return picture(title, 20 * rows.length, rows.map(row), ["", ""], rows.map((each) => [each.label, each.words]));
}

// Rows {label, states} and the labels of the columns; a state is "" where nothing is known.
export function heatMap(title, columns, rows) {
  const wide = (WIDE - NAMES) / columns.length;
  const cell = (label, n, state, at) => box(NAMES + at * wide, 16 * n, wide - 1, 15, state || "none", `${label}, ${columns[at]}: ${state || "not run"}`);
  const row = ({ label, states }, n) => [named(label, 16 * n + 12), states.map((state, at) => cell(label, n, state, at))];
  const table = rows.map((each) => [each.label, each.states.map((state) => state || "–").join(", ")]);
  const high = 16 * rows.length + 16;
  return picture(title, high, [rows.map(row), ends(columns[0], columns.at(-1), NAMES, high - 3)], ["Scenario", "Oldest run first"], table);
}

// Rows {label, cells: [[words, kind]]} under the names of the columns; "" is a cell that nothing is known of.
export function matrix(title, columns, rows) {
  const wide = (WIDE - NAMES) / Math.max(4, columns.length);
  const cell = ([words, kind], at) => svg("g", { class: kind || "none" }, [
    box(NAMES + at * wide, 0, wide - 2, 18, "cell", `${columns[at]}: ${words || "none"}`),
    text(NAMES + (at + 0.5) * wide, 13, words || "–"),
  ]);
  const row = ({ label, cells }, n) => svg("g", { transform: `translate(0,${20 * n + 18})` }, [named(label, 13), cells.map(cell)]);
  const head = columns.map((name, at) => text(NAMES + (at + 0.5) * wide, 12, name));
  const table = rows.map(({ label, cells }) => [label, ...cells.map(([words]) => words || "–")]);
  return picture(title, 20 * rows.length + 18, [head, rows.map(row)], ["", ...columns], table);
}

// Rows {label, value, low, high, words}: values with their intervals. Shares, which have a `show`, are drawn from 0 to 1,
// others on a scale with 0 in its middle.
export function forest(title, rows, head, show) {
  const most = show ? 1 : Math.max(...rows.flatMap((each) => [Math.abs(each.low), Math.abs(each.high)])) || 1;
  const x = (value) => (show ? 280 + 300 * value : 430 + (150 * value) / most);
  const row = ({ label, value, low, high, words }, n) => [
    named(label, 20 * n + 14),
    line(x(low), 20 * n + 10, x(high), 20 * n + 10, "sure"),
    dot(x(value), 20 * n + 10, words),
  ];
  const high = 20 * rows.length;
  const ticks = [show ? 0.5 : -most, 0, most].map((value) => [
    line(x(value), 0, x(value), high, value ? "grid" : "mark"),
    text(x(value), high + 14, (show || decimal)(value)),
  ]);
  return picture(title, high + 18, [ticks, rows.map(row)], ["", head], rows.map((each) => [each.label, each.words]));
}
