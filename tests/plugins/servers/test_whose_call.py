"""Whose call is it: calls that come to a mock server, with many conversations under way at once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import anyio
import pytest
from tool_agents import call_tool, names_by, tool_agent

from agentest import scenario
from agentest.agents.port import AgentReply, NoReply
from agentest.conversation.turn_loop import ConversationSpec, TurnLoop
from agentest.conversation.user import NextMessage
from agentest.domain.end_reason import Ending
from agentest.domain.events import Noted
from agentest.domain.results import ConversationResult, RunResult, Status
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Blame, Conversation, ToolCall, Turn
from agentest.domain.verdict import run_status
from agentest.judging.evaluation import ConversationEvaluation
from agentest.judging.evaluator import ScenarioEvaluator
from agentest.mocks.resolver import MockResolver
from agentest.plugins.servers.port import Identity, ServedCall
from agentest.plugins.servers.server_calls import MockServerCalls
from agentest.scenarios.model import Scenario
from agentest.support.trace_context import new_key
from agentest.testing import arun_scenarios

NAMED = ("path", "header", "session", "_meta", "_meta trace", "baggage", "traceparent", "_meta first")


def run(scenarios: list[Scenario], handler: Any, notes: list[str] | None = None, **keys: Any) -> RunResult:
    def hear(event: object) -> None:
        if isinstance(event, Noted) and notes is not None:
            notes.append(event.text)

    agent = {"type": "custom", "handler": handler, "mcp_mock": True, "tool_visibility": "reported", **keys}

    async def go() -> RunResult:
        with anyio.fail_after(60):
            return await arun_scenarios(
                scenarios, agent=agent, on_event=hear, max_concurrency=50, strict=False
            )

    return anyio.run(go)


def shops(count: int, **keys: Any) -> list[Scenario]:
    """Scenarios that each have answers of their own; those whose number ends in 7 break their ban."""

    def shop(number: int) -> Scenario:
        def stock(args: dict[str, Any]) -> dict[str, Any]:
            return {"item": args["item"], "of": number}

        last = "cancel x" if number % 10 == 7 else "stock b"
        first = {"user_message": f"stock a{number}; stock tea", "expect": {"contains": f'"of": {number}}}'}}
        return scenario(
            f"s{number}",
            turns=[first, last],
            tools={"stock": stock, "cancel": {"ok": True}},
            trajectory={"match_mode": "contains", "expected": ["stock"], "forbidden": ["cancel"]},
            **keys,
        )

    return [shop(number) for number in range(count)]


@pytest.mark.parametrize("how", NAMED)
def test_each_call_is_its_conversations(how: str) -> None:
    """By each of the names, 20 conversations at once get their own answers, and each broken ban is caught."""
    result = run(shops(20), tool_agent(how))
    failed = {s.name for s in result.scenarios if s.verdict.status is Status.FAILED}
    assert failed == {"s7", "s17"}
    assert len(result.with_status(Status.PASSED)) == 18
    calls = [c for s in result.scenarios for r in s.conversations for c in r.conversation.tool_calls]
    assert len(calls) == 60
    assert {c.seen_by for c in calls} == {SeenBy.MOCK_SERVER}
    assert all(c.mocked for c in calls)


def test_calls_without_a_name() -> None:
    """They belong to the only conversation: the agent's run one at a time, with a note."""
    notes: list[str] = []
    result = run(shops(20), tool_agent("nothing"), notes)
    assert {s.name for s in result.scenarios if s.verdict.status is Status.FAILED} == {"s7", "s17"}
    assert not result.unclaimed
    assert [note for note in notes if "one at a time" in note] == [notes[0]]


def test_a_call_of_nobody() -> None:
    """It is refused with words for the agent, answered by no mock, and the run is errored."""
    told: list[dict[str, Any]] = []

    async def stranger(messages: list[dict[str, Any]], ctx: Any) -> str:
        url = f"{ctx.mcp_url.rpartition('/')[0]}/ffffffffffffffffffffffff"
        told.append(await call_tool(url, "stock", {"item": "tea"}))
        return "done"

    result = run([scenario("a", turns=["go"], tools={"stock": 3})], stranger)
    assert told[0]["isError"]
    assert "not a conversation of this run" in told[0]["content"][0]["text"]
    assert [s.verdict.status for s in result.scenarios] == [Status.PASSED]
    assert run_status(result) is Status.ERRORED
    assert "1 call of tool 'stock'" in result.unclaimed[0].message
    assert not result.scenarios[0].conversations[0].conversation.tool_calls


