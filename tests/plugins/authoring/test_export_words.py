"""Expectations as source code, and exported conversations that have them."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentest.scenarios import source_code
from agentest.scenarios.definition import collect_scenarios
from agentest.scenarios.matchers.numbers import approx, number
from agentest.scenarios.matchers.values import absent, each, instance, one_of, optional, text
from agentest.scenarios.model import Scenario
from agentest.scenarios.python_formatting import (
    BracketedSource,
    SourceItem,
    SourceNode,
    StringLiteral,
    module_of,
    split_source,
)
from agentest.scenarios.trajectory import AnyOf, CallOrder, ExpectedCall, Trajectory
from agentest.scenarios.trajectory_parser import parse_trajectory

ORDERS = ("before", "never_after")
QUICK = settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))


def source(**options: SourceNode) -> str:
    """A scenario file with these options."""
    items = [
        SourceItem(StringLiteral("s")),
        SourceItem('["hi"]', "turns="),
        *(SourceItem(v, f"{k}=") for k, v in options.items()),
    ]
    made = BracketedSource("scenario(", tuple(items), ")")
    return module_of('"""A test."""', [made])


def read(file: str) -> Scenario:
    with collect_scenarios() as found:
        exec(compile(file, "exported.sim.py", "exec"), {})
    return found[0]


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.floats(-1, 1) | st.text("ab.\\\"'é\n", max_size=4),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.text("ab.", max_size=3), inner, max_size=2)
    ),
    max_leaves=4,
)
patterns = st.builds(
    re.compile,
    st.sampled_from(["a", r"\d+", "(?i)x", '"\\w', "\\\\"]),
    st.sampled_from([0, re.I, re.I | re.S]),
)
words_of_values = st.sampled_from(
    [number(5), approx(1.5, rel=0.1), text("a", ignore_case=True), instance(str, bool), each(number("½"))]
)
values = plain | patterns | words_of_values | st.builds(one_of, plain, words_of_values)
arguments = st.dictionaries(
    st.sampled_from(["a", "order_id", "amount.value", "class", "first", "where", "", "ü"]),
    values | st.just(absent) | st.builds(optional, values),
    min_size=1,
    max_size=3,
)
tools = st.sampled_from(["lookup", "get_*", "say hi"]) | patterns
results = st.just(ExpectedCall("x").result) | values


def calls(draw_nth: bool = True) -> st.SearchStrategy[ExpectedCall]:
    nth = st.sampled_from([None, 1, -1, 2, -3]) if draw_nth else st.none()
    with_args = st.builds(
        ExpectedCall, tools, arguments, st.sampled_from(["partial", "exact"]), result=results, nth=nth
    )
    return st.builds(ExpectedCall, tools) | with_args


def sorted_orders(orders: list[CallOrder]) -> tuple[CallOrder, ...]:
    """As they are written: what comes before, then what never comes after."""
    return tuple(sorted(orders, key=lambda each: each.kind))


steps = calls() | st.builds(
    lambda paths: AnyOf(tuple(map(tuple, paths))),
    st.lists(st.lists(calls(), min_size=1, max_size=2), min_size=1, max_size=3),
)
orders = st.lists(
    st.builds(
        CallOrder, st.sampled_from(["before", "never_after"]), st.just(ExpectedCall("a")), calls(False)
    ),
    max_size=3,
).map(sorted_orders)
trajectories = st.builds(
    Trajectory,
    st.sampled_from(["strict", "unordered", "contains", "in_order", "within"]),
    st.none() | st.lists(steps, max_size=3).map(tuple),
    st.lists(calls(False), max_size=2).map(tuple),
    max_turns=st.none() | st.integers(0, 3),
    max_calls_per_tool=st.none() | st.integers(4, 9) | st.just({"b_*": 3}),
    name=st.sampled_from(["", "reads", "it's"]),
    ignore_failed=st.booleans(),
    reads=st.lists(tools, max_size=2).map(tuple),
    orders=orders,
)


@QUICK
@given(trajectories)
def test_a_trajectory_reads_back_as_it_was(wanted: Trajectory) -> None:
    """Any trajectory equals the one that its source defines."""
    try:
        known = parse_trajectory(as_options(wanted))
    except ValueError:
        return  # it contradicts itself, or says nothing
    made = source(trajectory=source_code.trajectories([known]))
    assert read(made).trajectory == (known,), made


def as_options(wanted: Trajectory) -> dict[str, Any]:
    """The trajectory as the dict of a scenario file, so that all that is checked there is checked."""
    found = {one.name: getattr(wanted, one.name) for one in fields(wanted)}
    found |= {kind: [(o.first, o.then) for o in wanted.orders if o.kind == kind] for kind in ORDERS}
    del found["orders"]
    return {key: value for key, value in found.items() if value not in (None, (), [], "", False)}


def calls_of(*names: str) -> tuple[ExpectedCall, ...]:
    return tuple(map(ExpectedCall, names))


def test_expectations_are_written_as_users_write_them() -> None:
    """Words, keywords and imports are those of a scenario file that a person wrote."""
    pay = ExpectedCall(
        "pay", {"amount.value": number(5), "to": optional(instance(str)), "where": "here"}, nth=-1
    )
    either = AnyOf(((pay,), calls_of("refund")))
    wanted = Trajectory(
        "in_order", (either, ExpectedCall("bye", {}, "exact")), reads=("get_*",), name="pays or refunds"
    )
    made = source(trajectory=source_code.trajectories([wanted]))
    assert (
        made
        == """\"\"\"A test.\"\"\"

