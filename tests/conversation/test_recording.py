"""Calls and tokens that a handler records."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from datetime import date
from typing import Any

import pytest

from agentest import TurnContext, call, scenario
from agentest.agents.port import AgentReply
from agentest.domain.results import RunResult
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Conversation, ToolCall, Usage
from agentest.support.errors import AgentError
from agentest.testing import run_scenarios

CALLS = [("look", {"on": "2026-01-02"}, ["9:00"]), ("book", {"at": "9:00"}, {"ok": True}), ("tell", {}, None)]


async def _async(messages: Any, ctx: TurnContext) -> dict[str, Any]:
    ctx.record_tool("look", {"on": date(2026, 1, 2)}, ("9:00",))
    await ctx.resolve_tool("book", {"at": "9:00"})
    ctx.record_tool("tell")
    ctx.record_usage(prompt_tokens=5)
    ctx.record_usage(prompt_tokens=2, completion_tokens=3)
    return {"content": "Booked.", "usage": {"prompt_tokens": 10, "completion_tokens": 1}}


def _plain(messages: Any, ctx: TurnContext) -> dict[str, Any]:
    ctx.record_tool("look", args={"on": date(2026, 1, 2)}, result=("9:00",))
    ctx.resolve_tool("book", {"at": "9:00"})
    ctx.record_tool(name="tell")
    ctx.record_usage(prompt_tokens=7, completion_tokens=3)
    return {"content": "Booked.", "usage": {"prompt_tokens": 10, "completion_tokens": 1}}


def hold(handler: Callable[..., Any], **options: Any) -> RunResult:
    made = scenario("s", turns=["Hi"], tools={"book": {"ok": True}}, **options)
    return run_scenarios([made], agent=handler)


def held(result: RunResult) -> Conversation:
    return result.scenarios[0].conversations[0].conversation


@pytest.mark.parametrize("handler", [_async, _plain])
def test_calls_and_tokens_belong_to_the_turn(handler: Callable[..., Any]) -> None:
    """Recorded and resolved calls are stored in the order they were made, and judged alike."""
    strict = {"match_mode": "strict", "expected": ["look", call("book", at="9:00"), "tell"]}
    result = hold(handler, trajectory=strict)
    (turn,) = held(result).turns
    assert [(c.name, c.args, c.result) for c in turn.tool_calls] == CALLS
    assert [(c.mocked, c.seen_by) for c in turn.tool_calls] == [
        (False, SeenBy.AGENT),
        (True, SeenBy.CALLER),
        (False, SeenBy.AGENT),
    ]
    assert turn.usage == Usage(17, 4)
    assert result.scenarios[0].verdict.passed
    banned = hold(handler, trajectory={"forbidden": ["tell"]})
    assert not banned.scenarios[0].verdict.passed


def test_calls_recorded_before_an_error_are_stored() -> None:
    """If a handler raises, its recorded calls are in the unfinished turn."""

    def raises(messages: Any, ctx: TurnContext) -> str:
        ctx.record_tool("look", {"on": 1}, "x")
        raise ValueError("no")

    conversation = held(hold(raises))
    assert conversation.unfinished is not None
    assert conversation.unfinished.tool_calls == (
        ToolCall("look", {"on": 1}, "x", False, 0, seen_by=SeenBy.AGENT),
    )
    assert conversation.failure is not None
    assert re.fullmatch(
        r"the handler raised ValueError: no \(test_recording\.py:\d+\)", conversation.failure.message
    )


def test_a_recorded_call_is_a_hand_over() -> None:
    """A reply without text is a turn if the agent recorded a call in it."""

    def silent(messages: Any, ctx: TurnContext) -> str:
        ctx.record_tool("hand_over")
        return ""

    (turn,) = held(hold(silent)).turns
    assert (turn.agent_message, [c.name for c in turn.tool_calls]) == ("", ["hand_over"])


@pytest.mark.parametrize(
    ("record", "said"),
    [
        (lambda ctx: ctx.record_tool(3), "record_tool: `name` must be the tool's name, found 3"),
        (lambda ctx: ctx.record_tool(""), "record_tool: `name` must be the tool's name, found ''"),
        (
            lambda ctx: ctx.record_tool("t", [1]),
            "record_tool('t'): `args` must be a mapping of arguments, found [1]",
        ),
        (
            lambda ctx: ctx.record_tool("t", {"x": print}),
            "record_tool('t'): `args` cannot be written as JSON: ",
        ),
        (
            lambda ctx: ctx.record_tool("t", {}, float("nan")),
            "record_tool('t'): `result` cannot be written as JSON: ",
        ),
        (lambda ctx: ctx.record_tool("t" * 300), "a tool whose name has 300 characters"),
        (
            lambda ctx: ctx.record_usage(prompt_tokens=-1),
            "record_usage: `prompt_tokens` must be a whole number of at least 0, found -1",
        ),
        (
            lambda ctx: ctx.record_usage(completion_tokens=True),
            "record_usage: `completion_tokens` must be a whole",
        ),
        (lambda ctx: ctx.record_usage(tokens=1), "the handler raised TypeError: "),
    ],
)
@pytest.mark.parametrize("in_thread", [False, True])
def test_values_that_cannot_be_recorded(record: Callable[[Any], None], said: str, in_thread: bool) -> None:
    """An invalid value is the handler's error, which says what was expected."""

    async def handler(messages: Any, ctx: Any) -> str:
        record(ctx)
        return "never"

    def plain(messages: Any, ctx: Any) -> str:
        record(ctx)
        return "never"

    failure = held(hold(plain if in_thread else handler)).failure
    assert failure is not None
    assert (failure.blame, said in failure.message) == ("agent", True), failure.message


