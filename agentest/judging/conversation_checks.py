"""Checks of a whole conversation: `expect`, `final_state` and `check` of a scenario."""

from __future__ import annotations

import ast
import linecache
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from types import FrameType
from typing import Any

from agentest.domain.results import CheckResult
from agentest.domain.transcript import CUT_OFF, Conversation
from agentest.judging.custom_metrics import copy_conversation
from agentest.judging.says_checks import check_conversation_sayings
from agentest.judging.session_checks import compare_state_keys
from agentest.scenarios.matchers.differences import leading_keys
from agentest.scenarios.model import Scenario
from agentest.scenarios.options import CHECK_PARAMETERS
from agentest.support.calling import ends_the_run, message_of_error, result_of
from agentest.support.deadlines import TimeLimit
from agentest.support.functions import accepted_values
from agentest.support.importing import is_users_file
from agentest.support.json_text import copied, safe_repr
from agentest.support.source_location import defined_at, raised_at
from agentest.support.text import shortened

FINAL_STATE = "final_state"
_TIMEOUT_S = 60.0
_RUN_AGAIN = "run the scenario again"

Checks = tuple[CheckResult, ...]
_CHECK = "check"
_MOST_CHARS = 2000
_VALUE_CHARS = 80
_MOST_NAMES = 5


async def check_conversation(
    scenario: Scenario, conversation: Conversation, timeout_s: float = _TIMEOUT_S
) -> Checks:
    """Return the results of `expect`, `final_state` and `check`, in this order.

    If the conversation broke off, only violations of `never_says` are certain; its failure explains why
    nothing else is decided.
    """
    if conversation.shortened or conversation.invalid is not None:
        return ()
    if conversation.failure:
        return await _certain_violations(scenario, conversation, timeout_s)
    end = _FinalMockState.of(conversation)
    return (
        *await check_conversation_sayings(scenario.expect, conversation.turns, conversation, timeout_s),
        *await _final_state(scenario, end, timeout_s),
        *await _check(scenario, conversation, end, timeout_s),
    )


async def _certain_violations(scenario: Scenario, conversation: Conversation, timeout_s: float) -> Checks:
    never = [each for each in scenario.expect if each.never and (each.in_turn is None or each.in_turn >= 0)]
    results = await check_conversation_sayings(never, conversation.turns, conversation, timeout_s)
    return tuple(result for result in results if not result.passed and not result.error)


@dataclass(frozen=True, slots=True)
class _FinalMockState:
    """The mocks' state at the end of a conversation."""

    state: Mapping[str, Any] | None
    """None: unknown."""
    inexact: frozenset[str] = frozenset()
    """Keys whose values were stored only as an approximate JSON form."""

    @classmethod
    def of(cls, conversation: Conversation) -> _FinalMockState:
        """Use the live state if the conversation has just run, else the stored state."""
        if conversation.live_state is not None:
            return cls(conversation.live_state)
        return cls(copied(conversation.mock_state), frozenset(conversation.inexact_state))

    @property
    def cut(self) -> bool:
        return bool(self.inexact) and CUT_OFF in (self.state or {})

    def lacks(self, key: str) -> bool:
        """Return True if the exact value of a key, or its absence, is unknown.

        For a path, this depends on the key that leads into it.
        """
        state = self.state or {}
        if key in state:
            return key in self.inexact
        leading = leading_keys(key)
        return not self.inexact.isdisjoint(leading) or (self.cut and state.keys().isdisjoint(leading))


async def _final_state(scenario: Scenario, end: _FinalMockState, timeout_s: float) -> Checks:
    expected = scenario.final_state
    if expected is None:
        return ()
    if end.state is None:
        return (_undecided_state(_state_not_stored()),)
    exact = {key: value for key, value in expected.items() if not end.lacks(key)}
    inexact = [key for key in expected if end.lacks(key)]
    results = await compare_state_keys(FINAL_STATE, exact, end.state, timeout_s)
    return (*results, *((_undecided_state(_keys_inexact(inexact)),) if inexact else ()))


async def _check(
    scenario: Scenario, conversation: Conversation, end: _FinalMockState, timeout_s: float
) -> Checks:
    if scenario.check is None:
        return ()
    if has_state_parameter(scenario.check):
        if end.state is None:
            return (undecided_check(_state_not_stored()),)
        if end.inexact:
            return (undecided_check(_keys_inexact(sorted(end.inexact))),)
    return (await run_check(scenario.check, conversation, end.state, timeout_s),)


