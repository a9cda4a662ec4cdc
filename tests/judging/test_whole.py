"""Checks of whole conversations: `says`, `final_state` and `check`."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from datetime import date
from importlib import import_module
from pathlib import Path
from typing import Any

import anyio
import pytest
from builders import conversation as held
from builders import failure, tool_call, turn
from dirty_equals import IsStr

from agentest.domain.results import CheckResult
from agentest.domain.transcript import Blame, Conversation, Failure, Remark
from agentest.judging.conversation_checks import check_conversation
from agentest.judging.reply_checks import check_turn_sayings
from agentest.mocks.resolver import copy_initial_state, end_state
from agentest.scenarios.definition import scenario
from agentest.scenarios.expectations import parse_expect
from agentest.scenarios.matchers.numbers import approx, number
from agentest.scenarios.matchers.values import absent, one_of, optional, text
from agentest.scenarios.options import parse_state

REPLIES = ("Hello! What can I do?", "That is $1,234.00 for Order 17.", "Refunded. Anything else?")


def conversation(*replies: str, **more: Any) -> Conversation:
    turns = [turn(n, f"user {n}", reply) for n, reply in enumerate(replies or REPLIES)]
    return replace(held(turns=turns), **more)


def checks(of: Conversation | None = None, timeout_s: float = 60.0, **options: Any) -> list[CheckResult]:
    made = scenario("s", goal="g", **options)
    return list(anyio.run(check_conversation, made, of or conversation(), timeout_s))


def said(**expect: Any) -> CheckResult:
    (found,) = checks(expect=expect)
    return found


@pytest.mark.parametrize(
    ("wanted", "turn_index"),
    [
        ("Refunded", 2),
        ("refunded", None),
        ("e", 0),
        (text("refunded", ignore_case=True), 2),
        (text("ORDER17", ignore_case=True, ignore_space=True), 1),
        (text("order"), None),
        (number(1234), 1),
        (number("1,234.00"), 1),
        (number(17), 1),
        (number(234), None),
        (approx(1200, abs=50), 1),
        (number(approx(1200, abs=5)), None),
        (re.compile(r"Order \d+"), 1),
        (re.compile(r"^\d+$"), None),
        (one_of("nothing", number(5), re.compile("^Refund")), 2),
        (one_of("nothing", number(5)), None),
        (IsStr(regex="Hello.*"), 0),
        (lambda reply: "Order" in reply, 1),
        (lambda reply, turn: turn.turn_index == 2 and reply.startswith("R"), 2),
        (lambda conversation: len(conversation.replies) == 3, 0),
        (lambda turn, conversation: turn.agent_message == conversation.replies[-1], 2),
        (str.isdigit, None),
    ],
)
def test_says_and_never_says(wanted: Any, turn_index: int | None) -> None:
    """`says` passes if any reply matches, `never_says` if none does; the result names the deciding turn."""
    positive, negative = said(says=wanted), said(never_says=wanted)
    assert (positive.check, negative.check) == ("says", "never_says")
    assert (positive.error, negative.error) == (None, None)
    assert positive.passed is (turn_index is not None)
    assert negative.passed is not positive.passed
    assert positive.turn_index == negative.turn_index == turn_index


@pytest.mark.parametrize(
    ("in_turn", "says", "never"),
    [
        (0, False, True),
        (2, True, False),
        (-1, True, False),
        (-3, False, True),
        (5, False, True),
        (-4, False, True),
    ],
)
def test_in_turn(in_turn: int, says: bool, never: bool) -> None:
    """`in_turn` selects one reply, from the start or the end; a turn that does not exist matches nothing."""
    assert said(says="Refunded", in_turn=in_turn).passed is says
    assert said(never_says="Refunded", in_turn=in_turn).passed is never


def test_messages_of_says() -> None:
    """A result shows the expected text, where it was searched, and the actual replies."""
    found = checks(
        expect=[
            {"says": [text("REFUND"), "Refunded"]},
            {"says": "x", "in_turn": 1},
            {"says": "x", "in_turn": 7},
            {"says": "x", "in_turn": -1},
            {"never_says": re.compile(r"\$[\d,]+")},
        ]
    )
    assert [each.reason for each in found] == [
        "expected text('REFUND') in a reply; none of 3 replies has it",
        "expected 'Refunded' in a reply; the reply of turn 3 has it",
        "expected 'x' in the reply of turn 2; the reply was 'That is $1,234.00 for Order 17.'",
        "expected 'x' in the reply of turn 8, but the conversation has 3 turns",
        "expected 'x' in the last reply; the reply was 'Refunded. Anything else?'",
        "expected no re.compile('\\\\$[\\\\d,]+') in any reply, but the reply of turn 2 has it: "
        "'$1,234'; the reply was 'That is $1,234.00 for Order 17.'",
    ]
    long = conversation("no " * 200 + "Credit Card 12" + " no" * 200)
    for never in (
        "Credit Card",
        re.compile("card", re.I),
        text("CREDITCARD", ignore_case=True, ignore_space=True),
        one_of("nothing", re.compile("[0-9]+")),
    ):
        (found_late,) = checks(long, expect={"never_says": never})
        assert "Credit Card 12" in str(found_late.reply)


def test_text_before_tool_calls_is_said_too() -> None:
    """`never_says` reads what the agent said before its reply; `says` is about replies."""
    before = replace(turn(0, "Hi", "Done."), remarks=(Remark("agent", "Refunded, one moment"),))
    [never] = checks(held(turns=[before]), expect={"never_says": "Refunded"})
    assert not never.passed
    assert "'Refunded, one moment'" in never.reason
    assert not checks(held(turns=[before]), expect={"says": "Refunded"})[0].passed
    assert checks(held(turns=[before]), expect={"never_says": "refunded"})[0].passed


def test_a_ban_by_function_holds_when_the_conversation_broke_off() -> None:
    """What must never happen is checked whoever broke it off; a `check` of the end is not."""

    def no_refund(conversation: Conversation) -> str | None:
        return "refunded" if any("Refunded" in each for each in conversation.replies) else None

    for blame in Blame:
        broken = conversation(failure=Failure(blame, "broke"))
        [found] = checks(broken, never=[no_refund], check=lambda conversation: False)
        assert (found.passed, found.summary) == (False, "refunded")
        assert checks(conversation("Hello", failure=Failure(blame, "broke")), never=[no_refund]) == []


def test_the_message_of_a_function() -> None:
    """The message about a function does not call it a part of the reply."""
    found = checks(
        expect=[
            {"says": str.isupper},
            {"says": str.isupper, "in_turn": 1},
            {"never_says": str.strip},
            {"never_says": str.strip, "in_turn": -1},
        ]
    )
    assert [each.summary for each in found] == [
        "expected <predicate isupper> to hold for a reply; it holds for none of 3 replies",
        "expected <predicate isupper> to hold for the reply of turn 2",
        "expected <predicate strip> not to hold for any reply, but it holds for the reply of turn 1",
        "expected <predicate strip> not to hold for the last reply, but it holds for the reply of turn 3",
    ]


def test_the_matching_part_is_shown() -> None:
    """A violated `never_says` quotes the reply's own spelling."""
    said_to = conversation("Your ﬁne CREDIT  card: 1234.")
    for never, part in (
        (re.compile(r"\d+"), "'1234'"),
        (re.compile("c.*t", re.I), "'CREDIT'"),
        (text("credit card", ignore_case=True, ignore_space=True), "'CREDIT  card'"),
        (one_of("no", text("FINE", ignore_case=True)), "'ﬁne'"),
    ):
        (found,) = checks(said_to, expect={"never_says": never})
        assert f"has it: {part}; the reply was" in found.reason
    (plain,) = checks(said_to, expect={"never_says": "1234"})
    assert "has it; the reply was" in plain.reason


