"""Deterministic checks of one reply (`expect` on a scripted turn)."""

from __future__ import annotations

import json
import re
from bisect import bisect_left
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any, NoReturn

from agentest.domain.end_reason import Ending
from agentest.domain.results import CheckResult
from agentest.domain.transcript import NO_TEXT, Conversation, Turn, copy_conversation, copy_turn
from agentest.scenarios.expectations import SAYS_PARAMETERS, Expect, Saying
from agentest.scenarios.matchers.comparison import PredicateFailed, any_holds, call_predicate, equal, is_plain
from agentest.scenarios.matchers.display import FUNCTIONS, shown
from agentest.scenarios.matchers.numbers import Approx, Number, numbers_in
from agentest.scenarios.matchers.values import OneOf, Text
from agentest.support.calling import FunctionTimeout, accepted_values, result_of, run_concurrently
from agentest.support.deadlines import FUNCTION_S, TimeLimit
from agentest.support.json_schema import schema_validator
from agentest.support.patterns import PatternTimeout, first_match, has_match
from agentest.support.text import count, has_part, shortened, turn_name

_SHOWN_CHARS, _LONG_CHARS = 200, 100_000


async def run_reply_checks(
    expect: Expect, turn: Turn, timeout_s: float = FUNCTION_S
) -> tuple[CheckResult, ...]:
    """Run `check_reply`, in a thread if a pattern, a JSON schema or a long text may take long."""
    if not (expect.regex or expect.json_schema or len(turn.agent_message) > _LONG_CHARS):
        return check_reply(expect, turn)
    limit = TimeLimit(timeout_s)
    try:
        results: tuple[CheckResult, ...] = await result_of(
            check_reply, expect, turn, limit=limit, source=expect
        )
    except FunctionTimeout as late:
        error = f"a check {late}"
        check = "json_schema" if expect.json_schema else "regex"
        undecided = _undecided(check, error, "an answer in time", turn.agent_message)
        return (*check_reply(replace(expect, regex=(), json_schema=()), turn), undecided)
    return results


def check_reply(expect: Expect, turn: Turn) -> tuple[CheckResult, ...]:
    """Return a result for every check of the reply, with the expected and actual values."""
    return tuple(_checks(expect, turn))


def _checks(expect: Expect, turn: Turn) -> Iterator[CheckResult]:
    reply = turn.agent_message
    for text in expect.contains:
        form = " (in another normal form of Unicode)" * (text not in reply and has_part(reply, text))
        yield _result("contains", has_part(reply, text), f"{text!r} in the reply{form}", reply)
    for text in expect.not_contains:
        yield _result("not_contains", not has_part(reply, text), f"no {text!r} in the reply", reply)
    for pattern in expect.regex:
        yield _regex(pattern, reply)
    for schema in expect.json_schema:
        yield _json_schema(schema, reply)
    words = len(reply.split())
    for limit in expect.max_words:
        summary = f"expected at most {limit} words; the reply has {words}"
        yield CheckResult(check="max_words", passed=words <= limit, summary=summary)
    for longest in expect.max_latency_ms:
        summary = f"expected a reply within {longest:g} ms; it took {turn.latency_ms:.1f} ms"
        yield CheckResult(check="max_latency_ms", passed=turn.latency_ms <= longest, summary=summary)


def check_first_token(expect: Expect, turn: Turn, agent: str, unstreamed: str) -> tuple[CheckResult, ...]:
    """Return the checks of the time to the first token; `unstreamed` is the reason if it is unknown."""
    return tuple(_first_token(longest, turn, agent, unstreamed) for longest in expect.max_first_token_ms)


def _first_token(longest: float, turn: Turn, agent: str, unstreamed: str) -> CheckResult:
    check, took = "max_first_token_ms", turn.first_token_ms
    if took is None:
        why = unstreamed if turn.agent_message else "the agent called tools and said nothing"
        error = f"time to the first token of agent {agent!r} is not known: {why}"
        return CheckResult(check=check, passed=False, summary=error, error=error)
    summary = f"expected the first token within {longest:g} ms; it took {took:.1f} ms"
    return CheckResult(check=check, passed=took <= longest, summary=summary)


def _regex(pattern: re.Pattern[str], reply: str) -> CheckResult:
    expected = f"a match of {pattern.pattern!r} in the reply"
    try:
        return _result("regex", has_match(pattern, reply), expected, reply)
    except PatternTimeout as error:
        return _undecided("regex", str(error), expected, reply)


