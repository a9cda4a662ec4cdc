"""Session state in runs: a pipeline behind ADK's wire form."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from jsonschema import validate
from pipeline import Pipeline
from project import Project
from stored import read_json

from agentest import scenario
from agentest.domain.results import ScenarioResult, Status
from agentest.domain.transcript import state_changes
from agentest.testing import run_scenarios

SCHEMA = json.loads((Path(__file__).parents[3] / "agentest" / "schemas" / "results.schema.json").read_text())


def held(agent: Any, *turns: Any, **options: Any) -> ScenarioResult:
    """Run a scenario with these turns and return its result."""
    return run_scenarios([scenario("s", turns=turns, **options)], agent=agent).scenarios[0]


def test_a_pipeline_is_asserted_after_every_turn() -> None:
    """Each stage's part of the state and each stage's words are checked turn by turn, and in the end."""
    first = {
        "session_state": {
            "project_plan": re.compile("plan: .*"),
            "execution_plan": lambda steps: [step["step"] for step in steps] == ["design", "build"],
            "review_result": {"approved": True, "rounds": 1},
            "tier": "gold",
        },
        "remarks": [
            {"author": "planner", "contains": "Redesign"},
            {"author": "reviewer", "equals": "approved"},
        ],
    }
    second = {"session_state": {"review_result": {"approved": True, "rounds": 2}}}
    with Pipeline() as pipe:
        found = held(
            pipe.agent,
            {"user_message": "Redesign", "expect": first},
            {"user_message": "Again", "expect": second},
            session={"state": {"draft": 1, "tier": "gold"}},
            final_session_state={"rounds": 2},
            conversations_per_scenario=3,
        )
    assert found.verdict.passed, found.verdict.reasons
    for one in found.conversations:
        turns = one.conversation.turns
        assert one.conversation.initial_state == {"draft": 1, "tier": "gold"}
        assert [turn.state_after and turn.state_after["rounds"] for turn in turns] == [1, 2]
        change = state_changes(one.conversation)[0]
        assert (change.removed, sorted(change.added)) == (
            {"draft": 1},
            ["execution_plan", "project_plan", "review_result", "rounds"],
        )
        assert [check.check for check in one.turns[1].checks] == ["session_state", "final_session_state"]


def test_a_state_that_is_another_fails() -> None:
    """A state that is not as expected fails the scenario at its turn; the final one at the last."""
    with Pipeline() as pipe:
        expect = {"session_state": {"rounds": True, "cart": []}, "remarks": [{"author": "x"}]}
        found = held(
            pipe.agent, {"user_message": "A", "expect": expect}, "B", final_session_state={"rounds": 3}
        )
    assert found.verdict.status is Status.FAILED
    told = [(reason.turn_index, reason.message.split(";")[0]) for reason in found.verdict.reasons]
    assert told == [
        (0, "session_state: rounds: expected True, got 1"),
        (0, "session_state: cart: expected [], found no such key"),
        (0, "remarks: expected a remark of 'x'"),
        (1, "final_session_state: rounds: expected 3, got 2"),
    ]


def test_a_state_that_cannot_be_read_is_unknown() -> None:
    """A server that stops telling of the state has replied: an expectation of it is errored, nothing else."""
    with Pipeline() as pipe:
        assert held(pipe.agent, "mute", check=print).verdict.passed
        found = held(pipe.agent, "mute", final_session_state={"rounds": 1})
    assert found.verdict.status is Status.ERRORED
    assert "could not be read: http" in found.verdict.reasons[0].message
    assert "answered 501" in found.verdict.reasons[0].message


PROJECT = """
scenario("pipe", session={"state": {"draft": 1}}, final_session_state={"rounds": 2, "project_plan": "other"},
         turns=[{"user_message": "Redesign", "expect": {"remarks": [{"author": "planner"}]}}, "B"])
"""


def test_reports_show_state_and_authors(project: Project) -> None:
    """results.json has the state after every turn, the console and GitHub's summary its changes and the
    authors of messages; judged again from the file, the verdict is the same."""
    with Pipeline() as pipe:
        project.config("", agent=pipe.agent)
        project.scenario(PROJECT)
        arguments = (
            "--offline",
            "--workers=2",
            "--verbose",
            *(f"--reporter={r}" for r in ("console", "json", "github-actions")),
        )
        summary_env = {"GITHUB_STEP_SUMMARY": str(project.root / "summary.md")}
        done = project.run(*arguments, env=summary_env)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "final_session_state: project_plan: expected 'other', got 'plan: B'" in done.stdout
    assert "~ rounds = 2 (was 1)" in done.stdout
    summary = (project.root / "summary.md").read_text()
    for told in (
        "said planner: The plan:",
        'state: + project_plan = "plan: Redesign"',
        "state: - draft (was 1)",
    ):
        assert told in summary
    results = read_json(project.root / ".agentest" / "results.json")
    validate(results, SCHEMA)
    (one,) = results["scenarios"][0]["conversations"]
    assert one["initialState"] == {"draft": 1}
    assert [turn["stateAfter"]["rounds"] for turn in one["turns"]] == [1, 2]
    assert {turn["author"] for turn in one["turns"]} == {"reviewer"}
    again = project.agentest("judge", ".agentest/results.json", "--offline", "--verbose")
    assert again.returncode == 1, again.stdout + again.stderr
    assert "final_session_state: project_plan: expected 'other', got 'plan: B'" in again.stdout
    assert "said   planner: The plan:" in again.stdout
