"""Checks of a whole conversation: `expect`, `final_state`, `check` and safety checks of a scenario."""

from __future__ import annotations

import ast
import linecache
import textwrap
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any

from agentest.config.agent_types import remarks_reported_by, state_reported_by
from agentest.domain.results import CheckResult
from agentest.domain.transcript import ATTACK_CHECK, CUT_OFF, Conversation, Remark, Turn, copy_conversation
from agentest.scenarios.expectations import Expect, ExpectedRemark, Saying
from agentest.scenarios.matchers.comparison import (
    MISSING,
    DifferenceSearch,
    PredicateFailed,
    ValueDifference,
    argument,
    equal,
    is_plain,
    leading_keys,
    may_be_absent,
    outcome_of,
)
from agentest.scenarios.matchers.display import beginning
from agentest.scenarios.model import Scenario
from agentest.scenarios.options import CHECK_PARAMETERS
from agentest.support.calling import (
    FunctionTimeout,
    accepted_values,
    ends_the_run,
    message_of_error,
    result_of,
)
from agentest.support.deadlines import FUNCTION_S, TimeLimit
from agentest.support.importing import defined_at, is_users_file, raised_at
from agentest.support.json_text import copied, safe_repr
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.patterns import PatternTimeout, has_match
from agentest.support.text import first_names, shortened

FINAL_STATE = "final_state"
_RUN_AGAIN = "run the scenario again"
_STATE_NOT_STORED = f"the state of the mocks was not stored when the conversation ran; {_RUN_AGAIN}"

Checks = tuple[CheckResult, ...]
_CHECK = "check"
_MOST_CHARS = 2000
_VALUE_CHARS = 80
_MOST_NAMES = 5


async def check_conversation(
    scenario: Scenario, conversation: Conversation, timeout_s: float = FUNCTION_S, blind: str | None = None
) -> Checks:
    """Return the results of `expect`, `final_state`, `check`, and what `is_guarded`, in this order.

    If the conversation broke off, only violations of what must never happen are certain; its failure explains
    why nothing else is decided.

    Args:
        blind: why calls cannot be seen; None: they can.
    """
    if conversation.shortened or conversation.invalid is not None:
        return ()
    if conversation.failure:
        never = [
            each for each in scenario.expect if each.never and (each.in_turn is None or each.in_turn >= 0)
        ]
        results = (
            *await _sayings(never, conversation, timeout_s),
            *await _checks(scenario.never_checks, conversation, _FinalMockState.of(conversation), timeout_s),
            *await _safety(scenario, conversation, timeout_s, blind),
        )
        return tuple(result for result in results if not result.passed and not result.error)
    end = _FinalMockState.of(conversation)
    return (
        *await _sayings(scenario.expect, conversation, timeout_s),
        *await _final_state(scenario, conversation, end, timeout_s),
        *await _checks(scenario.checks, conversation, end, timeout_s),
        *await _safety(scenario, conversation, timeout_s, blind),
        *_attack(conversation),
    )


def _attack(conversation: Conversation) -> Checks:
    log = conversation.attack
    if log is None:
        return ()
    from agentest.domain.changes import ObjectiveKind

    if log.kind != ObjectiveKind.WORDS:
        return ()
    if log.reached is None:
        return (CheckResult.undecided(ATTACK_CHECK, log.reason),)
    summary = f"the agent was brought to {log.objective}" if log.reached else "holds"
    return (CheckResult(check=ATTACK_CHECK, passed=not log.reached, summary=f"{summary}: {log.reason}"),)


async def breaks_ban(scenario: Scenario, conversation: Conversation) -> bool:
    """Return True if a running conversation breaks a ban, passes on a secret, or lacks consent.

    What cannot be decided yet breaks nothing.
    """
    from agentest.trajectory.call_facts import CallView
    from agentest.trajectory.matcher import match_all_trajectories

    bans = [each for each in scenario.trajectories if each.forbidden]
    calls = await match_all_trajectories(
        bans, conversation.tool_calls, len(conversation.turns), CallView(complete=False)
    )
    if calls and not calls.error and calls.forbidden_calls:
        return True
    sayings = tuple(each for each in scenario.expect if each.never and each.in_turn is None)
    only_bans = replace(scenario, expect=sayings, final_state=None, check=None)
    return any(not c.passed and c.error is None for c in await check_conversation(only_bans, conversation))


