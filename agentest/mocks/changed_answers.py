"""Answers of mocks that meet faults or carry injections.

Imported only by conversations with such a mock.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from datetime import date, timedelta
from typing import Any, NamedTuple

import anyio

from agentest.domain.changes import TOOL_FAULTS, Fault, Injection
from agentest.mocks.calls import HttpResponse
from agentest.support.json_text import copied, json_text, leaves

SLOW_S = 2.0  # the default delay of the fault `slow`, in seconds


class RawText(NamedTuple):
    """Text that the agent receives as it is, such as broken JSON."""

    text: str


class ChangedMocks:
    """The answers of one conversation's changed mocks, with their positions."""

    def __init__(self) -> None:
        self._numbers: Counter[str] = Counter()
        self._reached: Counter[str] = Counter()
        self._earlier: defaultdict[str, list[tuple[str, Any]]] = defaultdict(list)
        """Tool → arguments and answer of each call that its mock answered."""

    def reached(self, name: str) -> int:
        """Return the number of calls of a tool that reached its mock: faults keep some from it."""
        return self._reached[name]

    async def answer(
        self,
        name: str,
        changes: Sequence[Fault | Injection],
        args: Mapping[str, Any],
        call: Callable[[], Awaitable[Any]],
    ) -> Any:
        """Answer a call. Returns the value to send. Raises what the mock raises, and HttpResponse for errors.

        Args:
            call: calls the mock.
        """
        self._numbers[name] += 1
        number = self._numbers[name]
        due = next((each for each in changes if isinstance(each, Fault) and each.is_due(number)), None)
        if due is not None and not TOOL_FAULTS[due.kind].mock_runs:
            await _wait(due)
            raise _error(due, changes)
        self._reached[name] += 1
        answer = await call()
        if isinstance(answer, HttpResponse) and answer.failed:
            return answer
        value = copied(answer.body if isinstance(answer, HttpResponse) else answer)
        key, earlier = json_text(dict(args)), self._earlier[name]
        changed = value
        if due is not None:
            await _wait(due)
            changed = _stale(earlier, key, value) if due.kind == "stale" else _changed_by(due, value)
        earlier.append((key, value))
        if due is not None and TOOL_FAULTS[due.kind].status:
            raise _error(due, changes)
        for each in changes:
            if isinstance(each, Injection) and each.path not in OUTSIDE_ANSWERS:
                changed = with_payload(changed, each)
        if isinstance(changed, RawText):
            return changed.text
        if isinstance(answer, HttpResponse):
            return HttpResponse(answer.status, changed, headers=answer.headers)
        return changed


OUTSIDE_ANSWERS = ("error", "description")  # paths of injections that do not stand in a tool's answer


async def _wait(fault: Fault) -> None:
    delay = SLOW_S if fault.delay is None and fault.kind == "slow" else fault.delay or 0.0
    if delay:
        await anyio.sleep(delay)


def _error(fault: Fault, changes: Sequence[Fault | Injection]) -> HttpResponse:
    status, text, _ = TOOL_FAULTS[fault.kind]
    payloads = (each.payload for each in changes if isinstance(each, Injection) and each.path == "error")
    body: dict[str, Any] = {"error": " ".join((fault.message or text, *payloads))}
    if fault.code is not None:
        body["code"] = fault.code
    return HttpResponse(status, body)


def _stale(earlier: list[tuple[str, Any]], key: str, value: Any) -> Any:
    same = next((answer for arguments, answer in earlier if arguments == key), None)
    return copied(same if same is not None else earlier[0][1] if earlier else value)


def _empty(value: Any, _: Fault) -> Any:
    if isinstance(value, Mapping):
        lists: dict[str, Any] = {key: [] for key, item in value.items() if isinstance(item, list)}
        return {**value, **lists} if lists else {}
    return [] if isinstance(value, list) else "" if isinstance(value, str) else None


