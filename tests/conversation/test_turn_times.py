"""How a turn's time was spent, and other facts for readers of a stored conversation."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio
import pytest
from anyio.lowlevel import checkpoint
from project import Project

from agentest import scenario
from agentest.agents.port import AgentReply, TurnContext
from agentest.agents.server_process import AgentServers, Positions
from agentest.conversation.in_process_calls import RequestCalls
from agentest.conversation.turn_loop import ConversationSpec, TurnLoop
from agentest.conversation.user import ScriptedUser
from agentest.domain.messages import Message, UserText
from agentest.domain.results import ConversationResult, ScenarioResult
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ServerOutput, ToolCall
from agentest.mocks.resolver import MockResolver
from agentest.scenarios.trajectory_parser import parse_trajectory
from agentest.store.codec import CODECS
from agentest.testing import Raw, ScriptedAgent, ScriptedModel, run_scenarios, tool_call
from agentest.trajectory.matcher import TrajectoryMatcher


def held(agent: Any, *, model: ScriptedModel | None = None, **given: Any) -> ScenarioResult:
    """Run one scenario with a mock for `look` and return its result."""
    judge = given.pop("judge", {})
    made = scenario("asks", **{"turns": ["Hi.", "And?"], "tools": {"look": lambda args, ctx: 1}, **given})
    with ScriptedAgent(agent) as under_test:
        [result] = run_scenarios([made], agent=under_test, model=model, judge=judge).scenarios
    return result


def first(result: ScenarioResult) -> ConversationResult:
    return result.conversations[0]


def test_the_waits_of_turns_are_those_of_their_conversation() -> None:
    """The waits of the turns for users and mocks add up to the conversation's, and each mock call is part of
    them."""
    conversation = first(held([tool_call("look"), "Yes.", [tool_call("look")] * 2, "No."]))
    turns, time = conversation.conversation.turns, conversation.time
    assert sum(turn.user_ms or 0 for turn in turns) == pytest.approx(time.user_ms)
    assert sum(turn.tools_ms or 0 for turn in turns) == pytest.approx(time.tools_ms)
    for turn in turns:
        took = [call.duration_ms for call in turn.tool_calls]
        assert all(took)
        assert sum(each or 0 for each in took) <= (turn.tools_ms or 0)


def test_an_unfinished_turn_has_its_times() -> None:
    """A turn that an agent error ended still has times for user, mocks and agent."""
    conversation = first(held(["Yes.", tool_call("look"), Raw(b"{broken")]))
    turns, left = conversation.conversation.turns, conversation.conversation.unfinished
    assert left
    assert (left.turn_index, len(left.tool_calls)) == (1, 1)
    assert sum(turn.user_ms or 0 for turn in turns) + (left.user_ms or 0) == pytest.approx(
        conversation.time.user_ms
    )
    assert left.tools_ms == pytest.approx(conversation.time.tools_ms)
    assert 0 < (left.agent_ms or 0) < conversation.time.agent_ms
    assert (left.started_at or "") >= (turns[0].started_at or "")


def test_waiting_for_server_output_is_agent_time() -> None:
    """After a failed turn, waiting for the agent's server output does not count as our time."""
    waits: list[float] = []

    class Servers(AgentServers):
        async def since(self, positions: Positions) -> tuple[ServerOutput, ...]:
            began = perf_counter()
            await checkpoint()
            waits.append((perf_counter() - began) * 1000)
            return ()

    class Silent:
        name = "bot"

        async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
            return AgentReply("")

    mocks = MockResolver({}, scenario="s", conversation_id="c")
    user = ScriptedUser([UserText("Hi.")])
    loop = TurnLoop(ConversationSpec("c", "s", 2), Silent(), user, mocks, servers=Servers())
    conversation = anyio.run(loop.run)
    left, [waited_ms] = conversation.unfinished, waits
    assert left
    assert conversation.time.agent_ms >= (left.agent_ms or 0) + waited_ms


def test_a_reported_call_has_no_duration() -> None:
    """Only calls that we answer are measured, and a later report does not change their time."""
    mocks = MockResolver({}, scenario="s", conversation_id="c", unmocked_tools="passthrough")
    RequestCalls(0, mocks).record_tool("look", {"n": 1})
    assert mocks.calls[0].duration_ms is None
    real = RequestCalls(0, mocks).real_call("find", {})
    assert real
    assert mocks.calls[1].duration_ms is None
    real.answered("x")
    took = mocks.calls[1].duration_ms
    mocks.observe((ToolCall("find", {}, "x", False, 0, seen_by=SeenBy.SPANS),))
    assert took is not None
    assert [call.duration_ms for call in mocks.calls] == [None, took]


