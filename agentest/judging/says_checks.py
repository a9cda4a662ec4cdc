"""Checks of `says` and `never_says`, for a turn or a whole conversation."""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from agentest.domain.end_reason import Ending
from agentest.domain.results import CheckResult
from agentest.domain.transcript import NO_TEXT, Conversation, Turn
from agentest.judging.custom_metrics import copy_conversation, copy_turn
from agentest.judging.judge import run_concurrently
from agentest.scenarios.expectations import SAYS_PARAMETERS, Saying
from agentest.scenarios.matchers.comparison import PredicateFailed, any_holds, call_predicate, equal, is_plain
from agentest.scenarios.matchers.display import FUNCTIONS, shown
from agentest.scenarios.matchers.numbers import Approx, Number, numbers_in
from agentest.scenarios.matchers.values import OneOf, Text
from agentest.support.calling import result_of
from agentest.support.deadlines import TimeLimit
from agentest.support.functions import accepted_values
from agentest.support.patterns import PatternTimeout, found_in, has_match
from agentest.support.text import count, shortened

_SHOWN_CHARS = 200
_TIMEOUT_S = 60.0


async def check_conversation_sayings(
    sayings: Sequence[Saying],
    turns: Sequence[Turn],
    conversation: Conversation,
    timeout_s: float = _TIMEOUT_S,
) -> tuple[CheckResult, ...]:
    """Return a result for each saying, in order.

    Args:
        turns: the turns to search; `in_turn` is an index into them.
        conversation: passed to users' functions.
        timeout_s: time limit in seconds for each saying.
    """
    each = [partial(_checked, saying, turns, conversation, timeout_s) for saying in sayings]
    return tuple(await run_concurrently(each))


async def check_turn_sayings(
    sayings: Sequence[Saying], turns: Sequence[Turn], timeout_s: float = _TIMEOUT_S
) -> tuple[CheckResult, ...]:
    """Return a result for each saying about the last turn's reply. Functions get the turns up to it."""
    if not sayings:
        return ()
    so_far = Conversation("", tuple(turns), Ending.SCRIPT)
    results = await check_conversation_sayings(sayings, turns[-1:], so_far, timeout_s)
    return tuple(replace(result, turn_index=None) for result in results)


async def _checked(
    saying: Saying, turns: Sequence[Turn], conversation: Conversation, timeout_s: float
) -> CheckResult:
    """Check in a thread if a pattern or users' code decides, because these may hang."""
    decide = partial(_decided, saying, turns, conversation)
    if is_plain(saying.wanted):
        return decide()
    try:
        result: CheckResult = await result_of(decide, limit=TimeLimit(timeout_s))
    except TimeoutError:
        return _undecided_saying(saying, f"{_shown(saying.wanted)} gave no answer within {timeout_s:g} s")
    return result


def _decided(saying: Saying, turns: Sequence[Turn], conversation: Conversation) -> CheckResult:
    looked_at = _turns_to_search(saying, turns)
    failed: PredicateFailed | None = None
    for turn in looked_at:
        try:
            if is_said(saying.wanted, turn, conversation):
                return _result_found(saying, turn)
        except PredicateFailed as error:
            failed = failed or error
    if failed:
        return _undecided_saying(saying, str(failed))
    return _result_not_found(saying, looked_at, len(turns))


def _turns_to_search(saying: Saying, turns: Sequence[Turn]) -> Sequence[Turn]:
    """Return the turns to search; none if the conversation ended before the turn."""
    if saying.in_turn is None:
        return turns
    index = saying.in_turn + (len(turns) if saying.in_turn < 0 else 0)
    return turns[index : index + 1] if index >= 0 else ()


def is_said(wanted: Any, turn: Turn, conversation: Conversation) -> bool:
    """Return True if a turn's reply contains the expected value. May block; raises PredicateFailed."""
    reply = turn.agent_message
    if isinstance(wanted, str):
        return wanted in reply
    if isinstance(wanted, Text):
        return wanted.is_in(reply)
    if isinstance(wanted, OneOf):
        pairs = ((value, turn) for value in wanted.values)
        return any_holds(lambda value, turn: is_said(value, turn, conversation), pairs)
    if isinstance(wanted, Number | Approx):
        return any(equal(wanted, number) for number in numbers_in(reply))
    if isinstance(wanted, re.Pattern):
        return call_predicate(wanted, lambda: has_match(wanted, reply))
    if isinstance(wanted, FUNCTIONS):
        return call_predicate(wanted, lambda: _answer_of_function(wanted, turn, conversation))
    return equal(wanted, reply)


