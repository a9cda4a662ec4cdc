// Pieces that several views show.

import { grouped } from "./format.js";
import { fill, foreign, h, visible } from "./dom.js";

export const STATUS_MARKS = { passed: "✓", failed: "✗", errored: "!", skipped: "–", interrupted: "!", running: "…" };

export function badge(status, text = status) {
  return h("span", { class: `badge ${status.replaceAll(" ", "-")}` }, h("span", { "aria-hidden": "true" }, STATUS_MARKS[status] || "·"), ` ${text}`);
}

// Long texts are shown in part, and whole when that is wanted: one word may have a megabyte.
const SHOWN_CHARS = 4000;

export function longText(text, tag = "div", props = {}) {
  const whole = String(text);
  if (whole.length <= SHOWN_CHARS) return foreign(whole, tag, props);
  const shown = foreign(`${whole.slice(0, SHOWN_CHARS).replace(/[\ud800-\udbff]$/, "")}…`, tag, props);
  const more = h("button", { type: "button", class: "link", onclick: unfold }, `show all ${grouped(whole.length)} characters`);
  function unfold() {
    shown.textContent = visible(whole);
    more.remove();
  }
  return h("div", shown, more);
}

export function json(value) {
  const text = typeof value === "string" ? value : JSON.stringify(value, null, 2);
  return longText(text, "pre.json", { tabindex: scrolls(text) && "0" });
}

// Whether a box of text is so high that it scrolls: keys must get to it then.
function scrolls(text) {
  return text.length > 1500 || text.split("\n", 21).length > 20;
}

export function copyButton(text, label = "Copy") {
  const button = h("button", { type: "button", class: "small", onclick: copy }, label);
  async function copy() {
    const value = typeof text === "function" ? await text() : text;
    button.textContent = (await intoClipboard(value)) ? "Copied" : "Could not copy";
    announce(button.textContent);
    setTimeout(() => (button.textContent = label), 1500);
  }
  return button;
}

// A file that was opened from the disk has no clipboard of its own in some browsers.
async function intoClipboard(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const field = h("textarea.off-screen", { value: text });
    document.body.append(field);
    field.select();
    const done = document.execCommand("copy");
    field.remove();
    return done;
  }
}

// Said by screen readers, seen by nobody.
export function announce(text) {
  const place = document.getElementById("announcements");
  if (place) place.textContent = text;
}

export function disclosure(summary, content, open = false) {
  return h("details", { open }, h("summary", summary), content);
}

// A list of facts: [name, value] pairs; those without a value are left out.
export function facts(pairs) {
  const kept = pairs.filter(([, value]) => value !== "" && value !== null && value !== undefined);
  return h("dl.facts", kept.map(([name, value]) => [h("dt", name), h("dd", value)]));
}

// Bars on one scale of time, each made by its place in `times`: [begin, length] in milliseconds. Without a
// begin there is none.
export function timeBar(times) {
  const known = times.filter(([begin]) => Number.isFinite(begin));
  const from = Math.min(...known.map(([begin]) => begin));
  const length = Math.max(...known.map(([begin, ms]) => begin - from + ms)) || 1;
  const share = (ms) => `${Math.min(100, Math.max(0, (ms / length) * 100))}%`;
  return (at) => {
    const [begin, ms] = times[at];
    const style = { "margin-left": share(begin - from), width: share(ms) };
    return Number.isFinite(begin) && h("div.bar", { "aria-hidden": "true" }, h("span", { style }));
  };
}

export function problem(message) {
  return h("p.problem", { role: "alert" }, foreign(message));
}

// A field to search with: `text()` is what stands there, and `fits(text)` whether all its words are in a text.
export function wordSearch(label, value, oninput) {
  const field = h("input", { type: "search", value: value || "", oninput });
  const fits = (text) => field.value.toLowerCase().split(/\s+/).every((word) => text.toLowerCase().includes(word));
  return { element: h("label", `${label} `, field), text: () => field.value, fits };
}

// Does it, with the button disabled meanwhile; what stands in the way is shown in `said`.
export async function attempt(said, act, button = {}) {
  fill(said);
  button.disabled = true;
  try {
    await act();
  } catch (error) {
    if (error.name !== "AbortError") fill(said, problem(error.message));
  }
  button.disabled = false;
}

export function action(label, act) {
  const said = h("span", { role: "alert" });
  const onclick = () => attempt(said, act, button);
  const button = h("button", { type: "button", class: "small", onclick }, label);
  return Object.assign(h("span.action", button, said), { button });
}

// A row of tabs; `show(name)` chooses one of [name, words], and `onshow` is told.
export function tabRow(label, names, onshow) {
  const select = (name) => () => show(name, true);
  const tabs = names.map(([name, words]) => h("button", { type: "button", role: "tab", data: { tab: name }, onclick: select(name) }, words));
  const element = h("div.tabs.no-print", { role: "tablist", "aria-label": label, onkeydown: turn }, tabs);
  function show(name, byHand = false) {
    for (const each of tabs) {
      each.setAttribute("aria-selected", String(each.dataset.tab === name));
      each.tabIndex = each.dataset.tab === name ? 0 : -1;
    }
    onshow(name, byHand);
  }
  function turn(event) {
    const by = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
    if (!by) return;
    event.stopPropagation();
    const next = tabs[(tabs.indexOf(document.activeElement) + by + tabs.length) % tabs.length];
    next.focus();
    next.click();
  }
  return { element, tabs, show };
}
