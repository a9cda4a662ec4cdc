// The Label view.

import { addView } from "./app.js";
import { fill, h } from "./dom.js";

export function addLabelView() {
  addView("label", { title: "Label", nav: true, show, keys: [] });
}

async function show(place) {
  fill(place, h("h1", {}, "Label"));
}
