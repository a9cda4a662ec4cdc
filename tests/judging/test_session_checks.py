"""Checks of session state and remarks: passed, failed and unknown."""

from __future__ import annotations

import re
from typing import Any

import anyio
import pytest

from agentest.domain.results import CheckResult
from agentest.domain.transcript import Remark, StateChange, Turn
from agentest.judging.conversation_checks import check_session, check_session_state, compare_state_keys
from agentest.report.alignments import state_rows
from agentest.scenarios.expectations import parse_expect
from agentest.scenarios.matchers.display import beginning, shown
from agentest.scenarios.matchers.values import absent, optional, text

STATE = {"cart": [{"item": "notebook", "n": 2}], "open": True, "n": 1, "nothing": None}
REMARKS = (
    Remark("planner", "The plan is long."),
    Remark("executor", "Done."),
    Remark("executor", "Really done."),
)


def turn(**more: Any) -> Turn:
    return Turn(0, "Hi", "approved", **{"remarks": REMARKS, "author": "reviewer", **more})


def checks(expect: dict[str, Any], of: Turn) -> list[CheckResult]:
    found = anyio.run(check_session, parse_expect(expect), of, "pipe")
    return list(found)


@pytest.mark.parametrize(
    ("expected", "holds"),
    [
        ({"n": 1, "open": True}, [True, True]),
        ({"n": 1.0}, [True]),
        ({"n": True}, [False]),
        ({"open": 1}, [False]),
        ({"nothing": None}, [True]),
        ({"gone": None}, [False]),
        ({"cart": [{"item": "notebook", "n": 2}]}, [True]),
        ({"cart": [{"item": "notebook"}]}, [False]),
        ({"cart": [{"item": re.compile("note.*"), "n": pytest.approx(2.0001, abs=0.1)}]}, [True]),
        ({"cart": lambda cart: any(item["item"] == "notebook" for item in cart)}, [True]),
        ({"cart": [], "gone": absent, "n": optional(1), "far": optional(1)}, [False, True, True, True]),
        ({"open": absent}, [False]),
    ],
)
def test_session_state(expected: dict[str, Any], holds: list[bool]) -> None:
    """Expected keys are compared as call arguments are; other keys are allowed."""
    found = checks({"session_state": expected}, turn(state_after=STATE))
    assert [result.passed for result in found] == holds
    assert not any(result.error for result in found)


def test_mismatch_messages() -> None:
    """A mismatch names key, expected and actual value; a missing key lists the keys present."""
    expected = {"open": "yes", "tier": "gold", "n": lambda n: n / 0}
    texts = [result.summary for result in checks({"session_state": expected}, turn(state_after=STATE))]
    assert texts[0] == "open: expected 'yes', got True"
    assert texts[1] == "tier: expected 'gold', found no such key; the state has cart, open, n, nothing"
    assert texts[2].startswith("could not be decided: lambda n: n / 0")
    assert "raised ZeroDivisionError" in texts[2]
    assert "(test_session_checks.py:" in texts[2]
    (empty,) = checks({"session_state": {"a": 1}}, turn(state_after={}))
    assert empty.summary.endswith("found no such key; the state is empty")


PATHS = {
    "orders": {"17": {"status": "refunded"}, "v1.2": {"n": 3}},
    "items": [{"id": "A"}],
    "by_number": {7: {"n": 1}},
    "a.b": 1,
    "a": {"b": 2},
}


@pytest.mark.parametrize(
    ("expected", "holds"),
    [
        ({"orders.17.status": "refunded"}, True),
        ({"orders.17.status": re.compile("refund.*")}, True),
        ({"orders.17": {"status": "refunded"}}, True),
        ({"orders.17": {}}, False),
        ({"orders.v1.2.n": 3}, True),
        ({"items.0.id": "A"}, True),
        ({"items.1.id": "A"}, False),
        ({"by_number.7.n": 1, "by_number.7": {"n": 1}}, True),
        ({"by_number.8.n": 1}, False),
        ({"a.b": 1}, True),
        ({"a.b": 2}, False),
        ({"orders.18": absent}, True),
        ({"orders.18.status": optional("open")}, True),
        ({"orders.17": absent}, False),
        ({"nowhere.at.all": absent}, True),
        ({"orders.": {}}, False),
    ],
)
def test_paths_into_a_state(expected: dict[str, Any], holds: bool) -> None:
    """A key that is not present is read as a path; a path that leads nowhere is missing."""
    found = checks({"session_state": expected}, turn(state_after=PATHS))
    assert {(each.passed, each.error) for each in found} == {(holds, None)}


def test_path_messages() -> None:
    """A mismatch has the whole path; a path that ends early shows what is there instead."""
    expected = {
        "orders.17.status": "open",
        "orders.17": {"status": "open"},
        "orders.18.status": "open",
        "items.4.id": "A",
        "a.b.c": 1,
        "far.away": 1,
    }
    texts = [result.summary for result in checks({"session_state": expected}, turn(state_after=PATHS))]
    assert texts == [
        "orders.17.status: expected 'open', got 'refunded'",
        "orders.17.status: expected 'open', got 'refunded'",
        "orders.18.status: expected 'open', found no such key; orders has 17, v1.2",
        "items.4.id: expected 'A', found no such key; items is a list of 1",
        "a.b.c: expected 1, found no such key; a.b is 1",
        "far.away: expected 1, found no such key; the state has orders, items, by_number, a.b, a",
    ]


