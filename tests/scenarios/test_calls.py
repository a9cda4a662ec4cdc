"""The matchers of calls: `call`, `exactly`, `any_of`, `before`, `never_after`."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

from agentest import any_of, before, call, exactly, never_after, one_of, optional
from agentest.scenarios.trajectory import (
    ANYTHING,
    AnyOf,
    CallOrder,
    ExpectedCall,
    covers,
    how_many_paths,
    name_matches,
    paths_of,
)
from agentest.support import patterns
from agentest.support.patterns import PatternTimeout


def is_cheap(args: dict[str, Any]) -> bool:
    return bool(args["price"] < 5)


async def later(args: dict[str, Any]) -> bool:
    return bool(args)


def test_call_keywords_are_arguments_unless_reserved() -> None:
    """Keywords of `call` are the tool's arguments; a dict passes arguments that have reserved names."""
    made = call("book", {"where": "Paris", "amount.value": 5}, where=is_cheap, result=None, nth=2, day="Mon")
    assert made == ExpectedCall(
        "book", {"where": "Paris", "amount.value": 5, "day": "Mon"}, where=is_cheap, result=None, nth=2
    )
    assert call("book").result is ANYTHING
    assert (call("a", first=True).nth, call("a", last=True).nth, call("a").nth) == (1, -1, None)
    assert call("a", first=True, nth=1).nth == 1


def test_an_unset_result_survives_copying() -> None:
    """A scenario is sent to other processes: `anything` is still the same object after that."""
    made = call("a")
    assert copy.deepcopy(made).result is ANYTHING
    assert pickle.loads(pickle.dumps(made)).result is ANYTHING


def test_exactly_allows_no_other_arguments() -> None:
    """`exactly(call(…))` keeps every property of the call; without arguments it allows none."""
    assert exactly(call("a", x=optional(5), last=True)) == ExpectedCall(
        "a", {"x": optional(5)}, "exact", nth=-1
    )
    assert exactly(call("a")).args == {}


def test_alternatives_are_calls_or_paths() -> None:
    """`any_of` takes calls in any form, lists of calls, and alternatives in alternatives."""
    a, b, c = ExpectedCall("a"), ExpectedCall("b"), ExpectedCall("c")
    assert any_of("a", {"name": "b"}) == AnyOf(((a,), (b,)))
    assert any_of(["a", "b"], "c") == AnyOf(((a, b), (c,)))
    assert any_of(any_of("a", "b"), re.compile("g.*")).single == (a, b, ExpectedCall(re.compile("g.*")))
    assert any_of(["a", "b"], "c").single is None


def test_paths_enumerate_all_alternatives() -> None:
    """Alternatives of one call share a slot; each longer alternative adds a path."""
    a, b, c, d = (ExpectedCall(name) for name in "abcd")
    assert paths_of((a, any_of("b", "c"))) == (((a,), (b, c)),)
    assert paths_of((any_of(["a", "b"], ["c"], "d"),)) == (((c, d),), ((a,), (b,)))
    assert paths_of((any_of([], ["a"]), b)) == (((a,), (b,)), ((b,),))
    nested = any_of([any_of(["a", "b"], ["c", "d"]), "a"], "d")
    assert paths_of((nested,)) == (((d,),), ((a,), (b,), (a,)), ((c,), (d,), (a,)))
    assert paths_of(()) == ((),)
    assert how_many_paths((nested, nested)) == len(paths_of((nested, nested))) == 9


def test_orders_relate_calls() -> None:
    """`before` and `never_after` take names, patterns, calls and alternatives of calls."""
    assert before("a", call("b", x=1)) == CallOrder("before", ExpectedCall("a"), ExpectedCall("b", {"x": 1}))
    assert never_after(any_of("a", "b"), "c").first == any_of("a", "b")


@pytest.mark.parametrize(
    ("wanted", "made", "matches"),
    [
        ("get", "get", True),
        ("get", "get_user", False),
        ("get_*", "get_user", True),
        ("get_?", "get_user", False),
        ("*", "anything", True),
        ("Get_*", "get_user", False),
        ("a[1]", "a[1]", True),
        ("a[1]", "a1", True),
        (re.compile("get_.*"), "get_user", True),
        (re.compile("get"), "get_user", False),
        (re.compile("GET.*", re.I), "get_user", True),
    ],
)
def test_tool_name_patterns(wanted: Any, made: str, matches: bool) -> None:
    """A tool is matched by name, by glob, or by a pattern for the whole name; a name may look like a glob."""
    assert name_matches(wanted, made) is matches


