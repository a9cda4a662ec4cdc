"""Session state and remarks that evaluation sets expect."""

from __future__ import annotations

from typing import Any

from evalset_documents import case, criteria, eval_set, invocation, simulated, text
from pipeline import Pipeline
from project import Project

from agentest.testing import ScriptedAgent

PLAN = "plan: Redesign"


def stage(author: str, said: str) -> list[Any]:
    return [author, [{"text": said}]]


def planned(eval_id: str, *stages: list[Any], **more: Any) -> dict[str, Any]:
    data = {"intermediate_data": {"intermediate_responses": list(stages)}} if stages else {}
    return case(eval_id, {**invocation("Redesign"), **data}, **more)


PLANNER, EXECUTOR = stage("planner", "The plan: Redesign"), stage("executor", "1. design\n2. build")
STATES = {"rounds": 1, "review_result": {"rounds": 1, "approved": True}}
STEPS = [{"step": "design", "done": False}, {"step": "build", "done": False}]
CASES = (
    planned("all", PLANNER, EXECUTOR, final_session_state=STATES),
    planned("some", EXECUTOR, final_session_state={"project_plan": PLAN}),
    planned("turned", EXECUTOR, PLANNER),
    planned("other", stage("nobody", "1. design 2. build"), final_session_state={"rounds": True, "cart": []}),
    planned("neither"),
    {**simulated("led"), "final_session_state": {"execution_plan": STEPS}},
)


def test_evaluation_sets(project: Project) -> None:
    """Final states and intermediate responses are compared if criteria require it, else a note says so."""
    project.write("set.test.json", text(eval_set("pipes", *CASES)))
    asked = {"final_session_state_match": {}, "intermediate_responses_match": None}
    with Pipeline() as pipe:
        project.config("", agent=pipe.agent)
        project.write("none.json", text(criteria(tool_trajectory_avg_score=1)))
        written_out = "set.test.json:all,some,turned,other,neither"
        silent = project.agentest("eval", written_out, "--config-file-path", "none.json")
        project.write("both.json", text(criteria(**asked)))
        done = project.agentest(
            "eval",
            "set.test.json",
            "--config-file-path",
            "both.json",
            "-v",
            "--reporter",
            "json",
            "--reporter",
            "console",
        )
    assert silent.returncode == 0, silent.stdout + silent.stderr
    notes = [row for row in silent.stderr.splitlines() if "no criterion compares with" in row]
    assert len(notes) == 2
    assert "cases all, some, other have a final_session_state" in notes[0]
    assert 'add "final_session_state_match": 1.0 to the criteria' in notes[0]
    assert "cases all, some, turned, other have intermediate responses" in notes[1]
    assert {s["name"]: s["finalEvalStatus"] for s in project.results["scenarios"]} == {
        "all": "PASSED",
        "some": "PASSED",
        "turned": "FAILED",
        "other": "FAILED",
        "neither": "NOT_EVALUATED",
        "led": "PASSED",
    }
    assert "no criterion" not in done.stderr
    assert "rounds: expected True, found 1; cart: expected [], found no such key" in done.stdout
    assert (
        "expected planner: 'The plan: Redesign' after executor: '1. design 2. build'; said was" in done.stdout
    )


def test_evaluation_sets_with_agents_that_tell_nothing(project: Project) -> None:
    """A criterion about what an agent does not report has no score, and a state it cannot get is errored."""
    with ScriptedAgent(["approved"]) as agent:
        project.config(agent.endpoint)
        given = planned("given", session_input={"app_name": "a", "user_id": "u", "state": {"draft": 1}})
        project.write("set.test.json", text(eval_set("pipes", CASES[0], given)))
        asked = {
            "final_session_state_match": {},
            "intermediate_responses_match": 1,
            "tool_trajectory_avg_score": 1,
        }
        project.write("test_config.json", text(criteria(**asked)))
        done = project.agentest("eval", "set.test.json", "-v")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "could not be scored: the agent does not report its session's state" in done.stdout
    assert "could not be scored: the agent does not report who says what" in done.stdout
    assert "cannot be given: set send_session_state: true in the agent's configuration" in done.stdout
