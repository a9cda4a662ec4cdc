"""Visible calls of an agent with unseen calls: they can fail a scenario but never pass it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from jsonschema import validate
from project import Project
from pydantic import ValidationError

from agentest import TurnContext, scenario
from agentest.agents.port import AgentReply
from agentest.config.agent_types import advice_for_unseen_calls
from agentest.config.agents.over_http import HttpAgent
from agentest.conversation.turn_loop import ConversationSpec, TurnLoop
from agentest.conversation.user import ScriptedUser
from agentest.domain.messages import Message, UserText
from agentest.domain.results import ReasonKind, ScenarioResult, Status
from agentest.domain.tool_visibility import ToolVisibility
from agentest.mocks.resolver import MockResolver
from agentest.testing import ScriptedAgent, run_scenarios

SCHEMA = json.loads(
    (Path(__file__).parent.parent.parent / "agentest" / "schemas" / "results.schema.json").read_text()
)
UNSEEN = "calls of agent 'agent' cannot be seen"


def looks_and_books(messages: Any, ctx: TurnContext) -> str:
    """Record two calls, which may not be all."""
    ctx.record_tool("look", {"on": "Tuesday"}, ["9:00"])
    ctx.record_tool("book", {"at": "9:00"}, {"ok": True})
    return "Booked."


def one(trajectory: dict[str, Any], *, of_turn: bool = False) -> ScenarioResult:
    turn = {"user_message": "Book it.", "trajectory": trajectory} if of_turn else "Book it."
    made = scenario("s", turns=[turn], **({} if of_turn else {"trajectory": trajectory}))
    agent = {"type": "custom", "handler": looks_and_books, "tool_visibility": "unseen"}
    return run_scenarios([made], agent=agent).scenarios[0]


CONVICTED: dict[str, tuple[dict[str, Any], str]] = {
    "ban": ({"forbidden": ["book"]}, "forbidden calls were made: book"),
    "limit": ({"max_calls": 1}, "2 calls were made, at most 1 are allowed"),
    "limit of a tool": (
        {"max_calls_per_tool": {"look": 0}},
        "look was called 1 time, at most 0 are allowed",
    ),
    "strict": ({"expected": ["look", "pay"]}, "unexpected calls were made: book"),
    "strict, none expected": ({"expected": []}, "unexpected calls were made: look, book"),
    "strict, order": (
        {"expected": ["book", "look"]},
        "the order is wrong: book (call 2) is not expected after the calls before it",
    ),
    "unordered": ({"match_mode": "unordered", "expected": ["look"]}, "unexpected calls were made: book"),
    "within": ({"match_mode": "within", "expected": ["look"]}, "calls beyond the allowed ones: book"),
}
UNDECIDED: dict[str, dict[str, Any]] = {
    "ban": {"forbidden": ["pay"]},
    "limit": {"max_calls": 2},
    "limit of a tool": {"max_calls_per_tool": 1},
    "strict": {"expected": ["look", "book"]},
    "strict, more": {"expected": ["find", "look", "find", "book", "pay"]},
    "unordered": {"match_mode": "unordered", "expected": ["book", "look"]},
    "within": {"match_mode": "within", "expected": ["look", "book"]},
    "contains": {"match_mode": "contains", "expected": ["pay"]},
    "in order": {"match_mode": "in_order", "expected": ["book", "look"]},
    "of nothing": {"forbidden": [], "max_turns": 1, "max_calls": 9},
}


@pytest.mark.parametrize("of_turn", [False, True], ids=["scenario", "turn"])
@pytest.mark.parametrize("name", CONVICTED)
def test_visible_calls_can_fail(name: str, of_turn: bool) -> None:
    """A ban, limit or exact mode that a visible call violates fails, whatever else the agent did."""
    trajectory, says = CONVICTED[name]
    found = one(trajectory, of_turn=of_turn)
    assert found.verdict.status is Status.FAILED
    [reason] = found.verdict.reasons
    assert reason.kind is ReasonKind.TRAJECTORY
    assert says in reason.message
    assert "actual: look(on='Tuesday'), book(at='9:00')" in reason.message


@pytest.mark.parametrize("name", UNDECIDED)
def test_visible_calls_never_pass(name: str) -> None:
    """A result that depends on missing calls is errored, and shows the visible ones."""
    found = one(UNDECIDED[name])
    assert found.verdict.status is Status.ERRORED
    [reason] = found.verdict.reasons
    assert UNSEEN in reason.message
    assert "actual: look(on='Tuesday'), book(at='9:00')" in reason.message


# Answers that tell, though the type does not say so


class Telling:
    """Reports its calls in every answer except that to `Hush.`"""

    name = "agent"

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        said = messages[-1]
        return AgentReply("Done.", tells_calls=isinstance(said, UserText) and said.text != "Hush.")


def test_turns_record_whether_calls_were_reported() -> None:
    """A conversation reports its calls only if all of its turns do."""

    async def hold(*said: str) -> list[bool]:
        loop = TurnLoop(
            ConversationSpec("c", "s", 9),
            Telling(),
            ScriptedUser([UserText(text) for text in said]),
            MockResolver({}, scenario="s", conversation_id="c"),
        )
        held = await loop.run()
        return [*(turn.tells_calls for turn in held.turns), held.tells_calls]

    assert anyio.run(hold, "Hi.", "Ho.") == [True, True, True]
    assert anyio.run(hold, "Hi.", "Hush.") == [True, False, False]


def test_a_run_whose_answers_report_calls(project: Project) -> None:
    """If every turn reports calls, they count as reported, and a silent agent gets a warning. With one turn
    that does not, the conversation is errored."""
    form: dict[str, Any] = {
        "type": "http",
        "body": {"messages": "{{messages}}"},
        "reply": "choices[0].message.content",
    }
    project.write(
        "a.sim.py",
        """from agentest import scenario