def _undecided_state(why: str) -> CheckResult:
    return CheckResult(check=FINAL_STATE, passed=False, summary=f"could not be told: {why}", error=why)


def _state_not_stored() -> str:
    return f"the state of the mocks was not kept when the conversation was held; {_RUN_AGAIN}"


def _keys_inexact(keys: list[str]) -> str:
    return f"of {', '.join(keys)} in the mocks' state no more than a form in JSON was kept; {_RUN_AGAIN}"


def has_state_parameter(check: Callable[..., Any]) -> bool:
    """Return True if a check has a parameter for the mocks' state."""
    return "state" in accepted_values(check, CHECK_PARAMETERS).names


async def run_check(
    check: Callable[..., Any],
    conversation: Conversation,
    state: Mapping[str, Any] | None,
    timeout_s: float = _TIMEOUT_S,
) -> CheckResult:
    """Call a check with a conversation and return its result.

    Args:
        state: the mocks' live state, for a check that takes it.
        timeout_s: time limit in seconds.
    """
    offered: dict[str, Callable[[], Any]] = {
        "conversation": lambda: copy_conversation(conversation),
        "state": lambda: state,
    }
    call = accepted_values(check, CHECK_PARAMETERS).given(check, lambda name: offered[name]())
    limit = TimeLimit(timeout_s)
    try:
        return _result_of_answer(check, await result_of(call, limit=limit))
    except AssertionError as error:
        return _result(passed=False, summary=_assertion_text(error, check))
    except BaseException as error:
        if ends_the_run(error):
            raise
        if limit.expired and isinstance(error, TimeoutError):
            return undecided_check(f"it gave no answer within {timeout_s:g} s", defined_at(check))
        words = f"{type(error).__name__}: {message_of_error(error)}".removesuffix(": ")
        return undecided_check(f"it raised {words}", raised_at(error, check))


def undecided_check(why: str, at: str = "") -> CheckResult:
    """Return the result of a check that could not be called or gave no answer."""
    reason = _with_location(why, at)
    return _result(passed=False, summary=f"could not be told: {reason}", error=reason)


def _result_of_answer(check: Callable[..., Any], answer: Any) -> CheckResult:
    """Convert a return value: None or True passes, False fails, a text is the reason for a failure."""
    if answer is None or answer is True:
        return _result(passed=True, summary="holds")
    if answer is False:
        return _result(passed=False, summary=_with_location("returned False", defined_at(check)))
    if isinstance(answer, str) and answer.strip():
        return _result(passed=False, summary=answer.strip()[:_MOST_CHARS])
    shown = shortened(safe_repr(answer))
    return undecided_check(
        f"it returned {shown}, which says nothing; return None where all is well, else the reason why not",
        defined_at(check),
    )


def _result(*, passed: bool, summary: str, error: str | None = None) -> CheckResult:
    return CheckResult(check=_CHECK, passed=passed, summary=summary, error=error)


def _with_location(text: str, at: str) -> str:
    """Insert a location in the user's files after the first line of a text."""
    first, newline, rest = text.partition("\n")
    return f"{first} ({at}){newline}{rest}" if at else text


def _assertion_text(error: AssertionError, check: Callable[..., Any]) -> str:
    """Return the error's own message, or pytest's, else the source line of the assertion."""
    own = message_of_error(error).strip()
    lines = [line.rstrip() for line in (own or _assertion_source(error)).splitlines()]
    text = "\n".join(line for line in lines if line)[:_MOST_CHARS]
    return _with_location(text or "an assertion does not hold", raised_at(error, check))


def _assertion_source(error: AssertionError) -> str:
    """Return the source line of the assertion with the values of its names."""
    places = [*traceback.walk_tb(error.__traceback__)]
    users = [place for place in places if is_users_file(place[0].f_code.co_filename)]
    if not users:
        return ""
    frame, line = users[-1]
    source = linecache.getline(frame.f_code.co_filename, line).strip()
    values = ", ".join(_local_values(source, frame))
    return f"{source} ({values})" if values else source


def _local_values(source: str, frame: FrameType) -> Iterator[str]:
    """Yield `total = 4` for each name in a line that is a local variable of the frame."""
    try:
        parsed = ast.parse(textwrap.dedent(source))
    except SyntaxError:  # one of several lines
        return
    names = [node.id for node in ast.walk(parsed) if isinstance(node, ast.Name)]
    known = [name for name in dict.fromkeys(names) if name in frame.f_locals]
    for name in known[:_MOST_NAMES]:
        yield f"{name} = {shortened(safe_repr(frame.f_locals[name]), _VALUE_CHARS)}"