def raising(reply: str) -> bool:
    return bool({}[reply])


def test_a_predicate_that_raises() -> None:
    """An exception is errored with the predicate's line unless another reply decides."""
    for result in (said(says=raising), said(never_says=one_of("nothing", raising))):
        assert not result.passed
        assert "<predicate raising> raised KeyError" in str(result.error)
        assert "(test_whole.py:" in str(result.error)
    assert said(says=one_of(raising, "Refunded")).passed
    assert said(says=lambda reply: reply == REPLIES[2] or {}[reply]).passed
    never = said(never_says=one_of(raising, "Refunded"))
    assert (never.passed, never.error, never.turn_index) == (False, None, 2)


def test_a_long_reply_does_not_block_other_conversations() -> None:
    """Two million digits take seconds, so they are read in a thread, within the limit."""
    sayings = parse_expect({"says": number(12345)}).sayings
    turn = replace(conversation().turns[0], agent_message="1," * 1_000_000)
    (found,) = anyio.run(check_turn_sayings, sayings, [turn], 0.05)
    assert "gave no answer within 0.05 s" in str(found.error)


def test_a_predicate_that_hangs() -> None:
    """A function that never returns is errored after its time limit; the others are decided."""
    hang = threading.Event()
    found = checks(expect={"says": [lambda reply: hang.wait(), "Refunded"]}, timeout_s=0.05)
    assert [each.passed for each in found] == [False, True]
    assert "gave no answer within 0.05 s" in str(found[0].error)
    hang.set()


