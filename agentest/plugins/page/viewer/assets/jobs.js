// What was started from the page: how far it is, what it printed, the run that it became, and how to stop it.

import { address, go } from "./address.js";
import { ask } from "./client.js";
import { foreign, h, refill } from "./dom.js";
import { announce, badge } from "./parts.js";

const SHOWN = 5;

export function jobsPanel() {
  const element = h("section", { "aria-label": "Started here" });
  const open = new Set();
  const states = new Map();

  async function load() {
    const { jobs, mostAtOnce } = await ask("/api/jobs");
    // What printed says why a command ended early: before it made a run, or with an error that is not the agent's.
    const printed = (job) => open.has(job.id) || (job.state === "ended" && (!job.run || job.status === "errored"));
    const whole = await Promise.all(jobs.slice(0, SHOWN).map((job) => (printed(job) ? ask(`/api/jobs/${job.id}`) : job)));
    refill(element, whole.length > 0 && h("h2", "Started here"), whole.map((job) => panel(job, mostAtOnce)));
  }

  function panel(job, mostAtOnce) {
    const state = job.status || job.state;
    if (states.has(job.id) && states.get(job.id) !== state) announce(`${job.title}: ${state}`);
    states.set(job.id, state);
    const printed = "output" in job;
    const toggle = () => load(open[open.has(job.id) ? "delete" : "add"](job.id));
    const notes = { waiting: `waits: ${mostAtOnce} run at once`, stopping: "ends; what is finished is kept" };
    const going = job.state === "waiting" || job.state === "running";
    return h(
      "div",
      { class: "panel job" },
      h(
        "div",
        { class: "row" },
        badge(state),
        foreign(job.title, "strong"),
        notes[job.state] && h("span.quiet", notes[job.state]),
        job.run && h("a", { href: address("run", { of: job.run }) }, "Look at the run"),
        button("What it prints", `prints-${job.id}`, toggle, printed),
        going && button("Stop", `stop-${job.id}`, () => post(`/api/jobs/${job.id}/stop`, {})),
        job.run && runAgain(job.run, state, "job"),
      ),
      printed && h("pre", { tabindex: "0", "aria-label": "What it printed" }, foreign(`$ ${job.line}\n`, "strong"), job.cut && "…\n", foreign(job.output || "Nothing was printed yet.")),
    );
  }
  return { element, load };
}

// The button that runs what failed in a run once more; nothing where nothing did.
export function runAgain(run, state, where) {
  const start = () => post("/api/jobs", { kind: "rerun", run });
  return ["failed", "errored"].includes(state) && button("Run again what failed", `again-${where}-${run}`, start);
}

// The button that runs the scenario of a conversation, or the case, once more; what comes of it stands in the list of runs.
export function runOnce({ name, file, evalId }) {
  const body = evalId ? { kind: "eval", file, cases: [evalId] } : { kind: "run", names: [name] };
  const start = () => ask("/api/jobs", { method: "POST", body }).then(() => go("runs"), (error) => announce(error.message));
  return button("Run it again", "run-once", start);
}

// The id is that of the button which takes its place when the view is drawn anew.
function button(text, id, onclick, expanded) {
  return h("button", { type: "button", class: "small", id, onclick, "aria-expanded": expanded === undefined ? null : String(expanded) }, text);
}

const post = (path, body) => ask(path, { method: "POST", body }).catch((error) => announce(error.message));
