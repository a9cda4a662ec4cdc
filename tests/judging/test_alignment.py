"""The alignment of expected calls with actual calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentest import call
from agentest.domain.results import AlignedRow, RowStatus, TrajectoryResult
from agentest.domain.transcript import ARGUMENTS_UNKNOWN, ToolCall
from agentest.scenarios.trajectory import ExpectedCall, Trajectory
from agentest.scenarios.trajectory_parser import parse_trajectory
from agentest.trajectory.alignment import MOST_ROWS
from agentest.trajectory.call_facts import CallView
from agentest.trajectory.matcher import TrajectoryMatcher

MODES = ("strict", "unordered", "contains", "in_order", "within")


def raises(value: Any) -> bool:
    raise TypeError("no")


values = st.sampled_from([1, 2, True, [1]])
names = st.sampled_from("ab")
wanted_args = st.dictionaries(st.sampled_from("xy"), values | st.just(raises), max_size=2)
expectations = st.lists(
    st.builds(ExpectedCall, names, wanted_args | st.none(), st.sampled_from(["ignore", "partial", "exact"])),
    max_size=4,
)
told_calls = st.builds(
    ToolCall,
    names,
    st.dictionaries(st.sampled_from("xy"), values, max_size=2) | st.just("{broken"),
    st.none(),
    st.just(True),
    st.just(0),
)
UNTOLD = ToolCall("a", None, None, False, 0, ARGUMENTS_UNKNOWN)
calls_made = st.lists(told_calls | st.just(UNTOLD), max_size=5)
trajectories = st.builds(
    Trajectory,
    st.sampled_from(MODES),
    st.none() | expectations.map(tuple),
    expectations.map(tuple),
    st.none() | st.integers(0, 4),
    st.none(),
    st.none() | st.integers(0, 2) | st.dictionaries(names, st.integers(0, 2), max_size=2),
)


def made(tool: str, /, **given: Any) -> ToolCall:
    return ToolCall(tool, given, None, True, 0)


def result_of(spec: dict[str, Any], *calls: ToolCall, **more: Any) -> TrajectoryResult:
    result = TrajectoryMatcher(parse_trajectory(spec)).match(calls, 1, CallView(**more))
    assert result
    return result


def shown(rows: Sequence[AlignedRow]) -> list[tuple[str | None, int | None, str]]:
    return [(row.expected, row.call, row.status.value) for row in rows]


@settings(max_examples=400, deadline=None)
@given(trajectories, calls_made, st.sampled_from([None, "hidden"]))
def test_the_alignment_agrees_with_the_verdict(
    spec: Trajectory, calls: list[ToolCall], blind: str | None
) -> None:
    """Every row is right if and only if the trajectory matched; each actual and each expected call is in one
    row."""
    result = TrajectoryMatcher(spec).match(calls, 1, CallView(blind=blind))
    assert result
    rows = result.alignment
    if not spec.about_calls or (blind and not calls):
        assert not rows
        return
    assert sorted(row.call for row in rows if row.call is not None) == list(range(len(calls)))
    assert sum(row.expected is not None for row in rows) == len(spec.expected or ())
    if not result.error:
        assert result.matched is all(row.status.holds for row in rows)
    elif not blind:
        assert any(row.status is RowStatus.UNKNOWN for row in rows)
    if result.error or blind:
        return
    in_doubt = (RowStatus.FORBIDDEN, RowStatus.UNKNOWN)
    forbidden = sum(row.status is RowStatus.FORBIDDEN for row in rows)
    assert forbidden <= len(result.forbidden_calls)
    if not any(row.status in in_doubt for row in rows):
        lacking = [row for row in rows if row.status in (RowStatus.MISSING, RowStatus.DIFFERENT)]
        if spec.match_mode != "within":
            assert len(lacking) == len(result.missing_calls)
        if spec.max_calls is None and spec.max_calls_per_tool is None and spec.match_mode != "contains":
            made_wrong = (RowStatus.EXTRA, RowStatus.DIFFERENT)
            over = sum(row.status in made_wrong for row in rows)
            assert over == len(result.extra_calls) or spec.match_mode == "in_order"


@settings(max_examples=100, deadline=None)
@given(st.lists(names, max_size=6), st.lists(names, max_size=6))
def test_as_few_as_possible_are_out_of_order(expected: list[str], calls: list[str]) -> None:
    """A strict trajectory marks the fewest possible calls as out of order."""
    rows = result_of({"expected": expected}, *map(made, calls)).alignment
    in_order = [row for row in rows if row.status is RowStatus.MATCHED]
    assert [row.expected for row in in_order] == [calls[row.call or 0] for row in in_order]
    best = [[0] * (len(calls) + 1) for _ in range(len(expected) + 1)]
    for i, wanted in enumerate(expected):
        for j, name in enumerate(calls):
            best[i + 1][j + 1] = best[i][j] + 1 if wanted == name else max(best[i][j + 1], best[i + 1][j])
    assert len(in_order) <= best[-1][-1]
    assert result_of({"expected": expected}, *map(made, expected)).matched


@pytest.mark.parametrize(
    ("mode", "calls", "rows"),
    [
        ("strict", "ac", [("a", 0, "matched"), ("b", None, "missing"), (None, 1, "extra")]),
        ("strict", "ba", [("b", 0, "out_of_order"), ("a", 1, "matched")]),
        ("unordered", "ba", [("b", 0, "matched"), ("a", 1, "matched")]),
        ("contains", "cab", [(None, 0, "free"), ("a", 1, "matched"), ("b", 2, "matched")]),
        ("in_order", "ba", [("b", 0, "out_of_order"), ("a", 1, "matched")]),
        ("in_order", "cb", [("a", None, "missing"), (None, 0, "free"), ("b", 1, "matched")]),
        ("within", "aac", [("a", 0, "matched"), ("b", None, "free"), (None, 1, "free"), (None, 2, "extra")]),
    ],
)
def test_each_mode_has_its_rows(mode: str, calls: str, rows: list[Any]) -> None:
    """The rows follow the calls; an expected call that was not made follows the one before it."""
    result = result_of({"match_mode": mode, "expected": ["a", "b"]}, *map(made, calls))
    assert shown(result.alignment) == rows


def test_a_missing_call_is_paired_with_the_nearest_call_of_its_tool() -> None:
    """The row pairs it with the call that shares most arguments and names each argument that differs."""
    spec = {"expected": [call("refund", amount=5, to={"name": "Ada", "city": "Bern"}), "end"]}
    far, near = made("refund", amount=9), made("refund", amount=500, to={"name": "Ada", "town": "Ulm"})
    near = replace(near, args={**near.args, "amount": 5})
    rows = result_of(spec, far, near).alignment
    assert [(row.call, row.status) for row in rows] == [
        (0, RowStatus.EXTRA),
        (1, RowStatus.DIFFERENT),
        (None, RowStatus.MISSING),
    ]
    assert rows[1].difference == "to.town: not expected, got 'Ulm'; to.city: expected 'Bern', not given"
    (only,) = result_of({"expected": [call("refund", amount=5)]}, made("refund", amount=500)).alignment
    assert only.difference == "amount: expected 5, got 500"


@pytest.mark.parametrize(
    ("expected", "given", "difference"),
    [
        (call("t", n=1), "{broken", "the arguments are not an object: '{broken'"),
        ("t", "{broken", "the arguments are not an object: '{broken'"),
        (ExpectedCall("t", {}, "exact"), {"n": 1}, "n: not expected, got 1"),
        (call("t", n=lambda n: n > 5), {"n": 1}, "n: expected lambda n: n > 5, got 1"),
        (call("t", n=1), {"n": "x" * 500}, "n: expected 1, got 'xxxx"),
    ],
)
def test_a_difference_is_described(expected: ExpectedCall, given: Any, difference: str) -> None:
    """The row describes how the actual arguments differ, in at most 300 characters."""
    (row,) = result_of({"expected": [expected]}, ToolCall("t", given, None, True, 0)).alignment
    assert row.status is RowStatus.DIFFERENT
    assert row.difference.startswith(difference)
    assert len(row.difference) <= 300


def test_a_predicate_that_raises_makes_its_row_unknown() -> None:
    """The row is unknown and reports the exception."""
    (row,) = result_of({"expected": [call("t", n=raises)]}, made("t", n=1)).alignment
    assert row.status is RowStatus.UNKNOWN
    assert row.difference.startswith("t: <predicate raises> raised TypeError: no")


def test_limits_and_forbidden_calls_are_marked_at_the_calls() -> None:
    """A call beyond a limit names the limit; a forbidden call is marked even if it is expected."""
    over = result_of({"max_calls_per_tool": {"a": 1}, "max_calls": 3}, *map(made, "aabb")).alignment
    assert [(row.status.value, row.difference) for row in over] == [
        ("free", ""),
        ("extra", "call 2 of a, at most 1 are allowed"),
        ("free", ""),
        ("extra", "call 4, at most 3 are allowed"),
    ]
    banned = result_of({"expected": ["a"], "forbidden": [call("a", n=1)]}, made("a", n=1)).alignment
    assert shown(banned) == [("a", 0, "forbidden")]
    assert banned[0].difference == "forbidden: a(n=1, …)"


def test_hidden_calls_are_not_reported_missing() -> None:
    """If the agent may hide calls, an expected call that was not seen is unknown, not missing."""
    for mode in ("contains", "in_order"):
        result = result_of({"match_mode": mode, "expected": ["a", "b"]}, made("b"), blind="hidden")
        assert result.error
        assert shown(result.alignment) == [("a", None, "unknown"), ("b", 0, "matched")]
    assert result_of({"expected": ["a"]}, blind="hidden").alignment == ()


def test_a_long_alignment_keeps_its_mismatches() -> None:
    """A truncated alignment keeps every mismatch and counts the rows it leaves out."""
    calls = [*[made("a")] * MOST_ROWS, made("b"), *[made("a")] * 99]
    result = result_of({"match_mode": "contains", "expected": ["z"], "forbidden": ["b"]}, *calls)
    assert (len(result.alignment), result.alignment_more) == (MOST_ROWS, 101)
    wrong = [row.status.value for row in result.alignment if not row.status.holds]
    assert wrong == ["missing", "forbidden"]
    assert [row.call for row in result.alignment[1:4]] == [0, 1, 2]


def test_a_long_conversation_is_aligned() -> None:
    """Of 300 calls, only the one made too late is out of order."""
    expected = [call("t", n=n) for n in range(300)]
    result = result_of({"expected": expected}, *[made("t", n=n) for n in [*range(1, 300), 0]])
    late = [row for row in result.alignment if not row.status.holds]
    assert [(row.call, row.status) for row in late] == [(299, RowStatus.OUT_OF_ORDER)]


def test_a_hostile_call_is_aligned() -> None:
    """Deeply nested or very long arguments are shown as a short text."""
    deep: Any = 1
    for _ in range(900):
        deep = [deep]
    (row,) = result_of({"expected": [call("t", n=1)]}, made("t", n=deep, m="y" * 1_000_000)).alignment
    assert row.status is RowStatus.DIFFERENT
    assert len(row.difference) <= 300
