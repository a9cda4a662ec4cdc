// The Talk view.

import { addView } from "./app.js";
import { fill, h } from "./dom.js";

export function addTalkView() {
  addView("talk", { title: "Talk", nav: true, show, keys: [] });
}

async function show(place) {
  fill(place, h("h1", {}, "Talk"));
}
