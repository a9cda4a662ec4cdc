"""Matching actual tool calls with expected ones (contract, section 7)."""

from __future__ import annotations

import re
import threading
from collections.abc import Sequence
from functools import partial
from itertools import combinations, permutations
from typing import Any

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentest import call
from agentest.domain.results import TrajectoryResult
from agentest.domain.transcript import ToolCall, call_text
from agentest.scenarios.trajectory import ExpectedCall, Trajectory
from agentest.scenarios.trajectory_parser import parse_trajectory
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios, tool_call
from agentest.trajectory.call_facts import CallView
from agentest.trajectory.matcher import TrajectoryMatcher

names = st.sampled_from("ab")
args = st.dictionaries(st.sampled_from("xy"), st.sampled_from([1, 2, True, [1], [2]]), max_size=2)
modes = st.sampled_from(["ignore", "partial", "exact"])
expectations = st.lists(st.builds(ExpectedCall, names, args | st.none(), modes), max_size=4)
made_calls = st.lists(
    st.builds(
        ToolCall, names, args | st.sampled_from(["{broken", None]), st.none(), st.just(True), st.just(0)
    ),
    max_size=5,
)


def made(name: str, *, raw: Any = None, **given: Any) -> ToolCall:
    return ToolCall(name, given if raw is None else raw, {"ok": True}, True, 0)


def match(spec: dict[str, Any], *calls: ToolCall, turns: int = 1, complete: bool = True) -> Any:
    return TrajectoryMatcher(parse_trajectory(spec)).match(calls, turns, CallView(complete=complete))


def test_a_matcher_takes_what_a_scenario_takes() -> None:
    """`TrajectoryMatcher.of` takes a trajectory as scenarios do, and matches any list of calls."""
    matcher = TrajectoryMatcher.of({"match_mode": "unordered", "expected": ["b", call("a", x=1)]})
    found = matcher.match([made("a", x=1), made("b")])
    assert (found.matched, found.summary) == (True, "2 tool calls, as expected (unordered)")
    missed = matcher.match([made("a", x=2), made("b")])
    assert not missed.matched
    assert missed.missing_calls == ("a",)
    assert [row.difference for row in missed.alignment] == ["x: expected 1, got 2", ""]
    with pytest.raises(ValueError, match="expectd"):
        TrajectoryMatcher.of({"expectd": ["b"]})


@pytest.mark.parametrize("mode", ["unordered", "strict"])
def test_calls_that_count_come_before_free_ones(mode: str) -> None:
    """An expected call is paired with a call that counts before one of a read-only tool."""
    spec = {"match_mode": mode, "expected": ["*"], "reads": ["look"]}
    for calls in ([made("look"), made("book")], [made("book"), made("look")]):
        found = match(spec, *calls)
        assert (found.matched, found.score.met) == (True, 1)
        assert [row.call for row in found.alignment if row.expected] == [calls.index(made("book"))]
    assert match(spec, made("look")).matched
    both = {**spec, "expected": ["*", "book"]}
    assert match(both, made("look"), made("book")).matched


def same(left: Any, right: Any) -> bool:
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(same, left, right))
    return type(left) is type(right) and left == right


def fits(wanted: ExpectedCall, one: ToolCall, *, banned: bool = False) -> bool:
    """Return whether the call matches the expected one, written from the contract."""
    if wanted.name != one.name or not (banned or isinstance(one.args, dict)):
        return False
    if wanted.arg_match_mode == "ignore" or wanted.args is None:
        return True
    if not isinstance(one.args, dict):
        return wanted.arg_match_mode == "partial" and not wanted.args
    if wanted.arg_match_mode == "exact" and wanted.args.keys() != one.args.keys():
        return False
    return all(key in one.args and same(value, one.args[key]) for key, value in wanted.args.items())


def fit_all(expected: Sequence[ExpectedCall], calls: Sequence[ToolCall]) -> bool:
    return len(expected) == len(calls) and all(map(fits, expected, calls))


