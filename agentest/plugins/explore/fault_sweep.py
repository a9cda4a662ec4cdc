"""The fault sweep: every kind of fault that fits, for every tool that is called, and all of its calls.

Kinds form classes: of each class and tool one fault comes before a second. First calls come before last ones.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Any, NamedTuple

from agentest.domain.changes import ANSWERS_FIRST, Fault
from agentest.domain.results.exploration import ExploredPart
from agentest.domain.transcript import Conversation, ToolCall
from agentest.mocks.binding import BoundFunction, steps_of
from agentest.mocks.changed_answers import CURRENCIES, applied, last_key, moved
from agentest.plugins.explore.model import Base, Sweep, ToolEffects, Variation, relaxed
from agentest.scenarios.model import Scenario
from agentest.support.json_text import json_text, leaves
from agentest.support.lazy_dataclasses import dataclass, replace

PERSISTENT = 100  # how many calls fail if the fault does not go away
CLASSES: Mapping[str, tuple[str, ...]] = {
    "error": ("unavailable", "timeout", "permission_denied", "not_found", "error", "rate_limit"),
    "schema": ("schema", "malformed"),
    "late": ("applied_then_timeout", "stale", "slow"),
    "empty": ("empty", "partial", "truncated"),
    "wrong entity": ("wrong_entity",),
    "other value": ("plausible_lie",),
    "several": ("duplicate",),
}
"""Class → its kinds of faults. What comes first shows most."""
_LASTING = ("unavailable", "rate_limit")
_OF_WRITES = ("applied_then_timeout", "partial")
_OF_READS = ("truncated", "stale", "duplicate", "plausible_lie")
_MOST_FIELDS = 6


class MetFault(NamedTuple):
    """A fault and the call that met it."""

    fault: Fault
    call: ToolCall
    position: int  # among all calls of the conversation


def met_faults(scenario: Scenario, conversation: Conversation) -> list[MetFault]:
    """Return which calls met which faults of the scenario's tools, in order."""
    numbers: Counter[str] = Counter()
    met = []
    for index, call in enumerate(conversation.tool_calls):
        if call.name not in scenario.tools or not call.mocked or not isinstance(call.args, Mapping):
            continue
        numbers[call.name] += 1
        due = (each for each in reversed(scenario.faults) if each.tool == call.name)
        if fault := next((each for each in due if each.is_due(numbers[call.name])), None):
            met.append(MetFault(fault, call, index))
    return met


@dataclass(frozen=True, slots=True, kw_only=True)
class MockedTool:
    """How the conversations of a passing scenario use one of its mocked tools."""

    name: str
    calls: Sequence[ToolCall]
    """The calls of one conversation, in order; without a conversation, one call as it would be answered."""
    told: frozenset[str]  # texts of the agent's replies, to see which fields matter


class FaultSweep(Sweep):
    """Yields the single faults to try with a passing scenario."""

    def __call__(self, base: Base) -> Iterator[Variation]:
        known, start = base.effects, relaxed(base.scenario, keep_limits=False)
        for use in tool_uses(base):
            for order, (name, kinds) in enumerate(CLASSES.items()):
                chosen = [kind for kind in kinds if self.tries(kind, base)]
                for place, each in enumerate(faults_of(use, known, chosen)):
                    mode = f" {each.mode}" if each.kind == "schema" else ""
                    yield Variation(
                        part=ExploredPart.FAULTS,
                        name=fault_name(each),
                        group=f"{each.kind}{mode} × {each.tool}",
                        cells=((ExploredPart.FAULTS, use.name, name),),
                        scenario=replace(start, changes=(*start.changes, each)),
                        rank=len(CLASSES) * place + order,
                    )


def fault_name(fault: Fault) -> str:
    """Return a fault in words, unique among those of a scenario."""
    kind = f"schema ({fault.mode})" if fault.kind == "schema" else fault.kind
    where = f" at {fault.path}" if fault.path else ""
    calls = f"call {fault.at}" if fault.times < PERSISTENT else f"call {fault.at} and later"
    return f"{kind} of {fault.tool}, {calls}{where}"


def tool_uses(base: Base) -> Iterator[MockedTool]:
    """Yield how the mocked tools are used; without conversations, as if each were called once."""
    for name, mock in base.scenario.tools.items():
        longest: Sequence[ToolCall] = ()
        told: list[str] = []
        for result in base.conversations:
            calls = [call for call in result.conversation.calls(name) if call.mocked]
            longest = calls if len(calls) > len(longest) else longest
            told += result.conversation.replies
        if not base.conversations:
            no_values = BoundFunction | BaseException | type
            answer = next((step for step in steps_of(mock) if not isinstance(step, no_values)), None)
            longest = [ToolCall(name, {}, answer, True, 0)]
        if longest:
            yield MockedTool(name=name, calls=longest, told=frozenset(told))


