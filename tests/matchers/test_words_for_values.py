"""The matchers for values: what each accepts, how it prints, and which arguments it refuses."""

from __future__ import annotations

import copy
import functools
import pickle
import re
from collections.abc import Callable
from dataclasses import FrozenInstanceError
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from dirty_equals import Contains, HasLen, IsList, IsPartialDict

from agentest import absent, approx, call, each, instance, number, one_of, optional, text
from agentest.scenarios.matchers.comparison import PredicateFailed, equal, includes, is_plain
from agentest.scenarios.matchers.display import shown
from agentest.scenarios.matchers.values import Instance, type_named

NBSP, THIN = "\u00a0", "\u202f"
HOLDS: list[tuple[Any, Any]] = [
    (optional(5), 5),
    ({"a": optional(5)}, {}),
    ({"a": optional(5)}, {"a": 5.0}),
    ({"a": absent, "b": 1}, {"b": 1}),
    ({"a": one_of(absent, 5)}, {}),
    ({"a": one_of(absent, 5)}, {"a": 5}),
    ({"a": {"b": [{"c": optional(number(5))}]}}, {"a": {"b": [{"c": "5.0"}]}}),
    ([optional(1)], [1]),
    (one_of("a", None), None),
    (one_of(text("A", ignore_case=True), 5), "a"),
    (one_of(re.compile("x+"), {"k": 1}), {"k": 1}),
    (approx(5), 5.000001),
    (approx(0.3), 0.1 + 0.2),
    (approx(5, abs=0.1), 5.1),
    (approx(5, abs=0.1), 4.9),
    (approx(0.3, abs=0.1), 0.4),
    (approx(100, rel=0.1), 110),
    (approx(100, rel=0.1, abs=20), 120),
    (approx(-100, rel=0.1), -91),
    (approx(0), 1e-13),
    (approx(float("inf")), float("inf")),
    (approx(5, abs=float("inf")), -1e300),
    (approx(Decimal("0.1")), 0.1),
    (approx([1, 2.5]), [1.0000001, 2.5]),
    (approx((1, 2)), [1, 2]),
    (approx({"a": 1, "b": [2]}, abs=0.5), {"a": 1.5, "b": [1.5]}),
    (text("Paris"), "Paris"),
    (text("Paris", ignore_case=True), "pARIS"),
    (text("straße", ignore_case=True), "STRASSE"),
    (text("é", ignore_case=True), "E\u0301"),
    (text("New York", ignore_space=True), " New\u00a0\u200b\nYork "),
    (text("New York", ignore_case=True, ignore_space=True), "newyork"),
    (text("April 1, 2024", ignore_punctuation=True), "April 1 2024"),
    (text("O'Hare (ORD)", ignore_punctuation=True, ignore_case=True, ignore_space=True), "o’hare—ord"),
    (number(1234), "1,234"),
    (number("1,234"), 1234.0),
    (number(1234), "1 234"),
    (number(1234567), f"1{NBSP}234{NBSP}567"),
    (number(1234), f"1{THIN}234"),
    (number(1234567), "12,34,567"),
    (number("½"), 0.5),
    (number(0.5), "½"),
    (number("1 ½"), "1½"),
    (number(1.5), f"1{NBSP}½"),
    (number("1 1/2"), "1.5"),
    (number(5), "5.0"),
    (number(5), "5."),
    (number(0.5), ".5"),
    (number(1000), "1e3"),
    (number("-5"), "−5"),
    (number(-5), "-5"),
    (number(5), "+5"),
    (number(12), "１２"),
    (number(-5), "-$5"),
    (number(-5), "$-5"),
    (number("−€ 7"), -7),
    (number(1234.5), "$1,234.50"),
    (number(5), "5 €"),
    (number(-0.5), "-½"),
    (number("-½"), -0.5),
    (number(Fraction(7, 2)), "٣٫٥"),
    (number(0.1), "0.1"),
    (number(0.1), Decimal("0.1")),
    (number(10**30), "1e30"),
    (number(approx(5, abs=0.1)), "5.05"),
    (number(one_of(5, "½")), "0.50"),
    (number(one_of(5, approx(7, abs=1))), "8"),
    (instance(str), ""),
    (instance(int), 5),
    (instance(float), 5),
    (instance(float), 5.5),
    (instance(bool), True),
    (instance(int, None), None),
    (instance(int | None), None),
    (instance(list), (1,)),
    (instance(dict), {}),
    (instance(object), True),
    (each(instance(int)), [1, 2]),
    (each(5), []),
    (each({"id": number(1)}), [{"id": "1"}, {"id": 1.0}]),
    (each(each(one_of(1, 2))), [[1], [], [2, 1]]),
    (each(lambda n: n > 1), [2, 3]),
    (IsPartialDict(n=number(5)), {"n": "5", "x": 1}),
    (IsList(text("A", ignore_case=True), 2), ["a", 2]),
    (Contains(number(5)), ["5"]),
    (one_of(HasLen(2), absent), "ab"),
]
FAILS: list[tuple[Any, Any]] = [
    (optional(5), 6),
    (optional(5), None),
    ({"a": optional(5)}, {"a": None}),
    ({"a": optional(5)}, {"b": 5}),
    ({"a": absent}, {"a": None}),
    (absent, None),
    ([absent], []),
    ([optional(1)], []),
    (one_of(1, 2), True),
    (one_of("a"), ["a"]),
    (approx(5), 5.00001),
    (approx(5, abs=0.1), 5.100001),
    (approx(1_000_000, abs=0.1), 1_000_000.5),
    (approx(5, abs=0, rel=0), 5.0000000000001),
    (approx(1), True),
    (approx(5), "5"),
    (approx(5), None),
    (approx(5), float("nan")),
    (approx(float("nan")), float("nan")),
    (approx(float("inf")), 1e300),
    (approx(float("inf")), float("-inf")),
    (approx([1, 2]), [1]),
    (approx([1, 2]), [2, 1]),
    (approx([1]), 1),
    (approx({"a": 1}), {"a": 1, "b": 1}),
    (approx({"a": 1}), [1]),
    (text("Paris"), "paris"),
    (text("Paris"), "Paris "),
    (text("Paris", ignore_case=True), "Par is"),
    (text("NewYork", ignore_space=True), "new york"),
    (text("5 €", ignore_punctuation=True), "5 $"),
    (text("1+1", ignore_punctuation=True), "11"),
    (text("a b", ignore_punctuation=True), "a-b"),
    (text("5"), 5),
    (text("a"), None),
    (text("None"), None),
    (number(1), True),
    (number(5), "five"),
    (number(5), "-$5"),
    (number(5), "$5 €"),
    (number(5), "$$5"),
    (number(0), "$"),
    (number(5), "--$5"),
    (number(5), "5 kg"),
    (number(5), ""),
    (number(5), None),
    (number(5), [5]),
    (number(123), "1,23"),
    (number(1234), "1,2,34"),
    (number(52), "5²"),
    (number(10), "1_0"),
    (number(5), "--5"),
    (number(16), "0x10"),
    (number(0), "1/0"),
    (number(0), float("nan")),
    (number(0), "1e-99999999999"),
    (number(1), "1e99999999999"),
    (number(1), "9" * 100_000),
    (number(0.1), "0.10000000000000001"),
    (number(approx(5, abs=0.1)), "5.2"),
    (instance(int), True),
    (instance(float), True),
    (instance(int), 5.0),
    (instance(int), "5"),
    (instance(bool), 1),
    (instance(str), None),
    (instance(list), "ab"),
    (instance(dict), []),
    (each(instance(int)), [1, "2"]),
    (each(instance(int)), 5),
    (each(instance(str)), "ab"),
    (each(1), {"a": 1}),
    (each(lambda n: n > 1), [2, 1]),
    (IsPartialDict(n=number(5)), {"n": "6"}),
]


