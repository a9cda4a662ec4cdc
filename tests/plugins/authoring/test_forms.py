"""Matchers as data: what is written in YAML and JSON is read back unchanged."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from agentest import (
    absent,
    any_of,
    approx,
    before,
    call,
    each,
    exactly,
    instance,
    never_after,
    number,
    one_of,
    optional,
    text,
)
from agentest.plugins.authoring.scenario_files import as_data
from agentest.scenarios.matchers.comparison import equal, may_be_absent
from agentest.scenarios.matchers.display import shown
from agentest.scenarios.parser import matcher_from_data, replace_forms
from agentest.scenarios.trajectory import Trajectory
from agentest.scenarios.trajectory_parser import parse_trajectories, parse_trajectory

WORDS: list[tuple[Any, Any]] = [
    ({"optional": 10}, optional(10)),
    ({"absent": True}, absent),
    ({"one_of": ["a", 5]}, one_of("a", 5)),
    ({"approx": 5, "abs": 0.1}, approx(5, abs=0.1)),
    ({"approx": {"text": 5}, "rel": 0.1}, approx({"text": 5}, rel=0.1)),
    ({"text": "x", "ignore_case": True}, text("x", ignore_case=True)),
    (
        {"text": "x", "ignore_case": True, "ignore_space": True, "ignore_punctuation": True},
        text("x", ignore_case=True, ignore_space=True, ignore_punctuation=True),
    ),
    ({"number": "1,234"}, number("1,234")),
    ({"number": {"one_of": [5, "6"]}}, number(one_of(5, "6"))),
    ({"number": {"approx": 5, "abs": 1}}, number(approx(5, abs=1))),
    ({"instance": "str"}, instance(str)),
    ({"instance": ["int", "null"]}, instance(int, None)),
    ({"each": {"instance": "int"}}, each(instance(int))),
    ({"regex": "a+", "ignore_case": True, "flags": "s"}, re.compile("a+", re.I | re.S)),
    ({"optional": {"one_of": [{"absent": True}, {"text": "a"}]}}, optional(one_of(absent, text("a")))),
    ({"exactly": {"text": "hi"}}, {"text": "hi"}),
]


@pytest.mark.parametrize(("data", "word"), WORDS, ids=[json.dumps(data) for data, _ in WORDS])
def test_each_matcher_has_a_data_form(data: Any, word: Any) -> None:
    """The form is read as its matcher, printed as it, and written back unchanged, in YAML too."""
    for source in (data, yaml.safe_load(yaml.safe_dump(data)), json.loads(json.dumps(data))):
        read = replace_forms(source)
        assert read == word
        assert word == read
        assert shown(read) == shown(word)
    assert as_data(word) == as_data(replace_forms(data)) == data
    if not may_be_absent(word):
        assert matcher_from_data(data) == word


@pytest.mark.parametrize("data", [data for data, _ in WORDS], ids=str)
def test_a_matcher_dict_also_equals_itself(data: Any) -> None:
    """An argument that really is such a dict equals it, so that existing cases keep working."""
    assert equal(replace_forms(data), data)
    assert equal(replace_forms({"deep": [1, {"x": data}]}), {"deep": [1, {"x": data}]})


@pytest.mark.parametrize(
    "data",
    [
        {"text": 5},
        {"text": "a", "type": "b"},
        {"number": "many"},
        {"instance": "i-0abc"},
        {"absent": False},
        {"regex": "["},
        {"one_of": 5},
        {"one_of": []},
        {"exactly": 5},
        {"optional": 1, "each": 2},
        {"approx": "x"},
        {"textt": "a"},
        {},
    ],
    ids=str,
)
def test_a_dict_that_is_almost_a_form_stays_a_dict(data: Any) -> None:
    """A dict that is not exactly the form of a matcher is left unchanged."""
    assert replace_forms(data) is data
    assert as_data(data) == data


def test_optional_applies_to_keys_only() -> None:
    """In a list, `{optional: 5}` is a literal dict; as a key's value, it makes the key optional."""
    assert replace_forms([{"optional": 5}]) == [{"optional": 5}]
    assert not equal(replace_forms([{"optional": 5}]), [5])
    assert equal(replace_forms({"x": {"optional": 5}}), {})
    assert replace_forms({"optional": 5}, of_key=False) == {"optional": 5}


