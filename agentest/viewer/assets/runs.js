// The Runs view.

import { addView } from "./app.js";
import { fill, h } from "./dom.js";

export function addRunsView() {
  addView("runs", { title: "Runs", nav: true, show, keys: [] });
}

async function show(place) {
  fill(place, h("h1", {}, "Runs"));
}
