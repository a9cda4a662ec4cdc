"""Expectations of a case under `agentest`, as in scenario files: reading, evaluating and writing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from evalset_documents import case, criteria, eval_set, invocation, simulated, text
from project import Project

from agentest.plugins.adk.cases import CaseSet, case_entries
from agentest.plugins.adk.formats.criteria import parse_criteria
from agentest.plugins.adk.formats.eval_set import EvalCase
from agentest.plugins.adk.formats.set_reader import read_eval_set
from agentest.plugins.adk.set_commands import migrate
from agentest.runner.plan import Unit
from agentest.support.errors import UsageError
from agentest.testing import ScriptedAgent, tool_call

F1 = criteria(tool_trajectory_f1=0.5)


def written(folder: Path, own: Any, *, led: bool = False) -> Path:
    """A set of one case with these words under its key."""
    path = folder / "shop.test.json"
    one = simulated("c") if led else case("c", invocation("Where is 17?"))
    path.write_text(text(eval_set("shop", {**one, "agentest": own})))
    return path


def read(path: Path) -> EvalCase:
    return read_eval_set(path).eval_set.eval_cases[0]


WRONG: list[tuple[dict[str, Any], str]] = [
    (
        {"trajectory": {"expectd": ["a"]}},
        "`agentest.trajectory`: unknown key `expectd`; did you mean `expected`?",
    ),
    (
        {"trajectory": [{"expected": [{"nam": "a"}]}]},
        "`agentest.trajectory[0].expected[0]`: unknown key `nam`; did you mean `name`?",
    ),
    ({"trajectory": []}, "`agentest.trajectory`: is empty, so it would check nothing"),
    ({"final_state": {}}, "`agentest.final_state`: is empty, so it would check nothing"),
    ({"final_stat": {}}, "`agentest.final_stat` is not a known key; did you mean `final_state`?"),
    ({"state": []}, "`agentest.state`: expected a dict with texts as keys, found a list"),
    ({"criteria": ["x", "x"]}, "`agentest.criteria[1]`: 'x' is there twice"),
    ({"criteria": []}, "`agentest.criteria`: is empty"),
    ({"thresholds": {"helpfulness": 4}}, "`agentest.thresholds`: `helpfulness` can have no threshold here"),
    ({"thresholds": {"pass_rate": 2}}, "`agentest.thresholds.pass_rate`: 2 is not between 0 and 1"),
    (
        {"thresholds": {"pass_rate": "x"}},
        "`agentest.thresholds`: the threshold of `pass_rate` must be a number",
    ),
    ({"thresholds": 1}, "`agentest.thresholds`: expected an object from metric to number, found 1"),
]


@pytest.mark.parametrize("led", [False, True], ids=["written", "led"])
@pytest.mark.parametrize(("own", "said"), WRONG, ids=lambda value: next(iter(value)) if value else None)
def test_a_word_that_cannot_be_read_is_named_with_its_place(
    tmp_path: Path, own: Any, said: str, led: bool
) -> None:
    """File, line, case, key and place inside of it, as for everything else of a set."""
    path = written(tmp_path, own, led=led)
    with pytest.raises(UsageError) as caught:
        read(path)
    assert f"{path}:5: case `c`: {said}" in str(caught.value)


def test_either_spelling_is_read_and_kept_by_migration(tmp_path: Path) -> None:
    """The text is kept as written, even nulls; a migrated set has the same expectations."""
    own = {
        "trajectory": {"matchMode": "contains", "expected": [{"name": "a", "args": {"x": None}}]},
        "finalState": {"n": None},
        "thresholds": {"passRate": 0.5},
        "criteria": [{"text": "Is polite.", "required": False}],
    }
    path = written(tmp_path, own)
    for n, camel in enumerate((False, True)):
        again = tmp_path / f"again{n}.test.json"
        migrate(path, again, camel_case=camel)
        assert read(again).agentest == read(path).agentest
        kept = json.loads(again.read_text())["evalCases" if camel else "eval_cases"][0]["agentest"]
        assert kept["trajectory"] == own["trajectory"]
        assert kept["finalState" if camel else "final_state"] == {"n": None}
    found = read(path).agentest
    assert found is not None
    said = found.expectations
    assert (said["trajectory"][0].match_mode, said["final_state"]) == ("contains", {"n": None})
    assert (said["thresholds"], said["criteria"][0].required) == ({"pass_rate": 0.5}, False)


def shop(body: dict[str, Any]) -> Any:
    """Look up order 17, as text; say that it is shipped."""
    if body["messages"][-1]["role"] == "tool":
        return "It is shipped."
    return tool_call("lookup", order_id="17")


def evaluated(project: Project, *owns: dict[str, Any], **options: Any) -> tuple[int, dict[str, str]]:
    """The exit status, and what became of cases with these words; they have no other expectations."""
    cases = [case(f"c{n}", invocation("Where is 17?"), agentest=own) for n, own in enumerate(owns)]
    project.write("shop.test.json", text(eval_set("shop", *cases)))
    project.write("mocks.py", options.get("mocks", 'tools = {"lookup": {"status": "shipped"}}\n'))
    if "criteria" in options:
        project.write("test_config.json", text(options["criteria"]))
    with ScriptedAgent(shop) as agent:
        project.config(agent.endpoint)
        done = project.agentest("eval", "shop.test.json", "--mocks", "mocks.py", "--reporter", "json")
    assert "Traceback" not in done.stderr, done.stderr
    return done.returncode, {s["name"]: s["status"] for s in project.results["scenarios"]}


def test_a_case_is_decided_by_what_it_says_itself(project: Project) -> None:
    """Its own words pass and fail a case that no criterion could score; all its trajectories must hold."""
    good = {"expected": [{"name": "lookup", "args": {"order_id": "17"}}]}
    bad = {"name": "never looks up", "forbidden": ["lookup"]}
    status, found = evaluated(project, {"trajectory": good}, {"trajectory": [good, bad]})
    assert (status, found) == (1, {"c0": "passed", "c1": "failed"})
    failed = project.scenario_result("c1")
    assert "forbidden" in " ".join(failed["failures"])
    assert [project.scenario_result(name)["finalEvalStatus"] for name in found] == ["PASSED", "FAILED"]
    assert failed["overallEvalMetricResults"] == []


def test_expectations_and_criteria_both_count(project: Project) -> None:
    """A case passes if both hold; ADK's results contain only its criteria."""
    wanted = criteria(tool_trajectory_f1={"threshold": 0.0})
    good, bad = ({"trajectory": {"max_calls": most}} for most in (1, 0))
    status, found = evaluated(project, good, bad, criteria=wanted)
    assert (status, found) == (1, {"c0": "passed", "c1": "failed"})
    for name in ("c0", "c1"):
        (metric,) = project.scenario_result(name)["overallEvalMetricResults"]
        assert metric["evalStatus"] == "PASSED"


def test_thresholds_of_a_case_stand_beside_those_of_its_criteria(tmp_path: Path) -> None:
    """Its own are for what no criterion names; both are the unit's."""
    own = {"trajectory": {"expected": ["lookup"]}, "thresholds": {"trajectoryRecall": 0.5, "pass_rate": 0.9}}
    chosen = CaseSet(read_eval_set(written(tmp_path, own)), parse_criteria(F1, "here"))
    (unit,) = case_entries([chosen], ["agent"], 1, tmp_path)
    assert isinstance(unit, Unit)
    assert unit.thresholds == {"tool_trajectory_f1": 0.5, "trajectory_recall": 0.5, "pass_rate": 0.9}
    assert unit.scenario.thresholds == {"trajectory_recall": 0.5, "pass_rate": 0.9}