def holds(mode: str, expected: Sequence[ExpectedCall], calls: Sequence[ToolCall]) -> bool:
    """Return whether the mode holds, by trying every arrangement of the calls."""
    if mode == "strict":
        return fit_all(expected, calls)
    if mode == "unordered":
        return any(fit_all(expected, order) for order in permutations(calls))
    if mode == "contains":
        return any(fit_all(expected, order) for order in permutations(calls, len(expected)))
    if mode == "in_order":
        return any(fit_all(expected, chosen) for chosen in combinations(calls, len(expected)))
    return all(any(fits(wanted, one) for wanted in expected) for one in calls)


def most_pairs(expected: Sequence[ExpectedCall], calls: Sequence[ToolCall]) -> int:
    """Return how many expected calls can be paired, by trying every assignment."""
    blanks: list[ToolCall | None] = [None] * len(expected)
    return max(
        sum(one is not None and fits(wanted, one) for wanted, one in zip(expected, order, strict=True))
        for order in permutations([*calls, *blanks], len(expected))
    )


@pytest.mark.parametrize("mode", ["strict", "unordered", "contains", "in_order", "within"])
def test_every_mode_holds_exactly_when_some_arrangement_does(mode: Any) -> None:
    """A mode holds if and only if trying every arrangement of the calls finds one that does."""

    @settings(max_examples=120, deadline=None)
    @given(expectations, made_calls)
    def check(expected: list[ExpectedCall], calls: list[ToolCall]) -> None:
        result = TrajectoryMatcher(Trajectory(mode, tuple(expected))).match(calls)
        assert result
        assert result.matched is holds(mode, expected, calls)
        assert result.matched is not bool(
            result.missing_calls or result.extra_calls or result.ordering_issues
        )

    check()


def may_hold(mode: str, expected: list[ExpectedCall], calls: list[ToolCall]) -> bool:
    """Return whether any additional calls could make the mode hold, by trying all of them."""
    if mode in ("contains", "in_order"):
        return True
    if mode == "within":
        return all(any(fits(wanted, made) for wanted in expected) for made in calls)
    choose = combinations if mode == "strict" else permutations
    return any(all(map(fits, chosen, calls)) for chosen in choose(expected, len(calls)))


@pytest.mark.parametrize("mode", ["strict", "unordered", "contains", "in_order", "within"])
def test_some_calls_fail_a_mode_exactly_when_no_others_could_mend_it(mode: Any) -> None:
    """If not all calls are visible, a mode fails if and only if no further calls could make it hold;
    otherwise it is errored."""

    @settings(max_examples=80, deadline=None)
    @given(expectations, made_calls)
    def check(expected: list[ExpectedCall], calls: list[ToolCall]) -> None:
        result = TrajectoryMatcher(Trajectory(mode, tuple(expected))).match(
            calls, 1, CallView(blind="unseen")
        )
        assert result
        assert not result.matched
        assert bool(result.error) is may_hold(mode, expected, calls)
        assert (result.error or "unseen").startswith("unseen")

    check()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.builds(ExpectedCall, names, args | st.none(), modes), max_size=3),
    st.lists(st.builds(ToolCall, names, args, st.none(), st.just(True), st.just(0)), max_size=4),
)
def test_missing_and_extra_calls_are_as_few_as_possible(
    expected: list[ExpectedCall], calls: list[ToolCall]
) -> None:
    """Missing and extra calls are exactly those that the best assignment leaves over."""
    pairs = most_pairs(expected, calls)
    for mode in ("unordered", "strict", "contains"):
        result = TrajectoryMatcher(Trajectory(mode, tuple(expected))).match(calls)  # type: ignore[arg-type]
        assert result
        assert len(result.missing_calls) == len(expected) - pairs
        assert len(result.extra_calls) == (0 if mode == "contains" else len(calls) - pairs)


@settings(max_examples=80, deadline=None)
@given(expectations, made_calls)
def test_forbidden_calls_are_all_those_that_fit(banned: list[ExpectedCall], calls: list[ToolCall]) -> None:
    """Every call that matches a forbidden one is reported, in order, and fails the trajectory."""
    result = TrajectoryMatcher(Trajectory(forbidden=tuple(banned))).match(calls)
    assert result
    named = [c.name for c in calls if any(fits(b, c, banned=True) for b in banned)]
    assert list(result.forbidden_calls) == named
    assert result.matched is not bool(result.forbidden_calls)


