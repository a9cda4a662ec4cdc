// The Run view: verdict, figures, and the scenarios, first those that need eyes.

import { address, note, read } from "./address.js";
import { addView } from "./app.js";
import { fill, foreign, h } from "./dom.js";
import { count } from "./format.js";
import { announce, problem } from "./parts.js";
import { chosen, filterForm, sorted } from "./run_filters.js";
import { causesPart, costPart, figuresPart, folded, trendPart } from "./run_figures.js";
import { head } from "./run_head.js";
import { conversationAddress, details, keyOf, rowMaker } from "./run_rows.js";
import { source } from "./source.js";
import { windowed } from "./windowed.js";

const KEYS = [["o", "unfold the marked scenario, fold it"], ["e", "search transcripts for what is looked for"]];
const COLUMNS = [["status", "Status", "narrow"], ["name", "Scenario"], [null, "Agent", "narrow"], ["passed", "Passed", "number narrow"], ["time", "Time", "number wide"], ["cost", "Cost", "number wide"]];
const MOST_HITS = 200;

// The row that was opened last: it has the focus when one comes back.
let left = null;

export function addRunView() {
  addView("run", { title: "Run", nav: true, show, keys: KEYS });
}

async function show(place, params, signal) {
  const overview = await source().overview();
  if (signal.aborted) return;
  const top = h("div", {});
  const list = listOf(overview, signal);
  fill(place, top, list.element);
  const draw = (now) => keepingFocus(top, () => fill(top, head(now), parts(now)));
  draw(overview);
  list.show(overview);
  follow(signal, draw, list);
  if (params.transcripts && params.text) list.deep(params.text);
  if (left && left.of === (params.of || "")) setTimeout(() => signal.aborted || list.reveal(left.key));
}

// --- what is folded above the list

function parts(overview) {
  const open = new Set((read().params.open || "").split(",").filter(Boolean));
  const all = [causesPart(overview), figuresPart(overview), costPart(overview), trendPart(overview, source().served)].filter(Boolean);
  return all.map((part) => folded(part, open.has(part.id), turned));
  function turned(id, isOpen) {
    open[isOpen ? "add" : "delete"](id);
    note({ open: [...open].join(",") });
  }
}

// What is drawn anew while somebody reads it leaves the focus where it was.
function keepingFocus(place, redraw) {
  const active = document.activeElement;
  const inside = place.contains(active);
  const same = (each) => each.tagName === active.tagName && (active.dataset.key ? each.dataset.key === active.dataset.key : each.href === active.href);
  redraw();
  const again = inside && [...place.querySelectorAll(active.tagName)].find(same);
  if (again) again.focus({ preventScroll: true });
}

// --- the list

