"""An export keeps the date of its scenario."""

from __future__ import annotations

from pathlib import Path

from stored import to_json

from agentest.plugins.authoring.export import export
from agentest.scenarios.discovery import discover_file
from agentest.support.importing import Imports
from agentest.support.json_text import json_document
from agentest.testing import ScriptedAgent, run_scenarios

MAY = "2024-05-15"


def test_an_export_keeps_the_date_of_its_scenario(tmp_path: Path) -> None:
    """With the scenario's expectations, the export has its date in both formats."""
    file = tmp_path / "s.sim.py"
    file.write_text(
        "from agentest import scenario\n"
        f'scenario("s", turns=["Hi"], expect={{"never_says": "no"}}, date="{MAY}")\n',
        encoding="utf-8",
    )
    with ScriptedAgent(["Hello."]) as agent:
        result = run_scenarios(list(discover_file(file, Imports()).scenarios), agent=agent)
    (tmp_path / "results.json").write_text(json_document(to_json(result)), encoding="utf-8")
    forms: tuple[str, ...] = ("scenario", "evalset")
    for form in forms:
        made = export(tmp_path / "results.json", form, expect="scenario", root=tmp_path)
        assert MAY in made.content.decode()
