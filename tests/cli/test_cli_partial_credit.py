"""Partial credit on the command line, with an HTTP agent and without a model."""

from __future__ import annotations

from project import Project

from agentest.testing import ScriptedAgent, tool_call

SCENARIOS = """
TOOLS = {"look": 1, "book": 1, "drop": 1}
EXPECTED = {"match_mode": "contains", "expected": ["look", call("book", day="tue")]}

scenario("enough", turns=["hi"], tools=TOOLS, trajectory=EXPECTED, thresholds={"trajectory_recall": 0.5})
scenario("too little", turns=["hi"], tools=TOOLS, trajectory=EXPECTED, thresholds={"trajectoryRecall": 0.6})
scenario("forbidden", turns=["hi"], tools=TOOLS, thresholds={"trajectory_recall": 0.5},
         trajectory={**EXPECTED, "forbidden": [call("book", day="fri")]})
scenario("limit", turns=["hi"], tools=TOOLS, trajectory={**EXPECTED, "min_calls": 3},
         thresholds={"trajectory_recall": 0.5})
scenario("raises", turns=["hi"], tools=TOOLS, thresholds={"trajectory_recall": 0.1},
         trajectory={"match_mode": "contains", "expected": [call("book", day=lambda day: 1 / 0)]})
scenario("no threshold", turns=["hi"], tools=TOOLS, trajectory=EXPECTED)
scenario("none", turns=["hi"], tools=TOOLS)
scenario("none, with a threshold", turns=["hi"], tools=TOOLS, thresholds={"trajectory_f1": 0.1})
"""


def test_the_threshold_decides_about_calls(project: Project) -> None:
    """Missing calls count by it; forbidden calls, limits and undecided ones work as usual."""
    with ScriptedAgent([[tool_call("look"), tool_call("book", day="fri")], "Booked."]) as agent:
        project.config(agent.endpoint, thresholds={"trajectory_precision": 0.1})
        project.scenario(SCENARIOS)
        run = project.run("--offline")
    assert run.returncode == 1, run.stdout
    found = {each["name"]: each for each in project.results["scenarios"]}
    assert {name: each["status"] for name, each in found.items()} == {
        "enough": "passed",
        "too little": "failed",
        "forbidden": "failed",
        "limit": "failed",
        "raises": "errored",
        "no threshold": "passed",
        "none": "passed",
        "none, with a threshold": "errored",
    }
    assert found["enough"]["averages"] == {"trajectory_precision": 0.5, "trajectory_recall": 0.5}
    assert found["enough"]["conversations"][0]["trajectory"]["counted"] is True
    assert found["enough"]["intervals"]["trajectory_recall"]["n"] == 1
    assert found["none"]["averages"] == {}
    assert [each["kind"] for each in found["too little"]["reasons"]] == ["threshold"]
    assert [each["kind"] for each in found["limit"]["reasons"]] == ["trajectory"]
    assert "not called as expected: book (counted by the threshold)" in run.stdout
    assert "day: expected 'tue', got 'fri'" in run.stdout
    again = project.agentest("show", "--scenario", "too little")
    assert "day: expected 'tue', got 'fri'" in again.stdout