def _answer_of_function(function: Callable[..., Any], turn: Turn, conversation: Conversation) -> Any:
    """Call a function with copies of the arguments that it takes."""
    offered: dict[str, Callable[[], Any]] = {
        "reply": lambda: turn.agent_message,
        "turn": lambda: copy_turn(turn),
        "conversation": lambda: copy_conversation(conversation),
    }
    return accepted_values(function, SAYS_PARAMETERS).given(function, lambda name: offered[name]())()


def _result_found(saying: Saying, turn: Turn) -> CheckResult:
    place = f"the reply of turn {turn.turn_index}"
    outcome = f"it holds for {place}" if _is_function(saying) else f"{place} has it"
    if not saying.never:
        return _saying_result(
            saying, passed=True, summary=f"expected {_expectation_text(saying)}; {outcome}", turn=turn
        )
    part = _forbidden_part(saying.wanted, turn.agent_message)
    which = f": {_quoted(part, 0)}" if part and not isinstance(saying.wanted, str) else ""
    summary = f"expected {_expectation_text(saying)}, but {outcome}{which}"
    reply = _quoted(turn.agent_message, max(0, turn.agent_message.find(part)))
    return replace(_saying_result(saying, passed=False, summary=summary, turn=turn), reply=reply)


def _forbidden_part(wanted: Any, reply: str) -> str:
    """Return the forbidden part of a reply; "" if it is unknown."""
    if isinstance(wanted, str):
        return wanted if wanted in reply else ""
    if isinstance(wanted, Text):
        return _matching_part(wanted, reply)
    if isinstance(wanted, OneOf):
        return next(filter(None, (_forbidden_part(each, reply) for each in wanted.values)), "")
    if isinstance(wanted, re.Pattern):
        with suppress(PatternTimeout):
            return found_in(wanted, reply) or ""
    return ""


def _matching_part(wanted: Text, reply: str) -> str:
    """Return the first part of a reply that equals the text, apart from ignored differences."""
    if not wanted.is_in(reply):
        return ""
    places = range(len(reply) + 1)
    end = bisect_left(places, True, key=lambda at: wanted.is_in(reply[:at]))
    begin = bisect_left(places[: end + 1], True, key=lambda at: not wanted.is_in(reply[at:end])) - 1
    return reply[begin:end]


def _result_not_found(saying: Saying, looked_at: Sequence[Turn], of: int) -> CheckResult:
    result = _saying_result(saying, passed=saying.never, summary=f"expected {_expectation_text(saying)}")
    if saying.never:
        return result
    if not looked_at:
        return replace(result, summary=f"{result.summary}, but the conversation has {count(of, 'turn')}")
    if len(looked_at) > 1:
        none = f"none of {len(looked_at)} replies"
        outcome = f"it holds for {none}" if _is_function(saying) else f"{none} has it"
        return replace(result, summary=f"{result.summary}; {outcome}")
    (turn,) = looked_at
    reply = _quoted(turn.agent_message, 0)
    return replace(result, reply=reply, turn_index=turn.turn_index)


def _undecided_saying(saying: Saying, why: str) -> CheckResult:
    result = _saying_result(
        saying, passed=False, summary=f"could not be told: {why}; expected {_expectation_text(saying)}"
    )
    return replace(result, error=why)


def _saying_result(saying: Saying, *, passed: bool, summary: str, turn: Turn | None = None) -> CheckResult:
    check = "never_says" if saying.never else "says"
    return CheckResult(
        check=check, passed=passed, summary=summary, turn_index=turn.turn_index if turn else None
    )


def _expectation_text(saying: Saying) -> str:
    """Describe the expected value and its place: `'refunded' in a reply`."""
    where = _place_text(saying.in_turn) or ("any reply" if saying.never else "a reply")
    if _is_function(saying):
        return f"{_shown(saying.wanted)} {'not ' if saying.never else ''}to hold for {where}"
    return f"{'no ' if saying.never else ''}{_shown(saying.wanted)} in {where}"


def _is_function(saying: Saying) -> bool:
    """Return True if a function decides, which is not a part of a reply."""
    return isinstance(saying.wanted, FUNCTIONS)


def _place_text(index: int | None) -> str:
    """Name the reply to search; "": all replies."""
    if index is None:
        return ""
    if index >= 0:
        return f"the reply of turn {index}"
    return "the last reply" if index == -1 else f"reply {-index} from the end"


def _shown(wanted: Any) -> str:
    return shortened(shown(wanted), _SHOWN_CHARS)


def _quoted(reply: str, at: int) -> str:
    if not reply:
        return NO_TEXT
    begin = max(0, at - _SHOWN_CHARS // 2) if at > _SHOWN_CHARS // 2 else 0
    part = reply[begin : begin + _SHOWN_CHARS]
    return repr(("…" if begin else "") + part + ("…" if begin + _SHOWN_CHARS < len(reply) else ""))
