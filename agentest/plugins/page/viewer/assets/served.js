// Starts the page of `agentest ui` on which runs are looked at.

import { address } from "./address.js";
import { addElsewhere, startApp } from "./app.js";
import { addConversationView } from "./conversation.js";
import { h } from "./dom.js";
import { enter } from "./http_source.js";
import { runAgain, runOnce } from "./jobs.js";
import { addRunView } from "./run.js";
import { addRunsView } from "./runs.js";
import { watchServer } from "./server_state.js";
import { offer } from "./source.js";

const WORK = [
  ["compare", "Compare"],
  ["start", "Start"],
  ["talk", "Talk"],
  ["cases", "Cases"],
  ["label", "Label"],
];

export function start() {
  enter();
  addRunsView();
  addRunView();
  addConversationView();
  for (const [name, title] of WORK) addElsewhere("/work", name, title);
  offer("run", ({ id }) => h("a.button.small", { href: address("compare", { new: id }) }, "Compare with the run before"));
  offer("run", ({ id, state }) => runAgain(id, state, "this"));
  offer("conversation", runOnce);
  startApp("runs");
  watchServer();
}
