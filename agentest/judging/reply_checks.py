"""Deterministic checks of one reply (`expect` on a scripted turn)."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, NoReturn

from agentest.domain.results import CheckResult
from agentest.domain.transcript import NO_TEXT, Turn
from agentest.scenarios.expectations import Expect
from agentest.support.calling import result_of
from agentest.support.deadlines import TimeLimit
from agentest.support.json_schema import schema_validator
from agentest.support.patterns import PatternTimeout, has_match

_SHOWN_CHARS = 200
_TIMEOUT_S = 60.0


async def run_reply_checks(
    expect: Expect, turn: Turn, timeout_s: float = _TIMEOUT_S
) -> tuple[CheckResult, ...]:
    """Run `check_reply`, in a thread if a pattern or JSON schema is checked, because these may take very
    long.
    """
    if not (expect.regex or expect.json_schema):
        return check_reply(expect, turn)
    limit = TimeLimit(timeout_s)
    try:
        results: tuple[CheckResult, ...] = await result_of(check_reply, expect, turn, limit=limit)
    except TimeoutError:
        error = f"the checks gave no answer within {timeout_s:g} s"
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
        yield _result("contains", text in reply, f"{text!r} in the reply", reply)
    for text in expect.not_contains:
        yield _result("not_contains", text not in reply, f"no {text!r} in the reply", reply)
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
    """Return the checks of the time to the first token.

    Args:
        agent: the agent's name.
        unstreamed: the reason to report if the time is unknown.
    """
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
    return replace(result, summary=f"could not be told: {error}; {result.summary}", error=error)


def _result(check: str, passed: bool, expected: str, reply: str) -> CheckResult:
    shown = repr(reply if len(reply) <= _SHOWN_CHARS else reply[:_SHOWN_CHARS] + "…")
    return CheckResult(
        check=check, passed=passed, summary=f"expected {expected}", reply=shown if reply else NO_TEXT
    )


def _schema_problem(schema: Mapping[str, Any], reply: str) -> str | None:
    try:
        value = json.loads(reply, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON: {error}"
    try:
        _try_patterns_of_keys(schema, value)
        problem = next(schema_validator(schema, _search).iter_errors(value), None)
    except (ArithmeticError, RecursionError) as error:
        return f"it cannot be validated: {type(error).__name__}: {error}"
    return None if problem is None else f"{problem.json_path}: {problem.message[:_SHOWN_CHARS]}"


def _try_patterns_of_keys(schema: Mapping[str, Any], value: Any) -> None:
    """Raise PatternTimeout for a pattern that takes too long on a key of the value.

    jsonschema matches `patternProperties` itself, without a time limit.
    """
    patterns = set(_patterns_of_keys(schema))
    keys = set(_keys(value)) if patterns else ()
    for pattern in patterns:
        for key in keys:
            _search(pattern, key)


def _patterns_of_keys(schema: Any) -> Iterator[str]:
    for part in _objects_in(schema):
        patterns = part.get("patternProperties")
        yield from (key for key in patterns if isinstance(key, str)) if isinstance(patterns, Mapping) else ()


def _keys(value: Any) -> Iterator[str]:
    for part in _objects_in(value):
        yield from part


def _objects_in(value: Any) -> Iterator[Mapping[Any, Any]]:
    """Yield all objects in a JSON value, including the value itself."""
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


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")
