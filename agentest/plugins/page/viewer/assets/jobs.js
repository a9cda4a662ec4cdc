// What was started from the page: how far it is, what it printed, the run that it became, and how to stop it.

import { address } from "./address.js";
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
  const place = (job) => job.run && address("run", { of: job.run });
  return ["failed", "errored"].includes(state) && starting("Run again what failed", `again-${where}-${run}`, { kind: "rerun", run }, place);
}

// The button that runs the scenario of a conversation, or the case, once more, and opens the new conversation.
export function runOnce({ name, agent, file, evalId }) {
  const body = evalId ? { kind: "eval", file, cases: [evalId] } : { kind: "run", names: [name] };
  const place = ({ state, run }) => state === "ended" && run && address("conversation", { of: run, scenario: name, agent });
  const again = starting("Run it again", "run-once", body, place);
  again.classList.add("primary");
  return again;
}

const begun = new Set();

// A button that starts a command once, however often its view is drawn anew, and goes to the place that `place` makes of
// the job; where the command ends without one, to the list of runs, which shows what it printed.
function starting(text, id, body, place) {
  const label = (made) => {
    made.textContent = begun.has(id) ? "Runs…" : text;
    made.disabled = begun.has(id);
    return made;
  };
  const start = async () => {
    const here = location.hash;
    const drawn = () => document.getElementById(id) && label(document.getElementById(id));
    begun.add(id);
    drawn();
    announce("It runs.");
    try {
      const job = await ask("/api/jobs", { method: "POST", body });
      const to = await leadsTo(job.id, (now) => place(now) || (now.state === "ended" && address("runs")));
      if (location.hash === here) location.assign(to);
    } catch (error) {
      announce(error.message);
    }
    begun.delete(id);
    drawn();
  };
  return label(button(text, id, start));
}

// What `place` makes of the job, as soon as that is something; it is asked again whenever the server tells of a change.
function leadsTo(id, place) {
  return new Promise((resolve, reject) => {
    const heard = new AbortController();
    const look = async () => {
      const to = place(await ask(`/api/jobs/${id}`));
      if (to) heard.abort(resolve(to));
    };
    const again = () => look().catch(reject);
    addEventListener("served", again, { signal: heard.signal });
    again();
  });
}

// The id is that of the button which takes its place when the view is drawn anew.
function button(text, id, onclick, expanded) {
  return h("button", { type: "button", class: "small", id, onclick, "aria-expanded": expanded === undefined ? null : String(expanded) }, text);
}

const post = (path, body) => ask(path, { method: "POST", body }).catch((error) => announce(error.message));
