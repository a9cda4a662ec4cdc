// The Start view.

import { addView } from "./app.js";
import { fill, h } from "./dom.js";

export function addStartView() {
  addView("start", { title: "Start", nav: true, show, keys: [] });
}

async function show(place) {
  fill(place, h("h1", {}, "Start"));
}