@pytest.mark.parametrize(("expected", "actual"), HOLDS, ids=map(str, range(len(HOLDS))))
def test_values_that_each_matcher_accepts(expected: Any, actual: Any) -> None:
    """Each matcher accepts its values, alone and at any depth."""
    assert equal(expected, actual) is True
    assert equal({"deep": [expected]}, {"deep": [actual]}) is True
    assert equal(one_of("nothing like it", expected), actual) is True


@pytest.mark.parametrize(("expected", "actual"), FAILS, ids=map(str, range(len(FAILS))))
def test_values_that_each_matcher_rejects(expected: Any, actual: Any) -> None:
    """Each matcher rejects all other values, alone and at any depth."""
    assert equal(expected, actual) is False
    assert equal({"deep": [expected]}, {"deep": [actual]}) is False
    assert equal(one_of("nothing like it", expected), actual) is False


def test_includes_compares_the_given_keys() -> None:
    """`includes` requires the expected keys; an optional key may be missing."""
    assert includes({"a": optional(1), "b": number(2)}, {"b": "2", "c": 3})
    assert includes({"a": absent}, {"c": 3})
    assert not includes({"a": absent}, {"a": 3})
    assert not includes({"b": number(2)}, {})


@pytest.mark.parametrize(
    ("word", "written"),
    [
        (optional(5), "optional(5)"),
        (absent, "absent"),
        (one_of("a", 5, None), "one_of('a', 5, None)"),
        (approx(5), "approx(5)"),
        (approx([1, 2], rel=0.5, abs=1), "approx([1, 2], rel=0.5, abs=1)"),
        (text("x"), "text('x')"),
        (text("x", ignore_space=True, ignore_case=True), "text('x', ignore_case=True, ignore_space=True)"),
        (text("x", ignore_punctuation=True), "text('x', ignore_punctuation=True)"),
        (number("½"), "number('½')"),
        (number(approx(5, abs=0.1)), "number(approx(5, abs=0.1))"),
        (instance(str, None), "instance(str, None)"),
        (instance(int | bool), "instance(int, bool)"),
        (each(instance(int)), "each(instance(int))"),
        (optional({"a": [one_of(1, each(number(2)))]}), "optional({'a': [one_of(1, each(number(2)))]})"),
        (one_of(re.compile("x+"), len), "one_of(re.compile('x+'), <predicate len>)"),
        (one_of(re.compile("x", re.I | re.S)), "one_of(re.compile('x', re.I | re.S))"),
        (one_of(re.compile("(?i)x", re.M)), "one_of(re.compile('(?i)x', re.M))"),
        (each(lambda n: n > 3), "each(lambda n: n > 3)"),
    ],
)
def test_matchers_print_as_they_are_written(word: Any, written: str) -> None:
    """A matcher's repr, also in reports, is what somebody wrote."""
    assert repr(word) == shown(word) == written


