"""Session state in runs: a pipeline behind ADK's wire form, handlers, agents without a place for it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from evalset_documents import case, criteria, eval_set, invocation, simulated, text
from jsonschema import validate
from pipeline import Pipeline
from project import Project
from stored import read_json

from agentest import scenario
from agentest.agents.port import TurnContext
from agentest.domain.results import ScenarioResult, Status
from agentest.domain.transcript import state_changes
from agentest.testing import ScriptedAgent, run_scenarios

SCHEMA = json.loads(
    (Path(__file__).parent.parent.parent / "agentest" / "schemas" / "results.schema.json").read_text()
)
PLAN = "plan: Redesign"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def held(agent: Any, *turns: Any, **options: Any) -> ScenarioResult:
    """What becomes of a scenario of these turns."""
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
        assert held(pipe.agent, "mute").verdict.passed
        found = held(pipe.agent, "mute", final_session_state={"rounds": 1})
    assert found.verdict.status is Status.ERRORED
    assert "could not be read: http" in found.verdict.reasons[0].message
    assert "answered 501" in found.verdict.reasons[0].message


def test_agents_that_have_no_place_for_a_state() -> None:
    """An agent that cannot be given the state is errored before anything is said, and how to send it."""
    session = {"state": {"tier": "gold"}}
    with ScriptedAgent(["Hello."]) as agent:
        found = held(agent, "Hi", session=session)
        assert not agent.requests
        assert held(agent, "Hi", session={"state": {}, "user_id": "u"}).verdict.passed
        sends = {"endpoint": agent.endpoint, "sendSessionState": True}
        assert held(sends, "Hi", session=session).verdict.passed
        unseen = held(sends, "Hi", final_session_state={"tier": "gold"})
    assert found.verdict.status is Status.ERRORED
    (reason,) = found.verdict.reasons
    assert (
        "agent 'agent' (type: chat_completions) cannot be given: set send_session_state: true"
        in reason.message
    )
    assert agent.requests[-2]["metadata"] == {"session_state": {"tier": "gold"}}
    assert unseen.verdict.status is Status.ERRORED
    assert "cannot be seen: it does not report it" in unseen.verdict.reasons[0].message


def test_a_handler_is_given_the_state_and_tells_of_its_own() -> None:
    """A handler finds the state in ctx.session, and what it records is the state after the turn."""

    def handler(messages: list[Any], ctx: TurnContext) -> str:
        assert ctx.session is not None
        cart = [*ctx.session.state["cart"], messages[-1]["content"]]
        ctx.record_state({"cart": "forgotten"})
        ctx.record_state({"cart": cart, "tuple": (1,)})
        return "Done."

    expect = {"session_state": {"cart": ["pen", "book"], "tuple": [1]}}
    found = held(handler, {"user_message": "book", "expect": expect}, session={"state": {"cart": ["pen"]}})
    assert found.verdict.passed, found.verdict.reasons
    assert state_changes(found.conversations[0].conversation)[0].changed == {
        "cart": (["pen"], ["pen", "book"])
    }
    assert (
        held(lambda _messages, _ctx: "Hi", "Hi", final_session_state={"a": 1}).verdict.status
        is Status.ERRORED
    )


@pytest.mark.parametrize(
    ("recorded", "says"),
    [
        ("cart", "ctx.record_state: expected a dict with texts as keys, found a str"),
        ({1: 2}, "ctx.record_state: expected a dict with texts as keys, found a dict"),
        ({"a": object()}, "ctx.record_state: the state is not JSON: a object is not JSON-serialisable"),
    ],
)
def test_a_handler_that_records_no_state(recorded: Any, says: str) -> None:
    """What is no state is the handler's error."""

    def handler(_messages: list[Any], ctx: TurnContext) -> str:
        ctx.record_state(recorded)
        return "Done."

    found = held(handler, "Hi")
    assert found.verdict.status is Status.FAILED
    assert says in found.verdict.reasons[0].message


PROJECT = """
scenario("pipe", session={"state": {"draft": 1}}, final_session_state={"rounds": 2, "project_plan": "other"},
         turns=[{"user_message": "Redesign", "expect": {"remarks": [{"author": "planner"}]}}, "B"])
"""


def test_what_the_reports_say(project: Project) -> None:
    """results.json has the state after every turn, the console and GitHub's summary what changed, and by whom
    what was said; judged again from the file, the verdict is the same."""
    with Pipeline() as pipe:
        project.config("", agent=pipe.agent)
        project.scenario(PROJECT)
        arguments = (
            "--offline",
            "--workers=2",
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
    """Final states and intermediate responses are compared where criteria say so, else a note says not."""
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
        done = project.agentest("eval", "set.test.json")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "could not be scored: the agent does not report its session's state" in done.stdout
    assert "could not be scored: the agent does not tell who says what" in done.stdout
    assert "cannot be given: set send_session_state: true in the agent's configuration" in done.stdout
