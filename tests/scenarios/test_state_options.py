"""The options `state`, `check` and `expect` of a scenario: valid values and errors."""

from __future__ import annotations

import re
import threading
from copy import deepcopy
from decimal import Decimal
from functools import partial
from typing import Any

import pytest
from dirty_equals import IsStr

from agentest.scenarios.definition import scenario, sequence
from agentest.scenarios.expectations import Expect, Saying, parse_expect
from agentest.scenarios.matchers.comparison import equal
from agentest.scenarios.matchers.numbers import approx, number
from agentest.scenarios.matchers.values import absent, one_of, optional, text
from agentest.scenarios.model import Scenario
from agentest.support.calling import accepted_values
from agentest.support.errors import ScenarioError


def made(**options: Any) -> Scenario:
    return scenario("a scenario", **{"turns": ["Hi.", "Bye."], **options})


def error_of(**options: Any) -> str:
    with pytest.raises(ScenarioError) as caught:
        made(**options)
    return str(caught.value).partition("scenario 'a scenario': ")[2]


class Shop:
    def __init__(self) -> None:
        self.orders = {"17": "open"}


@pytest.mark.parametrize("state", [{"orders": {"17": [1]}}, {"shop": Shop()}], ids=["plain", "objects"])
def test_the_state_is_copied_when_a_scenario_is_defined(state: dict[str, Any]) -> None:
    """Later changes to the user's state do not affect the scenario or its copies."""
    kept = made(state=state).state
    assert kept is not None
    state["late"] = 1
    (state.get("orders") or state["shop"].orders)["18"] = "late"
    copy = deepcopy(kept)
    assert "late" not in copy
    assert len(copy.get("orders") or copy["shop"].orders) == 1
    copy["mine"] = 1
    assert "mine" not in kept


def test_shared_objects_stay_shared_in_the_copy() -> None:
    """If two keys share one object, they share one object in the copy too."""
    for shared in ([], Shop()):
        kept = made(state={"a": shared, "b": shared}).state
        copy = deepcopy(dict(deepcopy(kept) or {}))
        assert copy["a"] is copy["b"]


def test_equal_states_are_stored_once() -> None:
    """Scenarios that begin with equal states of built-in types share one value."""
    first, second = (made(state={"orders": {str(n): {"n": n} for n in range(100)}}) for _ in range(2))
    assert first.state is second.state


def cycle() -> dict[str, Any]:
    state: dict[str, Any] = {"n": float("nan")}
    state["self"] = state
    return state


def test_a_state_may_contain_itself() -> None:
    """What deepcopy can copy is a state: cycles, NaN, objects."""
    copy = deepcopy(made(state=cycle()).state)
    assert copy is not None
    assert copy["self"]["self"] is copy["self"]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"state": 5}, "state: expected a dict with texts as keys, found an int"),
        ({"state": {1: 2}}, "state: expected a dict with texts as keys, found a dict with other keys"),
        ({"state": {"a": {"lock": threading.Lock()}}}, "state['a']: cannot be copied"),
        ({"final_state": {}}, "final_state: is empty, so it would check nothing"),
        ({"final_state": [1]}, "final_state: expected a dict"),
        ({"check": 5}, "check: expected a function of the conversation and the state, found 5"),
        ({"check": Shop}, "check: expected a function"),
        (
            {"check": lambda: None},
            "check: the function cannot be called: it takes no parameters; it is given",
        ),
        ({"check": lambda a, b, c: None}, "check: the function cannot be called: nothing is known for its"),
        ({"expect": {}}, "expect: is empty, so it would check nothing; write what the agent `says`"),
        ({"expect": []}, "expect: is empty"),
        ({"expect": {"in_turn": 1}}, "expect: is empty"),
        (
            {"expect": {"contains": "x"}},
            "expect: `contains` belongs into the `expect` of a turn; for the whole",
        ),
        ({"expect": "done"}, "expect: expected a dict, found a str"),
        ({"expect": {"say": "x"}}, "expect: unknown key `say`; did you mean `says`?"),
        ({"expect": [{"says": "x"}, {"says": 5}]}, "expect[1].says: expected a text or a matcher, found 5"),
        ({"expect": {"says": ["x", ""]}}, "expect.says[1]: is empty, which every reply contains"),
        ({"expect": {"never_says": {"a": 1}}}, "expect.never_says: expected a text, a pattern, a matcher"),
        ({"expect": {"says": lambda: True}}, "expect.says: the function cannot be called: it takes no"),
        ({"expect": {"says": optional("x")}}, "expect.says: optional('x') stands for a key"),
        ({"expect": {"says": str}}, "expect.says: str is a type, which no value equals; write instance(str)"),
        ({"expect": {"says": {"text": 5}}}, "expect.says: text(…) expects a text, found 5"),
        ({"final_state": {"a": {"b": [int]}}}, "final_state.a.b[0]: int is a type, which no value equals"),
        ({"final_session_state": {"a": [absent]}}, "final_session_state.a[0]: absent is for a key"),
        ({"expect": {"says": "x", "in_turn": 2}}, "expect.in_turn: is 2, but the script has 2 turns; the"),
        ({"expect": {"says": "x", "in_turn": -3}}, "expect.in_turn: is -3, but the script has 2 turns"),
        ({"expect": {"says": "x", "in_turn": True}}, "expect.in_turn: expected a whole number, 0 for the"),
        (
            {"turns": None, "goal": "g", "max_turns": 2, "expect": {"says": "x", "in_turn": 2}},
            "expect.in_turn: is 2, but `max_turns` is 2",
        ),
    ],
)
def test_wrong_states_are_explained(options: dict[str, Any], error: str) -> None:
    """The error begins with the key and says what would be valid."""
    assert error_of(**options).startswith(error)