def _json_schema(schema: Mapping[str, Any], reply: str) -> CheckResult:
    try:
        problem = _schema_problem(schema, reply)
    except PatternTimeout as error:
        return _undecided("json_schema", str(error), "JSON that validates", reply)
    expected = "JSON that validates" + (f" ({problem})" if problem else "")
    return _result("json_schema", problem is None, expected, reply)


def _undecided(check: str, error: str, expected: str, reply: str) -> CheckResult:
    result = _result(check, False, expected, reply)
    return replace(result, summary=f"could not be decided: {error}; {result.summary}", error=error)


def _result(check: str, passed: bool, expected: str, reply: str) -> CheckResult:
    text = repr(reply if len(reply) <= _SHOWN_CHARS else reply[:_SHOWN_CHARS] + "…")
    return CheckResult(
        check=check, passed=passed, summary=f"expected {expected}", reply=text if reply else NO_TEXT
    )


def _schema_problem(schema: Mapping[str, Any], reply: str) -> str | None:
    def not_json(constant: str) -> NoReturn:
        raise ValueError(f"{constant} is not a JSON value")

    try:
        value = json.loads(reply, parse_constant=not_json)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON: {error}"
    try:
        _try_patterns_of_keys(schema, value)
        problem = next(schema_validator(schema, _search).iter_errors(value), None)
    except (ArithmeticError, RecursionError) as error:
        return f"it cannot be validated: {type(error).__name__}: {error}"
    return None if problem is None else f"{problem.json_path}: {problem.message[:_SHOWN_CHARS]}"


def _try_patterns_of_keys(schema: Mapping[str, Any], value: Any) -> None:
    tables = [part.get("patternProperties") for part in _objects_in(schema)]
    patterns = {
        key for table in tables if isinstance(table, Mapping) for key in table if isinstance(key, str)
    }
    keys = {key for part in _objects_in(value) for key in part} if patterns else ()
    for pattern in patterns:
        for key in keys:
            _search(pattern, key)


def _objects_in(value: Any) -> Iterator[Mapping[Any, Any]]:
    waiting = [value]
    while waiting:
        part = waiting.pop()
        if isinstance(part, Mapping):
            yield part
            waiting += part.values()
        elif isinstance(part, list | tuple):
            waiting += part


def _search(pattern: str, text: str) -> bool:
    return has_match(re.compile(pattern), text)


async def check_conversation_sayings(
    sayings: Sequence[Saying],
    turns: Sequence[Turn],
    conversation: Conversation,
    timeout_s: float = FUNCTION_S,
) -> tuple[CheckResult, ...]:
    """Return a result for each saying about these turns, in order; functions get the conversation."""
    each = [partial(_checked, saying, turns, conversation, timeout_s) for saying in sayings]
    return tuple(await run_concurrently(each))


