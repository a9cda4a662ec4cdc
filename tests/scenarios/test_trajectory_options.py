"""The options of trajectories: how they are read, and contradictions between them."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agentest import ScenarioError, any_of, before, call, exactly, never_after, one_of, optional, scenario
from agentest.scenarios.trajectory import ExpectedCall, Trajectory
from agentest.scenarios.trajectory_parser import parse_trajectories, parse_trajectory

A, B = ExpectedCall("a"), ExpectedCall("b")


def test_all_options_in_both_spellings() -> None:
    """Each key is read in snake_case and in camelCase."""
    data = {
        "name": "n",
        "matchMode": "inOrder",
        "expected": ["a", "b"],
        "minCalls": 1,
        "maxCalls": 9,
        "ignoreFailed": True,
        "reads": ["get_*"],
        "atMostOnce": True,
        "rounds": True,
        "maxCallsPerTool": {"get_*": 3},
        "neverAfter": ["a", "c"],
    }
    made = parse_trajectory(data)
    assert made == Trajectory(
        match_mode="in_order",
        expected=(A, B),
        max_calls=9,
        max_calls_per_tool={"get_*": 3},
        name="n",
        min_calls=1,
        ignore_failed=True,
        reads=("get_*",),
        at_most_once=True,
        rounds=True,
        orders=(never_after("a", "c"),),
    )
    assert made.named_tools == {"a", "b", "c"}
    assert made.banned_tools == {"a", "c", "get_*"}


@pytest.mark.parametrize("key", ["expected", "expected_writes", "forbidden"])
def test_a_single_step_needs_no_list(key: str) -> None:
    """Two acceptable paths, or one call, need no list, as matchers or as data."""
    for one in (call("a"), {"name": "a"}, any_of("a", "b"), {"any_of": ["a", "b"]}):
        assert parse_trajectory({key: one}) == parse_trajectory({key: [one]})
    paths = any_of(["a"], ["b", "c"])
    assert parse_trajectory({"expected": paths}).expected == (paths,)
    assert parse_trajectory({"expected": {"any_of": [["a"], ["b", "c"]]}}).expected == (paths,)
    assert parse_trajectory({"expected": before("a", "b")}).orders == (before("a", "b"),)


def test_orders_can_be_written_in_four_places() -> None:
    """As a trajectory, as an item of a list, among expected calls, or as keys with one pair or several."""
    order = before("a", "b")
    orders = Trajectory(orders=(order,))
    assert parse_trajectories(order) == parse_trajectories([order]) == (orders,)
    for options in (
        {"expected": [order]},
        {"before": ["a", "b"]},
        {"before": [["a", "b"]]},
        {"before": order},
        {"expected": [{"before": ["a", "b"]}]},
    ):
        assert parse_trajectory(options) == orders
    both = parse_trajectory({"expected": ["a", never_after("c", "d"), order], "before": [["x", "y"], order]})
    assert both.expected == (A,)
    assert both.orders == (order, before("x", "y"), order, never_after("c", "d"))


def test_expected_writes_are_a_trajectory() -> None:
    """`expected_writes` covers all calls except reads; next to `expected` it is a second trajectory."""
    alone = parse_trajectory({"expected_writes": ["a"], "reads": ["get_*"]})
    assert alone == Trajectory("unordered", (A,), reads=("get_*",))
    assert parse_trajectory({"expected_writes": []}).expected == ()
    assert parse_trajectory({"expected_writes": ["a"], "match_mode": "strict"}).match_mode == "strict"
    shared = {"reads": ["get_*"], "ignore_failed": True, "name": "n"}
    both = {**shared, "expected": ["b"], "match_mode": "contains", "expected_writes": ["a"], "max_calls": 3}
    first, second = parse_trajectories(both)
    assert first == Trajectory("contains", (B,), max_calls=3, name="n", ignore_failed=True, reads=("get_*",))
    assert second == Trajectory("unordered", (A,), name="n: writes", ignore_failed=True, reads=("get_*",))


@pytest.mark.parametrize(
    ("default", "expected", "mode"),
    [
        ("exact", call("a", x=1), "exact"),
        ("exact", call("a"), "partial"),
        ("exact", "a", "partial"),
        ("exact", {"name": "a", "args": {}}, "exact"),
        ("exact", {"name": "a", "args": {}, "arg_match_mode": "partial"}, "partial"),
        ("ignore", exactly(call("a", x=1)), "exact"),
        ({"a": "exact", "*": "ignore"}, call("a", x=1), "exact"),
        ({"*": "ignore", "a*": "exact"}, call("ab", x=1), "exact"),
        ({"b": "exact"}, call("a", x=1), "partial"),
        ({"a": "exact"}, any_of(call("a", x=1), call("b", x=1)), "exact"),
    ],
)
def test_a_default_argument_mode(default: Any, expected: Any, mode: str) -> None:
    """It applies to calls with arguments and no mode of their own; a tool's exact name outranks globs."""
    made = parse_trajectory({"expected": [expected], "default_arg_match_mode": default}).expected
    assert made
    step = made[0]
    single = step if isinstance(step, ExpectedCall) else (step.single or ())[0]
    assert single.arg_match_mode == mode