async def _safety(
    scenario: Scenario, conversation: Conversation, timeout_s: float, blind: str | None
) -> Checks:
    if not scenario.is_guarded:
        return ()
    from agentest.judging.safety_checks import check_safety

    return await check_safety(scenario, conversation, blind, timeout_s)


async def _sayings(sayings: Sequence[Saying], conversation: Conversation, timeout_s: float) -> Checks:
    if not sayings:
        return ()
    from agentest.judging.reply_checks import check_conversation_sayings

    return await check_conversation_sayings(sayings, conversation.turns, conversation, timeout_s)


@dataclass(frozen=True, slots=True)
class _FinalMockState:
    state: Mapping[str, Any] | None  # None: unknown
    inexact: frozenset[str] = frozenset()  # keys whose values were stored only as an approximate JSON form

    @classmethod
    def of(cls, conversation: Conversation) -> _FinalMockState:
        """Use the live state if the conversation has just run, else the stored state."""
        if conversation.live_state is not None:
            return cls(conversation.live_state)
        return cls(copied(conversation.mock_state), frozenset(conversation.inexact_state))

    def lacks(self, key: str) -> bool:
        """Return True if the value of a key, or of one that leads into it, is not known exactly."""
        state = self.state or {}
        if key in state:
            return key in self.inexact
        leading = leading_keys(key)
        cut = bool(self.inexact) and CUT_OFF in state
        return not self.inexact.isdisjoint(leading) or (cut and state.keys().isdisjoint(leading))


async def _final_state(
    scenario: Scenario, conversation: Conversation, end: _FinalMockState, timeout_s: float
) -> Checks:
    expected = scenario.final_state
    if expected is None:
        return ()
    if tools := sorted({call.name for call in conversation.tool_calls if call.simulated}):
        return (
            CheckResult.undecided(FINAL_STATE, f"the state is simulated: {', '.join(tools)} had no mock"),
        )
    if end.state is None:
        return (CheckResult.undecided(FINAL_STATE, _STATE_NOT_STORED),)
    exact = {key: value for key, value in expected.items() if not end.lacks(key)}
    inexact = [key for key in expected if end.lacks(key)]
    results = await compare_state_keys(FINAL_STATE, exact, end.state, timeout_s)
    return (*results, *((CheckResult.undecided(FINAL_STATE, _keys_inexact(inexact)),) if inexact else ()))


async def _checks(
    checks: Sequence[Callable[..., Any]], conversation: Conversation, end: _FinalMockState, timeout_s: float
) -> Checks:
    results = []
    for check in checks:
        unknown = None
        if "state" in accepted_values(check, CHECK_PARAMETERS).names:
            inexact = _keys_inexact(sorted(end.inexact)) if end.inexact else None
            unknown = _STATE_NOT_STORED if end.state is None else inexact
        if unknown is None:
            results.append(await run_check(check, conversation, end.state, timeout_s))
        else:
            results.append(CheckResult.undecided(_CHECK, unknown))
    return tuple(results)


def _keys_inexact(keys: list[str]) -> str:
    return f"only the JSON form of the mocks' state was stored for {', '.join(keys)}; {_RUN_AGAIN}"


async def run_check(
    check: Callable[..., Any],
    conversation: Conversation,
    state: Mapping[str, Any] | None,
    timeout_s: float = FUNCTION_S,
) -> CheckResult:
    """Call a check with a conversation, and the mocks' live state if it takes it, and return its result."""
    offered: dict[str, Callable[[], Any]] = {
        "conversation": lambda: copy_conversation(conversation),
        "state": lambda: state,
    }
    call = accepted_values(check, CHECK_PARAMETERS).bound_to(check, lambda name: offered[name]())
    limit = TimeLimit(timeout_s)
    try:
        return _result_of_answer(check, await result_of(call, limit=limit, source=check))
    except AssertionError as error:
        return _result(passed=False, summary=_assertion_text(error, check))
    except BaseException as error:
        if ends_the_run(error):
            raise
        if isinstance(error, FunctionTimeout):
            return CheckResult.undecided(
                _CHECK, _with_location(f"it {error}", "" if error.at else defined_at(check))
            )
        words = f"{type(error).__name__}: {message_of_error(error)}".removesuffix(": ")
        return CheckResult.undecided(_CHECK, _with_location(f"it raised {words}", raised_at(error, check)))


