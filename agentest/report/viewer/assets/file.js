// Starts the page of a report.

import { startApp } from "./app.js";
import { fileSource } from "./file_source.js";
import { addLooking } from "./looking.js";
import { CUT, isCut, whenArrived } from "./packed.js";
import { problem } from "./parts.js";
import { use } from "./source.js";

export function start() {
  use(fileSource());
  addLooking();
  startApp("run");
  whenArrived().then(() => isCut() && document.getElementById("main").before(problem(CUT)));
}
