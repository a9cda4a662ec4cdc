// What both pages of `agentest ui` begin with.

import { read } from "./address.js";
import { keepToken } from "./client.js";
import { httpSource } from "./http_source.js";
import { use } from "./source.js";

// Every view of a run has its id in the address as `of`; without it the latest is meant.
function chooseRun() {
  use(httpSource(read().params.of || "latest"));
}

export function enter() {
  keepToken();
  chooseRun();
  addEventListener("hashchange", chooseRun);
}