def test_no_expectation_takes_a_call_that_another_needs() -> None:
    """`contains` holds where a greedy match would use up the only call for the second expectation."""
    spec = {"match_mode": "contains", "expected": ["book", call("book", day="mon")]}
    assert match(spec, made("book", day="mon"), made("book", day="tue")).matched
    assert match(
        {**spec, "match_mode": "unordered"}, made("book", day="mon"), made("book", day="tue")
    ).matched


def test_a_long_chain_of_overlapping_expectations_is_solved() -> None:
    """Two hundred expectations that each match two calls get their only valid assignment."""
    expected = [call("t", n=lambda n, i=i: n in (i, i + 1)) for i in range(200)]
    calls = [made("t", n=i) for i in range(1, 200)] + [made("t", n=0)]
    assert match({"match_mode": "unordered", "expected": expected}, *calls).matched


@pytest.mark.parametrize(
    ("mode", "calls", "missing", "extra", "ordering"),
    [
        ("strict", "ab", (), (), 0),
        ("strict", "ba", (), (), 2),
        ("strict", "a", ("b",), (), 0),
        ("strict", "abc", (), ("c",), 0),
        ("strict", "ac", ("b",), ("c",), 0),
        ("unordered", "ba", (), (), 0),
        ("unordered", "aba", (), ("a",), 0),
        ("contains", "cbca", (), (), 0),
        ("contains", "cb", ("a",), (), 0),
        ("in_order", "cacb", (), (), 0),
        ("in_order", "ba", (), (), 1),
        ("in_order", "b", ("a",), (), 0),
        ("within", "aaab", (), (), 0),
        ("within", "", (), (), 0),
        ("within", "aca", (), ("c",), 0),
    ],
)
def test_findings_are_separated(mode: str, calls: str, missing: Any, extra: Any, ordering: int) -> None:
    """Missing calls, extra calls and ordering issues are reported separately."""
    result = match({"match_mode": mode, "expected": ["a", "b"]}, *map(made, calls))
    assert (result.missing_calls, result.extra_calls, len(result.ordering_issues)) == (
        missing,
        extra,
        ordering,
    )
    assert result.matched is (not missing and not extra and not ordering)


def test_the_reason_shows_both_sides() -> None:
    """A reason says what is wrong and then shows the expected and the actual calls with their arguments."""
    expected = [call("book", day="mon"), {"name": "pay", "args": {"n": 1}, "arg_match_mode": "exact"}, "end"]
    result = match({"expected": expected}, made("book", day="tue"), made("pay", raw="{n: 1"))
    assert result.reason.splitlines() == [
        "not called as expected: book, pay, end; unexpected calls were made: book, pay",
        "expected (strict): book(day='mon', …), pay(n=1), end",
        "actual: book(day='tue'), pay(invalid arguments: '{n: 1')",
    ]
    assert match({"expected": []}).reason.splitlines()[1:] == [
        "expected (strict): no calls",
        "actual: no calls",
    ]
    swapped = match({"expected": [call("a", n=1), call("a", n=2)]}, made("a", n=2), made("a", n=1))
    assert swapped.ordering_issues[0] == "call 1 was a, expected a with other arguments"


def test_ordering_issues_show_arguments() -> None:
    """An ordering issue shows the arguments that distinguish two calls of one tool."""
    spec = {"matchMode": "inOrder", "expected": [call("a", n=1), call("a", n=2)]}
    issue = match(spec, made("a", n=2), made("a", n=1)).ordering_issues[0]
    assert issue == "a(n=2, …) was expected after a(n=1, …), but came only before it"


def test_a_long_list_of_calls_is_cut_and_counted() -> None:
    """Beyond twenty calls the reason gives the number of further calls."""
    assert "… 5 more" in match({"expected": []}, *[made("a")] * 25).reason


