"""Random matchers, checked against an oracle that shares no code with them.

A wish is a tuple, such as `("one_of", [("is", 5), ("absent",)])`. `word` makes the matcher that a scenario
would use; `grants` decides, as plainly as possible, whether an actual value satisfies the wish. The result of
a predicate that raises is unknown; whatever does not depend on it is known.
"""

from __future__ import annotations

import copy
import operator
import pickle
import re
from collections.abc import Callable
from fractions import Fraction
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from agentest import absent, approx, each, instance, number, one_of, optional, text
from agentest.scenarios.matchers.comparison import (
    DifferenceSearch,
    PredicateFailed,
    equal,
    is_plain,
    outcome_of,
)
from agentest.scenarios.matchers.validity import check_expected

Wish = tuple[Any, ...]
NOTHING = object()
"""That no value is there."""
SPELLED = {
    "5": Fraction(5),
    "5.0": Fraction(5),
    "1,234": Fraction(1234),
    "1\u00a0234": Fraction(1234),
    "½": Fraction(1, 2),
    "1 ½": Fraction(3, 2),
    "−5": Fraction(-5),
    "x": None,
    "X": None,
    "New York": None,
    "new  york": None,
    "": None,
}
NUMBERS = [0, 1, 5, 5.0, 5.0000001, 5.5, -5, 0.5, 1.5, 1234]
PLAIN = [*SPELLED, *NUMBERS, True, False, None]
KEYS = ["a", "b", "a.b", "b.0"]
TYPES: dict[Any, Any] = {"str": str, "int": int, "float": float, "bool": bool, "list": list, "dict": dict}

json_values = st.recursive(
    st.sampled_from(PLAIN),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=3),
    max_leaves=6,
)
number_wishes = st.one_of(
    st.tuples(st.just("number"), st.sampled_from([n for n in PLAIN if not isinstance(n, bool | None)])),
    st.tuples(st.just("near"), st.sampled_from(NUMBERS), st.sampled_from([0, 0.5, None])),
).filter(lambda wish: not isinstance(wish[1], str) or SPELLED[wish[1]] is not None)
leaves = st.one_of(
    st.tuples(st.just("is"), json_values),
    number_wishes,
    st.tuples(st.just("text"), st.sampled_from([*SPELLED]), st.booleans(), st.booleans()),
    st.tuples(st.just("instance"), st.lists(st.sampled_from([*TYPES, None]), min_size=1, max_size=2)),
    st.tuples(st.just("asks"), st.sampled_from([*TYPES])),
    st.tuples(st.just("matches"), st.sampled_from(["x", "[0-9.]+", ".*"])),
    st.just(("raises",)),
)


def dicts(inner: st.SearchStrategy[Wish]) -> st.SearchStrategy[Wish]:
    several = st.lists(inner | st.just(("absent",)), min_size=1, max_size=3)
    of_key = st.one_of(
        inner,
        st.just(("absent",)),
        st.tuples(st.just("optional"), inner),
        st.tuples(st.just("one_of"), several),
    )
    return st.tuples(st.just("dict"), st.dictionaries(st.sampled_from(KEYS), of_key, max_size=3))


def containers(inner: st.SearchStrategy[Wish]) -> st.SearchStrategy[Wish]:
    return st.one_of(
        st.tuples(st.just("one_of"), st.lists(inner, min_size=1, max_size=3)),
        st.tuples(st.just("each"), inner),
        st.tuples(st.just("list"), st.lists(inner, max_size=3)),
        dicts(inner),
    )


wishes = st.recursive(leaves, containers, max_leaves=6)


def kind_of(value: Any) -> str | None:
    """Return the name of a JSON value's type; that of `5.0` is float."""
    return None if value is None else type(value).__name__


def is_a(value: Any, name: Any) -> bool:
    return kind_of(value) == name or (name == "float" and kind_of(value) == "int")


def raises(value: Any) -> bool:
    raise KeyError("price")