ALL = [optional([1]), absent, one_of(1, {"a": 2}), approx([5]), text("x"), number(5), instance(str), each(1)]


@pytest.mark.parametrize("word", ALL, ids=repr)
def test_matchers_are_values(word: Any) -> None:
    """A matcher can be hashed, copied and pickled, and cannot be changed; copies are equal."""
    copies = [copy.copy(word), copy.deepcopy(word), pickle.loads(pickle.dumps(word))]
    assert all(each == word and hash(each) == hash(word) for each in copies)
    assert all(other is word or other != word for other in ALL)
    with pytest.raises((FrozenInstanceError, AttributeError, TypeError)):
        word.value = 7


def test_equality_of_matchers() -> None:
    """Between two matchers `==` compares their contents; with anything else the matcher decides."""
    assert one_of(1, 2) == one_of(1.0, 2)
    assert one_of(1) != one_of(True)
    assert optional({"a": [1]}) == optional({"a": [1]})
    assert optional({"a": [1]}) != optional({"a": [True]})
    assert number(5) != number("5")
    assert optional(number(5)) != optional(5)
    assert number(5) == "5.0"
    assert "5.0" == number(5)  # noqa: SIM300
    assert number(5) != True  # noqa: E712
    assert {"a": [text("X", ignore_case=True)]} == {"a": ["x"]}
    assert {"status": "ok", "n": number(1000)} == {"status": "ok", "n": "1,000"}
    assert absent != None  # noqa: E711


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (lambda: one_of(), "one_of() needs at least one value"),
        (lambda: one_of(1, call("pay")), "any_of(call(…), call(…))"),
        (lambda: each(), "each(…) takes one value, which every item must be equal to, and was given 0"),
        (lambda: each(1, 2), "each(one_of(…))"),
        (lambda: each(optional(5)), "optional(5) is for the value of a key"),
        (lambda: each(absent), "absent is for the value of a key"),
        (lambda: text(5), "text(…) expects a text, found 5; for a number write number(5)"),
        (lambda: text(None), "found None"),
        (lambda: text(re.compile("x")), "found re.compile('x')"),
        (lambda: text("x", ignore_case=1), "ignore_case is True or False, found 1"),
        (lambda: number("many"), 'a text that is one ("1,234", "½"), found \'many\''),
        (lambda: number(True), "found True"),
        (lambda: number(float("nan")), "found nan"),
        (lambda: number(None), "found None"),
        (lambda: number(optional(5)), "found optional(5)"),
        (lambda: number(one_of(5, "many")), "found 'many'"),
        (lambda: number(approx([5])), "expects one number, found approx([5])"),
        (lambda: approx("x"), "approx(…) expects a number, or a list or dict of numbers, found 'x'"),
        (lambda: approx("5"), "write number('5')"),
        (lambda: approx(True), "found True"),
        (lambda: approx([1, "a"]), "found 'a'"),
        (lambda: approx(5, abs=-1), "abs expects a number of at least 0, found -1"),
        (lambda: approx(5, rel=float("nan")), "rel expects a number of at least 0, found nan"),
        (lambda: approx(5, rel="1"), "found '1'"),
        (lambda: approx(5, abs=True), "found True"),
        (lambda: instance(), "instance(…) needs a type, like instance(str)"),
        (lambda: instance(5), "instance(…) expects a type, found 5; for a value like it write instance(int)"),
        (lambda: instance("string"), "write instance(str)"),
        (lambda: instance(list[int]), "each(instance(…))"),
        (lambda: instance(Any), "instance(object)"),
        (lambda: type_named("strin"), "'strin' is not a type"),
        (lambda: type_named(["str"]), "is not a type"),
    ],
)
def test_wrong_matcher_arguments_are_explained(wrong: Callable[[], Any], says: str) -> None:
    """Invalid arguments are an error where the matcher is written, and the error says what to write."""
    with pytest.raises(ValueError, match=re.escape(says)):
        wrong()


