// Judge against people: how often the judge of a run agrees with one's own labels, and where it does not.

import { ask } from "./client.js";
import { fill, h } from "./dom.js";
import { count, figure, percent } from "./format.js";
import { problem } from "./parts.js";
import { forest, matrix } from "./pictures.js";

// Its figures are computed whenever it is opened. `given`: the run, the file and the person.
export function agreementPart(given) {
  const place = h("div");
  const load = () =>
    ask(`/api/labels/agreement?${new URLSearchParams(given)}`).then(
      ({ metrics }) => fill(place, metrics.length ? pictures(metrics) : h("p.quiet", "You and the judge have no question in common yet: answer some above.")),
      (error) => fill(place, problem(error.message)),
    );
  const element = h("details", { ontoggle: () => element.open && load() }, h("summary", "Judge against people"), place);
  return element;
}

function pictures(metrics) {
  const share = ({ metric, agreement, kappa }) => {
    const chance = kappa.value === null ? "" : `, kappa ${figure(kappa)}`;
    return { label: metric, ...agreement, words: `${figure(agreement, true)} of ${count(agreement.of, "label")}${chance}` };
  };
  return [
    forest("Share of labels on whose side the judge is, with 95% intervals", metrics.map(share), "Agreement", percent),
    metrics.map(confusion),
    h("p.quiet.small", "These are the answers in the run. agentest calibrate asks the judge again, and stores what it finds."),
  ];
}

// What people said, row by row, and what the judge said of the same.
function confusion({ metric, confusion: all }) {
  const names = (side) => [...new Set(all.map((each) => each[side]))].sort();
  const judge = names("judge");
  const cell = (people, said) => {
    const found = all.find((each) => each.people === people && each.judge === said);
    return found ? [String(found.times), people === said ? "passed" : "failed"] : ["", ""];
  };
  const rows = names("people").map((people) => ({ label: people, cells: judge.map((said) => cell(people, said)) }));
  return matrix(`${metric}: your labels in rows, the judge's in columns, number of questions`, judge, rows);
}