def test_in_a_turns_expect() -> None:
    """In a turn's `expect`, `says` covers that reply, and functions get the conversation up to it."""
    expect = parse_expect(
        {
            "says": [number(17), lambda conversation: len(conversation.replies) == 2],
            "never_says": ["Hello", lambda turn: turn.turn_index != 1],
        }
    )
    found = anyio.run(check_turn_sayings, expect.sayings, conversation().turns[:2])
    assert [each.passed for each in found] == [True] * 4
    (failed,) = anyio.run(check_turn_sayings, parse_expect({"says": "x"}).sayings, conversation().turns[:1])
    assert (failed.passed, failed.turn_index) == (False, None)
    assert failed.reason.endswith("the reply was 'Hello! What can I do?'")


def test_a_conversation_that_broke_off() -> None:
    """Text that must never be said still fails; everything else is unknown, and the failure says so."""
    broken = conversation(failure=failure(), live_state={"n": 1})
    found = checks(
        broken,
        expect=[
            {"says": "never"},
            {"never_says": ["Refunded", "x", raising]},
            {"never_says": "Refunded", "in_turn": -1},
        ],
        final_state={"n": 2},
        check=lambda conversation: False,
    )
    assert [(each.check, each.passed, each.turn_index) for each in found] == [("never_says", False, 2)]
    assert checks(conversation(shortened=True), expect={"never_says": "Refunded"}) == []


STATE = {"orders": {"17": {"status": "refunded", "amount": 5.0}}, "n": 1, "when": date(2024, 5, 1)}


def ended(state: Any, begun: Any = None) -> Conversation:
    end = end_state(state, begun)
    return conversation(mock_state=end.readable, inexact_state=end.inexact, live_state=end.live)


def stored(of: Conversation) -> Conversation:
    """The conversation after a round trip through storage."""
    return replace(of, live_state=None)


@pytest.mark.parametrize(
    ("expected", "holds"),
    [
        ({"n": 1}, [True]),
        ({"n": one_of(1, 2), "gone": absent, "other": optional(3)}, [True, True, True]),
        ({"n": absent}, [False]),
        ({"orders": {"17": {"status": "refunded", "amount": number("5"), "note": absent}}}, [True]),
        ({"orders": {"17": {"status": "refunded"}}}, [False]),  # below the top as arguments: all keys
        ({"orders.17.status": "refunded", "orders.17.amount": number("5"), "orders.18": absent}, [True] * 3),
        ({"orders.17.status": "open"}, [False]),
        ({"when": date(2024, 5, 1)}, [True]),
        ({"n": lambda n: n > 5, "orders": lambda orders: len(orders) == 1}, [False, True]),
    ],
)
def test_final_state(expected: dict[str, Any], holds: list[bool]) -> None:
    """Each given key is compared with the mocks' state at the end."""
    found = checks(ended(STATE), final_state=expected)
    assert [each.passed for each in found] == holds
    assert {each.check for each in found} == {"final_state"}
    assert not any(each.error for each in found)