@pytest.mark.parametrize(("batch", "known"), [("off", True), ("turn", True), ("conversation", False)])
@pytest.mark.parametrize("skip_decided", [False, True])
def test_judging_time_of_turns(batch: str, known: bool, skip_decided: bool) -> None:
    """Each turn has its judging time, unless one call judged all turns."""
    judge = {"batch": batch, "skip_decided": skip_decided}
    model = ScriptedModel(scores={"helpfulness": 4})
    result = first(held(["Yes.", "No."], model=model, judge=judge, goal="Ask.", metrics=["helpfulness"]))
    assert [bool(turn.judged_ms) for turn in result.turns] == [known, known]


def test_without_judges_there_is_no_judging_time() -> None:
    """Without a model or turn questions, the time is unknown, not zero."""
    without = first(held(["Yes.", "No."], goal="Ask.", metrics=["helpfulness"]))
    aimless = first(held(["Yes.", "No."], model=ScriptedModel(), metrics=["goal_completion"], goal="Ask."))
    assert {turn.judged_ms for turn in (*without.turns, *aimless.turns)} == {None}


def test_measurements_are_stored() -> None:
    """Times, alignment, goal and profile are read back unchanged."""
    spec = {"expected": ["look", "find"]}
    result = held(
        [tool_call("look"), "Yes.", "No."],
        model=ScriptedModel(scores={"helpfulness": 4}),
        goal="Ask.",
        profile="Ada",
        metrics=["helpfulness"],
        trajectory=spec,
    )
    written = json.loads(json.dumps(CODECS.write(first(result))))
    turn, again = written["turns"][0], CODECS.read(ConversationResult, written)
    assert {"userMs", "toolsMs"} <= turn.keys()
    assert "durationMs" in turn["toolCalls"][0]
    assert "judgedMs" in written["evaluation"]["turnEvaluations"][0]
    assert written["trajectory"]["alignment"] == [
        {"expected": "look", "call": 0, "status": "matched"},
        {"expected": "find", "call": None, "status": "missing", "tool": "find"},
    ]
    rewritten = json.loads(json.dumps(CODECS.write(again)))
    for part in ("turns", "evaluation", "trajectory"):
        assert rewritten[part] == written[part]
    entry = CODECS.write(result)
    assert (entry["goal"], entry["profile"]) == ("Ask.", "Ada")
    assert "alignment" not in json.dumps(entry["reasons"])
    read = CODECS.read(ScenarioResult, entry)
    assert (read.goal, read.profile) == ("Ask.", "Ada")


def test_unknown_values_are_not_written() -> None:
    """Scripted scenarios have no goal or profile, and files without times can be read."""
    result = held(["Yes.", "No."])
    entry = CODECS.write(result)
    assert not entry.keys() & {"goal", "profile"}
    written = CODECS.write(first(result))
    assert "judgedMs" not in json.dumps(written)
    for turn in written["turns"]:
        del turn["userMs"], turn["toolsMs"]
    turns = CODECS.read(ConversationResult, written).conversation.turns
    assert {(turn.user_ms, turn.tools_ms) for turn in turns} == {(None, None)}


def test_workers_send_measurements_without_secrets(tmp_path: Path) -> None:
    """With workers, results.json has times, alignment and goal, and no secret."""
    project = Project(tmp_path)
    project.scenario(
        "import os\n"
        "scenario('asks', turns=['Hi.'], goal='Log in with ' + os.environ['BOT_TOKEN'],\n"
        "    tools={'look': 1}, trajectory={'match_mode': 'contains', 'expected': ['look']})\n"
    )
    with ScriptedAgent(lambda body: tool_call("look") if len(body["messages"]) == 1 else "Yes.") as agent:
        project.config(agent.endpoint)
        project.run("--workers", "2", env={"BOT_TOKEN": "tell-nobody-of-this"})
    [result] = project.results["scenarios"]
    [talk] = result["conversations"]
    [turn] = talk["turns"]
    assert result["goal"] == "Log in with [redacted]"
    assert turn["userMs"] >= 0
    assert turn["toolCalls"][0]["durationMs"] <= turn["toolsMs"]
    assert talk["trajectory"]["alignment"] == [{"expected": "look", "call": 0, "status": "matched"}]
    assert "tell-nobody-of-this" not in (tmp_path / ".agentest/results.json").read_text()


def test_stored_trajectories_are_small() -> None:
    """The text of an expected call is limited, however long its arguments are."""
    wanted = {"name": "look", "args": {"q": "x" * 100_000}}
    result = TrajectoryMatcher(parse_trajectory({"expected": [wanted]})).match([])
    assert result
    assert len(result.alignment[0].expected or "") <= 300
