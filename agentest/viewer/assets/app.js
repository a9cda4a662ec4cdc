// The frame around the views: navigation, keys, help, theme, and the way from the address to a view.

import { address, go, read } from "./address.js";
import { append, fill, h } from "./dom.js";
import { announce, problem } from "./parts.js";

// View → {title, show(place, params, signal), keys: [[key, what it does]], nav: whether it has a link at the top,
// up(params): the address above it; without it `u` goes back}.
// `show` may be async; `signal` is aborted when the view is left.
const views = new Map();
let home = "run";
let leaving = new AbortController();
let guard = null;
let lastHash = "";

export function addView(name, view) {
  views.set(name, view);
}

// Asked before a view is left; it returns whether it may be. It goes with the view.
export function guardLeaving(mayLeave) {
  guard = mayLeave;
}

export function startApp(first) {
  home = first;
  lastHash = location.hash;
  append(document.body, [
    h("a", { href: "#main", class: "skip", onclick: skip }, "Skip to the content"),
    h("header", {}, h("a", { class: "name", href: address(home) }, "agentest"), h("nav", { "aria-label": "Views" }), tools()),
    h("main", { id: "main", tabindex: "-1" }),
    h("div", { id: "announcements", class: "off-screen", "aria-live": "polite" }),
  ]);
  applyTheme(stored("theme"));
  addEventListener("hashchange", changed);
  addEventListener("keydown", pressed);
  addEventListener("beforeunload", (event) => {
    if (guard && !guard(true)) event.preventDefault();
  });
  return draw();
}

function skip(event) {
  event.preventDefault();
  document.getElementById("main").focus();
}

function tools() {
  return h(
    "div",
    { class: "tools" },
    h("button", { type: "button", class: "plain", onclick: nextTheme, id: "theme" }, "Theme"),
    h("button", { type: "button", class: "plain", onclick: showHelp, "aria-keyshortcuts": "?" }, "Keys"),
  );
}

function changed() {
  if (guard && !guard(false)) {
    history.replaceState(null, "", lastHash || "#/");
    return;
  }
  draw();
}

export async function draw() {
  const { view: name, params } = read();
  const known = views.has(name) ? name : name === "" ? home : null;
  const main = document.getElementById("main");
  const same = lastHash.split("?")[0] === location.hash.split("?")[0];
  lastHash = location.hash;
  guard = null;
  leaving.abort();
  leaving = new AbortController();
  drawNavigation(known);
  if (known === null) return void fill(main, h("h1", {}, "There is no such view"), h("a", { href: address(home) }, "Go to the run"));
  const view = views.get(known);
  document.title = `${view.title} · agentest`;
  const place = h("div", { class: `view view-${known}` });
  const { signal } = leaving;
  try {
    const drawn = view.show(place, params, signal);
    if (!main.firstChild) main.append(place);
    await drawn;
    if (!signal.aborted) fill(main, place);
  } catch (error) {
    if (signal.aborted) return;
    fill(main, h("h1", {}, view.title), problem(error.message));
  }
  if (!same && !signal.aborted) {
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
    announce(view.title);
  }
}

function drawNavigation(current) {
  const links = [...views].filter(([, view]) => view.nav).map(([name, view]) =>
    h("a", { href: address(name), "aria-current": name === current && "page" }, view.title),
  );
  fill(document.querySelector("header nav"), links);
}

// --- keys

const GLOBAL_KEYS = [
  ["j / k", "next, previous row or turn"],
  ["Enter", "open what is marked"],
  ["/", "search, filter"],
  ["u", "back, up"],
  ["?", "these keys"],
];

function pressed(event) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, textarea, select, [contenteditable]")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  if (document.querySelector("dialog[open]")) return;
  if (event.key === "?") showHelp();
  else if (event.key === "/") focusSearch(event);
  else if (event.key === "j") step(1, event);
  else if (event.key === "k") step(-1, event);
  else if (event.key === "u") up();
  else dispatchEvent(new CustomEvent("viewkey", { detail: event.key }));
}

function up() {
  const { view: name, params } = read();
  const view = views.get(name || home);
  if (view && view.up) location.hash = view.up(params);
  else history.back();
}

function focusSearch(event) {
  const field = document.querySelector("main [type=search]");
  if (!field) return;
  event.preventDefault();
  field.focus();
}

// What can be stepped through has the attribute `data-step`; links among them open with Enter by themselves.
function step(by, event) {
  const all = [...document.querySelectorAll("main [data-step]")].filter((each) => each.offsetParent !== null);
  if (!all.length) return;
  event.preventDefault();
  const now = all.indexOf(document.activeElement.closest("[data-step]"));
  const next = all[Math.max(0, Math.min(all.length - 1, now < 0 && by < 0 ? 0 : now + by))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

function showHelp() {
  const here = views.get(read().view || home);
  const rows = [...((here && here.keys) || []), ...GLOBAL_KEYS];
  const close = h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Close");
  const table = h("table", {}, h("tbody", {}, rows.map(([key, what]) => h("tr", {}, h("th", { scope: "row" }, h("kbd", {}, key)), h("td", {}, what)))));
  const dialog = showDialog("Keys", table, close);
}

// A dialog that takes itself away when it is closed.
export function showDialog(title, ...content) {
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, h("h2", { id: "dialog-title" }, title), content);
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// --- theme

const THEMES = ["system", "light", "dark"];

function stored(name) {
  try {
    return localStorage.getItem(`agentest-${name}`);
  } catch {
    return null; // a file that was opened from the disk may have no storage
  }
}

function nextTheme() {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme || "system") + 1) % THEMES.length];
  applyTheme(next);
  try {
    localStorage.setItem("agentest-theme", next);
  } catch {
    // as above
  }
  announce(`Theme: ${next}`);
}

function applyTheme(theme) {
  const known = THEMES.includes(theme) ? theme : "system";
  document.documentElement.dataset.theme = known;
  document.getElementById("theme").textContent = `Theme: ${known}`;
}

export function leaveTo(view, params) {
  go(view, params);
}
