// The frame around the views: navigation, keys, help, theme, and the way from the address to a view.

import { address, go, isElsewhere, read } from "./address.js";
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
// The addresses on the way to the present one, which is the last, and where in each the reader was.
const trail = [];
const SOON_MS = 150;
const places = new Map();

export function addView(name, view) {
  views.set(name, view);
}

// A view that the page at another path has: it has its link here, and whoever asks for it is sent there.
export function addElsewhere(path, name, title) {
  isElsewhere(path, name);
  views.set(name, { title, nav: title !== "", path });
}

// Asked before a view is left; it returns whether it may be. It goes with the view.
export function guardLeaving(mayLeave) {
  guard = mayLeave;
}

export function startApp(first) {
  home = first;
  if (!location.hash) history.replaceState(null, "", address(home));
  lastHash = location.hash;
  trail.push(lastHash);
  history.scrollRestoration = "manual";
  append(document.body, [
    h("a", { href: "#main", class: "skip", onclick: skip }, "Skip to the content"),
    h("header", h("a.name", { href: address(views.has("runs") ? "runs" : home) }, "agentest"), h("nav", { "aria-label": "Views" }), tools()),
    h("main", { id: "main", tabindex: "-1" }),
    h("div", { id: "announcements", class: "off-screen", "aria-live": "polite" }),
  ]);
  applyTheme(storage((kept) => kept.getItem("agentest-theme")));
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
  const button = (props, text) => h("button", { type: "button", class: "plain", ...props }, text);
  const theme = button({ onclick: nextTheme, id: "theme", "aria-description": "changes between that of the system, light and dark" });
  return h("div.tools", theme, button({ onclick: showHelp, "aria-keyshortcuts": "?" }, "Keys"));
}

function changed(event) {
  if (guard && !guard(false)) {
    history.replaceState(null, "", lastHash || "#/");
    return;
  }
  draw(follow(event));
}

// Keeps the trail. Returns where the reader was, where this is a way back. What `amend` dispatches is no step.
function follow(event) {
  if (event.isTrusted) {
    const from = new URL(event.oldURL).hash;
    const focused = document.activeElement;
    places.set(from, { top: scrollY, href: focused && focused.getAttribute("href") });
    trail[trail.length - 1] = from;
    const back = trail.lastIndexOf(location.hash);
    if (back >= 0) {
      trail.length = back + 1;
      return places.get(location.hash);
    }
    trail.push(location.hash);
  } else trail[trail.length - 1] = location.hash;
  return null;
}

function goBack(place) {
  scrollTo(0, place.top);
  const link = place.href && [...document.querySelectorAll("main a")].find((each) => each.getAttribute("href") === place.href);
  (link || document.getElementById("main")).focus({ preventScroll: true });
}

export async function draw(before = null) {
  const { view: name, params } = read();
  const known = views.has(name) ? name : name === "" ? home : null;
  const main = document.getElementById("main");
  const same = lastHash.split("?")[0] === location.hash.split("?")[0];
  lastHash = location.hash;
  guard = null;
  leaving.abort();
  leaving = new AbortController();
  for (const dialog of document.querySelectorAll("dialog[open]")) dialog.close();
  drawNavigation(known, params.of);
  if (known === null) return void fill(main, h("h1", "There is no such view"), h("a", { href: address(home) }, "Go to the run"));
  const view = views.get(known);
  if (view.path) return void location.replace(address(known, params));
  const focused = document.activeElement;
  document.title = `${view.title} · agentest`;
  const place = h("div", { class: `view view-${known}` });
  const { signal } = leaving;
  // A view that takes longer shows its heading, and one that does not never flickers.
  const soon = main.firstChild && same ? 0 : setTimeout(() => signal.aborted || fill(main, place), main.firstChild ? SOON_MS : 0);
  try {
    const drawn = view.show(place, params, signal);
    if (!place.firstChild) fill(place, h("h1", view.title), h("p", { role: "status" }, "Loading…"));
    await drawn;
    if (!signal.aborted) fill(main, place);
  } catch (error) {
    if (signal.aborted) return;
    fill(main, h("h1", view.title), problem(error.message));
  } finally {
    clearTimeout(soon);
  }
  if (signal.aborted) return;
  const heading = main.querySelector("h1");
  if (heading) document.title = `${heading.textContent.slice(0, 80)} · agentest`;
  if (before) goBack(before);
  else if (!same) {
    scrollTo(0, 0);
    main.focus({ preventScroll: true });
    announce(view.title);
  } else keepFocus(focused);
}

// What is drawn anew has other elements: the one that takes the place of the focused has its id.
export function keepFocus(focused) {
  const next = !focused.isConnected && focused.id && document.getElementById(focused.id);
  if (!next) return;
  next.focus({ preventScroll: true });
  if (typeof next.selectionEnd === "number") next.setSelectionRange(focused.selectionStart, focused.selectionEnd);
}