def _truncated(value: Any, _: Fault) -> Any:
    if isinstance(value, str):
        return value[: len(value) // 2]
    if isinstance(value, list):
        return value[: (len(value) + 1) // 2] if len(value) > 1 else [_truncated(each, _) for each in value]
    if isinstance(value, Mapping):
        cut = next(
            (key for key, item in value.items() if isinstance(item, list | str) and len(item) > 1), None
        )
        return {**value, cut: _truncated(value[cut], _)} if cut is not None else value
    return value


def _malformed(value: Any, _: Fault) -> Any:
    text = json_text(value)
    return RawText(text[: max(1, len(text) * 2 // 3)] if len(text) > 2 else '{"result": ')


def _schema(value: Any, fault: Fault) -> Any:
    path = fault.path or next((path for path, _ in leaves(value)), "")
    if fault.mode == "extra":
        more = {"unexpected": {"value": 1}}
        if isinstance(value, list) and value and isinstance(value[0], Mapping):
            return [{**value[0], **more}, *value[1:]]
        return {**value, **more} if isinstance(value, Mapping) else {"result": value, **more}
    if not path:
        return {"unexpected": value}
    if fault.mode == "drop":
        return without(value, path)
    return changed_at(value, path, _retyped if fault.mode == "retype" else lambda _: None)


def _retyped(value: Any) -> Any:
    if isinstance(value, str):
        return {"value": value}
    return f"{json_text(value)} (unverified)"


_IDENTIFIER = re.compile(
    r"(?:^|_)(?:id|number|no|code|ref|reference|email|name|customer|user)s?$", re.IGNORECASE
)


def _wrong_entity(value: Any, fault: Fault) -> Any:
    path = fault.path or next((path for path, _ in leaves(value) if _is_identifier(path)), "")
    return changed_at(value, path, other_identifier) if path else value


def _is_identifier(path: str) -> bool:
    return _IDENTIFIER.search(last_key(path)) is not None


def other_identifier(value: Any) -> Any:
    """Return another identifier of the same shape."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value + 1
    if not isinstance(value, str):
        return value
    digits = list(re.finditer(r"\d", value))
    if digits:
        at = digits[-1].start()
        return f"{value[:at]}{(int(value[at]) + 1) % 10}{value[at + 1 :]}"
    return f"other-{value}" if "@" in value or " " not in value else f"Other {value}"


def _plausible_lie(value: Any, fault: Fault) -> Any:
    found = (path for path, leaf in leaves(value) if moved(leaf) != leaf and not _is_identifier(path))
    path = fault.path or next(found, "")
    return changed_at(value, path, moved) if path else value


CURRENCIES = ("EUR", "USD", "GBP", "JPY")


def moved(value: Any) -> Any:
    """Return a value near to this one: a larger number, a day later, another currency or truth value."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + max(1, abs(value) // 10)
    if isinstance(value, float):
        return round(value * 1.1 + 0.01, 2)
    if value in CURRENCIES:
        return CURRENCIES[(CURRENCIES.index(value) + 1) % len(CURRENCIES)]
    if isinstance(value, str):
        for pattern, near in ((r"\d{4}-\d\d-\d\d", _next_day), (r"\d+(?!.*\d)", _next_number)):
            with suppress(ValueError, OverflowError):  # digits that are no date, or the last date of all
                later, found = re.subn(pattern, near, value, count=1)
                if found:
                    return later
    return value


def _next_day(found: re.Match[str]) -> str:
    return (date.fromisoformat(found.group()) + timedelta(days=1)).isoformat()


def _next_number(found: re.Match[str]) -> str:
    return str(int(found.group()) + 1).zfill(len(found.group()))


def _duplicate(value: Any, fault: Fault) -> Any:
    if isinstance(value, list):
        copies = copied(value)
        path = fault.path
        return [*value, *(changed_at(each, path, other_identifier) if path else each for each in copies)]
    if isinstance(value, Mapping):
        at = next((key for key, item in value.items() if isinstance(item, list) and item), None)
        return {**value, at: _duplicate(value[at], fault)} if at is not None else value
    return value


def _partial(value: Any, _: Fault) -> Any:
    return {"status": "partial", "error": "a part of the request failed", "result": value}


_CHANGES: Mapping[str, Callable[[Any, Fault], Any]] = {
    "empty": _empty,
    "truncated": _truncated,
    "malformed": _malformed,
    "schema": _schema,
    "wrong_entity": _wrong_entity,
    "plausible_lie": _plausible_lie,
    "duplicate": _duplicate,
    "partial": _partial,
}


def _changed_by(fault: Fault, value: Any) -> Any:
    return _CHANGES[fault.kind](copied(value), fault) if fault.kind in _CHANGES else value


def applied(value: Any, fault: Fault) -> Any:
    """Return an answer as a fault leaves it; an equal value if the fault cannot change it.

    `stale` needs earlier calls, and leaves it unchanged here.
    """
    changed = _changed_by(fault, value)
    return changed.text if isinstance(changed, RawText) else changed


def with_payload(value: Any, injected: Injection) -> Any:
    """Return an answer with an injection in the text at its path; unchanged if there is no text there."""
    if isinstance(value, RawText):
        return value
    path = injected.path
    if not path:
        path = next((where for where, leaf in leaves(value) if isinstance(leaf, str)), "")

    def add(text: Any) -> Any:
        return f"{text} {injected.payload}".strip() if isinstance(text, str) else text

    return changed_at(value, path, add) if path else add(value)


_STEP = re.compile(r"\[(\d+)\]|([^.\[\]]+)")


def _steps(path: str) -> list[str | int]:
    return [int(index) if index else key for index, key in _STEP.findall(path)]


def last_key(path: str) -> str:
    """Return the last key of a path, without the places in lists."""
    keys = [step for step in _steps(path) if isinstance(step, str)]
    return keys[-1] if keys else ""


def changed_at(value: Any, path: str, change: Callable[[Any], Any]) -> Any:
    """Return a copy of a JSON value with the part at a path changed, if any; `*` is each key or index."""
    return _rebuilt(value, _steps(path), change)


def value_at(value: Any, path: str) -> Any:
    """Return the part of a JSON value at a path; None if it has no such part."""
    for step in _steps(path):
        if isinstance(value, Mapping):
            value = value.get(step)
        elif isinstance(value, list) and isinstance(step, int) and step < len(value):
            value = value[step]
        else:
            return None
    return value


def without(value: Any, path: str) -> Any:
    """Return a copy of a JSON value without the part at a path."""
    *parent, last = _steps(path)

    def drop(container: Any) -> Any:
        if isinstance(container, Mapping):
            return {key: item for key, item in container.items() if key != last}
        if isinstance(container, list) and isinstance(last, int):
            return [item for index, item in enumerate(container) if index != last]
        return container

    return _rebuilt(value, parent, drop)


def _rebuilt(value: Any, steps: list[str | int], change: Callable[[Any], Any]) -> Any:
    if not steps:
        return change(value)
    step, *rest = steps
    if isinstance(value, Mapping):
        return {at: _rebuilt(item, rest, change) if step in (at, "*") else item for at, item in value.items()}
    if isinstance(value, list):
        return [
            _rebuilt(item, rest, change) if str(step) in (str(at), "*") else item
            for at, item in enumerate(value)
        ]
    return value