def test_expect_takes_one_dict_or_several() -> None:
    """`expect` is one dict or a list of dicts, each with one expectation or several."""
    pattern = re.compile("x")
    found = made(expect=[{"says": ["a", pattern]}, {"neverSays": IsStr, "inTurn": -1}]).expect
    assert found == (
        Saying(wanted="a"),
        Saying(wanted=pattern),
        Saying(wanted=IsStr, never=True, in_turn=-1),
    )
    turn = parse_expect({"says": "a", "never_says": ["b"]})
    assert turn == Expect(says=("a",), never_says=("b",))
    assert turn.sayings == (Saying(wanted="a"), Saying(wanted="b", never=True))


def test_reply_matchers_as_data() -> None:
    """In data an expectation is a dict with a matcher's name; in a state the dict may be literal."""
    expect = made(
        expect={
            "says": [
                {"text": "hi", "ignore_case": True},
                {"number": "1,234"},
                {"one_of": ["a", {"regex": "b"}]},
            ],
            "never_says": {"approx": 5, "abs": 1},
        }
    ).expect
    assert [each.wanted for each in expect] == [
        text("hi", ignore_case=True),
        number("1,234"),
        one_of("a", re.compile("b")),
        approx(5, abs=1),
    ]
    state = made(final_state={"n": {"one_of": [1, 2]}, "gone": {"absent": True}, "one_of": [1]}).final_state
    assert state is not None
    assert state["n"] == one_of(1, 2)
    assert state["n"].holds({"one_of": [1, 2]}, equal)
    assert state["gone"].may_be_absent
    assert state["one_of"] == [1]


class Checking:
    def __call__(self, conversation: Any) -> None: ...

    def method(self, conversation: Any, state: Any) -> None: ...


WANTED = 5


@pytest.mark.parametrize(
    ("function", "positions", "names"),
    [
        (lambda c: 0, ["conversation"], []),
        (lambda c, s: 0, ["conversation", "state"], []),
        (lambda state: 0, ["state"], []),
        (lambda state, conversation: 0, ["state", "conversation"], []),
        (lambda state, c: 0, ["state", "conversation"], []),
        (lambda c, wanted=WANTED: 0, ["conversation"], []),
        (lambda c, wanted=WANTED, state=None: 0, ["conversation"], ["state"]),
        (lambda *all: 0, ["conversation", "state"], []),
        (lambda c, **more: 0, ["conversation"], []),
        (lambda *, state: 0, [], ["state"]),
        (partial(lambda wanted, c, s: 0, 5), ["conversation", "state"], []),
        (partial(lambda c, wanted, state: 0, wanted=5), ["conversation"], ["state"]),
        (Checking(), ["conversation"], []),
        (Checking().method, ["conversation", "state"], []),
        (str.isdigit, ["conversation"], []),
        (print, ["conversation", "state"], []),
    ],
)
def test_functions_get_the_parameters_they_name(
    function: Any, positions: list[str], names: list[str]
) -> None:
    """A function gets the values that its parameters name, the rest in order."""
    taken = accepted_values(function, ("conversation", "state"))
    assert ([*taken.by_position], [*taken.by_name]) == (positions, names)


NO_REPLY = "expect.never_says: expected a text, a pattern, a matcher or a function, found "


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"expect": {"never_says": {"a"}}}, NO_REPLY + "{'a'}"),
        ({"expect": {"never_says": Decimal("5")}}, NO_REPLY + "Decimal('5'); write number(Decimal('5'))"),
        ({"expect": {"never_says": (c for c in "ab")}}, NO_REPLY + "<generator"),
        ({"expect": {"never_says": sequence("a")}}, NO_REPLY + "MockSequence"),
        (
            {"expect": {"never_says": lambda reply: (yield reply)}},
            "expect.never_says: a function that checks",
        ),
        ({"tools": {"a": {"b": [optional(5)]}}}, "tools['a']: optional(5) is a matcher for expectations"),
        (
            {"tools": {"a": sequence(1, one_of(1))}},
            "tools['a'], step 1: one_of(1) is a matcher for expectations",
        ),
        ({"state": {"a": [{"b": one_of(1, 2)}]}}, "state: one_of(1, 2) is a matcher for expectations"),
    ],
)
def test_matchers_in_the_wrong_place_are_refused(options: dict[str, Any], error: str) -> None:
    """A matcher that no reply could satisfy, or where a value is returned, would check nothing."""
    assert error_of(**options).startswith(error)


def test_reply_functions_choose_their_parameters() -> None:
    """A function may take a reply, its turn and the conversation, or capture a value, in `one_of` too."""
    scenario("s", goal="g", expect={"says": [lambda reply, turn, conversation: True, one_of(lambda a, b: 1)]})
