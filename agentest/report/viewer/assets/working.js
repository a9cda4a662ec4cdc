// Starts the page of `agentest ui` on which people work: they talk to the agent, make cases, and label.

import { addElsewhere, startApp } from "./app.js";
import { addCasesView } from "./cases.js";
import { addLabelView } from "./label.js";
import { watchServer } from "./server_state.js";
import { enter } from "./serving.js";
import { addTalkView } from "./talk.js";

// Those without a title have no link at the top.
const LOOKING = [
  ["runs", "Runs"],
  ["run", "Run"],
  ["conversation", ""],
  ["compare", "Compare"],
  ["start", "Start"],
];

export function start() {
  enter();
  for (const [name, title] of LOOKING) addElsewhere("/", name, title);
  addTalkView();
  addCasesView();
  addLabelView();
  startApp("talk");
  watchServer();
}
