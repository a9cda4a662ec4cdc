"""Checks of a session's state and of remarks, which are messages before the agent's reply."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

from agentest.domain.results import CheckResult
from agentest.domain.tool_visibility import invisible_remarks_message, invisible_state_message
from agentest.domain.transcript import Remark, Turn
from agentest.scenarios.expectations import Expect, ExpectedRemark
from agentest.scenarios.matchers.comparison import PredicateFailed, equal, is_plain, may_be_absent
from agentest.scenarios.matchers.differences import MISSING, argument, leading_keys, value_problems
from agentest.scenarios.matchers.display import beginning
from agentest.support.calling import result_of
from agentest.support.deadlines import TimeLimit
from agentest.support.patterns import PatternTimeout, has_match
from agentest.support.text import shortened

_SHOWN_CHARS = 200
_MOST_READ_CHARS = 20 * _SHOWN_CHARS
_SHOWN_KEYS = 20
_SHOWN_PROBLEMS = 5
_SHOWN_REMARKS = 10
_TIMEOUT_S = 60.0

Checks = tuple[CheckResult, ...]


async def check_session(expect: Expect, turn: Turn, agent: str, timeout_s: float = _TIMEOUT_S) -> Checks:
    """Check a turn's `session_state` and `remarks`.

    Args:
        agent: the agent's name, for messages about hidden state.
        timeout_s: time limit in seconds for users' code.
    """
    state: Checks = ()
    if expect.session_state is not None:
        state = await check_session_state("session_state", expect.session_state, turn, agent, timeout_s)
    wanted = expect.remarks
    plain = not any(e.regex or not is_plain([e.author, e.equals]) for e in wanted)
    return state + await _with_time_limit(
        lambda: _remark_results(wanted, turn, agent), "remarks", plain, timeout_s
    )


async def check_session_state(
    check: str, expected: Mapping[str, Any], turn: Turn, agent: str, timeout_s: float = _TIMEOUT_S
) -> Checks:
    """Return one result, named `check`, for each expected key of the session's state after the turn."""
    if turn.state_after is None:
        return (_undecided(check, turn.state_error or invisible_state_message(agent)),)
    return await compare_state_keys(check, expected, turn.state_after, timeout_s)


async def compare_state_keys(
    check: str, expected: Mapping[str, Any], state: Mapping[str, Any], timeout_s: float = _TIMEOUT_S
) -> Checks:
    """Return one result, named `check`, for each expected key of a state; a key may be a path."""

    def compare() -> Checks:
        return tuple(_compared(check, key, wanted, state) for key, wanted in expected.items())

    return await _with_time_limit(compare, check, is_plain(expected), timeout_s)


async def _with_time_limit(
    compare: Callable[[], Checks], check: str, plain: bool, timeout_s: float
) -> Checks:
    """Compare, in a thread if users' functions or matchers decide, because these may hang."""
    if plain:
        return compare()
    try:
        results: Checks = await result_of(compare, limit=TimeLimit(timeout_s))
    except TimeoutError:
        return (_undecided(check, f"its functions gave no answer within {timeout_s:g} s"),)
    return results


def _compared(check: str, key: str, wanted: Any, state: Mapping[str, Any]) -> CheckResult:
    expected = f"{key}: expected {_short(wanted)}"
    value = argument(state, key)
    if value is MISSING:
        missing = f"{expected}, found no such key"
        if may_be_absent(wanted):
            return CheckResult(check=check, passed=True, summary=missing)
        return CheckResult(check=check, passed=False, summary=f"{missing}; {_found_instead(key, state)}")
    summary = f"{expected}, got {_short(value)}"
    try:
        passed = equal(wanted, value)
    except PredicateFailed as error:
        return _undecided(check, str(error), summary)
    return CheckResult(
        check=check,
        passed=passed,
        summary=summary if passed else _difference(key, wanted, value, summary),
    )


def _difference(key: str, wanted: Any, found: Any, summary: str) -> str:
    """List the parts that differ: `orders.17.status: expected 'refunded', got 'open'`."""
    problems = [*islice(value_problems(wanted, found, key), _SHOWN_PROBLEMS + 1)]
    if not problems or any(problem.path == key for problem in problems):
        return summary
    words = [problem.words for problem in problems[:_SHOWN_PROBLEMS]]
    return "; ".join([*words, "…"] if len(problems) > len(words) else words)


def _found_instead(key: str, state: Mapping[str, Any]) -> str:
    """Describe the state where a key is missing; for a path, where it ends: `orders has 17, 18`."""
    leading = ((name, argument(state, name)) for name in leading_keys(key)[1:])
    reached = next(((name, found) for name, found in leading if found is not MISSING), None)
    if reached is None:
        return _keys("the state", state)
    name, found = shortened(reached[0], _SHOWN_CHARS), reached[1]
    if isinstance(found, Mapping):
        return _keys(name, found)
    if isinstance(found, list | tuple):
        return f"{name} is a list of {len(found)}"
    return f"{name} is {_short(found)}"