def test_user_keys_may_have_names_of_matchers() -> None:
    """Arguments of a call and keys of a state may have the name of a matcher."""
    assert replace_forms({"text": "hi"}, is_word=False) == {"text": "hi"}
    made = parse_trajectory({"expected": [{"name": "say", "args": {"text": "hi"}}]})
    assert made.expected == (call("say", text="hi"),)


def test_call_keywords_are_not_parsed_as_forms() -> None:
    """`call(…)` takes matchers themselves; a dict passed to it stays a dict."""
    made = parse_trajectory({"expected": [call("say", what={"text": "hi"})]})
    assert made.expected is not None
    assert not equal(made.expected[0].args, {"what": "hi"})  # type: ignore[union-attr]


def test_forms_are_read_in_camel_case() -> None:
    """Forms are read in camelCase, like every other option."""
    assert replace_forms({"oneOf": [1]}) == one_of(1)
    assert replace_forms({"text": "A", "ignoreCase": True}) == text("A", ignore_case=True)
    data = {"expected": [{"anyOf": ["a", "b"]}], "neverAfter": ["a", "b"], "matchMode": "in_order"}
    assert parse_trajectory(data) == parse_trajectory(
        {"match_mode": "in_order", "expected": [any_of("a", "b"), never_after("a", "b")]}
    )


def test_a_wrong_form_is_an_error_where_a_dict_makes_no_sense() -> None:
    """If a literal dict makes no sense, a wrong form is an error."""
    assert matcher_from_data({"one_of": [{"text": "a"}, 5]}) == one_of(text("a"), 5)
    with pytest.raises(ValueError, match="expects a text"):
        matcher_from_data({"text": 5})


def test_a_complete_trajectory_in_yaml() -> None:
    """Everything that a scenario file can expect of calls can be written in YAML."""
    data = yaml.safe_load("""
- name: authenticates first
  before: [authenticate, {any_of: [refund_order, {name: {regex: "cancel_.*"}}]}]
- name: writes only these
  match_mode: unordered
  reads: ["get_*", {regex: "find_.*"}]
  ignore_failed: true
  expected:
    - exactly: {name: refund, args: {amount: {number: "1,234"}, note: {optional: ok}}, first: true}
    - any_of: [[a, b], c]
    - {name: close, args: {reason: null}, arg_match_mode: ignore, result: {status: {one_of: [ok, done]}}}
""")
    made = parse_trajectories(data)
    assert made == parse_trajectories(
        [
            {
                "name": "authenticates first",
                "before": ["authenticate", any_of("refund_order", re.compile("cancel_.*"))],
            },
            {
                "name": "writes only these",
                "match_mode": "unordered",
                "reads": ["get_*", re.compile("find_.*")],
                "ignore_failed": True,
                "expected": [
                    exactly(call("refund", amount=number("1,234"), note=optional("ok"), first=True)),
                    any_of(["a", "b"], "c"),
                    {
                        "name": "close",
                        "args": {"reason": None},
                        "arg_match_mode": "ignore",
                        "result": {"status": one_of("ok", "done")},
                    },
                ],
            },
        ]
    )
    assert parse_trajectories(json.loads(json.dumps(as_data(made)))) == made