// The run that is looked at stays the same from view to view.
function drawNavigation(current, of) {
  const links = [...views].filter(([, view]) => view.nav).map(([name, view]) =>
    h("a", { href: address(name, { of }), "aria-current": name === current && "page" }, view.title),
  );
  const bar = document.querySelector("header nav");
  fill(bar, links);
  const marked = links.find((link) => link.hasAttribute("aria-current"));
  if (!marked) return;
  // By hand: after scrollIntoView, Tab goes on from the link in some browsers, past all that stands before it.
  const [inner, outer] = [marked, bar].map((each) => each.getBoundingClientRect());
  bar.scrollLeft += Math.min(0, inner.left - outer.left) + Math.max(0, inner.right - outer.right);
}

// --- keys

// Where letters are text. In boxes that are ticked they are not.
const TYPING = "input:not([type=checkbox], [type=radio], [type=button], [type=submit]), textarea, select, [contenteditable]";

const GLOBAL_KEYS = [
  ["j / k", "next, previous row or turn"],
  ["Enter", "open what is marked"],
  ["/", "search, filter"],
  ["u", "back, up"],
  ["?", "these keys"],
];

const PRESSED = { ArrowDown: (event) => stepRow(1, event), ArrowUp: (event) => stepRow(-1, event), "?": showHelp, "/": focusSearch, j: (event) => step(1, event), k: (event) => step(-1, event), u: up };

function pressed(event) {
  const { key, target } = event;
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (target.closest(TYPING)) return void (key === "Escape" && target.blur());
  if (document.querySelector("dialog[open]")) return;
  if (key.length === 1 && !lettersOn()) return;
  if (Object.hasOwn(PRESSED, key)) PRESSED[key](event);
  else dispatchEvent(new CustomEvent("viewkey", { detail: key }));
}

// To what the view is a part of, as it was seen last: filters stay. Else back to where one came from, and from a
// link from elsewhere to its run.
function up() {
  const { view: name, params } = read();
  const view = views.get(name || home);
  const place = (hash) => {
    const [path, query] = hash.split("?");
    const params = new URLSearchParams(query);
    return [path, params.get("of"), params.get("scenario")].join();
  };
  const above = view && view.up && view.up(params);
  if (above) location.assign([...trail].reverse().find((each) => place(each) === place(above)) || above);
  else if (trail.length > 1) history.back();
  else go("run", { of: params.of });
}

function focusSearch(event) {
  const field = document.querySelector("main [type=search]");
  if (!field) return;
  if (!field.offsetParent) dispatchEvent(new CustomEvent("viewkey", { detail: "/" })); // it is in a pane that is hidden
  event.preventDefault();
  field.focus();
}

// What can be stepped through has the attribute `data-step`; links among them open with Enter by themselves.
function step(by, event, which = "[data-step]") {
  const all = [...document.querySelectorAll(`main ${which}`)].filter((each) => each.offsetParent !== null);
  if (!all.length) return;
  event.preventDefault();
  const now = all.indexOf(document.activeElement.closest(which));
  const next = all[Math.max(0, Math.min(all.length - 1, now < 0 && by < 0 ? 0 : now + by))];
  next.focus();
  next.scrollIntoView({ block: "nearest" });
}

// Arrows go on from a row that has the focus, and scroll otherwise.
function stepRow(by, event) {
  const which = ["[data-row]", "[data-step]:not(.turn)"].find((each) => document.activeElement.matches(each));
  if (which) step(by, event, which);
}

// Whoever speaks to the machine may turn off keys of one letter (WCAG 2.1.4).
function lettersOn() {
  return storage((kept) => kept.getItem("agentest-letter-keys")) !== "off";
}

function lettersSwitch() {
  const onchange = () => storage((kept) => kept.setItem("agentest-letter-keys", box.checked ? "on" : "off"));
  const box = h("input", { type: "checkbox", checked: lettersOn(), onchange });
  return h("p", h("label", box, "Keys of a single letter or sign"));
}

function showHelp() {
  const here = views.get(read().view || home);
  const rows = [...((here && here.keys) || []), ...GLOBAL_KEYS];
  const close = h("button", { type: "button", autofocus: true, onclick: () => dialog.close() }, "Close");
  const table = h("table", h("tbody", rows.map(([key, what]) => h("tr", h("th", { scope: "row" }, h("kbd", key)), h("td", what)))));
  const dialog = showDialog("Keys", table, lettersSwitch(), close);
}

// A dialog that takes itself away when it is closed.
export function showDialog(title, ...content) {
  const dialog = h("dialog", { "aria-labelledby": "dialog-title" }, h("h2", { id: "dialog-title" }, title), content);
  dialog.addEventListener("close", () => dialog.remove());
  dialog.addEventListener("click", (event) => event.target === dialog && dialog.close());
  document.body.append(dialog);
  dialog.showModal();
  return dialog;
}

// --- theme

const THEMES = ["system", "light", "dark"];

// A file that was opened from the disk may have no storage.
function storage(use) {
  try {
    return use(localStorage);
  } catch {
    return null;
  }
}

function nextTheme() {
  const next = THEMES[(THEMES.indexOf(document.documentElement.dataset.theme) + 1) % THEMES.length];
  applyTheme(next);
  storage((kept) => kept.setItem("agentest-theme", next));
  announce(`Theme: ${next}`);
}

function applyTheme(theme) {
  const known = THEMES.includes(theme) ? theme : "system";
  document.documentElement.dataset.theme = known;
  document.getElementById("theme").textContent = `Theme: ${known}`;
}
