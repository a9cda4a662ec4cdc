// Starts the page of `agentest ui`.

import { address, read } from "./address.js";
import { startApp } from "./app.js";
import { addCasesView } from "./cases.js";
import { keepToken } from "./client.js";
import { h } from "./dom.js";
import { httpSource } from "./http_source.js";
import { runAgain, runOnce } from "./jobs.js";
import { addLabelView } from "./label.js";
import { addLooking } from "./looking.js";
import { offer } from "./offers.js";
import { addRunsView } from "./runs.js";
import { watchServer } from "./server_state.js";
import { use } from "./source.js";
import { addStartView } from "./start.js";
import { addTalkView } from "./talk.js";

// Every view of a run has its id in the address as `of`; without it the latest is meant.
function chooseRun() {
  use(httpSource(read().params.of || "latest"));
}

export function start() {
  keepToken();
  chooseRun();
  addEventListener("hashchange", chooseRun);
  addRunsView();
  addLooking();
  addStartView();
  addTalkView();
  addCasesView();
  addLabelView();
  offer("run", ({ id }) => h("a.button.small", { href: address("compare", { new: id }) }, "Compare with the run before"));
  offer("run", ({ id, state }) => runAgain(id, state, "this"));
  offer("conversation", runOnce);
  startApp("runs");
  watchServer();
}