def _result_of_answer(check: Callable[..., Any], answer: Any) -> CheckResult:
    if answer is None or answer is True:
        return _result(passed=True, summary="holds")
    if answer is False:
        return _result(passed=False, summary=_with_location("returned False", defined_at(check)))
    if isinstance(answer, str) and answer.strip():
        return _result(passed=False, summary=answer.strip()[:_MOST_CHARS])
    text = shortened(safe_repr(answer))
    why = f"it returned {text}, which says nothing; return None where all is well, else the reason why not"
    return CheckResult.undecided(_CHECK, _with_location(why, defined_at(check)))


def _result(*, passed: bool, summary: str) -> CheckResult:
    return CheckResult(check=_CHECK, passed=passed, summary=summary)


def _with_location(text: str, at: str) -> str:
    first, newline, rest = text.partition("\n")
    return f"{first} ({at}){newline}{rest}" if at else text


def _assertion_text(error: AssertionError, check: Callable[..., Any]) -> str:
    message = message_of_error(error).strip()
    lines = [line.rstrip() for line in (message or _assertion_source(error)).splitlines()]
    text = "\n".join(line for line in lines if line)[:_MOST_CHARS]
    return _with_location(text or "an assertion does not hold", raised_at(error, check))


def _assertion_source(error: AssertionError) -> str:
    frames = [*traceback.walk_tb(error.__traceback__)]
    users_frames = [each for each in frames if is_users_file(each[0].f_code.co_filename)]
    if not users_frames:
        return ""
    frame, line = users_frames[-1]
    source = linecache.getline(frame.f_code.co_filename, line).strip()
    values = ", ".join(_local_values(source, frame))
    return f"{source} ({values})" if values else source


def _local_values(source: str, frame: FrameType) -> Iterator[str]:
    try:
        parsed = ast.parse(textwrap.dedent(source))
    except SyntaxError:  # one of several lines
        return
    names = [node.id for node in ast.walk(parsed) if isinstance(node, ast.Name)]
    known = [name for name in dict.fromkeys(names) if name in frame.f_locals]
    for name in known[:_MOST_NAMES]:
        yield f"{name} = {shortened(safe_repr(frame.f_locals[name]), _VALUE_CHARS)}"


_SHOWN_CHARS = 200
_MOST_READ_CHARS = 20 * _SHOWN_CHARS
_SHOWN_KEYS = 20
_SHOWN_PROBLEMS = 5
_SHOWN_REMARKS = 10


async def check_session(expect: Expect, turn: Turn, agent: str, timeout_s: float = FUNCTION_S) -> Checks:
    """Check a turn's `session_state` and `remarks`."""
    state: Checks = ()
    if expect.session_state is not None:
        state = await check_session_state("session_state", expect.session_state, turn, agent, timeout_s)
    wanted = expect.remarks
    plain = not any(e.regex or not is_plain([e.author, e.equals]) for e in wanted)
    return state + await _with_time_limit(
        lambda: _remark_results(wanted, turn, agent), "remarks", plain, timeout_s, wanted
    )


async def check_session_state(
    check: str, expected: Mapping[str, Any], turn: Turn, agent: str, timeout_s: float = FUNCTION_S
) -> Checks:
    """Return one result, named `check`, for each expected key of the session's state after the turn."""
    if turn.state_after is None:
        why = turn.state_error or (
            f"the session state of agent {agent!r} cannot be seen: it does not report it; "
            f"{state_reported_by()}. Otherwise remove the checks of the state"
        )
        return (CheckResult.undecided(check, why),)
    return await compare_state_keys(check, expected, turn.state_after, timeout_s)


async def compare_state_keys(
    check: str, expected: Mapping[str, Any], state: Mapping[str, Any], timeout_s: float = FUNCTION_S
) -> Checks:
    """Return one result, named `check`, for each expected key of a state; a key may be a path."""

    def compare() -> Checks:
        return tuple(_compared(check, key, wanted, state) for key, wanted in expected.items())

    return await _with_time_limit(compare, check, is_plain(expected), timeout_s, expected)


async def _with_time_limit(
    compare: Callable[[], Checks], check: str, plain: bool, timeout_s: float, source: object
) -> Checks:
    if plain:
        return compare()
    try:
        results: Checks = await result_of(compare, limit=TimeLimit(timeout_s), source=source)
    except FunctionTimeout as error:
        return (CheckResult.undecided(check, f"a function of it {error}"),)
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
    problems = [*DifferenceSearch().values(wanted, value, key)]
    passed, unknown = outcome_of(problems)
    if passed is None:
        return CheckResult.undecided(check, unknown, summary)
    return CheckResult(check=check, passed=passed, summary=_difference(key, problems) or summary)


