"""What a whole conversation must hold: what is said in it, the mocks' state at its end, a check."""

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
from agentest.judging.custom_metrics import copied_conversation
from agentest.judging.says_checks import checked_sayings
from agentest.judging.session_checks import compared_keys
from agentest.scenarios.matchers.differences import steps_of
from agentest.scenarios.model import Scenario
from agentest.scenarios.options import OFFERED
from agentest.support.calling import ends_the_run, result_of, words_of
from agentest.support.deadlines import TimeLimit
from agentest.support.functions import taken_by
from agentest.support.importing import is_users_file
from agentest.support.json_text import copied, safe_repr
from agentest.support.source_location import defined_at, raised_at
from agentest.support.text import shortened

FINAL_STATE = "final_state"
_TIMEOUT_S = 60.0
_AGAIN = "run the scenario again"

Checks = tuple[CheckResult, ...]


async def checked_whole(
    scenario: Scenario, conversation: Conversation, timeout_s: float = _TIMEOUT_S
) -> Checks:
    """The results of `expect`, `final_state` and `check`, in this order.

    Of a conversation that broke off, only what must never be said and was said is certain: its failure says
    why nothing else is.
    """
    if conversation.shortened or conversation.invalid is not None:
        return ()
    if conversation.failure:
        return await _said_all_the_same(scenario, conversation, timeout_s)
    end = _End.of(conversation)
    return (
        *await checked_sayings(scenario.expect, conversation.turns, conversation, timeout_s),
        *await _final_state(scenario, end, timeout_s),
        *await _check(scenario, conversation, end, timeout_s),
    )


async def _said_all_the_same(scenario: Scenario, conversation: Conversation, timeout_s: float) -> Checks:
    never = [each for each in scenario.expect if each.never and (each.in_turn is None or each.in_turn >= 0)]
    results = await checked_sayings(never, conversation.turns, conversation, timeout_s)
    return tuple(result for result in results if not result.passed and not result.error)


@dataclass(frozen=True, slots=True)
class _End:
    """The mocks' state as it is known."""

    state: Mapping[str, Any] | None
    """None: nothing is."""
    inexact: frozenset[str] = frozenset()
    """The keys of which only a form is known."""

    @classmethod
    def of(cls, conversation: Conversation) -> _End:
        """The state itself where the conversation was just held, else what was told of it."""
        if conversation.live_state is not None:
            return cls(conversation.live_state)
        return cls(copied(conversation.mock_state), frozenset(conversation.inexact_state))

    @property
    def cut(self) -> bool:
        return bool(self.inexact) and CUT_OFF in (self.state or {})

    def lacks(self, key: str) -> bool:
        """Whether the value of a key, or that it is not there, is not exactly known.

        The key may be a path: what is known of it is what is known of the key that leads into it.
        """
        state = self.state or {}
        if key in state:
            return key in self.inexact
        leading = steps_of(key)
        return not self.inexact.isdisjoint(leading) or (self.cut and state.keys().isdisjoint(leading))


async def _final_state(scenario: Scenario, end: _End, timeout_s: float) -> Checks:
    expected = scenario.final_state
    if expected is None:
        return ()
    if end.state is None:
        return (_unknown(_not_kept()),)
    told = {key: value for key, value in expected.items() if not end.lacks(key)}
    untold = [key for key in expected if end.lacks(key)]
    results = await compared_keys(FINAL_STATE, told, end.state, timeout_s)
    return (*results, *((_unknown(_inexact(untold)),) if untold else ()))


async def _check(scenario: Scenario, conversation: Conversation, end: _End, timeout_s: float) -> Checks:
    if scenario.check is None:
        return ()
    if takes_state(scenario.check):
        if end.state is None:
            return (undecided(_not_kept()),)
        if end.inexact:
            return (undecided(_inexact(sorted(end.inexact))),)
    return (await asked_at_end(scenario.check, conversation, end.state, timeout_s),)


def _unknown(why: str) -> CheckResult:
    return CheckResult(check=FINAL_STATE, passed=False, summary=f"could not be told: {why}", error=why)


def _not_kept() -> str:
    return f"the state of the mocks was not kept when the conversation was held; {_AGAIN}"


