// What was started from the page: how far it is, what it printed, the run that it became, and how to stop it.

import { address } from "./address.js";
import { ask } from "./client.js";
import { fill, foreign, h } from "./dom.js";
import { announce, badge } from "./parts.js";

const SHOWN = 5;

// `job`: only this one, with what it prints.
export function jobsPanel(job = null) {
  const element = h("section", { "aria-label": "Started here" });
  const open = new Set(job ? [job] : []);
  const states = new Map();

  async function load() {
    const found = await ask("/api/jobs");
    const jobs = found.jobs.filter((each) => !job || each.id === job).slice(0, SHOWN);
    const whole = await Promise.all(jobs.map((each) => (isOpen(each) ? ask(`/api/jobs/${each.id}`) : each)));
    for (const each of whole) tell(each);
    const focused = element.contains(document.activeElement) && document.activeElement.dataset.key;
    fill(element, whole.length ? [h("h2", {}, "Started here"), whole.map((each) => panel(each, found.mostAtOnce))] : null);
    const again = focused && [...element.querySelectorAll("[data-key]")].find((each) => each.dataset.key === focused);
    if (again) again.focus();
  }
  // What failed before there was a run has nothing but what it printed.
  function isOpen(each) {
    return open.has(each.id) || (each.state === "ended" && !each.run);
  }
  function tell(each) {
    const state = each.status || each.state;
    if (states.has(each.id) && states.get(each.id) !== state) announce(`${each.title}: ${state}`);
    states.set(each.id, state);
  }
  function panel(each, mostAtOnce) {
    const output = "output" in each && h("pre", { tabindex: "0", "aria-label": "What it printed" }, each.cut && "…\n", foreign(each.output || "Nothing was printed yet."));
    const toggle = () => void (open.has(each.id) ? open.delete(each.id) : open.add(each.id), load());
    return h(
      "div",
      { class: "panel job" },
      h(
        "div",
        { class: "row" },
        badge(each.status || each.state),
        foreign(each.title, "strong"),
        each.state === "waiting" && h("span", { class: "quiet" }, `waits: ${mostAtOnce} run at once`),
        each.run && h("a", { href: address("run", { of: each.run }) }, "Look at the run"),
        h("button", { type: "button", class: "small", data: { key: `prints ${each.id}` }, "aria-expanded": String("output" in each), onclick: toggle }, "What it prints"),
        ["waiting", "running"].includes(each.state) && h("button", { type: "button", class: "small", data: { key: `stop ${each.id}` }, onclick: () => ask(`/api/jobs/${each.id}/stop`, { method: "POST", body: {} }).then(load) }, "Stop"),
        each.state === "stopping" && h("span", { class: "quiet" }, "ends; what is finished is kept"),
        each.run && ["failed", "errored"].includes(each.status) && h("button", { type: "button", class: "small", onclick: () => rerun(each.run).then(load) }, "Run again what failed"),
      ),
      output,
    );
  }
  return { element, load };
}

export function rerun(run) {
  return ask("/api/jobs", { method: "POST", body: { kind: "rerun", run } });
}