def word(wish: Wish) -> Any:
    """Return the expected value for the wish."""
    match wish:
        case ("is", value):
            return value
        case ("number", value):
            return number(value)
        case ("near", value, tolerance):
            return approx(value, abs=tolerance)
        case ("text", value, case, space):
            return text(value, ignore_case=case, ignore_space=space)
        case ("instance", names):
            return instance(*(None if name is None else TYPES[name] for name in names))
        case ("asks", name):
            return lambda value: is_a(value, name)
        case ("matches", pattern):
            return re.compile(pattern)
        case ("raises",):
            return raises
        case ("absent",):
            return absent
        case ("optional", inner):
            return optional(word(inner))
        case ("one_of", several):
            return one_of(*map(word, several))
        case ("each", inner):
            return each(word(inner))
        case ("list", items):
            return [word(item) for item in items]
        case ("dict", entries):
            return {key: word(value) for key, value in entries.items()}
    raise AssertionError(wish)


def as_number(value: Any) -> Fraction | None:
    if isinstance(value, str):
        return SPELLED[value]
    return Fraction(str(value)) if kind_of(value) in ("int", "float") else None


def same(one: Any, other: Any) -> bool:
    """Return whether two JSON values are equal: `True` is not a number, and `5` equals `5.0`."""
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(same, one, other))
    if {kind_of(one), kind_of(other)} <= {"int", "float"}:
        return bool(one == other)
    return kind_of(one) == kind_of(other) and bool(one == other)


def one_at_least(answers: list[bool | None]) -> bool | None:
    return True if True in answers else None if None in answers else False


def every_one(answers: list[bool | None]) -> bool | None:
    return False if False in answers else None if None in answers else True


def grants(wish: Wish, value: Any) -> bool | None:
    """Return whether a value, or NOTHING if it is missing, satisfies the wish; None if unknown."""
    if wish[0] == "one_of":
        return one_at_least([grants(each, value) for each in wish[1]])
    if value is NOTHING:
        return wish[0] in ("absent", "optional")
    match wish:
        case ("optional", inner):
            return grants(inner, value)
        case ("each", inner):
            return isinstance(value, list) and every_one([grants(inner, item) for item in value])
        case ("list", items):
            is_as_long = isinstance(value, list) and len(value) == len(items)
            return is_as_long and every_one(list(map(grants, items, value)))
        case ("dict", entries):
            is_known = isinstance(value, dict) and value.keys() <= entries.keys()
            return is_known and every_one([grants(entries[key], value.get(key, NOTHING)) for key in entries])
        case ("raises",):
            return None
    return is_granted(wish, value)


def is_granted(wish: Wish, value: Any) -> bool:
    """Do the same for wishes without nested wishes."""
    match wish:
        case ("is", wanted):
            return same(wanted, value)
        case ("number", wanted):
            return as_number(value) is not None and as_number(value) == as_number(wanted)
        case ("near", wanted, tolerance):
            most = max(Fraction(1, 10**6) * abs(as_number(wanted) or 0), Fraction(1, 10**12))
            most = most if tolerance is None else Fraction(str(tolerance))
            is_number = kind_of(value) in ("int", "float")
            return is_number and abs((as_number(value) or 0) - (as_number(wanted) or 0)) <= most
        case ("text", wanted, case, space):
            forms = [each.lower() if case else each for each in (wanted, value) if isinstance(each, str)]
            forms = [re.sub(r"\s", "", each) if space else each for each in forms]
            return len(forms) == 2 and forms[0] == forms[1]
        case ("instance", names):
            return any(is_a(value, name) for name in names)
        case ("asks", name):
            return is_a(value, name)
        case ("matches", pattern):
            return isinstance(value, str) and re.fullmatch(pattern, value) is not None
    return False


def told(compare: Callable[..., Any], *args: Any, **options: Any) -> bool | None:
    """Return the result of a comparison, or None if a predicate raised."""
    try:
        answer = compare(*args, **options)
    except PredicateFailed:
        return None
    assert isinstance(answer, bool)
    return answer


