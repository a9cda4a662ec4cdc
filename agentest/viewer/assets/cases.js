// The Cases view.

import { addView } from "./app.js";
import { fill, h } from "./dom.js";

export function addCasesView() {
  addView("cases", { title: "Cases", nav: true, show, keys: [] });
}

async function show(place) {
  fill(place, h("h1", {}, "Cases"));
}