def test_an_unknown_state_is_errored() -> None:
    """A check of a state that the agent does not report is errored, and the error says why."""
    (unseen,) = checks({"session_state": {"a": 1, "b": 2}}, turn())
    assert not unseen.passed
    assert "the session state of agent 'pipe' cannot be seen" in str(unseen.error)
    of = turn(state_error="the server is gone")
    (unread,) = anyio.run(check_session_state, "final_session_state", {"a": 1}, of, "pipe")
    assert (unread.check, unread.passed, unread.error) == ("final_session_state", False, "the server is gone")


@pytest.mark.parametrize(
    ("remark", "holds"),
    [
        ({"author": "planner"}, True),
        ({"author": "planner", "contains": "plan"}, True),
        ({"author": "executor", "contains": "plan"}, False),
        ({"contains": ["Really", "done"]}, True),
        ({"contains": ["plan", "done"]}, False),  # in one remark
        ({"regex": "^Done"}, True),
        ({"author": "executor", "regex": ["^Really", r"done\.$"]}, True),
        ({"equals": "Done."}, True),
        ({"equals": "Done"}, False),
        ({"author": re.compile("exec.*"), "equals": lambda text: text.startswith("Really")}, True),
        ({"author": "executor", "not_contains": "plan"}, True),
        (
            {"author": "executor", "contains": "Done", "not_contains": "Really"},
            False,
        ),  # of any of that author
        ({"author": "nobody", "not_contains": "x"}, False),
        ({"author": "reviewer", "contains": "approved"}, True),  # the reply is the author's, who is named
        ({"contains": "approved"}, False),
    ],
)
def test_remarks(remark: dict[str, Any], holds: bool) -> None:
    """One remark must match in full, and no remark of the author may contain excluded text."""
    (found,) = checks({"remarks": [remark]}, turn())
    assert (found.passed, found.error) == (holds, None)


def test_a_predicate_that_raises_is_errored() -> None:
    """An exception in the scenario's function is an error, not a failure of the agent."""
    (found,) = checks({"remarks": [{"author": "reviewer", "equals": lambda text: text / 0}]}, turn())
    assert not found.passed
    assert "TypeError" in str(found.error)
    assert "(test_session_checks.py:" in str(found.error)


def test_the_message_of_a_missing_remark() -> None:
    """The message has the expected remark, the actual ones, and the author of the reply."""
    (found,) = checks({"remarks": [{"contains": "approved"}]}, turn())
    assert found.summary == (
        "expected a remark with 'approved'; before the reply was said planner: 'The plan is long.', "
        "executor: 'Done.', executor: 'Really done.'; reviewer gave the reply (which counts where `author` "
        "is named): 'approved'"
    )


def test_remarks_that_cannot_be_seen() -> None:
    """If the agent does not report authors, a matching remark counts but a missing one is unknown."""
    of = turn(author=None, remarks=(Remark("pipe", "Let me look."),))
    seen, unseen = checks({"remarks": [{"contains": "look"}, {"author": "a"}, {"contains": "b"}]}, of)
    assert (seen.passed, unseen.passed) == (True, False)
    assert "of agent 'pipe' cannot be seen" in str(unseen.error)
    assert "expected a remark of 'a'; a remark with 'b'" in unseen.summary
    (banned,) = checks({"remarks": [{"contains": "Let", "not_contains": "look"}]}, of)
    assert (banned.passed, banned.error) == (False, None)
    (maybe,) = checks({"remarks": [{"contains": "Let", "not_contains": "other"}]}, of)
    assert maybe.error


def test_changes_of_a_state() -> None:
    """A change lists added, removed and changed keys; true differs from 1, and key order is ignored."""
    before = {"same": {"a": 1, "b": 2}, "n": 1, "gone": "x"}
    after = {"same": {"b": 2, "a": 1}, "n": True, "new": []}
    assert StateChange.between(before, after) == StateChange(
        added={"new": []}, changed={"n": (1, True)}, removed={"gone": "x"}
    )


def test_long_names_are_shortened() -> None:
    """Messages shorten long state keys and author names."""
    long = "k" * 1_000_000
    of = turn(state_after={long: 1}, author=long, remarks=(Remark(long, "Hm."),))
    expect = {"session_state": {"n": 1}, "remarks": [{"contains": "approved"}]}
    assert all(200 < len(result.summary) < 1_000 for result in checks(expect, of))
    assert max(map(len, state_rows(StateChange.between({long: 1}, {long + "k": 2})))) < 300


def test_a_large_state_is_not_written_out() -> None:
    """A message about a large state formats only the part it shows."""
    written = 0

    class Counted(int):
        def __repr__(self) -> str:
            nonlocal written
            written += 1
            return "1"

    state = {"rows": {str(row): [Counted(1), (), {}] for row in range(5_000)}}
    other = {"rows": {**state["rows"], "0": [1]}}
    for expected in (state, other):
        (result,) = anyio.run(compare_state_keys, "final_state", expected, state)
        assert "rows" in result.summary
        assert written < 1_000
    rows: list[Any] = [{}, (), {"a": [1, {"b": text("x")}]}, "c", [], [[]]]
    assert beginning(rows, 1_000) == shown(rows)
    assert beginning(rows, 9) == shown(rows)[:9]