class Foreign:
    def __repr__(self) -> str:
        return "IsPositive()"


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"x": [1, str.isdigit]}, "x[1]: <predicate isdigit> is a function, which has no form in data"),
        (Foreign(), "IsPositive() is a Foreign, which has no form in data"),
        ({"x": float("nan")}, "x: nan is a float, which has no form in data"),
        ({5: 1}, "5 is a key, and keys of data are texts"),
        (instance(Foreign), "the type Foreign has no name in data"),
        (re.compile(b"a"), "has no form in data"),
        (call("a", where=bool.__call__), "where: "),
        (
            parse_trajectory({"expected": [call("a", x=str.isdigit)]}),
            "expected[0].args.x: <predicate isdigit>",
        ),
    ],
    ids=range(8),
)
def test_values_without_a_form_are_located(value: Any, words: str) -> None:
    """Functions and foreign matchers cannot be written as data; the error says which one and where."""
    with pytest.raises(ValueError, match=re.escape(words)):
        as_data(value)


PLAIN = (
    st.none() | st.booleans() | st.integers(-9, 9) | st.sampled_from(["", "a", "1,234", "str"]) | st.just(0.5)
)
KEYS = st.sampled_from(["a", "text", "optional", "one_of", "exactly", "absent", "regex", "b.c"])


def values(deeper: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return (
        st.lists(deeper, max_size=2)
        | st.dictionaries(KEYS, deeper, max_size=2)
        | st.lists(deeper, min_size=1, max_size=2).map(lambda each: one_of(*each))
        | deeper.map(each)
    )


LEAVES = PLAIN | st.sampled_from(
    [
        text("A", ignore_case=True),
        text("A", ignore_punctuation=True, ignore_space=True, ignore_case=True),
        number(5),
        number(one_of(1, approx(2, abs=1))),
        approx([1, 2]),
        instance(str, None),
        re.compile("a.*"),
        re.compile("(?i)a", re.M),
    ]
)
VALUES = st.recursive(LEAVES, values, max_leaves=4)
AT_KEYS = VALUES | VALUES.map(optional) | st.just(absent)
NAMES = st.sampled_from(["a", "b", "get_*", re.compile("x.*")])
CALLS = st.builds(
    lambda name, args, exact, **more: (
        exactly(call(name, args, **more)) if exact else call(name, args, **more)
    ),
    NAMES,
    st.dictionaries(KEYS, AT_KEYS, max_size=2),
    st.booleans(),
) | st.builds(lambda name, result: call(name, result=result), NAMES, VALUES)
ALTERNATIVES = st.lists(CALLS | st.lists(CALLS, min_size=1, max_size=2), min_size=1, max_size=2).map(
    lambda each: any_of(*each)
)
ORDERS = st.builds(lambda order, x: order(x, "zz"), st.sampled_from([before, never_after]), CALLS)
TRAJECTORIES = st.fixed_dictionaries(
    {
        "expected": st.lists(NAMES | CALLS | ALTERNATIVES, max_size=3).flatmap(
            lambda calls: st.lists(ORDERS, max_size=2).map(lambda orders: calls + orders)
        )
    },
    optional={
        "match_mode": st.sampled_from(["strict", "unordered", "contains", "in_order", "within"]),
        "name": st.just("n"),
        "ignore_failed": st.booleans(),
        "forbidden": st.lists(st.just(call("never", x=1)), max_size=1),
        "default_arg_match_mode": st.sampled_from(["exact", "ignore", {"a": "exact", "*": "ignore"}]),
        "max_turns": st.integers(1, 3),
        "min_calls": st.just(0),
        "max_calls_per_tool": st.sampled_from([9, {"get_*": 9}]),
    },
)


@settings(deadline=None, max_examples=50)
@given(TRAJECTORIES)
def test_a_trajectory_survives_json(options: dict[str, Any]) -> None:
    """A trajectory without functions is unchanged after it is written as JSON and read back."""
    made = parse_trajectory(options)
    data = json.loads(json.dumps(as_data(made)))
    read: Trajectory = parse_trajectory(data)
    assert read == made
    assert as_data(read) == data


@settings(deadline=None, max_examples=50)
@given(st.dictionaries(KEYS, AT_KEYS, max_size=3))
def test_a_state_survives_json(state: dict[str, Any]) -> None:
    """An expected state survives too, even if its keys have names of matchers."""
    data = json.loads(json.dumps({name: as_data(value) for name, value in state.items()}))
    assert replace_forms(data, is_word=False) == state