def _inexact(keys: list[str]) -> str:
    return f"of {', '.join(keys)} in the mocks' state no more than a form in JSON was kept; {_AGAIN}"


_CHECK = "check"
_MOST_CHARS = 2000
_VALUE_CHARS = 80
_MOST_NAMES = 5


def takes_state(check: Callable[..., Any]) -> bool:
    """Whether a check is given the mocks' state."""
    return "state" in taken_by(check, OFFERED).names


async def asked_at_end(
    check: Callable[..., Any],
    conversation: Conversation,
    state: Mapping[str, Any] | None,
    timeout_s: float = _TIMEOUT_S,
) -> CheckResult:
    """What a check says of a conversation. `state`: the mocks' own, for a check that takes it."""
    offered: dict[str, Callable[[], Any]] = {
        "conversation": lambda: copied_conversation(conversation),
        "state": lambda: state,
    }
    call = taken_by(check, OFFERED).given(check, lambda name: offered[name]())
    limit = TimeLimit(timeout_s)
    try:
        return _said(check, await result_of(call, limit=limit))
    except AssertionError as error:
        return _result(passed=False, summary=_assertion(error, check))
    except BaseException as error:
        if ends_the_run(error):
            raise
        if limit.expired and isinstance(error, TimeoutError):
            return undecided(f"it gave no answer within {timeout_s:g} s", defined_at(check))
        words = f"{type(error).__name__}: {words_of(error)}".removesuffix(": ")
        return undecided(f"it raised {words}", raised_at(error, check))


def undecided(why: str, at: str = "") -> CheckResult:
    """The result of a check that could not be asked, or did not answer."""
    told = _placed(why, at)
    return _result(passed=False, summary=f"could not be told: {told}", error=told)


def _said(check: Callable[..., Any], answer: Any) -> CheckResult:
    """What the answer means: nothing, or True, holds; a text says why it does not."""
    if answer is None or answer is True:
        return _result(passed=True, summary="holds")
    if answer is False:
        return _result(passed=False, summary=_placed("returned False", defined_at(check)))
    if isinstance(answer, str) and answer.strip():
        return _result(passed=False, summary=answer.strip()[:_MOST_CHARS])
    shown = shortened(safe_repr(answer))
    return undecided(
        f"it returned {shown}, which says nothing; return None where all is well, else the reason why not",
        defined_at(check),
    )


def _result(*, passed: bool, summary: str, error: str | None = None) -> CheckResult:
    return CheckResult(check=_CHECK, passed=passed, summary=summary, error=error)


def _placed(text: str, at: str) -> str:
    """The text with a place of the user's files behind its first line."""
    first, newline, rest = text.partition("\n")
    return f"{first} ({at}){newline}{rest}" if at else text


def _assertion(error: AssertionError, check: Callable[..., Any]) -> str:
    """What did not hold: the error's own words, or pytest's, else the line that says `assert`."""
    own = words_of(error).strip()
    lines = [line.rstrip() for line in (own or _asserted(error)).splitlines()]
    text = "\n".join(line for line in lines if line)[:_MOST_CHARS]
    return _placed(text or "an assertion does not hold", raised_at(error, check))


def _asserted(error: AssertionError) -> str:
    """The source of the assertion, with the values of the names in it."""
    places = [*traceback.walk_tb(error.__traceback__)]
    users = [place for place in places if is_users_file(place[0].f_code.co_filename)]
    if not users:
        return ""
    frame, line = users[-1]
    source = linecache.getline(frame.f_code.co_filename, line).strip()
    values = ", ".join(_values(source, frame))
    return f"{source} ({values})" if values else source


def _values(source: str, frame: FrameType) -> Iterator[str]:
    """`total = 4` for the names of a line that are known where it stands."""
    try:
        parsed = ast.parse(textwrap.dedent(source))
    except SyntaxError:  # one of several lines
        return
    names = [node.id for node in ast.walk(parsed) if isinstance(node, ast.Name)]
    known = [name for name in dict.fromkeys(names) if name in frame.f_locals]
    for name in known[:_MOST_NAMES]:
        yield f"{name} = {shortened(safe_repr(frame.f_locals[name]), _VALUE_CHARS)}"
