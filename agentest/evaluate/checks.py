"""Deterministic checks of one reply (`expect` on a scripted turn)."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from agentest.expectations import Expect, schema_validator
from agentest.results import CheckResult
from agentest.transcript import NO_TEXT, Turn

_SHOWN_CHARS = 200


def check_reply(expect: Expect, turn: Turn) -> tuple[CheckResult, ...]:
    """Every check of the turn with what was expected and what came."""
    return tuple(_checks(expect, turn))


def _checks(expect: Expect, turn: Turn) -> Iterator[CheckResult]:
    reply = turn.agent_message
    for text in expect.contains:
        yield _result("contains", text in reply, f"{text!r} in the reply", reply)
    for text in expect.not_contains:
        yield _result("not_contains", text not in reply, f"no {text!r} in the reply", reply)
    for pattern in expect.regex:
        found = pattern.search(reply) is not None
        yield _result("regex", found, f"a match of {pattern.pattern!r} in the reply", reply)
    for schema in expect.json_schema:
        problem = _schema_problem(schema, reply)
        expected = "JSON that validates" + (f" ({problem})" if problem else "")
        yield _result("json_schema", problem is None, expected, reply)
    words = len(reply.split())
    for limit in expect.max_words:
        yield CheckResult(
            "max_words", words <= limit, f"expected at most {limit} words; the reply has {words}"
        )
    for longest in expect.max_latency_ms:
        took = f"expected a reply within {longest:g} ms; it took {turn.latency_ms:.1f} ms"
        yield CheckResult("max_latency_ms", turn.latency_ms <= longest, took)


def _result(check: str, passed: bool, expected: str, reply: str) -> CheckResult:
    shown = repr(reply if len(reply) <= _SHOWN_CHARS else reply[:_SHOWN_CHARS] + "…")
    return CheckResult(check, passed, f"expected {expected}; the reply was {shown if reply else NO_TEXT}")


def _schema_problem(schema: Mapping[str, Any], reply: str) -> str | None:
    try:
        value = json.loads(reply, parse_constant=_not_json)
    except (ValueError, RecursionError) as error:
        return f"it is not JSON: {error}"
    try:
        problem = next(schema_validator(schema).iter_errors(value), None)
    except (ArithmeticError, RecursionError) as error:
        return f"it cannot be validated: {type(error).__name__}: {error}"
    return None if problem is None else f"{problem.json_path}: {problem.message[:_SHOWN_CHARS]}"


def _not_json(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON value")