def test_call_limits_by_glob() -> None:
    """A tool's exact name outranks globs; among globs the lowest limit counts."""
    made = parse_trajectory({"max_calls_per_tool": {"*": 3, "get_*": 2, "get_user": 5}})
    assert [made.limit_of(tool) for tool in ("get_user", "get_x", "x")] == [5, 2, 3]


def test_a_turn_may_have_several_trajectories() -> None:
    """A turn's `trajectory` may be a list with names."""
    both = [{"name": "one", "max_calls": 1}, before("a", "b")]
    made = scenario("s", turns=[{"user_message": "hi", "trajectory": both}])
    assert [each.name for each in made.turns[0].trajectory] == ["one", ""]


MANY = any_of(*([[f"a{i}", "b"] for i in range(11)]))
BAD: list[tuple[str, Any, str]] = [
    ("empty-list", [], "trajectory: is empty"),
    (
        "names",
        [{"name": "x", "max_calls": 1}, {"name": "x", "max_calls": 2}],
        "trajectory[1].name: trajectory[0]",
    ),
    ("name-blank", {"name": " ", "max_calls": 1}, "trajectory.name: is empty"),
    ("only-name", {"name": "x"}, "trajectory.expected: is missing"),
    ("only-reads", {"reads": ["a"]}, "write the calls that `reads` is about"),
    ("a-call", ["a"], "trajectory[0]: write calls as a list in `expected`: trajectory={'expected': ['a']}"),
    ("bool", {"expected": ["a"], "ignore_failed": 1}, "trajectory.ignore_failed: expected True or False"),
    ("reads", {"expected": ["a"], "reads": [5]}, "trajectory.reads[0]: expected the name of a tool"),
    ("mode", {"expected": ["a"], "default_arg_match_mode": "exakt"}, "did you mean `exact`?"),
    (
        "forbidden",
        {"expected": [call("a", x=1)], "forbidden": ["a"]},
        "trajectory.expected[0]: a is expected, but trajectory.forbidden[0] forbids it",
    ),
    ("forbidden-same", {"expected": [call("a", x=1, y=2)], "forbidden": [call("a", x=1)]}, "forbids it"),
    ("forbidden-glob", {"expected": ["a", any_of("get_x", "c")], "forbidden": ["get_*"]}, "expected[1]"),
    ("nth", {"expected": [call("a", nth=3)], "max_calls": 2}, "expected[0].nth: is 3, but `max_calls` is 2"),
    (
        "nth-twice",
        {"expected": [call("a", nth=1), call("a", first=True)]},
        "expected[1].first: is True, but trajectory.expected[0].nth: is 1 for the same call of a",
    ),
    (
        "first-and-limit",
        {"expected": [{"name": "a", "last": True}], "max_calls": 0},
        "expected[0].last: is True, but `max_calls` is 0",
    ),
    (
        "first-failed",
        {"expected": [call("a", first=True, result={"error": "full"})], "ignore_failed": True},
        "expected[0].first: is True, but a call with the `result` {'error': 'full'} has failed",
    ),
    (
        "banned-failed",
        {"forbidden": [call("a", last=True, result={"error": "full"})], "ignore_failed": True},
        "trajectory.forbidden[0].last: is True, but a call with the `result`",
    ),
    (
        "nth-failed",
        {
            "match_mode": "contains",
            "expected": [any_of("b", call("a", nth=2, result={"error.code": one_of(1, 2)}))],
            "ignore_failed": True,
        },
        "expected[0].nth: is 2, but a call with the `result`",
    ),
    (
        "nth-tool",
        {"match_mode": "contains", "expected": [call("a", nth=-3)], "max_calls_per_tool": {"a": 2}},
        "expected[0].nth: is -3, but `max_calls_per_tool` is 2 for a",
    ),
    ("rounds-nothing", {"max_calls": 3, "rounds": True}, "trajectory.rounds: is about an order, but there"),
    (
        "nth-read",
        {"expected": [call("a", nth=1)], "reads": ["a"]},
        "nth: is 1, but a is free, as `reads` has",
    ),
    ("first-read", {"expected": [call("a", first=True)], "reads": ["a"]}, "first: is True, but a is free"),
    ("min-max", {"min_calls": 3, "max_calls": 2}, "min_calls: is 3, more than `max_calls`, which is 2"),
    ("read-write", {"expected_writes": ["get_x"], "reads": ["get_*"]}, "but `reads` has get_*"),
    ("write-mode", {"expected_writes": ["a"], "match_mode": "contains"}, "`expected_writes` are exactly"),
    ("before-itself", {"before": ["a", "a"]}, "trajectory.before: a is expected before a"),
    ("before-one", {"before": ["a"]}, "trajectory.before: expected two calls, [a, b]"),
    ("before-kind", {"before": [never_after("a", "b")]}, "never_after(…) stands under `before`"),
    (
        "rounds",
        {"expected": ["a"], "match_mode": "unordered", "rounds": True},
        "which `match_mode` 'unordered'",
    ),
    ("once", {"max_calls": 3, "at_most_once": True}, "trajectory.at_most_once: is about"),
    ("paths", {"expected": [MANY, MANY, MANY]}, "make 1,331 different ways"),
    ("banned-path", {"forbidden": [any_of(["a", "b"])]}, "any_of(…) of lists cannot be forbidden"),
    (
        "a-type",
        {"expected": [call("a", x={"y": [str]})]},
        "trajectory.expected[0].args.x.y[0]: str is a type",
    ),
    ("a-call-as-value", {"expected": [call("a", x=any_of("b"))]}, "expected[0].args.x: found a call"),
    (
        "exactly-mode",
        {"expected": [{"exactly": {"name": "a", "arg_match_mode": "ignore"}}]},
        "which `exactly` is",
    ),
    ("where", {"expected": [{"name": "a", "where": 5}]}, "expected[0].where: expected a function"),
    ("one-word", {"expected": [{"any_of": 5}]}, "expected[0].any_of: expected a list of calls"),
]