def test_a_call_with_broken_arguments_counts_for_bans_and_limits_and_meets_nothing() -> None:
    """An unparsable call still counts as forbidden or over a limit, but meets no expectation."""
    broken = made("delete", raw="{broken")
    for form in ("delete", call("delete"), {"name": "delete"}):
        assert match({"forbidden": [form]}, broken).forbidden_calls == ("delete",)
    exact = {"name": "delete", "args": {}, "argMatchMode": "exact"}
    assert not match({"expected": [exact]}, broken).matched
    assert not match({"expected": [call("delete", id=1)]}, broken).matched
    for mode in ("contains", "strict", "unordered", "in_order"):
        missed = match({"expected": ["delete"], "match_mode": mode}, broken)
        assert not missed.matched
        assert "delete came without readable arguments (call 1)" in missed.reason
    assert match({"expected": ["delete"], "match_mode": "contains"}, broken, made("delete", id=1)).matched
    assert not match({"max_calls": 0}, broken).matched


@pytest.mark.parametrize(
    ("limits", "problem"),
    [
        ({"max_calls": 3}, None),
        ({"max_calls": 2}, "3 calls were made, at most 2 are allowed"),
        ({"maxTurns": 4}, None),
        ({"max_turns": 3}, "the conversation took 4 turns, at most 3 are allowed"),
        ({"max_calls_per_tool": 2}, None),
        ({"maxCallsPerTool": 1}, "a was called 2 times, at most 1 are allowed"),
        ({"max_calls_per_tool": {"a": 2, "b": 1}}, None),
        ({"max_calls_per_tool": {"b": 0}}, "b was called 1 time, at most 0 are allowed"),
        ({"max_calls_per_tool": {"c": 0}}, None),
        ({"max_calls": 0}, "3 calls were made, at most 0 are allowed"),
    ],
)
def test_limits_bound_calls_turns_and_single_tools(limits: dict[str, Any], problem: str | None) -> None:
    """A limit passes up to its number; beyond it, the reason has both numbers."""
    result = match(limits, made("a"), made("b"), made("a"), turns=4)
    assert result.matched is (problem is None)
    assert (problem or "as expected") in result.reason


def test_an_incomplete_conversation_is_judged_by_what_cannot_be_mended() -> None:
    """After an interruption, missing calls do not count; forbidden calls and limits still fail."""
    assert match({"expected": ["a", "b"]}, made("a"), complete=False) is None
    assert match({"expected": ["a"]}, made("a"), complete=False) is None
    assert match({"expected": ["a"], "forbidden": ["x"]}, made("x"), complete=False).forbidden_calls == ("x",)
    over = match({"expected": ["a"], "max_calls": 1}, made("a"), made("a"), complete=False)
    assert (over.matched, over.missing_calls, over.extra_calls) == (False, (), ())


def test_a_predicate_that_raises_decides_nothing() -> None:
    """A predicate that raises makes the trajectory errored unless the result is certain without it."""

    def picky_one(amount: Any) -> bool:
        return bool(amount > 100)

    picky = call("pay", amount=picky_one)
    result = match({"match_mode": "contains", "expected": [picky]}, made("pay", amount="all"))
    assert (result.matched, result.missing_calls, result.score) == (False, (), None)
    assert "pay: <predicate picky_one> raised TypeError" in result.error
    assert result.summary == f"could not be decided: {result.error}"
    assert "actual: pay(amount='all')" in result.reason
    banned = match({"forbidden": [picky]}, made("pay", amount="all"))
    assert (banned.matched, banned.forbidden_calls) == (False, ())
    assert "raised TypeError" in banned.error
    lost = match({"match_mode": "contains", "expected": [picky, "end"]}, made("pay", amount="all"))
    assert (lost.matched, lost.error, lost.missing_calls) == (False, None, ("end",))
    both = match(
        {"match_mode": "contains", "expected": [picky]}, made("pay", amount="x"), made("pay", amount=101)
    )
    assert both.matched


SLOW = re.compile("(a+)+")
HOSTILE = "a" * 5_000 + "!"


