"""Visibility of tool calls: invisible calls are never judged, and reported as such."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jsonschema import validate
from project import Project
from pydantic import ValidationError
from stored import to_json

from agentest import scenario
from agentest.config.agent_types import visibility_of_agent
from agentest.config.config import Config
from agentest.domain.results import ReasonKind, ScenarioResult, Skipped, Status, Unscored
from agentest.domain.tool_visibility import ToolVisibility
from agentest.plugin import PLUGINS
from agentest.store.reader import read_results
from agentest.support.errors import ConfigError
from agentest.testing import Raw, ScriptedAgent, ScriptedModel, run_scenarios, tool_call

SCHEMA = json.loads(
    (Path(__file__).parent.parent.parent / "agentest" / "schemas" / "results.schema.json").read_text()
)
UNSEEN = "calls of agent 'agent' cannot be seen"
TOOLS = {"look": {"found": 1}}
QUIET = 'scenario("ban", turns=["Hi."], trajectory={"forbidden": ["reserve_item"]})'


@pytest.fixture
def agent() -> Iterator[ScriptedAgent]:
    """An agent that returns no calls and may run its own tools."""
    with ScriptedAgent(["Reserved."]) as opened:
        yield opened


def one(agent: ScriptedAgent, options: dict[str, Any], **more: Any) -> ScenarioResult:
    """Run a scenario with an agent whose calls are unseen and return its result."""
    config = {"endpoint": agent.endpoint, "tool_visibility": "unseen"}
    made = scenario("s", **{"turns": ["Reserve it."], **options})
    return run_scenarios([made], agent=config, strict=False, **more).scenarios[0]


# Configuration


def test_each_type_has_a_default_visibility() -> None:
    """Any agent's configuration may override it."""
    body = {"message": "{{message}}"}
    places = {
        "custom": {"handler": "a:b"},
        "asgi": {"app": "a:b"},
        "adk_module": {"module": "a"},
        "command": {"command": ["a"]},
        "websocket": {"endpoint": "ws://h"},
        "realtime": {"endpoint": "ws://h"},
        "grpc": {"endpoint": "h:1", "method": "a.B/C"},
        "http": {"endpoint": "http://h", "body": body},
    }
    for name in PLUGINS.all("agent type"):
        where = places.get(name, {"endpoint": "http://h"})
        given = {
            "agent": {"type": name, **where},
            "compare": [{"name": "b", "toolVisibility": "unseen"}],
        }
        config = Config.model_validate(given)
        assert [visibility_of_agent(agent) for agent in (config.agent, *config.compare)] == [
            config.agent.natural_visibility,
            ToolVisibility.UNSEEN,
        ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            {"type": "http", "body": "{{message}}", "tool_visibility": "returned"},
            "hands no call to the caller; write `unseen` (the default); or set `tool_calls`",
        ),
        ({"tool_visibility": "seen"}, "'returned', 'reported', 'par"),
    ],
)
def test_invalid_visibilities_are_refused(given: dict[str, Any], says: str) -> None:
    """The error lists the visibilities that the type can have."""
    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"agent": {"endpoint": "http://h", **given}})
    assert says in str(caught.value)


# What would judge unseen calls

TRAJECTORIES: list[dict[str, Any]] = [
    {"forbidden": ["reserve_item"]},
    {"expected": []},
    {"expected": ["reserve_item"]},
    {"match_mode": "within", "expected": ["look"]},
    {"max_calls": 0},
    {"max_calls_per_tool": {"reserve_item": 0}},
]


@pytest.mark.parametrize("of_turn", [False, True])
@pytest.mark.parametrize("trajectory", TRAJECTORIES)
def test_trajectories_of_unseen_calls_are_errored(
    agent: ScriptedAgent, trajectory: dict[str, Any], of_turn: bool
) -> None:
    """Bans, limits and expectations of unseen calls neither pass nor fail."""
    turn = {"user_message": "Reserve it.", "trajectory": trajectory}
    found = one(agent, {"turns": [turn]} if of_turn else {"trajectory": trajectory})
    assert found.verdict.status is Status.ERRORED
    [reason] = found.verdict.reasons
    assert reason.kind is ReasonKind.TRAJECTORY
    assert UNSEEN in reason.message
    assert "tool_visibility: returned" in reason.message