def _keys(name: str, of: Mapping[Any, Any]) -> str:
    names = [shortened(str(key), _SHOWN_CHARS) for key in [*of][:_SHOWN_KEYS]]
    more = f" and {len(of) - len(names)} more" if len(of) > len(names) else ""
    return f"{name} has {', '.join(names)}{more}" if names else f"{name} is empty"


def _undecided(check: str, error: str, summary: str = "") -> CheckResult:
    text = f"could not be told: {error}" + (f"; {summary}" if summary else "")
    return CheckResult(check=check, passed=False, summary=text, error=error)


def _remark_results(expected: Sequence[ExpectedRemark], turn: Turn, agent: str) -> Checks:
    """Return a result for each expected remark. Those that cannot be seen share one undecided result."""
    results = [(each, _remark_result(each, turn)) for each in expected]
    unseen = "; ".join(_expectation_text(each) for each, result in results if result is None)
    why = (_undecided("remarks", invisible_remarks_message(agent), f"expected {unseen}"),) if unseen else ()
    return (*(result for _, result in results if result), *why)


def _remark_result(expected: ExpectedRemark, turn: Turn) -> CheckResult | None:
    """Return a result for an expected remark, or None if it cannot be decided.

    If the agent does not report authors, a matching remark counts, but the absence of one is unknown.
    """
    comparison = _comparison(expected, turn)
    try:
        candidates = [r for r in _remarks_to_search(expected, turn) if _is_by(expected, r)]
        found = any(_fits(expected, remark) for remark in candidates)
        banned = [r for r in candidates if any(text in r.text for text in expected.not_contains)]
    except (PredicateFailed, PatternTimeout) as error:
        return _undecided("remarks", str(error), comparison)
    unseen = turn.author is None and not banned and (not found or expected.not_contains)
    if unseen:
        return None
    passed = found and not banned
    return CheckResult(
        check="remarks",
        passed=passed,
        summary=f"expected {_expectation_text(expected)}" if passed else comparison,
    )


def _remarks_to_search(expected: ExpectedRemark, turn: Turn) -> Sequence[Remark]:
    """Return the remarks to search. The reply is one of them if an author is expected and known."""
    if expected.author is None or turn.author is None:
        return turn.remarks
    return (*turn.remarks, Remark(turn.author, turn.agent_message))


def _is_by(expected: ExpectedRemark, remark: Remark) -> bool:
    return expected.author is None or equal(expected.author, remark.author)


def _fits(expected: ExpectedRemark, remark: Remark) -> bool:
    return (
        all(text in remark.text for text in expected.contains)
        and all(has_match(pattern, remark.text) for pattern in expected.regex)
        and (expected.equals is None or equal(expected.equals, remark.text))
    )


def _comparison(expected: ExpectedRemark, turn: Turn) -> str:
    remarks = [f"{_name(r.author)}: {_short(r.text)}" for r in turn.remarks[:_SHOWN_REMARKS]]
    if len(turn.remarks) > len(remarks):
        remarks.append(f"… {len(turn.remarks) - len(remarks)} more")
    before = (
        f"before the reply was said {', '.join(remarks)}" if remarks else "nothing was said before the reply"
    )
    return f"expected {_expectation_text(expected)}; {before}{_reply_text(expected, turn)}"


def _reply_text(expected: ExpectedRemark, turn: Turn) -> str:
    if turn.author is None:
        return ""
    alone = " (which counts where `author` is named)" if expected.author is None else ""
    return f"; {_name(turn.author)} gave the reply{alone}: {_short(turn.agent_message)}"


def _expectation_text(expected: ExpectedRemark) -> str:
    who = "" if expected.author is None else f" of {_short(expected.author)}"
    return f"a remark{who}{''.join(_conditions(expected))}"


def _conditions(expected: ExpectedRemark) -> Iterator[str]:
    for text in expected.contains:
        yield f" with {text!r}"
    for pattern in expected.regex:
        yield f" with a match of {_pattern(pattern)}"
    if expected.equals is not None:
        yield f" equal to {_short(expected.equals)}"
    for text in expected.not_contains:
        yield f", none with {text!r}"


def _pattern(pattern: re.Pattern[str]) -> str:
    return repr(pattern.pattern)


def _name(author: str) -> str:
    return shortened(author, _SHOWN_CHARS)


def _short(value: Any) -> str:
    return shortened(beginning(value, _MOST_READ_CHARS), _SHOWN_CHARS)