def test_a_state_that_is_not_exactly_known() -> None:
    """When judging again, a value that JSON changed, or a state that was not stored, is unknown."""
    again = stored(ended(STATE))
    assert again.mock_state == {**STATE, "when": "2024-05-01"}
    assert again.inexact_state == ("when",)
    known, unknown = checks(again, final_state={"n": 1, "when": "2024-05-01"})
    assert known.passed
    assert "the mocks' state was stored for when;" in str(unknown.error)
    paths, of_date = checks(again, final_state={"orders.17.status": "refunded", "when.year": 2024})
    assert paths.passed
    assert "the mocks' state was stored for when.year;" in str(of_date.error)
    (none,) = checks(conversation(), final_state={"n": 1})
    assert "the state of the mocks was not stored" in str(none.error)
    (inexact,) = checks(again, check=lambda conversation, state: None if conversation.turns else False)
    assert "only the JSON form" in str(inexact.error)
    (of_transcript,) = checks(again, check=lambda conversation: None if conversation.turns else False)
    assert of_transcript.passed


async def async_check(conversation: Conversation, state: Any) -> str | None:
    return None if state["n"] == 1 else f"n is {state['n']}"


def asserts(conversation: Conversation, state: dict[str, Any]) -> None:
    total = state["n"] + 3
    assert total == 5


def leaves(conversation: Any) -> None:
    raise SystemExit(3)


def changes(conversation: Conversation, state: dict[str, Any]) -> None:
    state.clear()
    conversation.tool_calls[0].args["date"] = "never"
    assert not state


def generates(conversation: Conversation) -> Any:
    yield "not asked"


@pytest.mark.parametrize(
    ("check", "passed", "summary"),
    [
        (lambda c: None if c.turns else False, True, "holds"),
        (lambda c: bool(c.turns), True, "holds"),
        (lambda conversation, state: state["n"] == 1, True, "holds"),
        (lambda state: state["n"] == 1, True, "holds"),
        (lambda c, s: s["n"] == 2, False, "returned False (test_whole.py:"),
        (lambda conversation: f"{len(conversation.replies)} replies", False, "3 replies"),
        (async_check, True, "holds"),
        (asserts, False, "assert "),
        (lambda c: len(c.calls("check_availability")) == 1 and not c.calls("x"), True, "holds"),
        (changes, True, "holds"),
    ],
)
def test_results_of_a_check(check: Callable[..., Any], passed: bool, summary: str) -> None:
    """None and True pass; a text, False and AssertionError fail with a reason."""
    of = ended(STATE)
    turns = (replace(of.turns[0], tool_calls=(tool_call(),)), *of.turns[1:])
    of = replace(of, turns=turns)
    (found,) = checks(of, check=check)
    assert (found.check, found.passed, found.error) == ("check", passed, None)
    assert found.summary.startswith(summary)
    assert of.tool_calls[0].args == {"date": "Tuesday"}
    assert of.mock_state
    assert of.mock_state["n"] == 1


ASSERTION = """
def counted(conversation, state):
    total, least = state["n"] * 2, 5
    assert total >= least
"""


