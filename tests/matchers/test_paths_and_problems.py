"""Arguments by path, and which part of a value is not as expected."""

from __future__ import annotations

import re
from typing import Any

import pytest

from agentest import absent, approx, each, instance, number, one_of, optional
from agentest.scenarios.matchers.comparison import (
    MISSING,
    DifferenceSearch,
    argument,
    not_expected,
    outcome_of,
)

GIVEN = {
    "amount": {"value": 5, "currency": "EUR"},
    "items": [{"id": "a"}, {"id": "b", "tags": ["x"]}],
    "a.b": 1,
    "dotted": {"x.y": {"z": 7}, "x": {"q": 8}},
    "n": None,
}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("amount.value", 5),
        ("amount", GIVEN["amount"]),
        ("items.0.id", "a"),
        ("items.1.tags.0", "x"),
        ("items.2.id", MISSING),
        ("items.-1.id", MISSING),
        ("items.١.id", MISSING),
        ("items.x", MISSING),
        ("items." + "9" * 10_000, MISSING),
        ("a.b", 1),
        ("a.c", MISSING),
        ("dotted.x.y.z", 7),
        ("dotted.x.q", 8),
        ("n", None),
        ("n.x", MISSING),
        ("amount.value.x", MISSING),
        ("amount.", MISSING),
        (".", MISSING),
        ("", MISSING),
    ],
)
def test_a_key_with_dots_is_a_name_or_a_path(key: str, value: Any) -> None:
    """The literal key has priority over the path; a path that leads nowhere is missing."""
    assert argument(GIVEN, key) is value or argument(GIVEN, key) == value


@pytest.mark.parametrize(
    ("wanted", "given", "partly", "exactly"),
    [
        ({}, {}, True, True),
        ({}, {"x": 1}, True, False),
        ({"amount.value": 5}, {"amount": {"value": 5, "currency": "EUR"}}, True, True),
        ({"amount.value": 5}, {"amount": {"value": 5}, "x": 1}, True, False),
        ({"amount.value": 5}, {"amount.value": 5}, True, True),
        ({"amount.value": 5}, {"amount.value": 6, "amount": {"value": 5}}, False, False),
        ({"amount.value": 5}, {"amount": 5}, False, False),
        ({"amount.value": absent}, {"amount": {"x": 5}}, True, True),
        ({"amount.value": absent}, {"amount": {"value": 5}}, False, False),
        ({"amount.value": absent}, {}, True, True),
        ({"amount.value": optional(number(5))}, {"amount": {"value": "5"}}, True, True),
        ({"amount.value": optional(5)}, {"amount": {"value": 6}}, False, False),
        ({"items.0.id": "a", "items.1": {"id": "b"}}, {"items": [{"id": "a"}, {"id": "b"}]}, True, True),
        ({"a.b.c": 1}, {"a.b": {"c": 1}}, True, True),
        ({"a.b.c": 1}, {"a.b": {}, "a": {"b": {"c": 1}}}, True, False),
        ({"a": optional(1), "b": absent}, {}, True, True),
        ({"a": optional(1), "b": absent}, {"a": 1, "c": 1}, True, False),
        ({"a": [1]}, {"a": (1,)}, True, True),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": 2}}, False, False),
    ],
)
def test_expected_arguments(wanted: Any, given: Any, partly: bool, exactly: bool) -> None:
    """Each expected argument has its value or may be missing; an exact match allows no others."""
    for exact, holds in ((False, partly), (True, exactly)):
        assert outcome_of(DifferenceSearch().arguments(wanted, given, exact=exact)) == (holds, "")


def test_unexpected_arguments() -> None:
    """A path accounts for the argument that it leads into, even if it finds nothing there."""
    assert not_expected(["amount.x", "items.7", "a.b"], GIVEN) == ["dotted", "n"]


def words(wanted: Any, given: Any, *, exact: bool = False) -> list[str]:
    return [problem.words for problem in DifferenceSearch().arguments(wanted, given, exact=exact)]


def fails(value: Any) -> bool:
    raise KeyError("price")


