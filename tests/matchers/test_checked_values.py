"""Values that nothing could be equal to are errors when a scenario is read, with the key where they stand."""

from __future__ import annotations

import re
import typing
from typing import Any

import pytest
from dirty_equals import IsPositive, IsStr

from agentest import absent, approx, call, each, instance, number, one_of, optional
from agentest.scenarios.matchers.validity import check_expected
from agentest.scenarios.matchers.values import Each


def cyclic(kind: type) -> Any:
    value: Any = kind()
    value.append(value) if kind is list else value.update(me=value)
    return value


def deep(levels: int, inside: Any = 5) -> Any:
    for level in range(levels):
        inside = {"k": inside} if level % 2 else [inside]
    return inside


async def later(value: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (str, "k: str is a type, which no value equals; write instance(str)"),
        ({"a": [{"b": int}]}, "k.a[0].b: int is a type, which no value equals; write instance(int)"),
        (type(None), "write instance(None)"),
        (optional(str), "k: str is a type"),
        (one_of(1, [dict]), "k[0]: dict is a type"),
        (each(float), "k: float is a type"),
        (list[int], "k: list[int] is a type, which no value equals; write each(instance(int))"),
        (list[list[str]], "write each(each(instance(str)))"),
        (dict[str, int], "write instance(dict)"),
        (int | None, "write instance(int, None)"),
        (typing.Optional[str], "write instance(str, None)"),  # noqa: UP045
        (typing.Any, "write instance(object)"),
        ([absent], "k[0]: absent stands for a key that may be missing, but there is no key here"),
        ({"a": [optional(5)]}, "k.a[0]: optional(5) stands for a key"),
        ([one_of(1, absent)], "k[0]: one_of(1, absent) stands for a key"),
        (call("pay"), "where a value is expected; one of several calls is any_of(…)"),
        ({"a": [call("pay", n=1)]}, "k.a[0]: found a call"),
        (re.compile(b"x"), "k: re.compile(b'x') is a pattern of bytes, which matches no text"),
        (later, "k: <predicate later> is async; a predicate cannot be"),
        ({"a": {number(5): 1}}, "k.a: number(5) is a key here"),
        ({re.compile("x"): 1}, "k: re.compile('x') is a key here"),
        (cyclic(list), "k[0]: contains itself"),
        ({"a": cyclic(dict)}, "k.a.me: contains itself"),
        (deep(101), "is nested deeper than 100 levels"),
        (one_of(1, deep(500)), "is nested deeper than 100 levels"),
    ],
    ids=lambda value: re.sub(r"\W+", " ", value)[:40] if isinstance(value, str) else "",
)
def test_impossible_values_are_located(value: Any, says: str) -> None:
    """The error begins with the key, at any depth, says what is wrong and what to write."""
    with pytest.raises(ValueError, match=re.escape(says)) as caught:
        check_expected(value, "k")
    assert str(caught.value).startswith("k")
    assert len(str(caught.value)) < 2_000


def test_absent_and_optional_need_a_key() -> None:
    """`absent` and `optional` are for keys: they may be an argument, but not a whole result."""
    for word in (absent, optional(5), one_of(absent, 5)):
        check_expected(word, "args.a")
        check_expected({"a": word}, "result", of_key=False)
        with pytest.raises(ValueError, match=r"result: .* there is no key here"):
            check_expected(word, "result", of_key=False)


SHARED = [1, {"a": 2}]


@pytest.mark.parametrize(
    "value",
    [
        None,
        {"a": [1, "x", None, 2.5, True]},
        IsStr,
        IsPositive,
        IsStr(),
        [len, lambda value: value, re.compile("x")],
        pytest.approx(5),
        approx({"a": [1]}),
        [SHARED, SHARED, {"again": SHARED}],
        deep(99),
        {1: 2, None: 3},
        each(one_of({"a": absent}, instance(str))),
    ],
    ids=range(12),
)
def test_other_values_are_left_as_they_are(value: Any) -> None:
    """Plain values, matchers, patterns, functions and foreign matchers are left as they are."""
    check_expected(value, "k")


def test_a_shared_value_is_checked_once() -> None:
    """A hundred levels that each contain the next one twice finish at once; depth is still limited."""
    value: Any = 1
    for level in range(90):
        value = one_of(value, value) if level % 2 else [value, value]
    check_expected(value, "k")
    chain = deep(60)
    with pytest.raises(ValueError, match="deeper than 100 levels"):
        check_expected([chain, deep(60, chain)], "k")


def test_each_refuses_what_its_function_refuses() -> None:
    """The class refuses the same arguments as the function that makes it."""
    with pytest.raises(ValueError, match="is for the value of a key"):
        Each(absent)