def test_types_have_names_in_data() -> None:
    """Data names a type as Python or JSON Schema does, and a type has such a name."""
    names = ["str", "int", "float", "bool", "dict", "list", "null"]
    assert Instance(tuple(map(type_named, names))).names == names
    schema = ["string", "integer", "number", "boolean", "object", "array"]
    assert Instance(tuple(map(type_named, schema))).names == names[:-1]
    with pytest.raises(ValueError, match="the type Decimal has no name in data"):
        _ = Instance((Decimal,)).names


def test_matchers_without_user_code_are_plain() -> None:
    """A matcher needs a thread with a time limit only if it contains user code."""
    assert all(map(is_plain, [*ALL, {"a": [each(number(5))]}]))
    waits = [lambda n: n, re.compile("x"), HasLen(2), instance(functools.partial)]
    assert not any(is_plain(one_of(1, optional(each(value)))) for value in waits)


# fmt: off
LAMBDAS = [
    (lambda: (1)), lambda a, *b: a["é"] > (b[0]) and not a, lambda x=(lambda: 1): x(),
    lambda x: lambda y: (x, y), lambda a: sorted(a, key=lambda y: y)[0], (lambda v: (v > 3)),
    lambda first,
           second: first,
]
# fmt: on


def test_a_lambda_is_printed_as_source() -> None:
    """A lambda on one line is printed as its source, wherever it is on the line; others have no source."""
    assert list(map(shown, LAMBDAS)) == [
        "lambda: (1)",
        'lambda a, *b: a["é"] > (b[0]) and not a',
        "lambda x=(lambda: 1): x()",
        "lambda x: lambda y: (x, y)",
        "lambda a: sorted(a, key=lambda y: y)[0]",
        "lambda v: (v > 3)",
        "<predicate <lambda>>",
    ]
    assert shown(eval("lambda x: x > 3")) == "<predicate <lambda>>"