def test_an_assertion_that_pytest_has_not_rewritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without pytest, the reason is the line of the assertion, with the values of its variables."""
    (tmp_path / "plain_checks.py").write_text(ASSERTION)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "plain_checks", raising=False)
    (found,) = checks(ended({"n": 1}), check=import_module("plain_checks").counted)
    assert not found.passed
    assert found.summary == "assert total >= least (total = 2, least = 5) (plain_checks.py:4)"


@pytest.mark.parametrize(
    ("check", "error"),
    [
        (lambda conversation, state: state["gone"], "it raised KeyError: 'gone' (test_whole.py:"),
        (leaves, "it raised SystemExit: 3 (test_whole.py:"),
        (lambda conversation: 5, "it returned 5, which says nothing; return None where all is well"),
        (lambda conversation: "", "it returned '', which says nothing"),
        (generates, "it returned <generator object"),
        (lambda conversation: conversation.__class__(), "it raised TypeError"),
        (lambda conversation: setattr(conversation, "turns", ()), "it raised FrozenInstanceError"),
    ],
)
def test_a_check_that_raises(check: Callable[..., Any], error: str) -> None:
    """Any other exception or result is errored with file and line, and does not count against the agent."""
    (found,) = checks(ended(STATE), check=check)
    assert not found.passed
    assert str(found.error).startswith(error)
    assert "(test_whole.py:" in str(found.error)
    assert found.summary == f"could not be decided: {found.error}"


def test_a_check_that_never_returns() -> None:
    """Plain and async checks have a time limit."""
    hang = threading.Event()
    for check in (lambda conversation: hang.wait(), lambda conversation: anyio.sleep_forever()):
        (found,) = checks(check=check, timeout_s=0.05)
        assert str(found.error).startswith("it gave no answer within 0.05 s (test_whole.py:")
    hang.set()


class Shop:
    def __init__(self) -> None:
        self.orders = {"17": "open"}
        self.lock = threading.Lock()


def test_the_stored_state() -> None:
    """Values that JSON cannot represent are stored as text without addresses; the live state is a copy."""
    state: dict[str, Any] = {"shop": Shop(), "list": [1], "nan": float("nan"), 5: {"a"}, "pair": (1, 2)}
    state["self"] = state
    end = end_state(state, None)
    state["list"].append(2)
    assert end.live["list"] == [1]
    assert end.live["shop"] is state["shop"]  # a lock has no copy
    assert end.readable == {
        "shop": {"orders": {"17": "open"}, "lock": "<unlocked _thread.lock object>"},
        "list": [1],
        "nan": "nan",
        "5": ["a"],
        "pair": [1, 2],
        "self": end.readable["self"],
    }
    assert set(end.inexact) == {"shop", "nan", "5", "pair", "self"}


@pytest.mark.parametrize("parsed", [True, False], ids=["parsed", "plain"])
def test_only_changes_of_a_large_state_are_stored(parsed: bool) -> None:
    """Conversations share a large initial state, so each stores its changes and counts the rest."""
    orders = {str(n): {"status": "open", "text": "x" * 300} for n in range(3000)}
    whole: dict[str, Any] = {"orders": orders, "n": 1, "free": {1, 2}, "old": {"a": 1}}
    begun = parse_state(whole) if parsed else whole
    state = copy_initial_state(begun)
    state["orders"]["17"]["status"] = "refunded"
    del state["orders"]["18"]
    state["old"] = {"a": 1, "b": (1, 2)}
    end = end_state(state, begun)
    assert end.live == state
    assert end.readable == {
        "orders": {
            "17": {"status": "refunded", "…": "(1 more, as at the beginning)"},
            "…": "(2998 more, as at the beginning; gone: 18)",
        },
        "old": {"b": [1, 2], "…": "(1 more, as at the beginning)"},
        "…": "(2 more, as at the beginning)",
    }
    again = conversation(mock_state=end.readable, inexact_state=end.inexact)
    paths = {"orders.17.status": "refunded", "far.off": 1}
    (untold,) = checks(again, final_state={"n": 1, "gone": absent, **paths, "free": {1, 2}, "old": 5})
    assert "state was stored for n, gone, orders.17.status, far.off, free, old" in str(untold.error)


def test_a_large_state_that_contains_itself() -> None:
    """A value JSON cannot represent becomes text, and a large state loses nothing."""
    begun = parse_state({"pad": ["x" * 90 + str(n) for n in range(9000)], "n": [1]})
    state = copy_initial_state(begun)
    state["self"] = state
    end = end_state(state, begun)
    assert end.live["n"] == [1]
    assert end.live["self"]["n"] == [1]
    assert "self" in end.inexact


def test_a_number_too_long_to_format_is_described() -> None:
    """An integer over Python's limit of 4,300 digits is stored as its size and does not end the run."""
    end = end_state({"n": 10**5000, "m": [10**5000], "k": 10**1000}, None)
    assert end.readable == {"n": "(an int of 16,610 bits)", "m": ["(an int of 16,610 bits)"], "k": 10**1000}
    assert set(end.inexact) == {"n", "m"}
    assert end.live["n"] == 10**5000
