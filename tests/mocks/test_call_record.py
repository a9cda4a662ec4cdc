"""The record of a conversation's calls: reports of one call by several sources are merged."""

from __future__ import annotations

from collections import Counter
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentest.domain.tool_visibility import Approval, SeenBy
from agentest.domain.transcript import ARGUMENTS_UNKNOWN, CANCELLED, NO_MOCK, ToolCall, waiting
from agentest.mocks.calls import CallRecord
from agentest.mocks.resolver import MockResolver

CALLER, AGENT, SERVER, SPANS = SeenBy.CALLER, SeenBy.AGENT, SeenBy.MOCK_SERVER, SeenBy.SPANS
UNTOLD: Any = None


def seen(name: str, by: SeenBy = AGENT, id: str | None = None, args: Any = UNTOLD, **more: Any) -> ToolCall:
    """A call of turn 0 without arguments or result."""
    given = {"result": None, "mocked": False, "turn_index": 0, **more}
    return ToolCall(name, {} if args is UNTOLD else args, seen_by=by, call_id=id, **given)


@pytest.mark.parametrize(
    ("call", "outcome", "failed"),
    [
        (seen("t", mocked=True), "answered", False),
        (seen("t", result=0), "answered", False),
        (seen("t", by_real_tool=True), "answered", False),
        (seen("t", SeenBy.MODEL), "answered", False),
        (seen("t", args=None, result=1, invalid_arguments=ARGUMENTS_UNKNOWN), "answered", False),
        (seen("t", error="503"), "failed", True),
        (seen("t", result={"error": "503"}), "failed", True),
        (seen("t", mocked=True, error=NO_MOCK), "failed", True),
        (seen("t", CALLER, args=[], invalid_arguments="not an object"), "refused", True),
        (seen("t", CALLER, error=NO_MOCK), "unmocked", True),
        (seen("t", CALLER), "unanswered", False),
        (seen("t", SERVER), "unanswered", False),
        (seen("t"), "unreported", False),
        (seen("t", SPANS), "unreported", False),
        (seen("t", mocked=True, error=CANCELLED), "cancelled", True),
        (waiting(seen("t")), "waiting", True),
        (seen("t", error="denied", approval=Approval.DENIED), "denied", True),
        (seen("t", result=1, approval=Approval.GRANTED), "answered", False),
    ],
)
def test_a_call_has_one_outcome(call: ToolCall, outcome: str, failed: bool) -> None:
    """It is read in one place from the answer, the error, the approval, the arguments and the source."""
    assert (call.outcome, call.failed) == (outcome, failed)


def shown(record: CallRecord) -> list[str]:
    """Format each call as `name id seen_by+also`."""
    return [
        " ".join(
            [
                call.name,
                call.call_id or "-",
                "+".join([call.seen_by.value, *(s.value for s in call.also_seen_by)]),
            ]
        )
        for call in record.calls
    ]


MERGES: dict[str, tuple[list[list[ToolCall]], list[str]]] = {
    "by id, whatever the arguments": (
        [[seen("pay", CALLER, "c1", {"n": 5})], [seen("pay", AGENT, "c1", {})]],
        ["pay c1 caller+agent"],
    ),
    "ids of one protocol tell calls apart": (
        [[seen("pay", CALLER, "c1")], [seen("pay", AGENT, "c2")]],
        ["pay c1 caller", "pay c2 agent"],
    ),
    "an id is that of one tool": (
        [[seen("pay", CALLER, "c1")], [seen("look", AGENT, "c1")]],
        ["pay c1 caller", "look c1 agent"],
    ),
    "by name and arguments where an id is missing": (
        [[seen("pay", CALLER, None, {"n": 1})], [seen("pay", AGENT, "c1", {"n": 1.0})]],
        ["pay c1 caller+agent"],
    ),
    "spans have ids of their own": (
        [[seen("pay", AGENT, "adk-1", {"n": 1})], [seen("pay", SPANS, "call_9", {"n": 1})]],
        ["pay adk-1 agent+spans"],
    ),
    "true is not 1": (
        [[seen("pay", CALLER, None, {"n": 1})], [seen("pay", AGENT, None, {"n": True})]],
        ["pay - caller", "pay - agent"],
    ),
    "arguments that one source does not tell": (
        [[ToolCall("pay", None, 1, False, 0, seen_by=AGENT)], [seen("pay", SPANS, None, {"n": 1})]],
        ["pay - agent+spans"],
    ),
    "one source, two equal calls": (
        [[seen("pay"), seen("pay")], [seen("pay")]],
        ["pay - agent", "pay - agent", "pay - agent"],
    ),
    "one source, one id, two calls": (
        [[seen("pay", AGENT, "c1"), seen("pay", AGENT, "c1")], [seen("pay", AGENT, "c1")]],
        ["pay c1 agent", "pay c1 agent", "pay c1 agent"],
    ),
    "each call of one source is one of the other at most": (
        [[seen("pay", CALLER)], [seen("pay"), seen("pay")]],
        ["pay - caller+agent", "pay - agent"],
    ),
    "three sources": (
        [[seen("pay", SPANS)], [seen("pay", AGENT, "c1")], [seen("pay", SERVER, mocked=True)]],
        ["pay c1 mock-server+agent+spans"],
    ),
    "calls of another turn": (
        [[seen("pay", CALLER)], [seen("pay", AGENT, turn_index=1)]],
        ["pay - caller", "pay - agent"],
    ),
    "what is new stands where it was told": (
        [[seen("b", CALLER), seen("d", CALLER)], [seen(name) for name in "abcde"]],
        ["a - agent", "b - caller+agent", "c - agent", "d - caller+agent", "e - agent"],
    ),
}


