"""The function that is asked at the end, `check`, and what becomes of what it returns or raises."""

from __future__ import annotations

import ast
import linecache
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

from agentest.domain.results import CheckResult
from agentest.domain.transcript import Conversation
from agentest.judging.inputs import copied_conversation
from agentest.scenarios.state import OFFERED
from agentest.support.calling import ends_the_run, result_of, words_of
from agentest.support.deadlines import TimeLimit
from agentest.support.functions import taken_by
from agentest.support.importing import is_users_file
from agentest.support.json_text import safe_repr
from agentest.support.raised_at import defined_at, raised_at
from agentest.support.text import shortened

_CHECK = "check"
_TIMEOUT_S = 60.0
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