async def check_turn_sayings(
    sayings: Sequence[Saying], turns: Sequence[Turn], timeout_s: float = FUNCTION_S
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
    decide = partial(_decided, saying, turns, conversation)
    if is_plain(saying.wanted) and sum(len(turn.agent_message) for turn in turns) <= _LONG_CHARS:
        return decide()
    try:
        result: CheckResult = await result_of(decide, limit=TimeLimit(timeout_s), source=saying)
    except FunctionTimeout as error:
        return _undecided_saying(saying, f"{_brief(saying.wanted)} {error}")
    return result


def _decided(saying: Saying, turns: Sequence[Turn], conversation: Conversation) -> CheckResult:
    looked_at = _turns_to_search(saying, turns)
    failed: PredicateFailed | None = None
    for turn in looked_at:
        before = [replace(turn, agent_message=remark.text) for remark in turn.remarks if saying.never]
        try:
            for said in (*before, turn):
                if reply_contains(saying.wanted, said, conversation):
                    return _result_found(saying, said)
        except PredicateFailed as error:
            failed = failed or error
    if failed:
        return _undecided_saying(saying, str(failed))
    expected = f"expected {_expectation_text(saying)}"
    if saying.never:
        return CheckResult(check="never_says", passed=True, summary=expected)
    if len(looked_at) == 1:
        reply = _quoted(looked_at[0].agent_message, 0)
        index = looked_at[0].turn_index
        return CheckResult(check="says", passed=False, summary=expected, reply=reply, turn_index=index)
    none = f"none of {len(looked_at)} replies"
    outcome = f"; it holds for {none}" if isinstance(saying.wanted, FUNCTIONS) else f"; {none} has it"
    if not looked_at:
        outcome = f", but the conversation has {count(len(turns), 'turn')}"
    return CheckResult(check="says", passed=False, summary=f"{expected}{outcome}")


def _turns_to_search(saying: Saying, turns: Sequence[Turn]) -> Sequence[Turn]:
    if saying.in_turn is None:
        return turns
    index = saying.in_turn + (len(turns) if saying.in_turn < 0 else 0)
    return turns[index : index + 1] if index >= 0 else ()


def reply_contains(wanted: Any, turn: Turn, conversation: Conversation) -> bool:
    """Return True if a turn's reply contains the expected value. May block; raises PredicateFailed."""
    reply = turn.agent_message
    if isinstance(wanted, str):
        return has_part(reply, wanted)
    if isinstance(wanted, Text):
        return wanted.is_in(reply)
    if isinstance(wanted, OneOf):
        pairs = ((value, turn) for value in wanted.values)
        return any_holds(lambda value, turn: reply_contains(value, turn, conversation), pairs)
    if isinstance(wanted, Number | Approx):
        return any(equal(wanted, number) for number in numbers_in(reply))
    if isinstance(wanted, re.Pattern):
        return call_predicate(wanted, lambda: has_match(wanted, reply))
    if isinstance(wanted, FUNCTIONS):
        return call_predicate(wanted, lambda: _answer_of_function(wanted, turn, conversation))
    return equal(wanted, reply)


def _answer_of_function(function: Callable[..., Any], turn: Turn, conversation: Conversation) -> Any:
    offered: dict[str, Callable[[], Any]] = {
        "reply": lambda: turn.agent_message,
        "turn": lambda: copy_turn(turn),
        "conversation": lambda: copy_conversation(conversation),
    }
    return accepted_values(function, SAYS_PARAMETERS).bound_to(function, lambda name: offered[name]())()


def _result_found(saying: Saying, turn: Turn) -> CheckResult:
    location = f"the reply of {turn_name(turn.turn_index)}"
    outcome = f"it holds for {location}" if isinstance(saying.wanted, FUNCTIONS) else f"{location} has it"
    expected = f"expected {_expectation_text(saying)}"
    if not saying.never:
        return CheckResult(
            check="says", passed=True, summary=f"{expected}; {outcome}", turn_index=turn.turn_index
        )
    part = _forbidden_part(saying.wanted, turn.agent_message)
    which = f": {_quoted(part, 0)}" if part and not isinstance(saying.wanted, str) else ""
    return CheckResult(
        check="never_says",
        passed=False,
        summary=f"{expected}, but {outcome}{which}",
        turn_index=turn.turn_index,
        reply=_quoted(turn.agent_message, max(0, turn.agent_message.find(part))),
    )


def _forbidden_part(wanted: Any, reply: str) -> str:
    if isinstance(wanted, str):
        return wanted if has_part(reply, wanted) else ""
    if isinstance(wanted, Text):
        return _matching_part(wanted, reply)
    if isinstance(wanted, OneOf):
        return next(filter(None, (_forbidden_part(each, reply) for each in wanted.values)), "")
    if isinstance(wanted, re.Pattern):
        with suppress(PatternTimeout):
            return first_match(wanted, reply) or ""
    return ""


def _matching_part(wanted: Text, reply: str) -> str:
    if not wanted.is_in(reply):
        return ""
    places = range(len(reply) + 1)
    end = bisect_left(places, True, key=lambda at: wanted.is_in(reply[:at]))
    begin = bisect_left(places[: end + 1], True, key=lambda at: not wanted.is_in(reply[at:end])) - 1
    return reply[begin:end]


def _undecided_saying(saying: Saying, why: str) -> CheckResult:
    check = "never_says" if saying.never else "says"
    return CheckResult.undecided(check, why, f"expected {_expectation_text(saying)}")


def _expectation_text(saying: Saying) -> str:
    index = saying.in_turn
    if index is None:
        where = "any reply" if saying.never else "a reply"
    elif index >= 0:
        where = f"the reply of {turn_name(index)}"
    else:
        where = "the last reply" if index == -1 else f"reply {-index} from the end"
    if isinstance(saying.wanted, FUNCTIONS):
        return f"{_brief(saying.wanted)} {'not ' if saying.never else ''}to hold for {where}"
    return f"{'no ' if saying.never else ''}{_brief(saying.wanted)} in {where}"


def _brief(wanted: Any) -> str:
    return shortened(shown(wanted), _SHOWN_CHARS)


def _quoted(reply: str, at: int) -> str:
    if not reply:
        return NO_TEXT
    begin = max(0, at - _SHOWN_CHARS // 2) if at > _SHOWN_CHARS // 2 else 0
    part = reply[begin : begin + _SHOWN_CHARS]
    return repr(("…" if begin else "") + part + ("…" if begin + _SHOWN_CHARS < len(reply) else ""))
