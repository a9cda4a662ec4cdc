"""Sessions, expected states and expected remarks in scenario files."""

from __future__ import annotations

import re
from datetime import date
from typing import Any

import pytest

from agentest import Session, scenario
from agentest.scenarios.expectations import ExpectedRemark, parse_expect
from agentest.support.errors import ScenarioError


def test_session_options_in_both_spellings() -> None:
    """A scenario's session and its expected state are options in snake_case and camelCase."""
    state = {"tier": "gold", "cart": [1, None], "appName": {"user_id": 1}}
    first = scenario(
        "s",
        turns=["Hi"],
        session={"state": state, "app_name": "shop", "user_id": "u", "session_id": "s-1"},
        final_session_state={"cart": []},
    )
    options: dict[str, Any] = {
        "session": {"state": state, "appName": "shop", "userId": "u", "sessionId": "s-1"},
        "finalSessionState": {"cart": []},
    }
    second = scenario("s", turns=["Hi"], **options)
    assert first.session == second.session == Session("shop", "u", state, "s-1")
    assert first.final_session_state == second.final_session_state == {"cart": []}
    assert scenario("s", turns=["Hi"], session=Session(state=state)).session == Session(state=state)
    plain = scenario("s", turns=["Hi"])
    assert (plain.session, plain.final_session_state) == (None, None)


def test_a_session_is_copied() -> None:
    """Later changes to the user's dict do not affect the scenario; tuples become JSON lists."""
    state: dict[str, Any] = {"cart": [], "pair": (1, 2)}
    made = scenario("s", turns=["Hi"], session={"state": state})
    state["cart"].append("book")
    assert made.session is not None
    assert made.session.state == {"cart": [], "pair": [1, 2]}


def test_turn_expectations_in_both_spellings() -> None:
    """A turn's state and remarks are read in both spellings; matchers are kept as they are."""
    found = parse_expect(
        {
            "sessionState": {"cart": [re.compile("book")]},
            "remarks": [{"author": "reviewer", "notContains": "no", "regex": "^a", "equals": str.islower}],
        }
    )
    assert found.session_state == {"cart": [re.compile("book")]}
    assert found.remarks == (ExpectedRemark("reviewer", (), ("no",), (re.compile("^a"),), str.islower),)


class Odd:
    pass


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"session": []}, "session: expected a dict, found a list"),
        ({"session": {}}, "session: is empty; write the `state`"),
        ({"session": {"stat": {}}}, "session: unknown key `stat`; did you mean `state`?"),
        ({"session": {"state": []}}, "session.state: expected a dict with texts as keys, found a list"),
        (
            {"session": {"state": {1: 2}}},
            "session.state: expected a dict with texts as keys, found a dict with",
        ),
        (
            {"session": {"state": {"a": Odd()}}},
            "session.state: cannot be sent, as it is not JSON: a Odd is not",
        ),
        ({"session": {"state": {"a": date.min}}}, "session.state: cannot be sent, as it is not JSON: a date"),
        ({"session": {"state": {"a": float("nan")}}}, "session.state: cannot be sent, as it is not JSON"),
        ({"session": {"user_id": ""}}, "session.user_id: expected a text that is not empty, found ''"),
        ({"session": {"appName": 1}}, "session.app_name: expected a text that is not empty, found 1"),
        ({"final_session_state": []}, "final_session_state: expected a dict from key to value, found a list"),
        ({"final_session_state": {}}, "final_session_state: is empty, so it would check nothing"),
        (
            {"final_session_stat": {}},
            "unknown option `final_session_stat`; did you mean `final_session_state`?",
        ),
    ],
)
def test_wrong_session_options(options: dict[str, Any], says: str) -> None:
    """An invalid session is refused with the scenario's line, the key, and what was expected."""
    with pytest.raises(ScenarioError) as caught:
        scenario("s", turns=["Hi"], **options)
    assert f"test_scenario_sessions.py:{caught.traceback[0].lineno + 1}: scenario 's': {says}" in str(
        caught.value
    )


@pytest.mark.parametrize(
    ("expect", "says"),
    [
        ({"session_state": "cart"}, "expect.session_state: expected a dict from key to value, found a str"),
        ({"session_state": {}}, "expect.session_state: is empty"),
        ({"remarks": "approved"}, "expect.remarks: expected a list of remarks, each {author, contains, …}"),
        ({"remarks": {"author": "a"}}, "expect.remarks: expected a list of remarks"),
        ({"remarks": []}, "expect.remarks: is empty"),
        ({"remarks": ["approved"]}, "expect.remarks[0]: expected a dict, found a str"),
        ({"remarks": [{}]}, "expect.remarks[0]: is empty"),
        (
            {"remarks": [{"contain": "x"}]},
            "expect.remarks[0]: unknown key `contain`; did you mean `contains`?",
        ),
        (
            {"remarks": [{"author": 1}]},
            "expect.remarks[0].author: expected a text or a matcher of texts, found 1",
        ),
        (
            {"remarks": [{"author": "a"}, {"equals": []}]},
            "expect.remarks[1].equals: expected a text or a matcher",
        ),
        ({"remarks": [{"regex": "("}]}, "expect.remarks[0].regex: '(' is not a regular expression"),
        (
            {"remarks": [{"contains": 1}]},
            "expect.remarks[0].contains: expected a text or a list of texts, found 1",
        ),
    ],
)
def test_wrong_turn_expectations(expect: dict[str, Any], says: str) -> None:
    """An expectation that would check nothing, or something else, is refused with its key."""
    with pytest.raises(ValueError, match=re.escape(says)):
        parse_expect(expect)
