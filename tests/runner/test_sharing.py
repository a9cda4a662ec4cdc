"""Stored conversations share their common parts, and different values stay separate."""

from dataclasses import replace

from agentest.domain.end_reason import Ending
from agentest.domain.results import ConversationResult, TurnEvaluation
from agentest.domain.transcript import Conversation, ToolCall, Turn, Usage
from agentest.runner.conversation_run import PartSharing


def call(**more: object) -> ToolCall:
    # Made anew, as what comes from a worker is.
    return replace(ToolCall("find", {}, None, True, 0), **more)


def result(
    *calls: ToolCall, usage: Usage | None = None, judged_ms: float | None = None
) -> ConversationResult:
    turn = Turn(0, "", "", tool_calls=tuple(calls), usage=usage or Usage(), latency_ms=2.5)
    conversation = Conversation("c-1", (turn,), Ending.SCRIPT)
    return ConversationResult(conversation, turns=(TurnEvaluation(0, judged_ms=judged_ms),))


def test_results_are_the_same_and_have_their_parts_in_common() -> None:
    sharing = PartSharing()
    given = [result(call()), result(call())]
    one, other = map(sharing.shared, given)
    assert [one, other] == given
    assert one.conversation.turns[0].tool_calls is other.conversation.turns[0].tool_calls
    assert one.turns[0] is other.turns[0]
    assert one.conversation.turns[0].usage is other.conversation.turns[0].usage


def test_different_values_are_not_shared() -> None:
    sharing = PartSharing()
    sharing.shared(result(call()))
    for differs in (
        call(args=""),
        call(args={"a": 1}),
        call(result=0),
        call(error="no"),
        call(call_id="7"),
        call(round=2),
        call(duration_ms=1.5),
    ):
        (kept,) = sharing.shared(result(differs)).conversation.turns[0].tool_calls
        assert kept is differs


def test_usage_and_times_of_judges_are_kept() -> None:
    sharing = PartSharing()
    sharing.shared(result())
    kept = sharing.shared(result(usage=Usage(3, 4), judged_ms=12.0))
    assert kept.conversation.turns[0].usage == Usage(3, 4)
    assert kept.turns[0].judged_ms == 12.0