def test_a_lambda_of_a_changed_file_has_no_source(tmp_path: Path) -> None:
    """The current content of the file is not taken for the source."""
    file = tmp_path / "module.py"
    file.write_text("f = lambda other, value: value\n", encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile("f = lambda value: value > 3\n", str(file), "exec"), names)
    assert shown(names["f"]) == "<predicate <lambda>>"


def raises(value: Any) -> bool:
    return bool(value["price"] < 5)


def helper(value: Any) -> bool:
    return raises(value)


class Broken:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no idea")

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return "Broken()"


@pytest.mark.parametrize(
    ("predicate", "says"),
    [
        (raises, "<predicate raises> raised KeyError: 'price' ({file}:{raises})"),
        (helper, "<predicate helper> raised KeyError: 'price' ({file}:{raises})"),
        (lambda v: v["price"], "lambda v: v[\"price\"] raised KeyError: 'price' ({file}:"),
        (functools.partial(raises), "<predicate function> raised KeyError: 'price' ({file}:{raises})"),
        (len, "<predicate len> raised TypeError: object of type 'int' has no len()"),
        (Broken(), "Broken() raised RuntimeError: no idea ({file}:"),
    ],
    ids=["function", "helper", "lambda", "partial", "built in", "matcher"],
)
@pytest.mark.parametrize(
    "around", [lambda value: value, one_of, each, lambda value: IsPartialDict(a=one_of(value))]
)
def test_a_raising_predicate_is_located(predicate: Any, says: str, around: Callable[[Any], Any]) -> None:
    """The error has the user's file and line, even inside nested matchers."""
    actual: Any = 5 if predicate is len else {}
    nested = {"around": around(predicate)}
    is_in_a_dict = isinstance(nested["around"], IsPartialDict)
    given = [actual] if repr(nested["around"]).startswith("each") else actual
    with pytest.raises(PredicateFailed) as caught:
        equal(nested, {"around": {"a": given} if is_in_a_dict else given})
    line = raises.__code__.co_firstlineno + 1
    assert says.format(file="test_words_for_values.py", raises=line) in str(caught.value)


def test_text_matchers_match_whole_or_part() -> None:
    """A text is found in a reply as the matcher says, as a whole or as a part."""
    assert text("new york", ignore_case=True).is_in("In New York.")  # type: ignore[attr-defined]
    assert text("newyork", ignore_case=True, ignore_space=True).is_in("New  York")  # type: ignore[attr-defined]
    assert text("ok", ignore_punctuation=True).is_in("O.K., o.k.")  # type: ignore[attr-defined]
    assert not text("...", ignore_punctuation=True).is_in("Well")  # type: ignore[attr-defined]
    assert not text("new york").is_in("In New York.")  # type: ignore[attr-defined]