def _difference(key: str, problems: Sequence[ValueDifference]) -> str:
    if any(problem.path == key for problem in problems):
        return ""
    words = [problem.words for problem in problems[:_SHOWN_PROBLEMS]]
    return "; ".join([*words, "…"] if len(problems) > len(words) else words)


def _found_instead(key: str, state: Mapping[str, Any]) -> str:
    leading = ((name, argument(state, name)) for name in leading_keys(key)[1:])
    reached = next(((name, value) for name, value in leading if value is not MISSING), None)
    if reached is None:
        return _keys("the state", state)
    name, value = shortened(reached[0], _SHOWN_CHARS), reached[1]
    if isinstance(value, Mapping):
        return _keys(name, value)
    if isinstance(value, list | tuple):
        return f"{name} is a list of {len(value)}"
    return f"{name} is {_short(value)}"


def _keys(name: str, mapping: Mapping[Any, Any]) -> str:
    names = [shortened(str(key), _SHOWN_CHARS) for key in mapping]
    return f"{name} has {first_names(names, _SHOWN_KEYS)}" if names else f"{name} is empty"


def _remark_results(expected: Sequence[ExpectedRemark], turn: Turn, agent: str) -> Checks:
    results = [(each, _remark_result(each, turn)) for each in expected]
    unseen = "; ".join(_expectation_text(each) for each, result in results if result is None)
    decided = tuple(result for _, result in results if result)
    if not unseen:
        return decided
    # The agent does not report all remarks, so a missing one proves nothing.
    why = (
        f"messages before the reply of agent {agent!r} cannot be seen: it does not name their "
        f"authors; {remarks_reported_by()}. Otherwise remove the checks of remarks"
    )
    return (*decided, CheckResult.undecided("remarks", why, f"expected {unseen}"))


def _remark_result(expected: ExpectedRemark, turn: Turn) -> CheckResult | None:
    comparison = _comparison(expected, turn)
    try:
        remarks = turn.remarks
        if expected.author is not None and turn.author is not None:
            remarks = (*remarks, Remark(turn.author, turn.agent_message))
        candidates = [r for r in remarks if expected.author is None or equal(expected.author, r.author)]
        matches = any(_fits(expected, remark) for remark in candidates)
        banned = [r for r in candidates if any(text in r.text for text in expected.not_contains)]
    except (PredicateFailed, PatternTimeout) as error:
        return CheckResult.undecided("remarks", str(error), comparison)
    if turn.author is None and not banned and (not matches or expected.not_contains):
        return None
    passed = matches and not banned
    return CheckResult(
        check="remarks",
        passed=passed,
        summary=f"expected {_expectation_text(expected)}" if passed else comparison,
    )


def _fits(expected: ExpectedRemark, remark: Remark) -> bool:
    return (
        all(text in remark.text for text in expected.contains)
        and all(has_match(pattern, remark.text) for pattern in expected.regex)
        and (expected.equals is None or equal(expected.equals, remark.text))
    )


def _comparison(expected: ExpectedRemark, turn: Turn) -> str:
    remarks = [
        f"{shortened(r.author, _SHOWN_CHARS)}: {_short(r.text)}" for r in turn.remarks[:_SHOWN_REMARKS]
    ]
    if len(turn.remarks) > len(remarks):
        remarks.append(f"… {len(turn.remarks) - len(remarks)} more")
    before = (
        f"before the reply was said {', '.join(remarks)}" if remarks else "nothing was said before the reply"
    )
    text = f"expected {_expectation_text(expected)}; {before}"
    if turn.author is None:
        return text
    alone = " (which counts where `author` is named)" if expected.author is None else ""
    author = shortened(turn.author, _SHOWN_CHARS)
    return f"{text}; {author} gave the reply{alone}: {_short(turn.agent_message)}"


def _expectation_text(expected: ExpectedRemark) -> str:
    return "".join(
        [
            "a remark",
            *([] if expected.author is None else [f" of {_short(expected.author)}"]),
            *(f" with {text!r}" for text in expected.contains),
            *(f" with a match of {pattern.pattern!r}" for pattern in expected.regex),
            *([] if expected.equals is None else [f" equal to {_short(expected.equals)}"]),
            *(f", none with {text!r}" for text in expected.not_contains),
        ]
    )


def _short(value: Any) -> str:
    return shortened(beginning(value, _MOST_READ_CHARS), _SHOWN_CHARS)