@pytest.mark.parametrize("name", MERGES)
def test_reports_of_one_call_are_merged(name: str) -> None:
    """Reports of one call become one record that lists its sources; other reports stay separate."""
    told, expected = MERGES[name]
    record = CallRecord()
    for batch in told:
        record.observe(batch)
    assert shown(record) == expected


def test_a_repeated_history() -> None:
    """A repeated history adds only new calls and fills in missing results."""
    record = CallRecord()
    first = [seen("look", AGENT, "c1", {"n": 1}, result=[1]), seen("wait", AGENT, "c2")]
    record.begin(seen("pay", CALLER, "c3", {"n": 5}, mocked=True))
    record.observe(first)
    again = [seen("look", AGENT, "c1", {"n": 1}, result=[1]), seen("wait", AGENT, "c2", result="done")]
    again = [*again, seen("pay", AGENT, "c3", {"n": 5}, result="paid"), seen("look", AGENT, "c4", {"n": 1})]
    later = [ToolCall(**{**_fields(call), "turn_index": 1}) for call in again]
    for _ in range(2):
        record.observe(later, may_repeat=True)
        assert sorted(shown(record)) == [
            "look c1 agent",
            "look c4 agent",
            "pay c3 caller+agent",
            "wait c2 agent",
        ]
    assert [call.result for call in record.of_turn(0)] == [None, [1], "done"]
    assert [call.call_id for call in record.of_turn(1)] == ["c4"]


def test_a_reused_id() -> None:
    """If the agent restarts its ids in each turn, equal calls of two turns stay two calls."""
    record = CallRecord()
    for turn in range(2):
        record.observe([seen("look", AGENT, "1", turn_index=turn)])
    record.observe([seen("look", AGENT, "1", {"n": 2}, turn_index=2)], may_repeat=True)
    assert [len(record.of_turn(turn)) for turn in range(3)] == [1, 1, 1]


def test_the_answering_source_has_priority() -> None:
    """Arguments, result and `mocked` come from the source that answered; others fill in what it lacks."""
    record = CallRecord()
    record.observe([seen("pay", SPANS, None, {"n": 1}), seen("look", SPANS, None, {"n": 2}, result="spans")])
    record.observe(
        [seen("pay", AGENT, "c1", {"n": 1}, result={"ok": True}), seen("look", AGENT, None, {"n": 2})]
    )
    assert [(c.args, c.result, c.mocked, c.seen_by) for c in record.calls] == [
        ({"n": 1}, {"ok": True}, False, AGENT),
        ({"n": 2}, "spans", False, AGENT),
    ]
    untold = CallRecord()
    untold.observe([ToolCall("pay", None, "paid", False, 0, "not told", seen_by=AGENT)])
    untold.observe([seen("pay", SPANS, None, {"n": 1})])
    [found] = untold.calls
    assert (found.args, found.invalid_arguments, found.result) == ({"n": 1}, None, "paid")
    assert (found.seen_by, found.also_seen_by) == (AGENT, (SPANS,))
    mocked = CallRecord()
    call = mocked.begin(seen("pay", CALLER, "c1", {"n": 1}, mocked=True))
    mocked.observe([seen("pay", AGENT, "c1", {"n": 1}, result={"real": True})])
    mocked.finish(call, {"mock": True})
    [kept] = mocked.calls
    assert (kept.result, kept.mocked, kept.also_seen_by) == ({"mock": True}, True, (AGENT,))