@pytest.mark.slow
def test_a_name_pattern_that_times_out_is_undecided() -> None:
    """A pattern of names has the same time limit as every pattern, each time it is matched."""
    for _ in range(2):
        with pytest.raises(PatternTimeout, match="gave no answer"):
            name_matches(re.compile(r"(a+)+b"), "a" * 50)


def test_patterns_are_matched_while_other_threads_take_the_last_helper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Threads share idle helpers: one that a thread sees may be taken before it reaches for it."""

    class TakenInBetween(list[Any]):
        def __bool__(self) -> bool:
            return True

    monkeypatch.setattr(patterns, "_idle", helpers := TakenInBetween())
    try:
        assert patterns.has_match(re.compile("(a|b)+c"), "xabc")
        assert helpers[:] != []
    finally:
        helpers.pop().close()


def test_a_glob_covers_narrower_names() -> None:
    """Only certain coverage counts: globs and patterns are compared as they are written."""
    assert covers("get_*", "get_user")
    assert covers("*", "get_*")
    assert covers(re.compile("a.*"), re.compile("a.*"))
    assert not covers("get_user", "get_*")
    assert not covers("g*", "get_*")


BAD: list[tuple[str, Callable[[], Any], str]] = [
    (
        "where",
        lambda: call("book", where="Paris"),
        "where: expected a function of all arguments, found 'Paris'",
    ),
    ("where-goes", lambda: call("book", where="Paris"), "goes into a dict: call('book', {'where': …})"),
    ("where-type", lambda: call("book", where=dict), "where: expected a function"),
    ("where-async", lambda: call("book", where=later), "is async; a predicate cannot be"),
    ("first", lambda: call("greet", first="Anna"), "call('greet', {'first': …})"),  # type: ignore[arg-type]
    ("last", lambda: call("greet", last=None), "last: expected True or False, found None"),  # type: ignore[arg-type]
    ("nth", lambda: call("a", nth=0), "nth: expected a whole number"),
    ("nth-bool", lambda: call("a", nth=True), "nth: expected a whole number"),
    ("nth-text", lambda: call("a", nth="2"), "call('a', {'nth': …})"),  # type: ignore[arg-type]
    ("first-last", lambda: call("a", first=True, last=True), "first and last cannot both be"),
    ("first-nth", lambda: call("a", first=True, nth=2), "first and nth 2 cannot both be"),
    ("twice", lambda: call("a", {"x": 1}, x=2), "`x` is given twice"),
    ("args", lambda: call("a", 5), "expected a dict of arguments, found 5"),  # type: ignore[arg-type]
    ("no-name", lambda: call(""), "the name of the tool is empty"),
    ("name", lambda: call(5), "expected the name of a tool or a pattern"),  # type: ignore[arg-type]
    ("bytes", lambda: call(re.compile(b"a")), "expected the name of a tool"),  # type: ignore[arg-type]
    ("exactly", lambda: exactly("a"), "exactly: expected call(…), found 'a'"),  # type: ignore[arg-type]
    ("any_of-none", lambda: any_of(), "is empty"),
    ("any_of-empty", lambda: any_of([], []), "is empty"),
    ("any_of-value", lambda: any_of(5, 6), "for values of arguments write one_of(…)"),
    ("any_of-matcher", lambda: any_of(one_of("a")), "for values of arguments write one_of(…)"),
    ("any_of-order", lambda: any_of(before("a", "b")), "before(…) is an order, and no call"),
    ("any_of-type", lambda: any_of(call("a", x=str)), "instance(str)"),
    ("before-path", lambda: before(any_of(["a", "b"], ["c"]), "d"), "any_of(…) of lists has no place"),
    ("before-nth", lambda: before(call("a", nth=2), "d"), "`first`, `last` and `nth` are not for it"),
    ("before-number", lambda: before("a", 5), "expected a tool name"),
]


@pytest.mark.parametrize(("make", "words"), [each[1:] for each in BAD], ids=[each[0] for each in BAD])
def test_a_misused_matcher_says_what_to_write(make: Callable[[], Any], words: str) -> None:
    """Each matcher refuses invalid arguments at once and says what to write."""
    with pytest.raises(ValueError, match=re.escape(words)):
        make()


def doubled(made: Any, times: int) -> Any:
    return any_of(doubled(made, times - 1), doubled(made, times - 1)) if times else made


def nested(made: Any, times: int) -> Any:
    return any_of(nested(made, times - 1)) if times else made


def test_the_number_of_alternatives_is_limited() -> None:
    """Nested alternatives cannot grow without limit."""
    eight = doubled("a", 8)
    many = [any_of(*[eight] * 39)]
    with pytest.raises(ValueError, match="has more than 10,000 calls"):
        any_of(*many, eight)
    with pytest.raises(ValueError, match="20 times over"):
        nested("a", 21)