turn = {"user_message": "b", "trajectory": {"max_calls": 0}}
scenario("ban", turns=["a", turn], trajectory={"forbidden": ["pay"]})
scenario("turns", turns=["a"], trajectory={"max_turns": 1})
""",
    )
    with ScriptedAgent(["1"]) as agent:
        form |= {"endpoint": agent.endpoint}
        project.config("", agent=form)
        assert project.run().returncode == 2
    told = project.results
    assert "tellsCalls" not in json.dumps(told)
    for each in told["scenarios"]:
        for turn in each["conversations"][0]["turns"]:
            turn["tellsCalls"] = True
    validate(told, SCHEMA)
    project.write("told.json", json.dumps(told))
    told["scenarios"][0]["conversations"][0]["turns"][0]["tellsCalls"] = False
    project.write("partly.json", json.dumps(told))

    done = project.agentest("judge", "told.json", "-v")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "not one tool call of agent 'agent' was seen" in done.stdout
    assert "(then add a scenario in which it calls a tool)" in done.stdout
    judged = json.loads((project.root / ".agentest" / "judged.json").read_text())
    assert judged["agents"] == {"agent": {"toolCalls": "reported", "noCallSeen": True}}
    [ban] = judged["scenarios"][0]["conversations"]
    assert (ban["trajectory"]["vacuous"], ban["perTurnTrajectory"][0]["vacuous"]) == (True, True)

    project.write("said.yaml", json.dumps({"agent": {**form, "tool_visibility": "unseen"}}))
    assert project.agentest("judge", "told.json", "--config", "said.yaml").returncode == 2
    assert project.agentest("judge", "partly.json").returncode == 2
    judged = json.loads((project.root / ".agentest" / "judged.json").read_text())
    assert judged["agents"] == {"agent": {"toolCalls": "unseen"}}
    [ban] = judged["scenarios"][0]["conversations"]
    assert UNSEEN in ban["trajectory"]["error"]
    assert ban["perTurnTrajectory"][0]["matched"] is True


class Blind(HttpAgent):
    """An agent whose calls are unseen unless `path` is set."""

    type: str = "blind"
    path: str | None = None

    @property
    def natural_visibility(self) -> ToolVisibility:
        return ToolVisibility.REPORTED if self.path else ToolVisibility.UNSEEN

    @property
    def ways_to_see(self) -> tuple[str, ...]:
        return ("set `path` to where its answers report them",)


def test_returned_is_refused_for_agents_that_return_no_calls() -> None:
    """Otherwise its mocks would be ignored. The error starts with the setting that makes calls visible."""
    settings = {"endpoint": "http://h", "tool_visibility": "returned"}
    with pytest.raises(ValidationError) as caught:
        Blind.model_validate(settings)
    assert "hands no call to the caller; write `unseen` (the default); or set `path` to" in str(caught.value)
    blind = Blind.model_validate({"endpoint": "http://h"})
    assert (
        "To see them, set `path` to where its answers report them or set model_gateway: {port: 8900}"
        in advice_for_unseen_calls("b", blind)
    )


# What holds because nothing was ever called

WITHOUT_CALLS: list[dict[str, Any]] = [
    {"forbidden": ["pay"]},
    {"max_calls": 3},
    {"max_calls_per_tool": {"pay": 1}},
    {"expected": []},
    *({"match_mode": mode, "expected": []} for mode in ("unordered", "contains", "in_order")),
    {"match_mode": "within", "expected": ["look"]},
]


@pytest.mark.parametrize("visibility", ["returned", "reported"])
def test_checks_that_passed_without_any_call(visibility: str) -> None:
    """If a run sees no call, every ban, limit and mode that passed has shown nothing, and a warning lists the
    scenarios; a limit on turns is still valid."""
    specs = [*WITHOUT_CALLS, {"max_turns": 1}]
    made = [scenario(f"s{n}", turns=["Hi."], trajectory=spec) for n, spec in enumerate(specs)]
    handler = {"type": "custom", "handler": lambda messages, ctx: "Fine.", "tool_visibility": visibility}
    found = run_scenarios(made, agent=handler)
    held = [s.conversations[0].trajectory for s in found.scenarios]
    assert [t.matched and t.without_calls for t in held if t] == [True] * len(WITHOUT_CALLS) + [False]
    [warning] = found.silent
    assert "and 5 more have mocks, trajectories or expected calls" in warning.message
    assert "(then add a scenario in which it calls a tool)" in warning.message
    assert not any(each.verdict.passed for each in found.scenarios)