@pytest.mark.parametrize(
    ("wanted", "given", "says"),
    [
        ({"amount": 5}, {"amount": 500}, ["amount: expected 5, got 500"]),
        ({"amount.value": 5}, {"amount": {"value": 500}}, ["amount.value: expected 5, got 500"]),
        ({"amount.value": 5}, {"amount": 5}, ["amount.value: expected 5, not given"]),
        ({"to": {"city": "Bern", "name": "Ada"}}, {"to": {"name": "Eve", "town": "Ulm"}}, [
            "to.town: not expected, got 'Ulm'",
            "to.city: expected 'Bern', not given",
            "to.name: expected 'Ada', got 'Eve'",
        ]),
        ({"ids": [1, 2, 3]}, {"ids": [1, 5, 3]}, ["ids.1: expected 2, got 5"]),
        ({"ids": [1, 2]}, {"ids": [1]}, ["ids: expected [1, 2], got [1] (a list of 1, not of 2)"]),
        ({"n": [{"a": [1, {"b": 2}]}]}, {"n": [{"a": [1, {"b": 3}]}]}, ["n.0.a.1.b: expected 2, got 3"]),
        ({"n": optional(5)}, {"n": 6}, ["n: expected optional(5), got 6"]),
        ({"n": optional({"a": number(5)})}, {"n": {"a": "6"}}, ["n.a: expected number(5), got '6'"]),
        ({"n": absent}, {"n": None}, ["n: expected absent, got None"]),
        ({"n": one_of("a", "b")}, {"n": "c"}, ["n: expected one_of('a', 'b'), got 'c'"]),
        ({"n": each(instance(int))}, {"n": [1, "x", 2, None]}, [
            "n.1: expected instance(int), got 'x'",
            "n.3: expected instance(int), got None",
        ]),
        ({"n": each(instance(int))}, {"n": 5}, ["n: expected each(instance(int)), got 5"]),
        ({"n": each({"id": 1})}, {"n": [{"id": 1}, {"id": 2}]}, ["n.1.id: expected 1, got 2"]),
        ({"n": approx([1, 2], abs=0.5)}, {"n": [1, 3]}, ["n.1: expected approx(2, abs=0.5), got 3"]),
        ({"n": approx({"a": 1})}, {"n": {"a": 2}}, ["n.a: expected approx(1), got 2"]),
        ({"n": approx([1])}, {"n": []}, ["n: expected approx([1]), got []"]),
        ({"n": lambda n: n > 5}, {"n": 1}, ["n: expected lambda n: n > 5, got 1"]),
        ({"n": True}, {"n": 1}, ["n: expected True, got 1"]),
        ({"n": 1, "x": 2}, {"n": 1, "x": 2}, []),
    ],
)  # fmt: skip
def test_differences_are_located(wanted: Any, given: Any, says: list[str]) -> None:
    """Each difference has its path, the expected value as it was written, and the actual one."""
    assert words(wanted, given) == says


def test_unexpected_arguments_come_first() -> None:
    """In an exact match, unexpected arguments are listed before missing or wrong ones."""
    assert words({"a": 1, "b.c": 2}, {"a": 2, "b": {}, "x": 3}, exact=True) == [
        "x: not expected, got 3",
        "b.c: expected 2, not given",
        "a: expected 1, got 2",
    ]


def test_a_difference_of_the_whole_value() -> None:
    """A value without a key is reported without one; long values are shortened."""
    assert [problem.words for problem in DifferenceSearch().values(5, "x")] == ["expected 5, got 'x'"]
    (inner,) = DifferenceSearch().arguments({"status": "ok"}, {"status": "no"}, exact=False, inside="result")
    assert inner.words == "result.status: expected 'ok', got 'no'"
    (long,) = DifferenceSearch().values("x" * 1_000, "y" * 1_000, "k")
    assert len(long.words) < 250


def test_functions_are_not_called_after_the_first_problem() -> None:
    """The report explains the first difference without calling further functions."""
    asked: list[Any] = []

    def refuse(value: Any) -> bool:
        asked.append(value)
        return False

    assert words({"a": refuse, "b": refuse, "c": 1}, {"a": 1, "b": 2, "c": 2}) == [
        "a: expected <predicate refuse>, got 1",
        "c: expected 1, got 2",
    ]
    assert asked == [1]


def test_a_raising_function_is_reported() -> None:
    """The report says what was raised and where, not that the value differs."""
    (problem,) = problems = [*DifferenceSearch().arguments({"a": {"b": fails}}, {"a": {"b": 1}}, exact=False)]
    line = fails.__code__.co_firstlineno + 1
    raised = f"<predicate fails> raised KeyError: 'price' (test_paths_and_problems.py:{line})"
    assert (problem.path, problem.failed, outcome_of(problems)) == ("a.b", raised, (None, raised))
    assert problem.words == f"a.b: {raised}, got 1"


def test_patterns_count_as_functions() -> None:
    """A pattern may take long, so it is handled like a function."""
    assert words({"a": 1, "b": re.compile("x")}, {"a": 2, "b": "y"}) == ["a: expected 1, got 2"]
    assert words({"b": re.compile("x")}, {"b": "y"}) == ["b: expected re.compile('x'), got 'y'"]
