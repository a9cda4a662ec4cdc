// The Compare view.

import { addView } from "./app.js";
import { fill, h } from "./dom.js";

export function addCompareView() {
  addView("compare", { title: "Compare", nav: true, show, keys: [] });
}

async function show(place) {
  fill(place, h("h1", {}, "Compare"));
}