@pytest.mark.slow
def test_a_regex_that_never_finishes() -> None:
    """An expression that runs out of time makes the result errored if the result depends on it."""
    hostile, fine = made("a", q=HOSTILE), made("a", q="aa")
    for mode in ("strict", "within"):
        result = match({"match_mode": mode, "expected": [call("a", q=SLOW)]}, hostile)
        assert not result.matched
        assert "gave no answer within 1 s" in result.error
        assert result.reason.startswith("could not be decided: a: re.compile('(a+)+')")
    banned = match({"forbidden": [call("a", q=SLOW)]}, hostile)
    assert (banned.matched, banned.error is None) == (False, False)
    certain = match({"match_mode": "contains", "expected": [call("a", q=SLOW)]}, hostile, fine)
    assert (certain.matched, certain.error) == (True, None)
    lost = match({"match_mode": "contains", "expected": [call("a", q=SLOW), "b"]}, hostile)
    assert (lost.matched, lost.error, lost.missing_calls) == (False, None, ("b",))


def test_functions_that_hang() -> None:
    """A predicate that hangs makes the result errored and does not block the run."""
    released = threading.Event()
    spec = parse_trajectory({"expected": [call("a", q=lambda _: released.wait(600))]})
    try:
        result = anyio.run(partial(TrajectoryMatcher(spec).match_in_time, timeout_s=0.05), [made("a", q=1)])
    finally:
        released.set()
    assert result is not None
    assert str(result.error).startswith("a function of it gave no answer within 0.05 s (test_trajectory.py:")
    assert not result.matched


def test_functions_have_a_thread() -> None:
    """Predicates and matchers may block, so they run in a thread; plain values do not."""
    here = threading.get_ident()
    seen: list[int] = []

    class Matcher:
        def __eq__(self, other: object) -> bool:
            seen.append(threading.get_ident())
            return True

        __hash__ = None  # type: ignore[assignment]

    def predicate(_: Any) -> bool:
        seen.append(threading.get_ident())
        return True

    spec = parse_trajectory({"expected": [call("a", p=[predicate], q={"m": Matcher()})]})
    result = anyio.run(TrajectoryMatcher(spec).match_in_time, [made("a", p=[1], q={"m": 2})])
    assert result is not None
    assert result.matched
    assert len(seen) == 2
    assert here not in seen


def test_a_predicate_cannot_change_the_record() -> None:
    """A predicate that changes its argument does not change the record."""
    one = made("a", q=[1, {"n": [2]}])
    match({"expected": [call("a", q=lambda value: value[1]["n"].clear())]}, one)
    assert one.args == {"q": [1, {"n": [2]}]}


def test_call_text_falls_back_to_types() -> None:
    """Arguments nested too deeply for a repr are shown by type."""
    deep: Any = []
    for _ in range(100_000):
        deep = [deep]
    assert call_text(made("a", x=deep)) == "a(x=<list>)"


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"matchmode": "strict", "expected": []}, ("trajectory: unknown key `matchmode`", "`match_mode`")),
        ({"match_mode": "contain", "expected": []}, ("trajectory.match_mode: found 'contain'", "`contains`")),
        ({"match_mode": 3, "expected": []}, ("trajectory.match_mode: found 3", "`strict`")),
        ({"match_mode": "strict"}, ("trajectory.expected: is missing",)),
        ({"expected": "book"}, ("trajectory.expected: expected a list", "str")),
        ({"expected": [""]}, ("trajectory.expected[0]", "empty")),
        ({"expected": ["a", 3]}, ("trajectory.expected[1]", "int")),
        ({"expected": [{"args": {}}]}, ("trajectory.expected[0].name",)),
        ({"expected": [{"name": "a", "arg": {}}]}, ("trajectory.expected[0]: unknown key `arg`", "`args`")),
        ({"expected": [{"name": "a", "args": []}]}, ("trajectory.expected[0].args", "list")),
        (
            {"forbidden": [{"name": "a", "argMatchMode": "exactly"}]},
            ("trajectory.forbidden[0].arg_match_mode: found 'exactly'", "`exact`"),
        ),
        ({"max_calls": -1}, ("trajectory.max_calls", "-1")),
        ({"max_turns": True}, ("trajectory.max_turns", "True")),
        ({"max_calls_per_tool": {"a": 1.5}}, ("trajectory.max_calls_per_tool.a", "1.5")),
        ({"maxCalls": 1, "max_calls": 1}, ("trajectory: `max_calls` is given twice",)),
        ({}, ("trajectory: is empty",)),
        (["a"], ("trajectory: expected a dict",)),
    ],
)
def test_a_wrong_trajectory_is_refused_with_key_and_nearest(given: Any, says: tuple[str, ...]) -> None:
    """The error has the key, the value found and the nearest valid name."""
    with pytest.raises(ValueError) as caught:
        parse_trajectory(given)
    assert all(text in str(caught.value) for text in says), caught.value


