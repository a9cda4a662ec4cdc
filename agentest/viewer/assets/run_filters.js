// Which scenarios the Run view lists, and in which order: all of it stands in the address.

import { note } from "./address.js";
import { fill, h } from "./dom.js";

const STATUSES = ["failed", "errored", "flaky", "running", "unfinished", "passed", "skipped"];
const TEXT = { tag: "Tag", agent: "Agent", metric: "Failed on" };
const THIN = 0.05;
const found = new WeakMap();

// What a row counts as; some count twice.
export function kinds(row) {
  return [row.unfinished ? "unfinished" : row.status, ...(row.flaky ? ["flaky"] : [])];
}

// Whether it passed with an average that is hardly above its threshold.
export function thin(row) {
  return row.status === "passed" && row.margin !== undefined && row.margin < THIN;
}

function words(row) {
  if (!found.has(row)) found.set(row, [row.name, row.file, row.evalId || "", ...row.tags, row.failure].join("\n").toLowerCase());
  return found.get(row);
}

// The facets of a row that speak against showing it.
function against(row, wanted) {
  const all = [];
  if (wanted.status.length && !kinds(row).some((kind) => wanted.status.includes(kind))) all.push("status");
  if (wanted.tag && !row.tags.includes(wanted.tag)) all.push("tag");
  if (wanted.agent && row.agent !== wanted.agent) all.push("agent");
  if (wanted.metric && !row.metrics.includes(wanted.metric)) all.push("metric");
  if (wanted.text && !wanted.text.every((word) => words(row).includes(word))) all.push("text");
  return all;
}

function read(params) {
  const text = (params.text || "").toLowerCase().split(/\s+/).filter(Boolean);
  return { ...params, status: (params.status || "").split(",").filter(Boolean), text: text.length ? text : null };
}

// The rows that fit, and how many there would be for each choice of a facet, the others being as they are.
export function chosen(rows, params) {
  const wanted = read(params);
  const counts = { status: new Map(), tag: new Map(), agent: new Map(), metric: new Map() };
  const add = (facet, value) => counts[facet].set(value, (counts[facet].get(value) || 0) + 1);
  const values = { status: kinds, tag: (row) => row.tags, agent: (row) => (row.agent ? [row.agent] : []), metric: (row) => row.metrics };
  const kept = rows.filter((row) => {
    const speaks = against(row, wanted);
    for (const facet of speaks.length ? (speaks.length === 1 ? speaks : []) : Object.keys(counts)) {
      if (values[facet]) for (const value of values[facet](row)) add(facet, value);
    }
    return !speaks.length;
  });
  return { kept, counts };
}

// --- order

const share = (row) => (row.conversations ? row.passed / row.conversations : 0);
const RANKS = { failed: 0, errored: 1, running: 2, passed: 6, skipped: 7 };

// What needs eyes comes first.
function rank(row) {
  if (row.unfinished) return 3;
  if (row.status !== "passed") return RANKS[row.status] ?? 3;
  return row.flaky ? 3.5 : thin(row) ? 4 : row.warnings ? 5 : 6;
}

const MEASURES = {
  needs: (row) => rank(row) * 10 + share(row),
  name: (row) => row.name,
  status: rank,
  passed: share,
  time: (row) => row.durationMs,
  cost: (row) => row.cost ?? -1,
};

const collator = new Intl.Collator("en", { numeric: true });

let before = {};

// Rows in order. What was sorted last is kept: one types into the filter, and the order stays.
export function sorted(rows, order = "needs") {
  if (before.rows !== rows || before.order !== order) before = { rows, order, all: inOrder(rows, order) };
  return before.all;
}

function inOrder(rows, order) {
  const down = order.startsWith("-");
  const measure = MEASURES[order.replace("-", "")] || MEASURES.needs;
  const of = new Map(rows.map((row) => [row, measure(row)]));
  const sign = down ? -1 : 1;
  return [...rows].sort((a, b) => sign * compare(of.get(a), of.get(b)));
}

function compare(a, b) {
  return typeof a === "string" ? collator.compare(a, b) : a - b;
}

// --- the form

// `changed` is told whenever the address has other filters; `deep` searches transcripts.
export function filterForm(rows, current, changed, deep) {
  const change = (changes) => {
    note({ transcripts: "", ...changes });
    changed();
  };
  const params = current();
  const search = h("input", { type: "search", id: "find", value: params.text || "", "aria-keyshortcuts": "/", autocomplete: "off" });
  search.addEventListener("input", () => change({ text: search.value }));
  const boxes = STATUSES.filter((status) => rows.some((row) => kinds(row).includes(status))).map((status) => box(status, current, change));
  const menus = Object.keys(TEXT).map((facet) => menu(facet, rows, current, change)).filter(Boolean);
  const clear = h("button", { type: "button", class: "small", onclick: wipe }, "Clear filters");
  function wipe() {
    change({ status: "", tag: "", agent: "", metric: "", text: "" });
    search.focus();
  }
  const element = h(
    "form",
    { class: "filters row no-print", role: "search", onsubmit: submit },
    h("span", {}, h("label", { for: "find" }, "Find "), search, " ", h("button", { type: "submit", class: "small" }, "Search transcripts")),
    h("fieldset", { class: "row" }, h("legend", { class: "off-screen" }, "Status"), boxes.map((each) => each.element)),
    menus.map((each) => each.element),
    clear,
  );
  function submit(event) {
    event.preventDefault();
    if (search.value.trim()) deep(search.value.trim());
  }
  function update(counts) {
    for (const each of [...boxes, ...menus]) each.update(counts);
    const now = current();
    if (search.value !== (now.text || "")) search.value = now.text || "";
    clear.hidden = !["status", "tag", "agent", "metric", "text"].some((name) => now[name]);
  }
  return { element, update };
}

function box(status, current, change) {
  const input = h("input", { type: "checkbox", data: { key: `status-${status}` }, onchange: turn });
  const number = h("span", { class: "quiet" });
  const now = () => (current().status || "").split(",").filter(Boolean);
  function turn() {
    const others = now().filter((each) => each !== status);
    change({ status: (input.checked ? [...others, status] : others).join(",") });
  }
  function update(counts) {
    input.checked = now().includes(status);
    number.textContent = ` ${(counts.status.get(status) || 0).toLocaleString("en")}`;
  }
  return { element: h("label", {}, input, ` ${status}`, number), update };
}

function menu(facet, rows, current, change) {
  const all = chosen(rows, {}).counts[facet];
  const asked = current()[facet];
  if (all.size < (facet === "agent" ? 2 : 1) && !asked) return null;
  const names = [...new Set([...all.keys(), ...(asked ? [asked] : [])])].sort(collator.compare);
  const select = h("select", { "aria-label": TEXT[facet], data: { key: facet }, onchange: () => change({ [facet]: select.value }) });
  const options = names.map((name) => h("option", { value: name }));
  fill(select, h("option", { value: "" }, `${TEXT[facet]}: any`), options);
  function update(counts) {
    names.forEach((name, at) => (options[at].textContent = `${name.slice(0, 60)} (${(counts[facet].get(name) || 0).toLocaleString("en")})`));
    select.value = current()[facet] || "";
  }
  return { element: select, update };
}