JUDGED: dict[str, tuple[dict[str, Any], Status]] = {
    "expects it": (
        {"trajectory": {"match_mode": "contains", "expected": ["stock"]}},
        Status.ERRORED,
    ),
    "expects it of the turn": (
        {"turns": [{"user_message": "go", "trajectory": {"match_mode": "contains", "expected": ["stock"]}}]},
        Status.ERRORED,
    ),
    "expects its answer": (
        {"turns": [{"user_message": "go", "expect": {"contains": "3"}}, "go on"]},
        Status.ERRORED,
    ),
    "expects what comes of it": (
        {"turns": ["go", {"user_message": "early", "expect": {"contains": "3"}}]},
        Status.ERRORED,
    ),
    "bans what may have been it": ({"trajectory": {"forbidden": ["stock"]}}, Status.ERRORED),
    "bans what was made": (
        {"turns": ["cancel"], "trajectory": {"forbidden": ["cancel"]}},
        Status.FAILED,
    ),
    "its agent breaks": ({"turns": ["break"]}, Status.ERRORED),
    "judged before it": (
        {"turns": [{"user_message": "early", "expect": {"contains": "3"}}, "go"]},
        Status.FAILED,
    ),
    "expects nothing": ({}, Status.PASSED),
}


@pytest.mark.parametrize("case", JUDGED)
def test_results_after_a_refused_call(case: str) -> None:
    """Its conversation is unknown, so no agent fails for a missing call or passes a ban."""
    keys, status = JUDGED[case]

    async def stranger(messages: list[dict[str, Any]], ctx: Any) -> str:
        said = messages[-1]["content"]
        if said == "early":
            return "done"
        base = ctx.mcp_url.rpartition("/")[0]
        await call_tool(f"{base}/ffffffffffffffffffffffff", "stock", {"item": "tea"})
        if said == "cancel":
            await call_tool(ctx.mcp_url, "cancel", {})
        if said == "break":
            raise RuntimeError("no stock")
        return "done"

    tools = {"stock": 3, "cancel": 1}
    result = run([scenario("a", **{"turns": ["go"], "tools": tools, **keys})], stranger)
    found = result.scenarios[0]
    assert found.verdict.status is status
    told = "a call of 'stock' that it may have made was refused: the path names 'ffffff"
    if status is Status.ERRORED:
        assert told in found.verdict.reasons[0].message
    assert "set exclusive: true" in result.unclaimed[0].message


def test_an_agent_that_never_calls_the_mock_server() -> None:
    """A warning says that a pass may be vacuous, because real tools may have run."""

    async def silent(messages: list[dict[str, Any]], ctx: Any) -> str:
        return "done"

    ban = scenario("a", turns=["go"], tools={"stock": 3}, trajectory={"forbidden": ["stock"]})
    [warning] = run([ban], silent).silent
    assert "its tools never called the mock servers" in warning.message
    assert "tool_visibility" not in warning.message


def test_calls_that_lose_their_names() -> None:
    """If many conversations run at once, a call without a name may be of any of them."""
    wanted = {"match_mode": "contains", "expected": ["stock"]}
    together = anyio.Event()
    begun: list[str] = []

    async def forgetful(messages: list[dict[str, Any]], ctx: Any) -> str:
        begun.append(ctx.scenario)
        if len(begun) == 5:
            together.set()
        if len(begun) > 2:
            await together.wait()
        how = "nothing" if ctx.scenario == "s4" else "path"
        await call_tool(name="stock", args={}, **names_by(how, ctx))
        return "done"

    tools = {"stock": 3}
    made = [scenario(f"s{n}", turns=["go"], tools=tools, trajectory=wanted) for n in range(5)]
    result = run(made, forgetful)
    assert not result.with_status(Status.FAILED)
    assert result.scenarios[4].verdict.status is Status.ERRORED
    assert [s.verdict.status for s in result.scenarios[:2]] == [Status.PASSED] * 2


def test_a_call_that_comes_after_the_end() -> None:
    """It names an ended conversation, and reaches no other."""
    late: list[dict[str, Any]] = []

    async def handler(messages: list[dict[str, Any]], ctx: Any) -> str:
        if late:
            told = await call_tool(name="stock", args={}, **late[0])
            return str(told["content"][0]["text"])
        late.append(names_by("header", ctx))
        return "done"

    names = ("a", "b")
    result = run([scenario(name, turns=["go"], tools={"stock": 3}) for name in names], handler)
    assert [len(s.conversations[0].conversation.tool_calls) for s in result.scenarios] == [0, 0]
    assert "it belongs to conversation a-1 of agent 'agent', which has ended" in result.unclaimed[0].message


