// Starts the page of a report.

import { startApp } from "./app.js";
import { fileSource } from "./file_source.js";
import { use } from "./source.js";
import { addLooking } from "./looking.js";

export function start() {
  use(fileSource());
  addLooking();
  startApp("run");
}