def test_defaults_are_those_of_the_contract() -> None:
    """The mode is `strict`, and every form compares its named arguments partially."""
    spec = parse_trajectory({"expected": ["a", {"name": "b", "args": {"x": 1}}, call("c", x=1)]})
    assert spec.match_mode == "strict"
    assert spec.expected
    assert [e.arg_match_mode for e in spec.expected] == ["partial"] * 3
    assert parse_trajectory(spec) is spec


@pytest.mark.parametrize(
    ("expected", "held"),
    [
        ({"name": "refund", "args": {"amount": 5}}, False),
        ({"name": "refund", "args": {"amount": 500}}, True),
        ({"name": "refund", "args": {"order": "A", "amount": 500}}, False),
        ({"name": "refund", "args": {}}, True),
        ({"name": "refund", "args": None}, True),
        ({"name": "refund", "args": {"amount": 5}, "arg_match_mode": "ignore"}, True),
        ({"name": "refund", "args": {}, "arg_match_mode": "exact"}, False),
        *(({"name": "refund", "argMatchMode": mode}, True) for mode in ("ignore", "partial", "exact")),
    ],
)
def test_arguments_that_are_named_are_compared(expected: dict[str, Any], held: bool) -> None:
    """Named arguments are compared by default; without any, every parsable call matches in every mode."""
    refund = made("refund", order="B", amount=500)
    found = match({"expected": [expected]}, refund)
    assert found.matched is held
    assert match({"forbidden": [expected]}, refund).matched is not held
    if "args" not in expected:
        assert not match({"expected": [expected]}, made("refund", raw="{broken")).matched
        assert "expected (strict): refund\n" in found.reason


def test_scenario_trajectories_see_all_turns_and_turn_trajectories_one() -> None:
    """In a run, a scenario's trajectory sees all calls and a turn's only those of that turn."""
    from agentest import scenario

    script: list[Any] = [tool_call("a", n=1), "one", tool_call("b"), "two"]
    made_scenario = scenario(
        "two turns",
        turns=[
            {"user_message": "first", "trajectory": {"expected": [call("a", n=1)]}},
            {"userMessage": "second", "assertions": {"toolCalls": {"expected": ["a"]}}},
        ],
        tools={"a": 1, "b": 2},
        trajectory={"match_mode": "strict", "expected": ["a", "b"], "max_turns": 2},
    )
    with ScriptedAgent(script) as agent:
        found = run_scenarios([made_scenario], agent=agent, model=ScriptedModel()).scenarios[0]
    [held] = found.conversations
    per_turn = [turn.trajectory for turn in held.turns]
    assert held.trajectory
    assert held.trajectory.matched
    assert [isinstance(r, TrajectoryResult) and r.matched for r in per_turn] == [True, False]
    assert [r.turn_index for r in found.verdict.reasons] == [1]


def test_very_long_values_are_shortened() -> None:
    """Results store each value several times, so that a value of a megabyte is shortened."""
    found = match({"expected": [call("a", x="x" * 10**6)]}, made("a", x="y"))
    assert "(1,000,002 characters)" in found.expected
    assert len(found.reason) < 10_000


def test_an_object_is_shown_without_its_address() -> None:
    """Addresses change with every run, so they would break comparisons."""
    assert match({"expected": [call("a", x=object())]}).expected == "a(x=<object object>, …)"