def test_late_recordings_are_refused() -> None:
    """A thread that outlives its handler gets an error instead of recording into a later turn."""
    contexts: list[TurnContext] = []

    def handler(messages: Any, ctx: TurnContext) -> str:
        contexts.append(ctx)
        return "Done."

    (turn,) = held(hold(handler)).turns
    refused: list[str] = []

    def late() -> None:
        for record in (lambda: contexts[0].record_tool("t"), contexts[0].record_usage):
            with pytest.raises(AgentError) as caught:
                record()
            refused.append(str(caught.value))

    thread = threading.Thread(target=late)
    thread.start()
    thread.join()
    assert refused == [
        "record_tool('t'): the agent has answered already; record before the handler returns",
        "record_usage: the agent has answered already; record before the handler returns",
    ]
    assert turn.tool_calls == ()


def test_a_result_that_was_not_awaited() -> None:
    """A coroutine as a recorded result is an error with the handler's line."""

    async def look() -> str:
        return "found"

    def handler(messages: Any, ctx: TurnContext) -> str:
        call = look()
        try:
            ctx.record_tool("look", {}, {"found": [call]})
        finally:
            call.close()
        return "Done."

    failure = held(hold(handler)).failure
    assert failure is not None
    assert failure.blame == "agent"
    assert re.fullmatch(
        r"test_recording\.py:\d+: record_tool\('look'\): `result` is a call that was not awaited: "
        r"write `await look\(…\)`",
        failure.message,
    )


def test_a_context_without_a_conversation() -> None:
    """A hand-made context records nothing, and its error says so."""
    ctx = TurnContext("c", "s", 0, print, session_id="x")
    with pytest.raises(AgentError, match="nothing can be recorded here"):
        ctx.record_tool("t")
    assert AgentReply("x").observed == ()


@pytest.mark.parametrize("in_thread", [False, True])
def test_fifty_conversations_at_once(in_thread: bool) -> None:
    """Concurrent conversations do not mix their calls; a call that is resolved and recorded is one, and equal
    calls that are only recorded stay separate."""

    async def handler(messages: Any, ctx: TurnContext) -> str:
        who = {"who": ctx.conversation_id}
        await ctx.resolve_tool("book", who)
        for name, args in (("look", who), ("book", who), ("look", who)):
            ctx.record_tool(name, args)
        return "Done."

    def plain(messages: Any, ctx: TurnContext) -> str:
        who = {"who": ctx.conversation_id}
        ctx.resolve_tool("book", who)
        for name, args in (("look", who), ("book", who), ("look", who)):
            ctx.record_tool(name, args)
        return "Done."

    result = hold(plain if in_thread else handler, conversations_per_scenario=50)
    conversations = [each.conversation for each in result.scenarios[0].conversations]
    assert len(conversations) == 50
    for each in conversations:
        found = [(call.name, call.args["who"], call.also_seen_by) for call in each.tool_calls]
        me = each.conversation_id
        assert found == [("book", me, (SeenBy.AGENT,)), ("look", me, ()), ("look", me, ())]