def faults_of(use: MockedTool, known: ToolEffects, kinds: Sequence[str]) -> Iterator[Fault]:
    """Yield the faults that fit a tool: the first call first, and one of each kind before a second."""
    write = known.is_write(use.name)
    for number in dict.fromkeys([1, len(use.calls), *range(2, len(use.calls))]):
        call = use.calls[number - 1]
        fitting = (kind for kind in kinds if _fits(kind, call, use, number, write=write))
        columns = [_settings(kind, call, use, number) for kind in fitting]
        yield from (each for row in zip_longest(*columns) for each in row if each)


def _fits(kind: str, call: ToolCall, use: MockedTool, number: int, *, write: bool) -> bool:
    if (write and kind in _OF_READS) or (not write and kind in _OF_WRITES):
        return False
    if kind in ANSWERS_FIRST and call.failed:
        return False  # there is no right answer to change
    if kind == "stale":
        return any(json_text(each.result) != json_text(call.result) for each in use.calls[: number - 1])
    return True


def argument_values(call: ToolCall) -> Iterable[Any]:
    """Return the values of a call's arguments, as far as they are known."""
    return call.args.values() if isinstance(call.args, Mapping) else ()


def _settings(kind: str, call: ToolCall, use: MockedTool, number: int) -> Iterator[Fault]:
    plain = Fault(kind, at=number, tool=use.name)
    if kind in _LASTING:
        yield replace(plain, times=PERSISTENT)
    elif kind == "schema":
        for place in _paths(call, use, lambda _: True):
            for mode in ("drop", "null", "retype"):
                yield replace(plain, mode=mode, path=place)
        result = call.result
        if isinstance(result[0] if isinstance(result, list) and result else result, Mapping):
            yield replace(plain, mode="extra")
    elif kind == "wrong_entity":
        for path in _paths(call, use, lambda value: _is_named(value, call)):
            yield replace(plain, path=path)
    elif kind == "plausible_lie":
        found = [each for each in leaves(call.result) if moved(each[1]) != each[1]]
        found.sort(key=lambda each: each[1] not in CURRENCIES)
        for path, value in found[:_MOST_FIELDS]:
            is_key = _KEY.search(last_key(path)) is not None  # another item is no other value
            if is_told(value, use.told) and not is_key and not _is_named(value, call):
                yield replace(plain, path=path)
    elif kind == "duplicate" and (path := _distinguishing(call)):
        yield replace(plain, path=path)
    elif kind in ("empty", "truncated", "duplicate", "malformed"):
        if json_text(applied(call.result, plain)) != json_text(call.result):
            yield plain
    else:
        yield plain


_NAME = re.compile(r"(?:^|_)(?:name|title|subject|contact|email|customer|patient)$", re.IGNORECASE)
_KEY = re.compile(r"(?:^|_)(?:id|number|no|ref|reference|email|sku)$", re.IGNORECASE)


def _distinguishing(call: ToolCall) -> str:
    """Return the key by which items with the name that a call asks for differ; "" if there is none."""
    given = {str(value).casefold() for value in argument_values(call)}
    fields = [(path.rpartition("].")[2], value) for path, value in leaves(call.result) if "[" in path]
    is_named = any(_NAME.search(key) and str(value).casefold() in given for key, value in fields)
    keys = (key for key, value in fields if _KEY.search(key) and str(value).casefold() not in given)
    return next(keys, "") if is_named else ""


def _paths(call: ToolCall, use: MockedTool, suits: Callable[[Any], bool]) -> list[str]:
    found = [(path, value) for path, value in leaves(call.result) if suits(value)]
    found.sort(key=lambda each: not is_told(each[1], use.told))
    return [path for path, _ in found[:_MOST_FIELDS]]


def is_told(value: Any, told: Iterable[str]) -> bool:
    return any(told_as(value, reply) for reply in told)


def told_as(value: Any, reply: str) -> str:
    """Return a value as a reply writes it, of a currency its name or sign; "" if it is not there."""
    text = value if isinstance(value, str) else json_text(value)
    words = dict(zip(CURRENCIES, _CURRENCY_WORDS, strict=True))
    plain = rf"(?<![\w.-]){re.escape(text)}(?![\w-]|\.\d)"
    found = re.search(words.get(text, plain), reply, re.IGNORECASE) if text.strip() else None
    return found.group() if found else ""


_CURRENCY_WORDS = (r"\beur|€", r"\busd\b|dollar|\$", r"\bgbp\b|pounds?\b|£", r"\bjpy\b|\byen\b|¥")


def _is_named(value: Any, call: ToolCall) -> bool:
    """Return True if a value is what the call asks for, so that another one is noticeably wrong."""
    if isinstance(value, bool) or value is None:
        return False
    return isinstance(value, str | int) and json_text(value) in map(json_text, argument_values(call))
