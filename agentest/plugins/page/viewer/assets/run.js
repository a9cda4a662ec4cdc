// The Run view, a workbench: failures by cause with search and filters; beside them figures and the scenarios, first
// those that need eyes. On narrow screens they are tabs.

import { note, read } from "./address.js";
import { addView, keepFocus } from "./app.js";
import { append, fill, foreign, h } from "./dom.js";
import { folded } from "./folding.js";
import { count, grouped } from "./format.js";
import { announce, problem, tabRow } from "./parts.js";
import { causePlaces, causes } from "./failures.js";
import { findings } from "./findings.js";
import { COLUMNS, chosen, conversationAddress, facets, hasFailed, lines, sorted } from "./run_list.js";
import { head, parts } from "./run_summary.js";
import { source } from "./source.js";

const KEYS = [["o", "list the scenarios of the marked cause; unfold the marked scenario"], ["e", "search transcripts for what is looked for"]];
const STEP = 50;
// So many rows come by themselves: a browser lays the whole table out anew for each step.
const MOST_GROWN = 1000;
const MOST_PRINTED = 2000;
const PANES = [["failures", "Failures"], ["scenarios", "Scenarios"], ["figures", "Figures"]];
const NONE = { status: "", tag: "", agent: "", metric: "", cause: "", text: "", transcripts: "" };

// How many rows were shown of what was looked at last: whoever comes back finds the row that was opened.
let reached = {};

export function addRunView() {
  addView("run", { title: "Run", nav: true, show, keys: KEYS });
}

const params = () => read().params;

async function show(place, { transcripts, text, cause, open, pane }, signal) {
  const first = await source().overview();
  if (signal.aborted) return;
  const [top, found, figures] = [h("div"), h("div.found"), h("section.pane.figures", { "aria-label": "Figures" })];
  const list = listOf(signal);
  const bench = h("div.run-bench", h("div.side", list.form, list.causes), h("div.rest", found, figures, list.element));
  const tabs = tabRow("Parts of the run", PANES, (name, byHand) => {
    bench.dataset.pane = name;
    if (byHand) note({ pane: name });
  });
  fill(place, top, h("div.sticky", tabs.element), bench);
  const draw = (overview) => {
    keepingFocus(() => {
      fill(top, head(overview));
      fill(found, findings(overview));
      fill(figures, parts(overview, source().served).map(part));
    });
    list.show(overview);
  };
  draw(first);
  const failures = found.hasChildNodes() || first.scenarios.some(hasFailed);
  tabs.show(pane || (open ? "figures" : cause || transcripts || !failures ? "scenarios" : "failures"));
  follow(signal, draw);
  addEventListener("viewkey", ({ detail }) => detail === "/" && tabs.show("scenarios"), { signal });
  if (transcripts && text) list.deep(text);
}

// What is folded above the list: the address has what is unfolded.
function part({ id, title, summary, content }) {
  const open = () => (params().open || "").split(",").filter(Boolean);
  const name = [h("h2", title), " ", summary];
  const element = folded("details.part", name, () => h("div.inside", content()), open().includes(id));
  element.firstChild.id = `part ${id}`;
  element.addEventListener("toggle", () => {
    const others = open().filter((each) => each !== id);
    note({ open: (element.open ? [...others, id] : others).join(",") });
  });
  return element;
}

// What is drawn anew while somebody reads it leaves the focus where it was.
function keepingFocus(redraw) {
  const active = document.activeElement;
  redraw();
  keepFocus(active);
}

// --- the list

