// Starts the page of `agentest ui` on which runs are looked at and started.

import { address } from "./address.js";
import { addElsewhere, startApp } from "./app.js";
import { h } from "./dom.js";
import { runAgain, runOnce } from "./jobs.js";
import { addLooking } from "./looking.js";
import { offer } from "./offers.js";
import { addRunsView } from "./runs.js";
import { watchServer } from "./server_state.js";
import { enter } from "./serving.js";
import { addStartView } from "./start.js";

const WORK = [
  ["talk", "Talk"],
  ["cases", "Cases"],
  ["label", "Label"],
];

export function start() {
  enter();
  addRunsView();
  addLooking();
  addStartView();
  for (const [name, title] of WORK) addElsewhere("/work", name, title);
  offer("run", ({ id }) => h("a.button.small", { href: address("compare", { new: id }) }, "Compare with the run before"));
  offer("run", ({ id, state }) => runAgain(id, state, "this"));
  offer("conversation", runOnce);
  startApp("runs");
  watchServer();
}