from agentest import any_of, call, exactly, instance, number, optional, scenario

scenario(
    "s",
    turns=["hi"],
    trajectory={
        "name": "pays or refunds",
        "match_mode": "in_order",
        "expected": [
            any_of(
                call(
                    "pay",
                    {"amount.value": number(5), "where": "here"},
                    to=optional(instance(str)),
                    last=True,
                ),
                "refund",
            ),
            exactly(call("bye")),
        ],
        "reads": ["get_*"],
    },
)
"""
    )
    before = Trajectory(orders=(CallOrder("before", *calls_of("a", "b")),))
    made = source(trajectory=source_code.trajectories([wanted, before]))
    assert '\n        before("a", "b"),\n' in made


@pytest.mark.parametrize(
    ("value", "written"),
    [
        (approx([1, 2.5], abs=0.1), "approx([1, 2.5], abs=0.1)"),
        (one_of(absent, number("½")), 'one_of(absent, number("½"))'),
        (each(text("New York", ignore_space=True)), 'each(text("New York", ignore_space=True))'),
        (instance(int, None), "instance(int, None)"),
        ({"a": [re.compile(r"\d+", re.IGNORECASE)]}, '{"a": [re.compile(r"\\d+", re.IGNORECASE)]}'),
    ],
    ids=["approx", "one_of", "each", "instance", "pattern"],
)
def test_values_are_written_with_the_words_that_made_them(value: Any, written: str) -> None:
    """A word is written with what it was given, at any depth, and reads back as an equal value."""
    made = BracketedSource("scenario(", (SourceItem(source_code.value_of(value)),), ")")
    assert split_source(made).splitlines()[1].strip().removesuffix(",") == written
    names = {}
    exec(module_of('""""""', [made]).partition("scenario(")[0], names)
    assert repr(eval(written, names)) == repr(value)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        (Trajectory(expected=(ExpectedCall("a", {"x": [len]}),)), "expected[0].args.x[0]: <predicate len>"),
        (Trajectory(forbidden=(ExpectedCall("a", {}, where=bool),)), "forbidden[0].where: "),
        (Trajectory(expected=(ExpectedCall("a", {"x": {1: 2}}),)), "expected[0].args.x: the key 1"),
        (Trajectory(expected=(ExpectedCall("a", {"x": {1, 2}}),)), "expected[0].args.x: {1, 2}"),
    ],
    ids=["function", "where", "key", "set"],
)
def test_what_has_no_source_says_where_it_stands(wanted: Trajectory, said: str) -> None:
    """A function, a set, a key that is not a text: the message begins with the place."""
    with pytest.raises(ValueError, match=f"^{re.escape(said)}"):
        source_code.trajectory(wanted)