@pytest.mark.parametrize(("given", "words"), [each[1:] for each in BAD], ids=[each[0] for each in BAD])
def test_wrong_or_contradictory_options_are_refused(given: Any, words: str) -> None:
    """An option that is invalid or can never be met is an error when the file is read, with both keys."""
    with pytest.raises(ScenarioError, match=re.escape(words)):
        scenario("s", goal="g", trajectory=given)


class AnyNumber:
    """A foreign matcher, as in dirty-equals."""

    __hash__ = None  # type: ignore[assignment]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, int)


FINE: list[tuple[str, dict[str, Any]]] = [
    ("other-args", {"expected": [call("a", x=1)], "forbidden": [call("a", x=2)]}),
    ("one-of-more", {"expected": [call("a", x=one_of(5, 6))], "forbidden": [call("a", x=5)]}),
    ("glob-but-one", {"match_mode": "within", "expected": ["*"], "forbidden": ["delete_*"]}),
    ("reads-uncounted", {"expected": ["get_a", "b"], "reads": ["get_*"], "max_calls": 1}),
    (
        "failed-uncounted",
        {"expected": [call("a", result={"error": "no"}), "b"], "ignore_failed": True, "max_calls": 1},
    ),
    (
        "first-worked",
        {
            "expected": [
                call("a", first=True, result={"ok": 1, "error": optional("no")}),
                call("b", last=True, result={"error": one_of(None, "no")}),
            ],
            "ignore_failed": True,
        },
    ),
    ("first-failed-counted", {"expected": [call("a", first=True, result={"error": "no"})]}),
    ("nth-of-each", {"expected": [call("a", nth=1), call("b", first=True)]}),
    ("nth-banned", {"expected": [call("get_a", nth=1)], "forbidden": [call("get_*", nth=1)]}),
    ("nothing", {"expected": [], "rounds": True, "at_most_once": True}),
    ("within", {"match_mode": "within", "expected": ["a", "b"], "max_calls": 1}),
    ("shorter-path", {"expected": [any_of(["a", "b"], "c")], "max_calls": 1}),
    ("rounds-of-orders", {"before": ["a", "b"], "rounds": True}),
    (
        "own-matcher",
        {"expected": [call("a", x=optional(AnyNumber()))], "forbidden": [call("a", x=optional(5))]},
    ),
    ("any-before-one", {"before": [call("a", x=AnyNumber()), call("a", x=5)]}),
    ("one-before-any", {"before": [call("a", x=5), any_of(call("a", x=AnyNumber()))]}),
    ("one-is-not-true", {"before": [call("a", x=1), call("a", x=True)]}),
]


@pytest.mark.parametrize("options", [each[1] for each in FINE], ids=[each[0] for each in FINE])
def test_satisfiable_options_are_accepted(options: dict[str, Any]) -> None:
    """Options that some conversation could meet are not an error."""
    assert parse_trajectory(options).about_calls


