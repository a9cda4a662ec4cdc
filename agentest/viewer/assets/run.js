// The Run view: verdict, figures, and the scenarios, first those that need eyes.

import { address } from "./address.js";
import { addView } from "./app.js";
import { fill, foreign, h } from "./dom.js";
import { count } from "./format.js";
import { badge } from "./parts.js";
import { source } from "./source.js";

export function addRunView() {
  addView("run", { title: "Run", nav: true, show, keys: [] });
}

async function show(place, params) {
  const overview = await source().overview();
  const rows = overview.scenarios.map((row) => line(row, params));
  fill(
    place,
    h("h1", {}, "Run ", foreign(overview.run.id)),
    h("p", {}, badge(overview.run.state), " ", count(rows.length, "scenario")),
    h("table", {}, h("thead", {}, h("tr", {}, h("th", { scope: "col" }, "Scenario"), h("th", { scope: "col" }, "Status"))), h("tbody", {}, rows)),
  );
}

function line(row, params) {
  const to = address("conversation", { of: params.of, scenario: row.name, agent: row.agent });
  return h("tr", {}, h("td", {}, h("a", { href: to, data: { step: "" } }, foreign(row.name))), h("td", {}, badge(row.status)));
}
