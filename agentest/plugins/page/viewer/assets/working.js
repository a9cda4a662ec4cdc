// Starts the page of `agentest ui` on which people work: they compare and start runs, talk to the agent, make cases,
// and label.

import { addElsewhere, startApp } from "./app.js";
import { addCasesView } from "./cases.js";
import { addCompareView } from "./compare.js";
import { enter } from "./http_source.js";
import { addLabelView } from "./label.js";
import { watchServer } from "./server_state.js";
import { addStartView } from "./start.js";
import { addTalkView } from "./talk.js";

// Those without a title have no link at the top.
const LOOKING = [
  ["runs", "Runs"],
  ["run", "Run"],
  ["conversation", ""],
];

export function start() {
  enter();
  for (const [name, title] of LOOKING) addElsewhere("/", name, title);
  addCompareView();
  addStartView();
  addTalkView();
  addCasesView();
  addLabelView();
  startApp("talk");
  watchServer();
}