function listOf(signal) {
  const unfolded = new Map();
  const title = h("h2", "Scenarios");
  const search = h("input", { type: "search", id: "find", "aria-keyshortcuts": "/", autocomplete: "off", oninput: () => change({ text: search.value }) });
  const choices = h("span.row");
  const clear = h("button.small", { type: "button", onclick: wipe }, "Clear filters");
  const form = h(
    "form",
    { class: "filters row no-print", role: "search", onsubmit: submit },
    h("label", { for: "find" }, "Find"),
    search,
    h("button.small", "Search transcripts"),
    choices,
    clear,
  );
  const said = h("p.quiet.small", { role: "status" });
  const hits = h("section", { "aria-label": "Transcripts found" });
  const byCause = h("section.pane.failures", { "aria-label": "Failures by cause" });
  const places = h("div");
  const table = h("table.windowed");
  const left = h("span");
  const more = h("p", left, " ", h("button", { type: "button", onclick: () => grow(10 * STEP) }, "Show more"));
  let [rows, kept, columns, known] = [[], [], [], []];
  let searching = new AbortController();

  function show({ scenarios, causes: found }) {
    rows = scenarios;
    known = found;
    form.hidden = !rows.length;
    const several = new Set(rows.map((row) => row.agent).filter(Boolean)).size > 1;
    columns = COLUMNS.filter(([, title]) => several || title !== "Agent");
    update(choices.querySelector("select:focus") !== null);
  }

  function change(changes) {
    note({ transcripts: "", ...changes });
    update();
  }

  function wipe() {
    change(NONE);
    search.focus();
  }

  function submit(event) {
    event.preventDefault();
    if (search.value.trim()) deep(search.value.trim());
  }

  // A menu that somebody has open stays as it is while the run goes on.
  function update(inMenu = false) {
    const now = params();
    const found = chosen(sorted(rows, now.sort), now);
    kept = found.kept;
    if (!inMenu) keepingFocus(() => fill(choices, facets(rows, found.counts, now, change)));
    if (search.value !== (now.text || "")) search.value = now.text || "";
    const cause = known.find((each) => each.id === now.cause);
    fill(title, "Scenarios", now.cause && [" with the cause “", foreign(cause ? cause.title : "other failures"), "”"]);
    fill(places, cause && causePlaces(cause));
    keepingFocus(() => fill(byCause, causes(known, found.counts.cause, now)));
    clear.hidden = !Object.keys(NONE).some((name) => now[name]);
    hits.hidden = !now.transcripts;
    const below = now.transcripts ? "; what transcripts have stands below" : "";
    const nothing = kept.length ? "" : `: nothing fits the filters${below}`;
    said.textContent = kept.length === rows.length ? "" : `${grouped(kept.length)} of ${count(rows.length, "scenario")}${nothing}`;
    const wanted = JSON.stringify({ ...now, open: "", pane: "" });
    if (reached.wanted !== wanted) reached = { wanted, rows: STEP };
    const caption = h("caption.off-screen", "Scenarios");
    keepingFocus(() => {
      fill(table, caption, h("thead", h("tr", columns.map(column))));
      add(0, reached.rows);
    });
    table.hidden = !kept.length;
  }

  function add(from, to) {
    append(table, h("tbody", kept.slice(from, to).map((row) => lines(row, columns, unfolded))));
    more.hidden = to >= kept.length;
    left.textContent = `${count(kept.length - to, "more scenario")} below. `;
  }

  function grow(by) {
    add(reached.rows, (reached.rows += by));
  }

  function column([order, title, kind]) {
    const now = params().sort || "";
    const next = now === order ? `-${order}` : now === `-${order}` ? "" : order;
    const onclick = () => change({ sort: next, transcripts: params().transcripts });
    const button = order && h("button.plain", { type: "button", id: `sort ${order}`, onclick }, title);
    const sort = now.replace("-", "") !== order ? "none" : now.startsWith("-") ? "descending" : "ascending";
    return h("th", { scope: "col", class: kind, "aria-sort": order && sort }, button || title);
  }

  // Looks for the text in all transcripts.
  async function deep(text) {
    searching.abort();
    searching = new AbortController();
    const { signal: wanted } = searching;
    note({ transcripts: "1", text });
    hits.hidden = false;
    const state = h("p", { role: "status" }, "Searching transcripts…");
    const draw = (...parts) => wanted.aborted || fill(hits, h("h2", "Transcripts with “", foreign(text), "”"), parts);
    draw(state);
    const progress = (done, of) => (state.textContent = `Searching transcripts… ${Math.round((100 * done) / of)}%`);
    try {
      draw(hitList(await source().search(text, wanted, progress)));
    } catch (error) {
      draw(problem(error.message));
    }
  }

  function pressed({ detail: key }) {
    if (key === "e" && params().text) deep(params().text);
    const row = key === "o" && document.activeElement.closest("tbody tr, .causes > li");
    const fold = row && row.querySelector(".fold, .only, summary");
    if (fold) fold.click();
  }

  const near = new IntersectionObserver(([{ isIntersecting }]) => isIntersecting && reached.rows < MOST_GROWN && grow(STEP), { rootMargin: "1200px" });
  near.observe(more);
  signal.addEventListener("abort", () => (near.disconnect(), searching.abort()));
  addEventListener("viewkey", pressed, { signal });
  addEventListener("beforeprint", () => reached.rows < MOST_PRINTED && grow(MOST_PRINTED - reached.rows), { signal });
  const order = h("p.quiet.small", "What did not pass is first; click a column to sort.");
  const element = h("section.pane.scenarios", { "aria-label": "Scenarios" }, title, places, said, hits, table, more, order);
  return { element, form, causes: byCause, show, deep };
}

function hitList(hits) {
  const found = hits.length ? `${count(hits.length, "conversation")}${hits.more ? ", and more, which are not shown" : ""}` : "No transcript has it.";
  const absent = hits.leftOut ? ` ${count(hits.leftOut, "transcript")} had no room in this file.` : "";
  announce(found + absent);
  const line = (hit) => {
    const href = conversationAddress(hit, { id: hit.conversationId, turn: hit.turn });
    const link = h("a", { href, data: { step: "" } }, foreign(hit.name), " ", foreign(hit.conversationId));
    return h("li", link, " ", foreign(hit.excerpt || "", "span.quiet"));
  };
  return [h("p", found, absent), h("ol", hits.map(line))];
}

// --- live

// What is new is fetched once at a time, however fast it comes.
function follow(signal, draw) {
  let waiting = false;
  let busy = false;
  async function fetchNew() {
    waiting = true;
    if (busy) return;
    busy = true;
    while (waiting && !signal.aborted) {
      waiting = false;
      // Where it cannot be had, the connection says so, and the next event tries again.
      const now = await source().overview().catch(() => null);
      if (now && !signal.aborted) draw(now);
    }
    busy = false;
  }
  signal.addEventListener("abort", source().changes((event) => event.type === "changed" && fetchNew()));
}