SPEC = ConversationSpec("a-1", "a", 3)


class LateUser:
    """Says one thing; before it falls silent, the agent's call of that turn comes."""

    def __init__(self, served: MockServerCalls) -> None:
        self._served = served

    async def next_message(self, turns: Sequence[Turn]) -> NextMessage | Ending:
        if not turns:
            return NextMessage("go")
        await self._served.answer(ServedCall(tool="cancel", arguments={}))
        return Ending.SCRIPT


class Done:
    name = "agent"

    async def reply(self, messages: Any, ctx: Any) -> AgentReply:
        return AgentReply("done")


@pytest.mark.parametrize("unknown", ["fetch", "cancel"])
def test_a_call_after_the_last_reply(unknown: str) -> None:
    """It can still end its conversation."""
    tools = {"cancel": len} if unknown == "cancel" else {}
    mocks = MockResolver(tools, scenario="a", conversation_id="a-1")
    who = Identity(key=new_key(), session_id=None, conversation_id="a-1", scenario="a", agent="agent")
    served = MockServerCalls(who, mocks)
    loop = TurnLoop(SPEC, Done(), LateUser(served), mocks, [served])
    conversation = anyio.run(loop.run)
    assert conversation.failure
    assert "tool 'cancel'" in conversation.failure.message
    assert len(conversation.turns) == 1


def test_an_agent_that_ran_a_real_tool_and_then_broke() -> None:
    """The real tool is reported next to the agent's error: errored, not failed."""

    class Breaks:
        name = "agent"

        async def reply(self, messages: Any, ctx: Any) -> AgentReply:
            ran = ToolCall("cancel", {}, "cancelled", False, 0, seen_by=SeenBy.AGENT)
            raise NoReply("the stream was cut", observed=(ran,))

    mocks = MockResolver({"cancel": 1}, scenario="a", conversation_id="a-1")
    who = Identity(key=new_key(), session_id=None, conversation_id="a-1", scenario="a", agent="agent")
    served = MockServerCalls(who, mocks)
    loop = TurnLoop(SPEC, Breaks(), LateUser(served), mocks, [served])
    failure = anyio.run(loop.run).failure
    assert failure
    assert failure.blame is Blame.INTERNAL
    assert "the real tool ran" in failure.message
    assert "the stream was cut" in failure.message


def test_a_call_after_the_reply() -> None:
    """It belongs to the turn that has just closed: it breaks the bans of turn and scenario."""
    banned = {"match_mode": "contains", "expected": [], "forbidden": ["cancel"]}
    ban = scenario("a", turns=[{"user_message": "go", "trajectory": banned}], trajectory=banned)
    mocks = MockResolver({"cancel": 1}, scenario="a", conversation_id="a-1")
    who = Identity(key=new_key(), session_id=None, conversation_id="a-1", scenario="a", agent="agent")
    evaluation = ConversationEvaluation(ScenarioEvaluator(scenario=ban, scope="a"), 1)
    closed: list[tuple[Turn, ...]] = []

    async def go() -> ConversationResult:
        served = MockServerCalls(who, mocks)
        loop = TurnLoop(SPEC, Done(), LateUser(served), mocks, [served], on_turn=closed.append)
        conversation = await loop.run()
        await evaluation.add_turn(closed[0])
        await evaluation.add_conversation(conversation)
        return evaluation.result(conversation)

    result = anyio.run(go)
    assert closed[0][0].tool_calls == ()
    assert [call.name for call in result.conversation.turns[0].tool_calls] == ["cancel"]
    assert result.trajectory
    assert not result.trajectory.matched
    assert result.turns[0].trajectory
    assert not result.turns[0].trajectory.matched


def test_a_call_after_the_last_reply_that_nothing_answers() -> None:
    """It ends the conversation with an error, as at any other time, though no reply follows it."""
    mocks = MockResolver({}, scenario="a", conversation_id="a-1")
    who = Identity(key=new_key(), session_id=None, conversation_id="a-1", scenario="a", agent="agent")

    async def go() -> Conversation:
        served = MockServerCalls(who, mocks)
        return await TurnLoop(SPEC, Done(), LateUser(served), mocks, [served]).run()

    conversation = anyio.run(go)
    assert [call.name for call in conversation.turns[0].tool_calls] == ["cancel"]
    assert conversation.failure
    assert "'cancel'" in conversation.failure.message
