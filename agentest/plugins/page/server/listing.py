"""List what can run in a project, as JSON. A separate program, because it imports the project's code.

python -m agentest.plugins.page.server.listing OUTPUT ROOT [CONFIG]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from agentest.domain.results import ScenarioResult, Status
from agentest.plugins.adk.formats.set_reader import read_eval_set
from agentest.plugins.adk.set_files import EvalSetProject
from agentest.runner.plan import Options, Unit
from agentest.runner.prepare import Prepared, RunRequest, prepare
from agentest.support.errors import UsageError
from agentest.support.json_text import Json, encoded


def listing(root: Path, config: Path | None) -> Json:
    """Return scenarios, evaluation sets with their cases, agents, and files that could not be loaded."""
    content: Json = {"scenarios": [], "agents": [], "problems": [], "notes": [], "error": ""}
    content["sets"] = list(_sets(root))
    try:
        prepared = prepare(RunRequest(root, config, Options(offline=True)), may_be_empty=True)
    except UsageError as error:
        return {**content, "error": str(error)}
    scenarios: dict[tuple[str, str], Json] = {}
    for unit in prepared.plan.entries:
        if isinstance(unit, Unit):
            scenario = unit.scenario
            row = scenarios.setdefault(
                (unit.file, scenario.name),
                {
                    "file": unit.file,
                    "name": scenario.name,
                    "line": scenario.line,
                    "tags": list(scenario.tags),
                    "kind": "scripted" if scenario.scripted else "simulated",
                    "conversations": unit.conversations,
                    "agents": [],
                },
            )
            row["agents"].append(unit.agent)
    return {
        **content,
        "scenarios": list(scenarios.values()),
        "agents": list(prepared.plan.agents),
        "problems": list(_problems(prepared)),
        "notes": prepared.notes,
    }


def _problems(prepared: Prepared) -> Iterator[Json]:
    """Yield scenarios that do not load or are skipped, so that the list shows them."""
    for entry in prepared.plan.entries:
        if isinstance(entry, ScenarioResult) and entry.verdict.status in (Status.ERRORED, Status.SKIPPED):
            reason = entry.verdict.reasons[0].message
            skipped = entry.verdict.status is Status.SKIPPED
            yield {
                "file": entry.file,
                "line": entry.line,
                "name": entry.name if skipped else "",
                "message": f"skipped: {reason}" if skipped else reason,
            }


def _sets(root: Path) -> Iterator[Json]:
    files, notes = EvalSetProject(root).find()
    yield from ({"file": "", "cases": [], "error": note} for note in notes)
    for path in files:
        name = path.relative_to(root).as_posix()
        found: Json = {"file": name, "cases": [], "error": ""}
        try:
            found["cases"] = [case.eval_id for case in read_eval_set(path).eval_set.eval_cases]
        except (UsageError, OSError) as error:
            found["error"] = str(error)
        yield found


def main(arguments: list[str]) -> None:
    """Write the listing to the file given as the first argument."""
    out, root = Path(arguments[0]), Path(arguments[1])
    out.write_bytes(encoded(listing(root, Path(arguments[2]) if arguments[2:] else None)))


if __name__ == "__main__":
    main(sys.argv[1:])
