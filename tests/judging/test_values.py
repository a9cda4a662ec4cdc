"""Equality of expected and actual values, as trajectories use it (contract, section 7)."""

from __future__ import annotations

import functools
import json
import operator
import re
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest
from dirty_equals import AnyThing, Contains, IsPartialDict, IsPositive, IsStr
from hypothesis import given, settings
from hypothesis import strategies as st

from agentest.scenarios.matchers.comparison import PredicateFailed, equal
from agentest.scenarios.matchers.display import shown
from agentest.support.json_text import safe_repr

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


def same(expected: Any, actual: Any) -> bool:
    """JSON equality, implemented differently: booleans are marked, everything else uses `==`."""

    def marked(value: Any) -> Any:
        if isinstance(value, bool):
            return ("bool", value)
        if isinstance(value, dict):
            return {key: marked(item) for key, item in value.items()}
        return [marked(item) for item in value] if isinstance(value, list) else value

    return bool(marked(expected) == marked(actual))


@settings(max_examples=150, deadline=None)
@given(json_values, json_values)
def test_plain_values_compare_as_json_does(expected: Any, actual: Any) -> None:
    """Two JSON values are equal when they are the same JSON, and a boolean is never a number."""
    assert equal(expected, actual) is same(expected, actual)


@settings(max_examples=100, deadline=None)
@given(json_values)
def test_a_value_equals_itself_after_a_json_round_trip(value: Any) -> None:
    assert equal(value, json.loads(json.dumps(value)))


@pytest.mark.parametrize(
    ("expected", "actual", "holds"),
    [
        (1, 1.0, True),
        (1.0, 1, True),
        (True, 1, False),
        (1, True, False),
        (0, False, False),
        (False, 0.0, False),
        (Decimal(1), True, False),
        (Decimal(1), 1, True),
        (Fraction(1, 2), 0.5, True),
        (True, True, True),
        (None, None, True),
        (None, False, False),
        ("1", 1, False),
        ((1, 2), [1, 2], True),
        ([1, 2], [2, 1], False),
        ([], {}, False),
        ({}, [], False),
        ({"a": {"b": [True]}}, {"a": {"b": [1]}}, False),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        ({"a": 1, "b": None}, {"a": 1}, False),
    ],
)
def test_numbers_booleans_and_containers(expected: Any, actual: Any, holds: bool) -> None:
    """`1` equals `1.0`, `True` does not equal `1`, and containers are equal item by item."""
    assert equal(expected, actual) is holds


@pytest.mark.parametrize(
    ("expected", "actual", "holds"),
    [
        (re.compile(r"BK-\d+"), "BK-001", True),
        (re.compile(r"BK-\d+"), "the BK-001", False),
        (re.compile(r"BK-\d+"), "BK-001\n", False),
        (re.compile(r"\d+"), 12, False),
        (re.compile(r".*"), None, False),
        ({"id": [re.compile("a|ab")]}, {"id": ["ab"]}, True),
        (IsStr(regex="a.*"), "abc", True),
        ({"x": [IsPositive]}, {"x": [3]}, True),
        ({"x": [IsPositive]}, {"x": [-3]}, False),
        (IsPartialDict(a=1), {"a": 1, "b": 2}, True),
        ([AnyThing(), Contains("x")], [None, "axb"], True),
        (pytest.approx(0.3), 0.1 + 0.2, True),
        ({"p": pytest.approx(10, abs=1)}, {"p": 10.5}, True),
        (pytest.approx({"a": 0.3}), {"a": 0.1 + 0.2}, True),
        (pytest.approx(1.0), "1", False),
        (lambda n: n > 3, 4, True),
        ({"a": [lambda n: n > 3]}, {"a": [2]}, False),
        (str.isdigit, "12", True),
        (str.isdigit, "x", False),
        ("abc".startswith, "ab", True),
        (functools.partial(operator.lt, 3), 4, True),
        (callable, 4, False),
    ],
)
def test_matchers_work_at_any_depth(expected: Any, actual: Any, holds: bool) -> None:
    """Patterns match whole texts, functions are called, and matcher objects decide, at any depth."""
    assert equal(expected, actual) is holds


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 30), st.booleans(), st.data())
def test_depth_changes_nothing(depth: int, right: bool, data: st.DataObject) -> None:
    """A predicate inside nested lists and dicts gives the same result as at the top."""
    expected: Any = lambda value: value == 7  # noqa: E731
    actual: Any = 7 if right else 8
    for _ in range(depth):
        if data.draw(st.booleans()):
            expected, actual = [1, expected], [1, actual]
        else:
            expected, actual = {"k": expected}, {"k": actual}
    assert equal(expected, actual) is right


class Broken:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no idea")

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        raise RuntimeError("no name")


async def later(value: Any) -> bool:
    return False


@pytest.mark.parametrize(
    ("expected", "says"),
    [
        (lambda value: value > 3, "lambda value: value > 3 raised TypeError"),
        (Broken(), "<Broken> raised RuntimeError: no idea"),
        (re.compile(rb"x"), "raised TypeError"),
        (later, "<predicate later> raised TypeError: a predicate cannot be async"),
        ({"deep": [later]}, "a predicate cannot be async"),
    ],
)
def test_a_predicate_that_raises_gives_no_result(expected: Any, says: str) -> None:
    """A predicate or matcher that raises or is async is reported by name."""
    with pytest.raises(PredicateFailed) as caught:
        equal(expected, {"deep": ["x"]} if isinstance(expected, dict) else "x")
    assert says in str(caught.value)


def test_types_as_expected_values() -> None:
    """No value equals a bare type such as `str`; the reason suggests `instance(str)`."""
    assert not equal(str, "x")
    assert "no value equals; write instance(str)" in shown({"a": str})
    assert equal(IsStr, "x")
    assert shown(IsStr) == repr(IsStr)


def test_values_are_shown_as_a_reader_would_write_them() -> None:
    """Patterns are shown by pattern, functions by name, and values without a repr by type."""
    assert shown({"a": [re.compile("x+"), len, (1,)]}) == "{'a': [re.compile('x+'), <predicate len>, [1]]}"
    assert shown(functools.partial(len)) == "<predicate function>"
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    assert (safe_repr(Broken()), safe_repr(deep)) == ("<Broken>", "<list>")