def test_turn_limits_work_with_unseen_calls(agent: ScriptedAgent) -> None:
    """`max_turns` does not depend on calls, and also fails next to an undecided ban."""
    turns = {"turns": ["a", "b"]}
    held = one(agent, {**turns, "trajectory": {"max_turns": 2}})
    assert held.verdict.passed
    assert [c.trajectory.reason for c in held.conversations if c.trajectory] == ["2 turns, as expected"]
    for more in ({}, {"forbidden": ["reserve_item"]}):
        broken = one(agent, {**turns, "trajectory": {"max_turns": 1, **more}})
        assert broken.verdict.status is Status.FAILED
        assert broken.verdict.reasons[0].message == (
            "trajectory: the conversation took 2 turns, at most 1 are allowed"
        )


def test_the_metric_of_calls(agent: ScriptedAgent) -> None:
    """If named, the metric of tool calls is errored; by default it is skipped; others are judged."""
    simulated = {"turns": ["Hi."], "goal": "g"}
    name = "tool_call_behavior_failure"
    by_default = one(agent, simulated, model=ScriptedModel())
    assert by_default.verdict.passed
    assert isinstance(by_default.conversations[0].turns[0].metrics[name], Skipped)
    assert UNSEEN in by_default.skipped_metrics[name]
    assert by_default.averages["helpfulness"] == 5
    for options, config in (({"metrics": [name]}, {}), ({}, {"metrics": [name, "helpfulness"]})):
        named = one(agent, {**simulated, **options}, model=ScriptedModel(), **config)
        assert named.verdict.status is Status.ERRORED
        assert isinstance(named.conversations[0].turns[0].metrics[name], Unscored)
        assert UNSEEN in named.verdict.reasons[0].message


def test_a_ban_on_unseen_calls(project: Project, agent: ScriptedAgent) -> None:
    """`agentest run` is errored with a reason; results have neither a pass nor a failure."""
    project.config(agent.endpoint, agent={"endpoint": agent.endpoint, "tool_visibility": "unseen"})
    project.scenario(QUIET)
    done = project.run("--verbose")
    assert done.returncode == 2
    assert f"{agent.endpoint}  tool calls: unseen" in done.stdout
    assert UNSEEN in done.stdout
    validate(project.results, SCHEMA)
    assert project.results["agents"] == {"agent": {"toolCalls": "unseen"}}
    [found] = project.results["scenarios"]
    assert found["status"] == "errored"
    trajectory = found["conversations"][0]["trajectory"]
    assert trajectory["matched"] is None
    assert UNSEEN in trajectory["error"]
    assert project.results["summary"]["warnings"] == []


# Mocks that do not reach


def test_mocks_that_cannot_reach_the_agent(agent: ScriptedAgent) -> None:
    """Scenarios with mocks are refused for an agent that runs its own tools."""
    config = {"endpoint": agent.endpoint, "tool_visibility": "unseen"}
    made = [scenario(f"s{i}", turns=["Hi."], tools=TOOLS) for i in range(5)]
    with pytest.raises(ConfigError) as caught:
        run_scenarios(made, agent=config)
    assert "and 2 more cannot reach the tools of agent 'agent'" in str(caught.value)
    assert "tool_visibility: returned" in str(caught.value)
    assert agent.requests == []
    checked = scenario("s", turns=["Hi."], check=lambda conversation: bool(conversation.turns))
    ways_out = run_scenarios([checked], agent=config, unmocked_tools="passthrough")
    assert ways_out.scenarios[0].verdict.passed


# Agents that were never seen to call anything

TOLD = "not one tool call of agent 'agent' was seen in the whole run, though scenario"


