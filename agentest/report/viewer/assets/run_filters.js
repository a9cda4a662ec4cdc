// Which scenarios the Run view lists, and in which order: all of it stands in the address.

import { h } from "./dom.js";

const STATUSES = ["failed", "errored", "flaky", "running", "unfinished", "passed", "skipped"];
const MENUS = { tag: "Tag", agent: "Agent", metric: "Failed on" };
const THIN = 0.05;
const MOST_CHOICES = 200;

// What a row counts as; some count twice.
export function kinds(row) {
  const kind = row.unfinished ? "unfinished" : row.status;
  return row.flaky ? [kind, "flaky"] : [kind];
}

// Whether it passed with an average that is hardly above its threshold.
export function thin(row) {
  return row.status === "passed" && row.margin !== undefined && row.margin < THIN;
}

// The id that stands for no cause at all.
export const NO_CAUSE = "none";

function cause(row) {
  return row.causes.length || !hasFailed(row) ? row.causes : [NO_CAUSE];
}

// Whether a row did not pass for a reason of its own, and belongs to no cause.
export function withoutCause(row) {
  return cause(row)[0] === NO_CAUSE;
}

function hasFailed(row) {
  return ["failed", "errored"].includes(row.status) && !row.unfinished;
}

// Facet → what a row has of it.
const VALUES = { status: kinds, tag: (row) => row.tags, agent: (row) => [row.agent], metric: (row) => row.metrics, cause };

function wanted(params, facet) {
  const text = params[facet] || "";
  return facet === "status" ? text.split(",").filter(Boolean) : text ? [text] : [];
}

const found = new WeakMap();

function words(row) {
  const all = [row.name, row.file, row.evalId || "", ...row.tags, row.failure];
  if (!found.has(row)) found.set(row, all.join("\n").toLowerCase());
  return found.get(row);
}

// The rows that fit, and how many there would be for each choice of a facet, the others being as they are.
export function chosen(rows, params) {
  const asked = (params.text || "").toLowerCase().split(/\s+/).filter(Boolean);
  const facets = Object.entries(VALUES).map(([name, of]) => ({ of, wanted: wanted(params, name), counts: new Map() }));
  const [status, tag, agent, metric] = facets.map(({ counts }) => counts);
  const kept = rows.filter((row) => {
    if (!asked.every((word) => words(row).includes(word))) return false;
    const against = facets.filter((facet) => facet.wanted.length && !facet.of(row).some((each) => facet.wanted.includes(each)));
    const counted = against.length ? against : facets;
    if (against.length < 2) for (const { of, counts } of counted) for (const each of of(row)) counts.set(each, (counts.get(each) || 0) + 1);
    return !against.length;
  });
  return { kept, counts: { status, tag, agent, metric } };
}

// --- order

// What needs eyes comes first.
function rank(row) {
  if (row.unfinished) return 3;
  if (row.status !== "passed") return { failed: 0, errored: 1, running: 2, skipped: 7 }[row.status] ?? 3;
  return row.flaky ? 3.5 : thin(row) ? 4 : row.warnings ? 5 : 6;
}

const share = (row) => (row.conversations ? row.passed / row.conversations : 0);
const MEASURES = {
  needs: (row) => rank(row) * 10 + share(row),
  name: (row) => row.name,
  status: rank,
  passed: share,
  time: (row) => row.durationMs,
  cost: (row) => row.cost ?? -1,
};
const collator = new Intl.Collator("en", { numeric: true });
const compare = (a, b) => (typeof a === "string" ? collator.compare(a, b) : a - b);

let before = {};

// Rows in order. What was sorted last is kept: one types into the filter, and the order stays.
export function sorted(rows, order = "needs") {
  if (before.rows === rows && before.order === order) return before.all;
  const measure = MEASURES[order.replace("-", "")] || MEASURES.needs;
  const of = new Map(rows.map((row) => [row, measure(row)]));
  const sign = order.startsWith("-") ? -1 : 1;
  before = { rows, order, all: [...rows].sort((a, b) => sign * compare(of.get(a), of.get(b))) };
  return before.all;
}

// --- what is chosen from; `change` is told what the address has to say then

export function facets(rows, counts, params, change) {
  const there = new Set(rows.flatMap(kinds));
  const boxes = STATUSES.filter((each) => there.has(each)).map((each) => box(each, counts.status, wanted(params, "status"), change));
  return [
    h("fieldset.row", h("legend.off-screen", "Status"), boxes),
    Object.keys(MENUS).map((facet) => menu(facet, counts[facet], params[facet] || "", change)),
  ];
}

function box(status, counts, on, change) {
  const others = on.filter((each) => each !== status);
  const onchange = () => change({ status: (input.checked ? [...others, status] : others).join(",") });
  const input = h("input", { type: "checkbox", checked: on.includes(status), id: `status-${status}`, onchange });
  return h("label", input, ` ${status} `, h("span.quiet", (counts.get(status) || 0).toLocaleString("en")));
}

function menu(facet, counts, now, change) {
  if (now && !counts.has(now)) counts.set(now, 0);
  if (counts.size < (facet === "agent" && !now ? 2 : 1)) return null;
  const all = [...counts].sort(([a, n], [b, m]) => (b === now) - (a === now) || m - n);
  const shown = all.slice(0, MOST_CHOICES).sort(([a], [b]) => collator.compare(a, b));
  const option = ([name, n]) => h("option", { value: name }, `${name.slice(0, 60)} (${n.toLocaleString("en")})`);
  const left = all.length - shown.length;
  const more = left > 0 && h("option", { disabled: true }, `${left.toLocaleString("en")} rarer ones: use Find`);
  const props = { "aria-label": MENUS[facet], id: facet, onchange: () => change({ [facet]: select.value }) };
  const select = h("select", props, h("option", { value: "" }, `${MENUS[facet]}: any`), shown.map(option), more);
  select.value = now;
  return select;
}