def test_turn_limits_alone_do_not_concern_calls() -> None:
    """A trajectory that only limits turns expects nothing of calls, whatever its name."""
    assert not parse_trajectory({"name": "short", "max_turns": 3}).about_calls


class _Raises:
    """A foreign value that raises when compared, as numpy arrays do."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("not now")

    def __hash__(self) -> int:
        return 1


class _Mapping(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no items")


def _endless() -> dict[str, Any]:
    value: dict[str, Any] = {}
    value["a"] = value
    return value


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (
            {"trajectory": {"expected": ["a"], "match_mode": one_of("strict")}},
            "match_mode: found one_of('str",
        ),
        ({"trajectory": {"expected": ["a"], "match_mode": _Raises()}}, "match_mode: found <_Raises>; valid"),
        (
            {"trajectory": {"expected": [], "reads": [call("a", x=5)]}},
            "name of a tool or a pattern of names, found call('a', {'",
        ),
        ({"trajectory": {"expected": [5]}}, "found an int"),
        (
            {"trajectory": {"expected": ["a"], "default_arg_match_mode": {5: "exact"}}},
            "mode: expected the name",
        ),
        (
            {"trajectory": {"expected": ["a"], "default_arg_match_mode": {"a": one_of("exact")}}},
            "mode.a: found",
        ),
        (
            {"trajectory": {"max_calls_per_tool": {re.compile("a"): 1}}},
            "names of tools, or globs like `get_*`",
        ),
        ({"trajectory": {"max_calls": "x" * 10_000}}, "found 'xxx"),
        (
            {"trajectory": {"forbidden": [call("a", {1: 2})]}},
            "forbidden[0].args: expected the name of an arg",
        ),
        (
            {"trajectory": _Mapping(expected=["a"])},
            "trajectory: an object in it cannot be read: it raised Runti",
        ),
        ({"final_state": _endless()}, "final_state: contains itself, or is nested too deeply"),
        ({"trajectory": {"expected": [], "name": 10**5000}}, "trajectory.name: expected a text, found <int>"),
    ],
)
def test_any_wrong_value_gets_a_short_error(options: dict[str, Any], said: str) -> None:
    """Whatever the wrong value is, the error names the option and is short."""
    with pytest.raises(ScenarioError) as error:
        scenario("s", turns=["hi"], **options)
    assert said in str(error.value)
    assert len(str(error.value)) < 800


def test_calls_are_printed_as_they_are_written() -> None:
    """Errors and reports print calls, alternatives and orders as scenario files write them."""
    shown = "any_of([call('a'), exactly(call('b', {'x': 5}))], call(re.compile('c'), nth=-1))"
    assert repr(any_of(["a", exactly(call("b", x=5))], call(re.compile("c"), last=True))) == shown
    assert (
        repr(never_after("a", call("b", result={"ok": 1})))
        == "never_after(call('a'), call('b', result={'ok': 1}))"
    )


class _Callable:
    def __call__(self, value: object) -> bool:
        return True


FORBIDS_X = [
    (str.upper, ""),
    (lambda: True, "lambda: True cannot be called with one value: too many positional arguments"),
    (lambda a, b: True, "cannot be called with one value: missing a required argument: 'b'"),
    (lambda a: (yield a), "yields; a predicate returns its answer"),
    (_Callable(), "is callable but not a function; write lambda value: …, which calls it"),
    (iter([1]), "is a list_iterator, which no value equals; write a list"),
    ([{"a": {"b"}}], "x[0].a: {'b'} is a set, and JSON has none; write one_of(…) for one of these"),
    (b"a", "b'a' is not a text, and JSON has no bytes"),
]


@pytest.mark.parametrize(("value", "said"), FORBIDS_X, ids=[said for _, said in FORBIDS_X])
def test_a_forbidden_argument_that_never_matches_is_refused(value: object, said: str) -> None:
    """A value that no argument can equal is an error: forbidding it would let everything pass."""
    data = {"name": "a", "args": {"x": value}}
    for wrong in ({"forbidden": [call("a", x=value)]}, {"forbidden": [data]}):
        if not said:
            assert parse_trajectory(wrong)
            continue
        with pytest.raises(ValueError, match="forbidden") as error:
            parse_trajectory(wrong)
        assert said in str(error.value)


@pytest.mark.parametrize(
    "function", [lambda: 1, lambda a, b: 1, lambda a: (yield 1)], ids=["0", "2", "yields"]
)
def test_where_takes_all_arguments(function: Any) -> None:
    """A function with a wrong signature is an error when it is written, not when an agent calls the tool."""
    with pytest.raises(ValueError, match="where: expected a function of all arguments, but lambda"):
        call("a", where=function)