@pytest.mark.parametrize("workers", ["1", "2"])
def test_a_ban_that_passed_without_any_call(project: Project, agent: ScriptedAgent, workers: str) -> None:
    """If scenarios expect calls and none was seen, a warning says so, and such passes are marked as vacuous
    in results and journal."""
    project.config(agent.endpoint, reporters=["console", "json", "github-actions"])
    turn = {"user_message": "Hi.", "trajectory": {"expected": []}}
    project.scenario(
        f"""{QUIET}
scenario("turns", turns=["Hi."], trajectory={{"max_turns": 1}})
scenario("turn", turns=[{turn}, "Ho."], trajectory={{"expected": ["look"]}}, tools={TOOLS})
"""
    )
    done = project.run("--workers", workers)
    assert done.returncode == 1, done.stdout + done.stderr
    assert ", 2 no-call-seen, " in done.stdout
    shown = project.agentest("show", "-v").stdout
    assert f"{TOLD}s 'ban' (a.sim.py:2), 'turn' (a.sim.py:4) have mocks" in shown
    assert f"::warning file=a.sim.py,line=2,title=no-call-seen::'ban', 'turn': {TOLD}" in done.stdout
    validate(project.results, SCHEMA)
    about_run = project.results["summary"]["warnings"]
    silent = [each for each in about_run if each["code"] == "no-call-seen"]
    assert [each["scenario"] for each in silent] == ["ban", "turn"]
    assert all(each["message"].startswith(TOLD) for each in silent)
    assert project.results["agents"] == {"agent": {"toolCalls": "returned", "noCallSeen": True}}
    held = {s["name"]: s["conversations"][0] for s in project.results["scenarios"]}
    assert held["ban"]["trajectory"]["vacuous"] is True
    assert "vacuous" not in held["turns"]["trajectory"]
    assert "vacuous" not in held["turn"]["trajectory"]  # it did not hold
    assert held["turn"]["perTurnTrajectory"][0]["vacuous"] is True
    journal = to_json(read_results(project.root / ".agentest" / "journal.jsonl"))
    assert trajectories_by_name(journal) == trajectories_by_name(project.results)


def trajectories_by_name(document: dict[str, Any]) -> dict[str, list[Any]]:
    return {
        each["name"]: [(held["trajectory"], held["perTurnTrajectory"]) for held in each["conversations"]]
        for each in document["scenarios"]
    }


def test_one_call_anywhere_is_enough(project: Project) -> None:
    """If one call was seen in the run, the agent's calls are visible and its bans count."""

    def answer(body: dict[str, Any]) -> Any:
        return tool_call("look") if body["messages"][-1]["content"] == "Look." else "Fine."

    mocked = 'scenario("reserves", turns=["Hi."], skip=True, tools={"reserve_item": 1})'
    project.scenario(f'{QUIET}\nscenario("looks", turns=["Look."], tools={TOOLS}, check=print)\n{mocked}')
    with ScriptedAgent(answer) as server:
        project.config(server.endpoint)
        done = project.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert TOLD not in done.stdout
    assert project.results["summary"]["warnings"] == []
    assert project.results["agents"] == {"agent": {"toolCalls": "returned"}}
    assert "vacuous" not in json.dumps(project.results)
    [call] = project.scenario_result("looks")["conversations"][0]["turns"][0]["toolCalls"]
    assert (call["mocked"], call["seenBy"]) == (True, "caller")


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({}, False),
        ({"trajectory": {"max_turns": 3}}, False),
        ({"tools": TOOLS}, True),
        ({"trajectory": {"max_calls": 3}}, True),
        ({"turns": [{"user_message": "Hi.", "trajectory": {"forbidden": ["x"]}}]}, True),
    ],
)
def test_no_warning_if_no_scenario_is_about_calls(
    agent: ScriptedAgent, options: dict[str, Any], told: bool
) -> None:
    """A silent agent gets a warning only if a scenario is about calls."""
    found = run_scenarios([scenario("s", **{"turns": ["Hi."], **options})], agent=agent)
    assert [warning.agent for warning in found.silent] == (["agent"] if told else [])


def test_an_agent_that_only_breaks_down_is_not_silent() -> None:
    """An agent that never replied gets no warning, because its errors explain the silence."""
    with ScriptedAgent([Raw(status=500)]) as server:
        found = run_scenarios([scenario("s", turns=["Hi."], tools=TOOLS)], agent=server)
    assert found.scenarios[0].verdict.status is Status.FAILED
    assert found.silent == ()