function listOf(first, signal) {
  const agents = [...new Set(first.scenarios.map((row) => row.agent).filter(Boolean))];
  const unfolded = new Map();
  const form = h("div", {});
  const said = h("p", { role: "status", class: "quiet small" });
  const hits = h("section", { "aria-label": "Transcripts found" });
  const lines = h("div", {});
  const params = () => read().params;
  let overview = first;
  let table = null;
  let filters = null;
  let searching = new AbortController();
  let grouped = null;

  function show(now) {
    overview = now;
    keepingFocus(form, () => {
      filters = filterForm(overview.scenarios, params, update, deep);
      fill(form, filters.element);
    });
    form.hidden = overview.scenarios.length < 2;
    update();
  }

  function update() {
    const { kept, counts } = chosen(sorted(overview.scenarios, params().sort), params());
    filters.update(counts);
    hits.hidden = !params().transcripts;
    const inGroups = agents.length > 1 && !params().agent;
    if (!table || grouped !== inGroups) {
      grouped = inGroups;
      table = grouped ? groups() : plain();
      fill(lines, table.element);
    }
    drawOrder();
    const items = grouped ? grouping(kept, overview.scenarios) : kept;
    table.element.hidden = !items.length;
    table.show(items);
    const all = overview.scenarios.length;
    const names = grouped ? new Set(overview.scenarios.map(nameOf)).size : all;
    said.textContent = items.length === names ? "" : `${items.length.toLocaleString("en")} of ${count(names, "scenario")}${items.length ? "" : ": nothing fits the filters"}`;
  }

  function plain() {
    const span = agents.length > 1 ? 6 : 5;
    const make = maker(span);
    const titles = COLUMNS.filter(([, title]) => title !== "Agent" || agents.length > 1);
    const head = h("tr", { "aria-rowindex": 1 }, titles.map(([order, title, kind]) => column(order, title, kind)));
    return windowed({ head, span, caption: "Scenarios", rows: make.scenario, key: (row) => [keyOf(row), `fold ${keyOf(row)}`], signal });
  }

  function groups() {
    const make = maker(agents.length + 1);
    const head = h("tr", { "aria-rowindex": 1 }, column("name", "Scenario"), agents.map((agent) => h("th", { scope: "col" }, foreign(agent))));
    const keys = (item) => [`fold ${item.key}`, ...item.agents.filter(Boolean).map(keyOf)];
    return windowed({ head, span: agents.length + 1, caption: "Scenarios by agent", rows: make.group, key: keys, signal });
  }

  function maker(span) {
    const opened = (key) => (left = { key, of: params().of || "" });
    return rowMaker({ span, agents: agents.length, unfolded, turn, opened });
  }

  function grouping(rows, all) {
    const shown = new Map(rows.map((row) => [nameOf(row), { key: nameOf(row), name: row.name, agents: [] }]));
    for (const row of all) {
      const item = shown.get(nameOf(row));
      if (item) item.agents[agents.indexOf(row.agent)] = row;
    }
    return [...shown.values()].map((item) => ({ ...item, agents: Array.from(agents, (_, at) => item.agents[at] || null) }));
  }

  // Unfolds an item, or folds it.
  function turn(item) {
    const key = item.agents ? item.key : keyOf(item);
    if (!unfolded.delete(key)) unfolded.set(key, item.agents ? both(item) : details([item]));
    table.redraw(item);
  }

  function both(item) {
    const rows = item.agents.filter(Boolean);
    const [base, next] = rows.map((row) => row.agent);
    const to = address("compare", { of: params().of, scenario: item.name, base, new: next });
    return h("div", {}, rows.length > 1 && h("p", {}, h("a", { href: to }, "Compare side by side")), details(rows.map((row) => ({ ...row, several: true }))));
  }

  function column(order, title, kind) {
    const sort = () => {
      note({ sort: params().sort === order ? `-${order}` : params().sort === `-${order}` ? "" : order });
      update();
    };
    const button = order && h("button", { type: "button", class: "plain", data: { sort: order }, onclick: sort }, title);
    return h("th", { scope: "col", class: kind }, button || title);
  }

  function drawOrder() {
    const now = params().sort || "";
    for (const button of table.element.querySelectorAll("[data-sort]")) {
      const mine = now.replace("-", "") === button.dataset.sort;
      button.closest("th").setAttribute("aria-sort", !mine ? "none" : now.startsWith("-") ? "descending" : "ascending");
    }
  }

  // Looks for the text in all transcripts.
  async function deep(text) {
    searching.abort();
    searching = new AbortController();
    const { signal: wanted } = searching;
    note({ transcripts: "1", text });
    hits.hidden = false;
    const state = h("p", { role: "status" }, "Searching transcripts…");
    fill(hits, h("h2", {}, "Transcripts with “", foreign(text), "”"), state);
    try {
      const found = await source().search(text, wanted, (done, of) => (state.textContent = `Searching transcripts… ${Math.round((100 * done) / of)}%`));
      if (!wanted.aborted) fill(hits, hits.firstChild, hitList(found, state));
    } catch (error) {
      if (!wanted.aborted) fill(hits, hits.firstChild, problem(error.message));
    }
  }
  signal.addEventListener("abort", () => searching.abort());
  addEventListener("viewkey", ({ detail }) => pressed(detail), { signal });
  function pressed(key) {
    if (key === "e" && params().text) deep(params().text);
    const row = key === "o" && document.activeElement.closest("tbody tr");
    if (row && row.querySelector(".fold")) row.querySelector(".fold").click();
  }

  const order = h("p", { class: "quiet small" }, "First what needs eyes: failed, errored, flaky, close to a threshold. The head of a column sorts by it.");
  const element = h("section", { "aria-label": "Scenarios" }, h("h2", {}, "Scenarios"), form, said, hits, lines, first.scenarios.length > 1 && order);
  return { element, show, deep, reveal: (key) => table.reveal(key) };
}

const nameOf = (row) => JSON.stringify([row.file, row.name]);

function hitList(found, state) {
  const all = Array.isArray(found) ? found : found.hits;
  const more = all.length > MOST_HITS || found.more;
  state.textContent = all.length ? `${count(all.length, "conversation")}${found.more ? ", and more" : ""}` : "No transcript has it.";
  announce(state.textContent);
  const line = (hit) => h("li", {}, h("a", { href: conversationAddress(hit, { id: hit.conversationId, turn: hit.turn }), data: { step: "" } }, foreign(hit.name), " ", foreign(hit.conversationId)), hit.excerpt && [" ", foreign(hit.excerpt, "span", { class: "quiet" })]);
  return [state, h("ol", {}, all.slice(0, MOST_HITS).map(line)), more && h("p", {}, `The first ${MOST_HITS} are shown.`)];
}

// --- live

// What is new is fetched once at a time, however fast it comes.
function follow(signal, draw, list) {
  let waiting = false;
  let busy = false;
  async function fetchNew() {
    waiting = true;
    if (busy) return;
    busy = true;
    while (waiting && !signal.aborted) {
      waiting = false;
      try {
        const now = await source().overview();
        if (signal.aborted) return;
        draw(now);
        list.show(now);
      } catch {
        // the connection says so; the next event tries again
      }
    }
    busy = false;
  }
  const end = source().changes((event) => event.type === "changed" && fetchNew());
  signal.addEventListener("abort", end);
}
