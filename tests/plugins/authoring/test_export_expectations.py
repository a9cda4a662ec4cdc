"""`agentest export --expect scenario`: exported conversations with their scenario's expectations."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import evalset_documents as documents
import pytest
from stored import to_json

from agentest.plugins.adk.formats.set_reader import read_eval_set
from agentest.plugins.authoring.export import (
    EVALSET,
    Exported,
    ExportedConversation,
    ExportTask,
    export,
    with_expectations,
)
from agentest.plugins.authoring.scenario_files import as_data
from agentest.scenarios.definition import collect_scenarios
from agentest.scenarios.discovery import discover_file
from agentest.scenarios.model import Scenario
from agentest.support.importing import Imports
from agentest.support.json_text import json_document
from agentest.testing import ScriptedAgent, run_scenarios, tool_call

ORDERS = """from agentest import call, number, scenario

scenario(
    "asks for an order",
    turns=[
        "Where is 17?",
        {"user_message": "Thanks.", "trajectory": {"max_calls": 0}, "expect": {"not_contains": "sorry"}},
    ],
    tools={"lookup": {"status": "shipped"}},
    trajectory={"match_mode": "contains", "expected": [call("lookup", order_id=number(17))]},
    %s
)
"""


def ran(folder: Path, more: str = "", order_id: Any = "17") -> tuple[Path, list[Scenario]]:
    """A scenario file and the results of its run, against an agent that looks one order up."""
    file = folder / "orders.sim.py"
    file.write_text(ORDERS % more)
    os.utime(file, (0, 0))
    scenarios = list(discover_file(file, Imports()).scenarios)
    results = folder / "results.json"
    with agent(order_id) as shop:
        found = run_scenarios(scenarios, agent=shop)
    results.write_text(json_document(to_json(found)), encoding="utf-8")
    return results, scenarios


def agent(order_id: Any) -> ScriptedAgent:
    return ScriptedAgent([tool_call("lookup", order_id=order_id), "It is shipped.", "You are welcome."])


def exported(folder: Path, form: Any = "scenario") -> Exported:
    return export(folder / "results.json", form, expect="scenario", root=folder)


def scenarios_of(source: bytes, folder: Path | None = None) -> list[Scenario]:
    if folder:
        (folder / "exported.sim.yaml").write_bytes(source)
        return list(discover_file(folder / "exported.sim.yaml", Imports()).scenarios)
    with collect_scenarios() as found:
        exec(compile(source, "exported.sim.py", "exec"), {})
    return found


@pytest.mark.parametrize("form", ["scenario", "yaml"])
def test_an_exported_scenario_expects_what_its_file_says(tmp_path: Path, form: str) -> None:
    """Its words are written, those of turns too; another way to write the number passes, another does not."""
    _, (original,) = ran(tmp_path)
    made = exported(tmp_path, form)
    assert made.notes == ()
    (again,) = scenarios_of(made.content, tmp_path if form == "yaml" else None)
    assert str(again.trajectory) == str(original.trajectory)
    assert [(t.trajectory, t.expect) for t in again.turns] == [
        (t.trajectory, t.expect) for t in original.turns
    ]
    for order_id, passes in (("17.0", True), (18, False)):
        with agent(order_id) as shop:
            (result,) = run_scenarios([again], agent=shop).scenarios
        assert result.verdict.passed is passes


def test_what_cannot_be_exported_is_named(tmp_path: Path) -> None:
    """A function, the end of a state that nothing changes, a rate: each is left out with a note."""
    ran(
        tmp_path,
        """
    state={"n": 0},
    final_state={"n": 0},
    thresholds={"pass_rate": 1},
    final_session_state={"cart": lambda cart: not cart},
""",
    )
    made = exported(tmp_path)
    (again,) = scenarios_of(made.content)
    assert (again.final_state, again.thresholds, again.final_session_state) == (None, {}, None)
    assert len(again.trajectory) == 1
    notes = "\n".join(made.notes)
    assert "asks for an order: final_state is left out: exported tools answer as they did" in notes
    assert "asks for an order: thresholds (pass_rate) is left out: they are not about one" in notes
    assert "asks for an order: final_session_state is left out: cart: " in notes


def test_a_missing_scenario_expects_the_same_calls(tmp_path: Path) -> None:
    """If the file or its scenario is gone, the calls are exported, with a note."""
    ran(tmp_path)
    (tmp_path / "orders.sim.py").write_text("raise ValueError('broken')")
    broken = exported(tmp_path)
    (tmp_path / "orders.sim.py").write_text("")
    empty = exported(tmp_path)
    (tmp_path / "orders.sim.py").unlink()
    gone = exported(tmp_path)
    for made, why in (
        (broken, "orders.sim.py cannot be loaded"),
        (empty, "has no scenario of that name any more"),
        (gone, "orders.sim.py is not there any more"),
    ):
        assert scenarios_of(made.content)[0].trajectory[0].match_mode == "strict"
        assert why in made.notes[0]
        assert "the same calls are expected" in made.notes[0]
    assert any("was changed after the run" in note for note in empty.notes)


def test_an_exported_case_has_its_scenarios_expectations(tmp_path: Path) -> None:
    """A set has them as data, in either spelling; a note names those of turns."""
    _, (original,) = ran(tmp_path, 'expect={"never_says": "sorry"}, thresholds={"trajectory_score": 0.5},')
    for camel in (False, True):
        made = export(
            tmp_path / "results.json", "evalset", expect="scenario", root=tmp_path, camel_case=camel
        )
        path = tmp_path / "again.test.json"
        path.write_bytes(made.content)
        (case,) = read_eval_set(path).eval_set.eval_cases
        assert case.agentest is not None
        said = case.agentest.expectations
        assert said["trajectory"] == original.trajectory
        assert said["expect"] == original.expect
        assert said["thresholds"] == {"trajectory_score": 0.5}
        assert "turns[1] must hold is left out: a case has no place for it" in "\n".join(made.notes)


def test_cases_keep_their_expectations(tmp_path: Path) -> None:
    """For evaluation sets, the `agentest` key is read from the set by case id."""
    case = documents.case("c", documents.invocation("Where is 17?"))
    own = {"trajectory": {"expected": [{"name": "lookup", "args": {"order_id": {"number": 17}}}]}}
    path = tmp_path / "shop.test.json"
    path.write_text(documents.text(documents.eval_set("shop", {**case, "agentest": own})))
    held = ExportedConversation(
        scenario="shop/c",
        agent="agent",
        conversation=builders.conversation(),
        passed=True,
        file=path.name,
        eval_id="c",
    )
    gone = replace(held, scenario="shop/d", eval_id="d")
    task = ExportTask(path=path, started=0, conversations=(held, gone))
    found = with_expectations(task, EVALSET, tmp_path)
    one, other = found.conversations
    assert one.expected is not None
    assert as_data(one.expected.trajectory[0])["expected"] == own["trajectory"]["expected"]
    assert other.expected is None
    note, about_criteria = found.notes
    assert "compare with these" in about_criteria
    assert note.startswith("shop/d: shop.test.json has no case 'd' any more; the same calls are expected")
