"""Checks that prove nothing are refused where they are defined."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agentest import scenario
from agentest.scenarios.function_source import find_check_flaw
from agentest.support.errors import ScenarioError

WANTED = "Done."


async def verify(conversation: Any) -> None:
    assert conversation.turns


def compares(conversation: Any) -> None:
    conversation.turns[0].agent_message == WANTED  # noqa: B015


def does_nothing(conversation: Any) -> None:
    return None


def prints(conversation: Any) -> None:
    print(*(turn.agent_message for turn in conversation.turns))


def forgets_to_await(conversation: Any) -> None:
    verify(conversation)


async def forgets_to_await_its_own(conversation: Any) -> None:
    async def inner() -> None:
        assert conversation.turns

    inner()


def holds(conversation: Any) -> bool:
    return True


@pytest.mark.parametrize(
    ("check", "flaw"),
    [
        (compares, "it can never fail"),
        (does_nothing, "it can never fail"),
        (holds, "it can never fail"),
        (lambda conversation: None, "it can never fail"),
        (eval("lambda conversation: True"), "it can never fail"),
        (prints, "it can never fail"),
        (forgets_to_await, "verify(conversation) in line 36 is not awaited"),
        (forgets_to_await_its_own, "inner() in line 43 is not awaited"),
    ],
)
def test_a_check_that_cannot_fail_is_refused(check: Callable[..., Any], flaw: str) -> None:
    """The error says what to write instead."""
    with pytest.raises(ScenarioError, match="check: ") as refused:
        scenario("s", turns=["x"], check=check)
    assert flaw in str(refused.value)


def test_asserting_a_tuple_is_refused(tmp_path: Path) -> None:
    """Python treats every non-empty tuple as true."""
    file = tmp_path / "checks.py"
    file.write_text("def check(conversation):\n    assert (conversation.turns, 'no turn')\n")
    found: dict[str, Any] = {}
    with warnings.catch_warnings(action="ignore"):  # Python warns of it, too
        exec(compile(file.read_text(), file, "exec"), found)
    assert find_check_flaw(found["check"]) == (
        "the assertion in line 2 is always true, because it is a tuple; remove the parentheses"
    )


def asserts(conversation: Any) -> None:
    assert conversation.turns


def raises(conversation: Any) -> None:
    if not conversation.turns:
        raise AssertionError("no turn")


def says_why(conversation: Any) -> str | None:
    return None if conversation.turns else "no turn"


def calls_another(conversation: Any) -> None:
    defined_below(conversation)


def calls_what_it_is_given(conversation: Any, verify: Any = asserts) -> None:
    verify(conversation)


def calls_a_method(conversation: Any) -> None:
    conversation.assert_called("pay")


async def awaits(conversation: Any) -> None:
    await verify(conversation)


class Callable_:
    def __call__(self, conversation: Any) -> None:
        assert conversation.turns


def defined_below(conversation: Any) -> None:
    assert conversation.turns


def calling(verify: Callable[..., Any]) -> Callable[..., Any]:
    def check(conversation: Any) -> None:
        verify(conversation)

    return check


@pytest.mark.parametrize(
    "check",
    [
        asserts,
        raises,
        says_why,
        calls_another,
        calls_what_it_is_given,
        calls_a_method,
        awaits,
        Callable_(),
        calling(asserts),
        lambda conversation: bool(conversation.turns),
        eval("lambda conversation: verify(conversation)"),
        lambda conversation: "a reason",
    ],
)
def test_a_check_that_may_fail_is_accepted(check: Callable[..., Any]) -> None:
    """Nothing is reported if the source is ambiguous or if other code may raise."""
    assert find_check_flaw(check) is None