@st.composite
def near_to(draw: st.DrawFn, wish: Wish) -> Any:
    """Draw a value that satisfies the wish, or almost does."""
    if draw(st.integers(0, 11)) == 0:
        return draw(json_values)
    match wish:
        case ("one_of", several):
            return draw(near_to(draw(st.sampled_from(several))))
        case ("optional" | "each" as kind, inner):
            if kind == "each":
                return draw(st.lists(near_to(inner), max_size=3))
            return NOTHING if draw(st.booleans()) else draw(near_to(inner))
        case ("absent",):
            return NOTHING
        case ("list", items):
            return [each for item in items if (each := draw(near_to(item))) is not NOTHING]
        case ("dict", entries):
            found = {key: draw(near_to(inner)) for key, inner in entries.items()}
            return {key: value for key, value in found.items() if value is not NOTHING}
        case ("is", value):
            return copy.deepcopy(value)
    return draw(st.sampled_from(PLAIN))


@settings(max_examples=150, deadline=None)
@given(wishes, st.data())
def test_nested_matchers_agree_with_an_oracle(wish: Wish, data: st.DataObject) -> None:
    """Any nesting of matchers matches exactly the values that an independent oracle accepts."""
    expected, value = word(wish), data.draw(near_to(wish).filter(lambda value: value is not NOTHING))
    holds = grants(wish, value)
    assert told(equal, expected, value) is holds
    assert told(equal, {"k": [expected]}, {"k": [value]}) is holds
    assert told(operator.eq, one_of(expected), value) is holds
    assert told(operator.eq, value, one_of(expected)) is holds
    assert outcome_of(DifferenceSearch().values(expected, value))[0] is holds
    check_expected(expected, "k")


@settings(max_examples=150, deadline=None)
@given(dicts(st.recursive(leaves, containers, max_leaves=3)), st.data())
def test_argument_matching_agrees_with_an_oracle(wish: Wish, data: st.DataObject) -> None:
    """Arguments, by name or path, match exactly when an independent oracle accepts them."""
    given_args = data.draw(near_to(wish).filter(lambda value: isinstance(value, dict)))
    wanted = word(wish)

    def found(key: str) -> Any:
        name, _, rest = key.partition(".")
        inside = given_args.get(name)
        if key in given_args or not rest:
            return given_args.get(key, NOTHING)
        if isinstance(inside, dict):
            return inside.get(rest, NOTHING)
        return inside[0] if isinstance(inside, list) and inside and rest == "0" else NOTHING

    partly = every_one([grants(inner, found(key)) for key, inner in wish[1].items()])
    known = {key if key in given_args else key.partition(".")[0] for key in wanted}
    exactly = given_args.keys() <= known and partly
    for exact, holds in ((False, partly), (True, exactly)):
        assert outcome_of(DifferenceSearch().arguments(wanted, given_args, exact=exact))[0] is holds


@settings(max_examples=150, deadline=None)
@given(wishes, json_values)
def test_copied_matchers_are_equal(wish: Wish, value: Any) -> None:
    """A copy, or a matcher from another process, is equal, prints the same and decides the same."""
    expected = word(wish)
    copies = [copy.deepcopy(expected)]
    if is_plain(expected):
        copies.append(pickle.loads(pickle.dumps(expected)))
    for other in copies:
        assert repr(other) == repr(expected)
        assert optional(other) == optional(expected)
        assert hash(optional(other)) == hash(optional(expected))
        assert told(equal, other, value) is told(equal, expected, value)


@settings(max_examples=150, deadline=None)
@given(wishes)
def test_repr_is_valid_python(wish: Wish) -> None:
    """A matcher's repr is the Python that makes it again, except for functions."""
    written = repr(optional(word(wish)))
    if "<" not in written and "lambda" not in written:
        assert eval(written, NAMES) == optional(word(wish))


NAMES = {
    "absent": absent,
    "approx": approx,
    "each": each,
    "instance": instance,
    "number": number,
    "one_of": one_of,
    "optional": optional,
    "re": re,
    "text": text,
}
