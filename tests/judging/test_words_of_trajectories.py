"""Each trajectory setting: what it requires, and how a report describes a violation."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from agentest import any_of, before, call, exactly, never_after
from agentest.domain.results import TrajectoryResult
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall
from agentest.scenarios.trajectory_parser import parse_trajectory
from agentest.trajectory.call_facts import CallView
from agentest.trajectory.matcher import TrajectoryMatcher


def made(text: str, at: int = 0) -> ToolCall:
    """Build a call: `a` of a, `a!` failed, `a1` with n=1, `a?` with an unknown result."""
    result: Any = {"error": "no"} if "!" in text else {"status": "ok"}
    digits = re.findall(r"\d+", text)
    untold = "?" in text
    return ToolCall(
        text.rstrip("!?0123456789"),
        {"n": int(digits[0])} if digits else {},
        None if untold else result,
        not untold,
        0,
        seen_by=SeenBy.AGENT if untold else SeenBy.CALLER,
        round=at,
    )


def result_of(spec: Any, names: str, calls: Sequence[Any] = (), **more: Any) -> TrajectoryResult:
    """Match calls: a comma joins calls of one message, a space separates messages; `calls`: args of a."""
    told = [made(one, at) for at, message in enumerate(names.split()) for one in message.split(",")]
    told += [replace(made("a"), args=args) for args in calls]
    result = TrajectoryMatcher(parse_trajectory(spec)).match(told, 1, CallView(**more))
    assert result
    return result


HELD: Any = None
TABLE: list[tuple[str, Any, str, Any]] = [
    ("any_of", {"expected": [any_of("a", "b"), "c"]}, "b c", HELD),
    ("any_of_none", {"expected": [any_of("a", "b")]}, "c", "not called as expected: a or b"),
    ("paths", {"expected": [any_of(["a", "b"], ["c"]), "d"]}, "c d", HELD),
    ("paths_mixed", {"expected": [any_of(["a", "b"], ["c"]), "d"]}, "a d", "the nearest of 2 ways"),
    ("glob", {"expected": ["get_*"]}, "get_x", HELD),
    ("pattern", {"expected": [call(re.compile("get_.|b"))]}, "b", HELD),
    ("pattern_whole", {"expected": [call(re.compile("get"))]}, "get_x", "not called as expected"),
    ("exactly", {"expected": [exactly(call("a"))]}, "a1", "not called as expected: a"),
    ("where", {"expected": [call("a", where=lambda a: a["n"] > 1)]}, "a2", HELD),
    ("where_no", {"expected": [call("a", where=lambda a: a["n"] > 1)]}, "a1", "not called as expected"),
    ("result", {"expected": [call("a", result={"status": "ok"})]}, "a", HELD),
    ("result_no", {"expected": [call("a", result={"status": "ok"})]}, "a!", "not called as expected"),
    ("first", {"match_mode": "contains", "expected": [call("a", first=True)]}, "a b", HELD),
    (
        "first_no",
        {"match_mode": "contains", "expected": [call("a", n=1, first=True)]},
        "b a2 a1",
        "first: a came as call 3",
    ),
    ("first_of_tool", {"match_mode": "contains", "expected": [call("a", first=True)]}, "b a", HELD),
    ("last_of_tool", {"match_mode": "contains", "expected": [call("a", n=2, nth=-1)]}, "a1 a2 b", HELD),
    (
        "first_of_glob",
        {"match_mode": "contains", "expected": [call("get_*", n=1, first=True)]},
        "get_x2 a get_y1",
        "first: get_* came as call 3",
    ),
    (
        "first_worked",
        {"match_mode": "contains", "expected": [call("a", n=2, first=True)], "ignore_failed": True},
        "a1! b a2",
        HELD,
    ),
    (
        "last_no",
        {"match_mode": "contains", "expected": [call("a", n=1, last=True)]},
        "a1 a2",
        "last: a came as call 1",
    ),
    (
        "nth_free",
        {"match_mode": "contains", "expected": [call("*", nth=1), "a"], "reads": ["get_*"]},
        "get_x b a",
        HELD,
    ),
    ("failed_again", {"expected": ["a", "b"], "ignore_failed": True}, "a! a b! b", HELD),
    ("failed_counts", {"expected": ["a", "b"]}, "a! a b", "unexpected calls were made: a"),
    (
        "failed_only",
        {"match_mode": "contains", "expected": ["a", "b"], "ignore_failed": True},
        "a! b",
        "not called as expected: a; ignore_failed: a was answered with an error (call 1)",
    ),
    ("failed_banned", {"forbidden": ["a"], "ignore_failed": True}, "a!", "forbidden"),
    ("failed_in_limit", {"max_calls_per_tool": 1, "ignore_failed": True}, "a! a", HELD),
    ("failed_limit", {"max_calls_per_tool": 1, "ignore_failed": True}, "a! a a", "a was called 2 times"),
    (
        "failed_first_of_order",
        {"before": [call("a", result={"error": "no"}), "b"], "ignore_failed": True},
        "a! b",
        HELD,
    ),
    ("result_path", {"expected": [call("a", result={"error.code": 5})]}, "a!", "expected: a"),
    ("result_exactly", {"expected": [exactly(call("a", result={"error": "no"}))]}, "a!", HELD),
    ("rounds_of_none", {"expected": [], "rounds": True}, "", HELD),
    ("once_of_none", {"match_mode": "within", "expected": [], "at_most_once": True}, "", HELD),
    (
        "failed_expected",
        {"expected": [call("a", result={"error": "no"}), "a"], "ignore_failed": True},
        "a! a",
        HELD,
    ),
    ("reads", {"expected": ["pay"], "reads": ["get_*"]}, "get_x pay get_x", HELD),
    ("reads_needed", {"expected": ["get_x", "pay"], "reads": ["get_*"]}, "pay", "expected: get_x"),
    ("reads_order", {"expected": ["get_x", "pay"], "reads": ["get_*"]}, "pay get_x", "the order is wrong"),
    ("writes", {"expected_writes": ["b", "a"], "reads": ["get_*"]}, "a get_x b", HELD),
    ("min_calls", {"min_calls": 2}, "a", "1 call was made, at least 2 calls are needed"),
    (
        "min_free",
        {"min_calls": 1, "reads": ["a"]},
        "a",
        "0 calls were made (1 more is free), at least 1 call",
    ),
    ("max_free", {"max_calls": 1, "ignore_failed": True}, "a! a", HELD),
    ("once", {"match_mode": "within", "expected": ["a", "b"], "at_most_once": True}, "a", HELD),
    ("once_again", {"match_mode": "within", "expected": ["a"], "at_most_once": True}, "a a", "at_most_once"),
    (
        "once_contains",
        {"match_mode": "contains", "expected": ["a"], "at_most_once": True},
        "a a c",
        "at_most_once",
    ),
    ("rounds", {"expected": ["a", "b", "c"], "rounds": True}, "b,a c", HELD),
    ("rounds_no", {"expected": ["a", "b", "c"], "rounds": True}, "b a,c", "the order of rounds is wrong"),
    ("before", before("a", "b"), "a b b", HELD),
    ("before_none", before("a", "b"), "c", HELD),
    ("before_no", before("a", "b"), "b a", "before: b (call 1) without a before it"),
    ("before_failed", {"before": ["a", "b"], "ignore_failed": True}, "a! b", "before: b (call 2) without a"),
    ("never", never_after("a", "b"), "a b", HELD),
    ("never_no", never_after("a", "b"), "b a", "never_after: a (call 2) came after b (call 1)"),
    (
        "before_rounds",
        {"expected": ["a", "b"], "rounds": True, "before": ["a", "b"]},
        "a,b",
        "before: b (call 2) without a before it",
    ),
]


@pytest.mark.parametrize(("spec", "calls", "says"), [row[1:] for row in TABLE], ids=[row[0] for row in TABLE])
def test_each_setting(spec: Any, calls: str, says: str | None) -> None:
    """A setting passes or fails, the summary names the violation, and a row of the alignment is marked."""
    result = result_of(spec, calls)
    assert (result.matched, result.error) == (says is None, None), result.reason
    assert (says or "as expected") in result.summary
    assert result.matched is all(row.status.holds for row in result.alignment)
    assert result.score
    assert not result.matched or result.score.met == 1


@pytest.mark.parametrize(
    ("spec", "calls", "met", "precision"),
    [
        ({"expected": ["a"]}, "a b c", 1, 1 / 3),
        ({"match_mode": "unordered", "expected": ["a", "b"]}, "a c", 1 / 2, 1 / 2),
        ({"expected": ["a", "b", "c"]}, "b c a", 2 / 3, 2 / 3),
        ({"expected": ["a", "b"], "max_calls": 2}, "a b c", 2 / 3, 2 / 3),
        ({"match_mode": "contains", "expected": ["a"], "at_most_once": True}, "a a", 1, 1 / 2),
        ({"match_mode": "within", "expected": ["a"]}, "a b", 1 / 2, 1 / 2),
        ({"expected": ["a", "b"], "ignore_failed": True}, "a! b", 1 / 2, 1),
        ({"expected": ["a"], "forbidden": ["x", "y"], "before": ["a", "x"]}, "x", 1 / 4, 0),
        ({"expected": ["b", "get_x", "get_y", "b"], "reads": ["get_*"]}, "get_x get_y b", 3 / 4, 1),
        ({"expected": ["get_x", "*"], "reads": ["get_*"], "rounds": True}, "b get_x get_y", 1, 2 / 3),
    ],
    ids=["extra", "missing", "order", "limit", "again", "within", "failed", "bounds", "free", "free_rounds"],
)
def test_the_score_counts_requirements(spec: Any, calls: str, met: float, precision: float) -> None:
    """The score counts expected calls in place, forbidden entries, limits and orders; extra calls affect only
    precision, except in `within`."""
    score = result_of(spec, calls).score
    assert score
    assert (round(score.met, 5), round(score.precision, 5)) == (round(met, 5), round(precision, 5))


@pytest.mark.parametrize(
    ("spec", "calls", "difference"),
    [
        ({"expected": [call("a", {"n.x": 1})]}, "a1", "n.x: expected 1, not given"),
        ({"expected": [call("a", result={"status": "ok"})]}, "a!", "result.status: expected 'ok', not given"),
        (
            {"expected": [any_of(call("a", n=1), call("b", n=2))]},
            "b3",
            "nearest b(n=2, …): n: expected 2, got 3",
        ),
        ({"match_mode": "contains", "expected": [call("a", n=1, first=True)]}, "a2 a1", "first: it came at"),
        (
            {"expected": ["a"], "ignore_failed": True},
            "a!",
            "answered with an error, so it is not the expected",
        ),
        ({"expected": [], "reads": ["get_*"]}, "get_x", "free: a read (get_*)"),
        ({"expected": [], "ignore_failed": True}, "a!", "free: answered with an error"),
        (before("a", "b"), "b", "before: b (call 1) without a before it"),
    ],
    ids=["path", "result", "nearest", "first", "failed_only", "read", "failed", "before"],
)
def test_the_row_says_what_broke(spec: Any, calls: str, difference: str) -> None:
    """The row of a call says which argument or setting was violated, or why the call is free."""
    rows = result_of(spec, calls).alignment
    assert any(row.difference.startswith(difference) for row in rows), rows


def test_a_where_function_that_returns_false_is_named() -> None:
    """The row names the `where` function once."""

    def cheap(args: dict[str, Any]) -> bool:
        return bool(args["n"] < 5)

    (row,) = result_of({"expected": [call("a", where=cheap)]}, "a7").alignment
    assert row.difference == "where: <predicate cheap> said no"


def test_a_row_has_what_differs_as_values() -> None:
    """Each certain difference has its path and both values; the rest is text alone."""

    def fails(value: Any) -> bool:
        raise KeyError(value)

    options: Any = {"arg_match_mode": "exact", "args": {"day": "fri", "n": fails, "x": 1}}
    given = {"day": 5, "n": 1, "more": None}
    (row,) = result_of({"expected": [{"name": "a", **options}]}, "", calls=[given]).alignment
    assert (row.tool, [each.path for each in row.differences]) == ("a", ["more", "x", "day"])
    more, x, day = row.differences
    assert (more.expected, more.actual, x.expected, x.actual) == (None, "None", "1", None)
    assert (day.expected_kind, day.actual_kind, day.words) == ("text", "a number", "expected 'fri', got 5")
    where = call("a", where=lambda args: args["n"] < 1)
    (row,) = result_of({"expected": [where]}, "a2").alignment
    assert (row.differences, row.difference[:6]) == ((), "where:")
    (row,) = result_of({"expected": [call("a", n=1, result=5)]}, "a2?").alignment
    assert row.difference == "n: expected 1, got 2"
    (row,) = result_of({"expected": ["b"]}, "").alignment
    assert (row.status, row.tool) == ("missing", "b")


def test_a_raising_function_does_not_hide_a_difference() -> None:
    """Functions after it are still evaluated, and one that says no decides."""

    def fails(value: Any) -> bool:
        raise KeyError(value)

    (row,) = result_of({"expected": [call("a", n=fails, m=1)]}, "", calls=[{"n": 1, "m": 2}]).alignment
    assert ([each.path for each in row.differences], row.difference.count("; ")) == (["m"], 1)
    for view in ({}, {"blind": "hidden"}):
        (row,) = result_of({"expected": [call("a", n=fails)]}, "", calls=[{"n": 1}], **view).alignment
        assert (row.status, "raised KeyError" in row.difference) == ("unknown", True)
    both = {"n": fails, "m": lambda m: m > 1}
    for m, holds in ((1, False), (2, None)):
        result = result_of({"expected": [call("a", both)]}, "", calls=[{"n": 1, "m": m}])
        assert (None if result.error else result.matched) is holds


def test_calls_beyond_the_allowed_ones_are_named() -> None:
    result = result_of({"match_mode": "within", "expected": ["a"]}, "a b")
    assert result.summary == "calls beyond the allowed ones: b"
    assert result.extra_calls == ("b",)


@pytest.mark.parametrize(
    ("spec", "calls", "matched"),
    [
        ({"expected": [call("a", result={"status": "ok"})]}, "a?", None),
        ({"expected": [call("a", result={"status": "ok"}), "b"]}, "a?", False),
        ({"expected": ["a"], "ignore_failed": True}, "a a?", None),
        ({"match_mode": "contains", "expected": ["a"], "ignore_failed": True}, "a a?", True),
        ({"match_mode": "contains", "expected": ["a"], "ignore_failed": True}, "a?", None),
        ({"expected": ["b"], "ignore_failed": True}, "a?", False),
        (
            {"match_mode": "contains", "expected": [call("b", n=2, first=True)], "ignore_failed": True},
            "b1? b2",
            None,
        ),
        ({"before": ["a", "b"], "ignore_failed": True}, "a? b", None),
        ({"expected": [any_of(call("a", where=lambda a: 1 / 0), "a")]}, "a", True),
        ({"expected": [call("a", where=lambda a: 1 / 0, n=2)]}, "a1", False),
        ({"expected": [call("a", where=lambda a: 1 / 0)]}, "a1", None),
    ],
    ids=[
        "result",
        "result_missing",
        "extra",
        "found",
        "untold",
        "missing",
        "first",
        "before",
        "any",
        "argument",
        "raises",
    ],
)
def test_unknown_results_are_errored(spec: Any, calls: str, matched: bool | None) -> None:
    """If a result is unknown or a function raises, only what holds either way is decided; None is errored."""
    result = result_of(spec, calls)
    assert (None if result.error else result.matched) is matched, result.reason


def test_unknown_rounds() -> None:
    """Without round information, the given order may hold, and another order within a turn is errored."""
    spec = parse_trajectory({"expected": ["a", "b", "c"], "rounds": True})

    def held(names: str, turns: str) -> bool | None:
        calls = [ToolCall(n, {}, 1, True, int(t)) for n, t in zip(names, turns, strict=True)]
        result = TrajectoryMatcher(spec).match(calls)
        assert result
        return None if result.error else result.matched

    assert [held("abc", "000"), held("bac", "000"), held("bac", "011"), held("acb", "011")] == [
        True,
        None,
        False,
        None,
    ]


def test_many_long_alternatives_are_quick() -> None:
    """With hundreds of alternatives and calls, the nearest alternative is found quickly."""
    way = any_of([call("t", n=1), call("t", n=2)], [call("t", n=3), call("t", n=4)])
    spec = {"match_mode": "in_order", "expected": [*[way] * 8, *[call("t", n=n) for n in range(80)]]}
    calls = [ToolCall("t", {"n": n % 90}, 1, True, 0) for n in range(200)]
    result = TrajectoryMatcher(parse_trajectory(spec)).match(calls)
    assert result
    assert "the nearest of 256 ways" in result.summary
