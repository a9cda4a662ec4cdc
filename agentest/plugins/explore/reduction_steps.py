"""The single steps by which a failing scenario becomes smaller.

Each reduction is a pure function: it yields scenarios that are valid, and smaller. If they still fail is not
its concern (`reduction.py`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any, NamedTuple

from agentest.domain.changes import KNOWLEDGE, USER, Fault, Injection
from agentest.domain.transcript import Conversation
from agentest.mocks.binding import BoundFunction, MockSequence, steps_of
from agentest.scenarios.model import Scenario, ScriptedTurn
from agentest.scenarios.source_code import has_raised
from agentest.support.lazy_dataclasses import replace
from agentest.support.text import sentences

_LONG_TEXT = 40  # texts in answers that are not longer stay whole
_FEWEST_WORDS = 25  # sentences with fewer words stay whole, so that they can be understood
_FACT = re.compile(r"(?<!\S)\S*[\d@]\S*")
_PLAIN_FAULT = "error"
_PLAINNESS: Mapping[str, int] = {
    _PLAIN_FAULT: 0,
    **dict.fromkeys(("not_found", "permission_denied", "rate_limit", "unavailable", "timeout"), 1),
}
_SETTINGS = ("message", "code", "delay")


class SeenConversations(NamedTuple):
    """The conversations by which reductions know what a scenario needs."""

    failing: Conversation
    turn_index: int | None = None  # the turn in which it failed; None: unknown
    first: Conversation | None = None
    """A failing conversation of the scenario before it was reduced; None: unknown."""
    control: Conversation | None = None
    """A conversation of the scenario without its faults and injections; None if it did not go well.

    A smaller answer must not break an agent that has no bug, so answers are reduced only with a control.
    """


Reduction = Callable[[Scenario, SeenConversations], Iterable[Scenario]]
"""Yields smaller scenarios, the most promising first."""


_DEFAULTS = {each.name: each.default for each in fields(Fault)}


def _descriptions(scenario: Scenario) -> tuple[str | None, ...]:
    return (scenario.profile, scenario.goal, scenario.user_prompt_template)


def fingerprint(scenario: Scenario) -> str:
    """Return a text that is equal for scenarios that no reduction made different."""
    turns = [turn.user_message for turn in scenario.turns]
    told = (turns, scenario.knowledge, _descriptions(scenario))
    return repr((*told, dict(scenario.tools), scenario.changes, scenario.mutations))


# Faults and injections


def one_change(scenario: Scenario, _: SeenConversations) -> Iterator[Scenario]:
    """Leave one fault or injection, or drop single ones."""
    changes = scenario.changes
    if len(changes) < 2:
        return
    for each in changes:
        yield replace(scenario, changes=(each,))
    if len(changes) > 2:
        for n in range(len(changes)):
            yield replace(scenario, changes=(*changes[:n], *changes[n + 1 :]))


def plain_fault(scenario: Scenario, _: SeenConversations) -> Iterator[Scenario]:
    """Replace each fault by the plainest of its kind, with the usual settings."""
    yield from _with_faults(scenario, _plainer)


def first_call(scenario: Scenario, _: SeenConversations) -> Iterator[Scenario]:
    """Let each fault occur once, and at the first call."""
    yield from _with_faults(scenario, _earlier)


def _plainer(fault: Fault) -> Iterator[Fault]:
    usual = replace(fault, **{name: _DEFAULTS[name] for name in _SETTINGS})
    if _PLAINNESS.get(fault.kind) == 1:
        yield replace(usual, kind=_PLAIN_FAULT)
    if usual != fault:
        yield usual


def _earlier(fault: Fault) -> Iterator[Fault]:
    if fault.times > 1:
        yield replace(fault, times=1)
    for at in (1, fault.at // 2, fault.at - 1):
        if 1 <= at < fault.at:
            yield replace(fault, at=at)


def _with_faults(scenario: Scenario, smaller: Callable[[Fault], Iterable[Fault]]) -> Iterator[Scenario]:
    changes = scenario.changes
    for n, each in enumerate(changes):
        if isinstance(each, Fault):
            for one in smaller(each):
                yield replace(scenario, changes=(*changes[:n], one, *changes[n + 1 :]))


# Turns and the user


def fewer_turns(scenario: Scenario, talks: SeenConversations) -> Iterator[Scenario]:
    """Drop turns: those after the failure, those before it, halves, quarters and so on, then single ones."""
    count = len(scenario.turns)
    if count < 2:
        return
    places = range(count)
    failed = talks.turn_index
    wanted: list[Sequence[int]] = []
    if failed is not None and failed < count:
        wanted += [places[: failed + 1], places[failed:], places[failed : failed + 1]]
    part = count // 2
    while part:
        for start in range(0, count, part):
            wanted.append([n for n in places if not start <= n < start + part])
        part //= 2
    seen: set[tuple[int, ...]] = set()
    for kept in map(tuple, wanted):
        if kept and len(kept) < count and kept not in seen:
            seen.add(kept)
            if (made := _only_turns(scenario, kept)) is not None:
                yield made


def _only_turns(scenario: Scenario, kept: Sequence[int]) -> Scenario | None:
    at = {before: now for now, before in enumerate(kept)}
    moved = []
    for each in scenario.changes:
        if isinstance(each, Injection) and each.place == USER:
            before = min(each.index, len(scenario.turns) - 1)
            if before not in at or (at[before] and f"[{each.index}]" not in each.at):
                return None
            each = replace(each, at=each.at.replace(f"[{each.index}]", f"[{at[before]}]"))
        moved.append(each)
    sayings = tuple(
        replace(each, in_turn=at[each.in_turn]) if each.in_turn in at else each
        for each in scenario.expect
        if each.in_turn is None or each.in_turn in at or -len(kept) <= each.in_turn < 0
    )
    turns = tuple(scenario.turns[n] for n in kept)
    return replace(scenario, turns=turns, expect=sayings, changes=tuple(moved))


def scripted(scenario: Scenario, talks: SeenConversations) -> Iterator[Scenario]:
    """Replace a simulated user by the messages that it wrote."""
    said = [turn.user_message for turn in talks.failing.started_turns]
    if scenario.scripted or _is_in_knowledge(scenario) or not said or not all(map(str.strip, said)):
        return
    script = replace(scenario, turns=tuple(map(ScriptedTurn, said)), user_tools={}, mutations=(), attack=None)
    yield replace(script, plan=None, patience=None, max_turns=None)


def _is_in_knowledge(scenario: Scenario) -> bool:
    return any(each.place == KNOWLEDGE for each in scenario.injections)


def less_description(scenario: Scenario, _: SeenConversations) -> Iterator[Scenario]:
    """Drop what describes the user: of a script everything, otherwise profile and single facts."""
    if _is_in_knowledge(scenario):
        return
    if scenario.scripted and (scenario.knowledge or any(_descriptions(scenario))):
        yield replace(scenario, profile="", goal="", knowledge=(), user_prompt_template=None)
    if scenario.profile:
        yield replace(scenario, profile="")
    for n in range(len(scenario.knowledge)):
        yield replace(scenario, knowledge=(*scenario.knowledge[:n], *scenario.knowledge[n + 1 :]))


def shorter_texts(scenario: Scenario, _: SeenConversations) -> Iterator[Scenario]:
    """Leave half of a user message, by sentences or else by words. Numbers and addresses stay."""
    turns = scenario.turns
    for n, turn in enumerate(turns):
        for text in _halves(turn.user_message):
            yield replace(scenario, turns=(*turns[:n], replace(turn, user_message=text), *turns[n + 1 :]))


def _halves(text: str) -> Iterator[str]:
    parts, least = sentences(text), 2
    if len(parts) < 2:
        parts, least = (text.split(), _FEWEST_WORDS)
    if len(parts) < least:
        return
    middle = len(parts) // 2
    facts = set(_FACT.findall(text))
    for half in (parts[middle:], parts[:middle]):
        shorter = " ".join(half).strip()
        if shorter and len(shorter) < len(text) and facts <= set(_FACT.findall(shorter)):
            yield shorter


# Answers of mocks


def fewer_tools(scenario: Scenario, talks: SeenConversations) -> Iterator[Scenario]:
    """Drop tools that were called in turns that are gone.

    Tools that were never called stay: an agent without the bug may look something up, or ask for help.
    """
    if talks.control is None or talks.first is None:
        return
    needed = {call.name for each in (talks.failing, talks.control) for call in each.tool_calls}
    needed |= {each.tool for each in scenario.changes if each.tool} | scenario.named_tools
    needed |= {each.place for each in scenario.changes}
    before = {call.name for call in talks.first.tool_calls}
    unused = [name for name in scenario.tools if name in before and name not in needed]
    for dropped in (*([unused] if len(unused) > 1 else ()), *([name] for name in unused)):
        left = {key: mock for key, mock in scenario.tools.items() if key not in dropped}
        yield replace(scenario, tools=left)


def values_for_functions(scenario: Scenario, talks: SeenConversations) -> Iterator[Scenario]:
    """Replace functions by what they answered without the faults.

    A function that uses the state stays, because other answers may depend on it.
    """
    if talks.control is None:
        return
    for name, mock in scenario.tools.items():
        functions = [step for step in steps_of(mock) if isinstance(step, BoundFunction)]
        if functions and not any(step.receives_context for step in functions):
            value = recorded_mock(talks.control, name)
            if value is not None:
                yield _with_mock(scenario, name, value)


def recorded_mock(conversation: Conversation, name: str) -> Any:
    """Return a mock that answers as in a conversation; None if that is unknown, or was an error."""
    calls = [call for call in conversation.calls(name) if isinstance(call.args, Mapping)]
    if not calls or any(has_raised(call) or call.invalid_arguments for call in calls):
        return None
    results = [call.result for call in calls]
    while len(results) > 1 and results[-1] == results[-2]:
        del results[-1]  # a sequence repeats its last answer
    return results[0] if len(results) == 1 else MockSequence(tuple(results))


def smaller_answers(scenario: Scenario, talks: SeenConversations) -> Iterator[Scenario]:
    """Leave one step of a sequence, one item of a list, and less of objects, texts and numbers.

    What is not called stays as it is, because nothing shows what an agent without the bug needs of it. So do
    answers of a tool with a fault, which the bug may ignore, and numbers that the user or the agent names.
    """
    if talks.control is None:
        return
    texts = [turn.user_message for turn in scenario.turns]
    for talk in (talks.failing, talks.control):
        texts += [repr(call.args) for call in talk.tool_calls]
    smaller = _SmallerValues(frozenset(number for text in texts for number in _NUMBER.findall(text)))
    called = {call.name for call in talks.control.tool_calls} - {each.tool for each in scenario.faults}
    for name, mock in scenario.tools.items():
        for each in smaller.mocks(mock) if name in called else ():
            yield _with_mock(scenario, name, each)


_NUMBER = re.compile(r"\d+(?:\.\d+)?")


def _with_mock(scenario: Scenario, name: str, mock: Any) -> Scenario:
    return replace(scenario, tools={**scenario.tools, name: mock})


class _SmallerValues:
    """Yields smaller mocks and JSON values.

    Args:
        named: numbers that stay.
    """

    def __init__(self, named: frozenset[str]) -> None:
        self._named = named

    def mocks(self, mock: Any) -> Iterator[Any]:
        if not isinstance(mock, MockSequence):
            if _is_json(mock):
                yield from self._values(mock)
            return
        yield mock.steps[0]
        if len(mock.steps) == 1:
            return
        yield MockSequence(mock.steps[:-1])
        for n, step in enumerate(mock.steps):
            if _is_json(step):
                for smaller in self._values(step):
                    yield MockSequence((*mock.steps[:n], smaller, *mock.steps[n + 1 :]))

    def _values(self, value: Any) -> Iterator[Any]:
        smallest = self._smallest(value)
        if smallest != value:
            yield smallest
        yield from self._parts(value)

    def _smallest(self, value: Any) -> Any:
        if isinstance(value, Mapping):
            return {key: self._smallest(item) for key, item in value.items()}
        if isinstance(value, list) and value:
            return [self._smallest(value[0])]
        return next(self._leaves(value), value)

    def _parts(self, value: Any) -> Iterator[Any]:
        if isinstance(value, Mapping):
            keys = list(value)
            if len(keys) > 3:
                middle = len(keys) // 2
                for half in (keys[:middle], keys[middle:]):
                    yield {key: value[key] for key in half}
            if len(keys) > 1:
                for key in keys:
                    yield {other: value[other] for other in keys if other != key}
            for key in keys:
                for smaller in self._parts(value[key]):
                    yield {**value, key: smaller}
        elif isinstance(value, list):
            if len(value) > 1:
                yield value[:1]
                yield value[1:]
            for n, item in enumerate(value):
                for smaller in self._parts(item):
                    yield [*value[:n], smaller, *value[n + 1 :]]
        else:
            yield from self._leaves(value)

    def _leaves(self, value: Any) -> Iterator[Any]:
        if isinstance(value, str) and len(value) > _LONG_TEXT:
            yield from _halves(value)
        elif type(value) in (int, float) and value not in (0, 1) and str(value).strip("-") not in self._named:
            yield 1


def _is_json(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool | list | Mapping)


REDUCTIONS: tuple[Reduction, ...] = (
    one_change,
    scripted,
    fewer_turns,
    less_description,
    fewer_tools,
    values_for_functions,
    shorter_texts,
    smaller_answers,
    plain_fault,
    first_call,
)
"""The cheapest first: those that save most of the later ones."""
NEED_CONTROL = frozenset({fewer_tools, values_for_functions, smaller_answers})
"""Reductions after which the scenario must still go well without its faults and injections."""
