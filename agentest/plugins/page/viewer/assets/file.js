// Starts the page of a report.

import { startApp } from "./app.js";
import { addCompareView } from "./compare.js";
import { addConversationView } from "./conversation.js";
import { CUT, fileSource, isCut, whenArrived } from "./file_source.js";
import { problem } from "./parts.js";
import { addRunView } from "./run.js";
import { use } from "./source.js";

export function start() {
  use(fileSource());
  addRunView();
  addConversationView();
  addCompareView();
  startApp("run");
  whenArrived().then(() => isCut() && document.getElementById("main").before(problem(CUT)));
}