def test_a_request_is_always_a_new_call() -> None:
    """A call that Agentest must answer is always new, whatever was reported before."""

    async def hold() -> list[tuple[SeenBy, str | None]]:
        mocks = MockResolver({"pay": 1}, scenario="s", conversation_id="c")
        mocks.observe([seen("pay", AGENT, None, {})])
        await mocks.resolve_json("pay", "{}", 0, "c1")
        await mocks.resolve_json("pay", "{}", 0, "c1")
        return [(call.seen_by, call.call_id) for call in mocks.record.of_turn(0)]

    assert anyio.run(hold) == [(AGENT, None), (CALLER, "c1"), (CALLER, "c1")]


def _fields(call: ToolCall) -> dict[str, Any]:
    return {name: getattr(call, name) for name in ToolCall.__slots__}


# Whatever is told, in whatever pieces

CALLS = st.tuples(st.sampled_from("ab"), st.integers(0, 1))
HISTORIES = st.lists(CALLS, max_size=8)


@given(
    HISTORIES,
    st.lists(st.sampled_from([AGENT, SPANS, SERVER]), min_size=1, max_size=3, unique=True),
    st.data(),
)
def test_nothing_is_lost_or_doubled(
    history: list[tuple[str, int]], sources: list[SeenBy], data: st.DataObject
) -> None:
    """For any number of sources that report all or part of a history, at once or in pieces, every reported
    call is recorded once and in order."""
    record = CallRecord()
    told = Counter[int]()
    whole = data.draw(st.sampled_from(sources))
    for source in [whole, *(s for s in sources if s is not whole)]:
        part = history if source is whole else [c for c in history if data.draw(st.booleans())]
        cut = data.draw(st.integers(0, len(part)))
        for piece in (part[:cut], part[cut:]):
            record.observe([seen(name, source, None, {"n": n}) for name, n in piece])
        told[len(part)] += 1
    assert [(call.name, call.args["n"]) for call in record.calls] == history
    assert sum(1 + len(call.also_seen_by) for call in record.calls) == sum(
        n * times for n, times in told.items()
    )


@given(st.lists(HISTORIES, max_size=4), st.sampled_from([AGENT, SPANS]))
def test_snapshots_of_a_growing_history(turns: list[list[tuple[str, int]]], source: SeenBy) -> None:
    """Reporting the whole history with every answer gives the same record as reporting new calls."""
    snapshots, plain = CallRecord(), CallRecord()
    history: list[ToolCall] = []
    for index, calls in enumerate(turns):
        new = [
            seen(name, source, f"{index}.{i}", {"n": n}, turn_index=index)
            for i, (name, n) in enumerate(calls)
        ]
        history += new
        snapshots.observe(
            [ToolCall(**{**_fields(call), "turn_index": index}) for call in history], may_repeat=True
        )
        plain.observe(new)
    assert snapshots.calls == plain.calls
    assert [c.call_id for c in snapshots.calls] == [c.call_id for c in plain.calls]


def test_a_call_inserted_by_a_repeated_history() -> None:
    """A new call between two known ones is recorded at that position."""
    record = CallRecord()
    first, last = seen("look", id="c1"), seen("pay", id="c3")
    record.observe([first, last])
    record.observe([first, seen("ask", id="c2"), last], may_repeat=True)
    assert [call.name for call in record.calls] == ["look", "ask", "pay"]
    assert [call.name for call in record.of_turn(0)] == ["look", "ask", "pay"]


def test_a_span_matches_the_first_of_two_equal_calls_even_if_reported_late() -> None:
    """Calls of a turn are compared in the order they were made, not reported."""
    record = CallRecord()
    second = seen("pay", id="c2")
    record.observe([second])
    record.observe([seen("pay", id="c1"), second], may_repeat=True)
    record.observe([seen("pay", SPANS)])
    assert shown(record) == ["pay c1 agent+spans", "pay c2 agent"]
