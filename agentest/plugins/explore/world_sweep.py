"""Mutations of what surrounds a script: its date, values at limits, another customer's id, another scenario.

Each is compared with what the agent should do then: the conversations of the unchanged script, with other
values or one after the other, are the base of the variation.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Container, Iterator, Mapping
from contextlib import suppress
from datetime import date, datetime, timedelta
from itertools import chain
from typing import Any

from agentest.domain.results import ConversationResult
from agentest.domain.results.exploration import ExploredPart
from agentest.domain.transcript import Conversation, ToolCall, Turn
from agentest.judging.safety_checks import text_leaves
from agentest.mocks.binding import BoundFunction, Mock, MockSequence, bind
from agentest.mocks.changed_answers import last_key, other_identifier
from agentest.plugins.explore.injection_oracles import took_effect
from agentest.plugins.explore.model import Base, Variation, relaxed
from agentest.scenarios.model import Scenario
from agentest.scenarios.trajectory import ExpectedCall, Trajectory
from agentest.scenarios.variations import with_turns
from agentest.support.dates import today
from agentest.support.json_text import canonical, leaves
from agentest.support.lazy_dataclasses import replace

_MOST_CHAINED = 2
_RANK = 4  # after the mutations of scripts that find most
_ISO = re.compile(r"\d{4}-\d\d-\d\d")
_RELATIVE = re.compile(
    r"\b(?:to(?:day|night|morrow)|yesterday|next|this (?:week|month|year)|in \w+ (?:day|week|month)s?|ago|"
    r"(?:mon|tues|wednes|thurs|fri|satur|sun)day)\b",
    re.IGNORECASE,
)
_OTHER_DATE = re.compile(
    r"\b(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.? \d|\d(?:st|nd|rd|th)?\.? "
    r"(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)|\b\d{1,2}[./]\d{1,2}\b",
    re.IGNORECASE,
)
OWNER = re.compile(
    r"(?:^|_)(?:owner|customer|user|member|holder|tenant|client|guest|employee)(?:_?(?:id|number|email))?$",
    re.IGNORECASE,
)
"""Keys of answers that name whose data it is."""
_ID = re.compile(r"(?<![\w@./-])[A-Za-z]{1,6}[-_#]?\d+(?![\w@/-]|\.\d)")
_LIMIT = re.compile(
    r"(?:\bat most|\bno more than|\bnot more than|\bmaximum(?: of| is)?|\blimit(?:ed)?(?: of| is| to)|"
    r"\b(?:may|can|only|must)\b[^.!?]{0,60}?\bup to|"
    r"(?:\b(?:never|not|nobody|no one|cannot)\b|n't\b)[^.!?]{0,60}?\b(?:over|above|more than))"
    r" (?P<sign>[$€£]?) ?(?P<limit>\d+) ?(?P<unit>[$€£%]|[^\W\d_]+)?",
    re.IGNORECASE,
)
_Change = Callable[[Any], Any]


_Around = tuple[str, Scenario, Base | None]
"""What is changed, the changed scenario, and the base that shows what should happen; None: the unchanged."""


def world_variations(name: str, base: Base) -> Iterator[Variation]:
    """Yield the variations of a scripted base with one of these mutations."""
    made = _MUTATIONS[name](base) if base.scenario.scripted and not base.scenario.changes else ()
    for number, (label, scenario, expected) in enumerate(made):
        kind = "edge, beyond" if name == "edge" and expected is None else name
        yield Variation(
            part=ExploredPart.MUTATIONS,
            name=f"{name} {label}",
            group=f"{name} × {base.scenario.name}",
            cells=((ExploredPart.MUTATIONS, base.scenario.name, kind),),
            scenario=relaxed(scenario),
            relation="new" if expected is None else "same",
            rank=100 * number + _RANK,
            base=expected,
        )


def _expected(base: Base, scenario: Scenario, change: _Change) -> Base:
    """Return a base as if its conversations had been those of a scenario with other values."""
    results = [_told(each, [_translated(each.conversation, change)]) for each in base.conversations]
    unit = replace(base.unit, scenario=scenario, written=scenario)
    return replace(base, unit=unit, conversations=results)


def _translated(conversation: Conversation, change: _Change) -> Conversation:
    def of(turn: Turn) -> Turn:
        calls = [
            replace(call, args=_each_leaf(call.args, change), result=_each_leaf(call.result, change))
            for call in turn.tool_calls
        ]
        texts = {name: change(getattr(turn, name)) for name in ("user_message", "agent_message")}
        return replace(turn, tool_calls=tuple(calls), **texts)

    return replace(conversation, turns=tuple(map(of, conversation.turns)))


def _told(first: ConversationResult, conversations: list[Conversation]) -> ConversationResult:
    """Return a result with the turns of conversations, one after the other, and no evaluations."""
    turns = []
    for number, turn in enumerate(chain.from_iterable(each.turns for each in conversations)):
        calls = tuple(replace(call, turn_index=number) for call in turn.tool_calls)
        turns.append(replace(turn, turn_index=number, tool_calls=calls))
    return ConversationResult(replace(first.conversation, turns=tuple(turns)))


def _each_leaf(value: Any, change: _Change) -> Any:
    if isinstance(value, Mapping):
        return {key: _each_leaf(item, change) for key, item in value.items()}
    return [_each_leaf(item, change) for item in value] if isinstance(value, list) else change(value)


def _mock(mock: Mock, change: _Change) -> Mock:
    if isinstance(mock, MockSequence):
        return MockSequence(tuple(_mock(step, change) for step in mock.steps))
    return mock if isinstance(mock, BoundFunction | BaseException | type) else _each_leaf(mock, change)


def _changed(scenario: Scenario, change: _Change) -> Scenario:
    """Return a scenario with other values in its messages, knowledge, mocks and state."""
    return replace(
        with_turns(scenario, [change(turn.user_message) for turn in scenario.turns]),
        tools={name: _mock(mock, change) for name, mock in scenario.tools.items()},
        knowledge=tuple(map(change, scenario.knowledge)),
        state=None if scenario.state is None else _each_leaf(dict(scenario.state), change),
    )


# Another scenario before it


def _chains(base: Base) -> Iterator[_Around]:
    def shared(other: Base) -> int:
        return len(base.scenario.tools.keys() & other.scenario.tools.keys())

    made = 0
    for other in sorted(base.others, key=shared, reverse=True):
        scenario = None if other is base or made >= _MOST_CHAINED else _joined(base, other)
        if scenario is not None:
            made += 1
            pairs = zip(base.conversations, other.conversations, strict=False)
            results = [_told(one, [one.conversation, two.conversation]) for one, two in pairs]
            unit = replace(base.unit, scenario=scenario, written=scenario)
            yield other.scenario.name, scenario, replace(base, unit=unit, conversations=results)


def _joined(first: Base, second: Base) -> Scenario | None:
    one, two = first.scenario, second.scenario
    states = [dict(each.state or {}) for each in (one, two)]
    tools = _joint_tools(first, second)
    if (
        first.unit.agent != second.unit.agent
        or not two.scripted
        or two.changes
        or one.session != two.session
        or one.date != two.date
        or tools is None
        or _writes(first) & _writes(second)
        or any(states[0][key] != states[1][key] for key in states[0].keys() & states[1].keys())
    ):
        return None
    return replace(
        one,
        name=f"{one.name}, then {two.name}",
        turns=tuple(replace(turn, trajectory=(), expect=None) for turn in (*one.turns, *two.turns)),
        tools=tools,
        trajectory=(),
        expect=(),
        never_checks=(),
        knowledge=tuple(dict.fromkeys((*one.knowledge, *two.knowledge))),
        secrets=tuple(dict.fromkeys((*one.secrets, *two.secrets))),
        consent={**one.consent, **two.consent},
        state=states[0] | states[1] if one.state is not None or two.state is not None else None,
        max_turns=None,
    )


def _joint_tools(first: Base, second: Base) -> dict[str, Mock] | None:
    """Return the mocks of both; values by arguments where they differ. None if there is no such mock."""
    tools = {**first.scenario.tools, **second.scenario.tools}
    for name in first.scenario.tools.keys() & second.scenario.tools.keys():
        mocks = [each.scenario.tools[name] for each in (first, second)]
        functions = [getattr(each, "function", None) for each in mocks]
        calls = [call for call in (*first.calls, *second.calls) if call.name == name]
        if not calls or (functions[0] is functions[1] and (functions[0] or mocks[0] == mocks[1])):
            continue
        answers = {canonical(call.args): call.result for call in reversed(calls)}
        is_value = not any(
            isinstance(each, BoundFunction | MockSequence | BaseException | type) for each in mocks
        )
        if not is_value or any(answers[canonical(call.args)] != call.result for call in calls):
            return None
        tools[name] = _by_arguments(answers, mocks[1])
    return tools


def _by_arguments(answers: Mapping[str, Any], other: Any) -> Mock:
    return bind(lambda args: answers.get(canonical(args), other))


def _writes(base: Base) -> set[tuple[str, str]]:
    return {(call.name, canonical(call.args)) for call in base.calls if took_effect(call, base.effects)}


# Values at limits


def _edges(base: Base) -> Iterator[_Around]:
    """Yield values beyond a limit, which must not be used, and at it, which must be."""
    said = "\n".join(turn.user_message for turn in base.scenario.turns)
    for call in base.conversations[0].conversation.tool_calls if base.conversations else ():
        for name, value in call.args.items() if isinstance(call.args, Mapping) else ():
            token = re.compile(rf"(?<![\w.,:-]){re.escape(str(value))}(?![\w:-]|[.,]\d)")
            if not isinstance(value, bool) and isinstance(value, int) and len(token.findall(said)) == 1:
                for limit, step in dict.fromkeys(_limits(base, call.name, name, said, token)):
                    for number in {limit + step, limit} - {value}:
                        yield _edge(base, call.name, name, _exchange(token, value, number), number, limit)


def _edge(base: Base, tool: str, name: str, change: _Change, number: int, limit: int) -> _Around:
    label, changed = f"{number} as {name} of {tool}", _changed(base.scenario, change)
    if number == limit:
        return label, changed, _expected(base, changed, change)
    banned = Trajectory("contains", forbidden=(ExpectedCall(tool, {name: number}),), name="limit")
    changed = replace(changed, trajectory=(*changed.trajectory, banned))
    return label, changed, None


def _exchange(token: re.Pattern[str], value: Any, other: Any) -> _Change:
    def change(leaf: Any) -> Any:
        if isinstance(leaf, str):
            return token.sub(str(other), leaf)
        return other if type(leaf) is type(value) and leaf == value else leaf

    return change


def _limits(base: Base, tool: str, name: str, said: str, token: re.Pattern[str]) -> Iterator[tuple[int, int]]:
    """Yield limits of an argument in its schema and in the instructions, each with the step beyond it."""
    for found in _LIMIT.finditer(base.unit.traits.instructions):
        unit = found["sign"] or found["unit"] or ""
        named = re.escape(unit.rstrip("s"))
        if unit and re.search(
            rf"{token.pattern}(?:\s\w+)?\s?{named}|{named}\s?{token.pattern}", said, re.IGNORECASE
        ):
            yield int(found["limit"]), 1
    schema = (base.effects.schema(tool) or {}).get("properties", {}).get(name, {})
    for key, step in {"maximum": 1, "minimum": -1}.items():
        if isinstance(limit := schema.get(key), int):
            yield limit, step


# Another customer's id


def _foreign_ids(base: Base) -> Iterator[_Around]:
    """Yield ids that nobody used, for which tools that return values answer with another owner."""
    known = "\n".join((base.unit.traits.instructions, *base.scenario.knowledge))
    ids = dict.fromkeys(found for turn in base.scenario.turns for found in _ID.findall(turn.user_message))
    calls = [call for call in base.calls if not call.failed]
    for found in ids:
        answers = [call for call in calls if any(found == text for _, text in text_leaves(call.args))]
        owners = {str(owner) for call in answers for owner in owners_in(call) if str(owner) in known}
        if owners:
            other = other_identifier(other_identifier(found) + "7")
            token = re.compile(rf"(?<![\w-]){re.escape(found)}(?![\w-])")
            change = _foreign(_exchange(token, found, other), owners)
            yield f"{other} for {found}", _changed(base.scenario, change), None


def _foreign(exchange: _Change, owners: Container[str]) -> _Change:
    return lambda leaf: other_identifier(leaf) if str(leaf) in owners else exchange(leaf)


def owners_in(call: ToolCall) -> list[Any]:
    """Return the values of an answer that name whose data it is."""
    return [value for path, value in leaves(call.result) if OWNER.search(last_key(path))]


# Ends of months, and midnight


def _dates(base: Base) -> Iterator[_Around]:
    """Yield the same weekday at the end of a month, a year and a February, with all dates moved as far."""
    scenario = base.scenario
    said = "\n".join(turn.user_message for turn in scenario.turns)
    if _OTHER_DATE.search(said) or not _RELATIVE.search(said):
        return
    now = scenario.date or today()
    day = date.fromisoformat(now[:10])
    ends = (day + timedelta(weeks=weeks) for weeks in range(1, 53 * 30))
    month_ends = [each for each in ends if (each + timedelta(days=1)).day == 1]
    for months in (range(1, 13), (12,), (2,)):
        end = next(each for each in month_ends if each.month in months)
        change = _moved(end - day)
        changed = replace(_changed(scenario, change), date=f"{end}{now[10:]}")
        yield str(end), changed, _expected(base, changed, change)
    if now[10:]:  # agents that are given days may not read times
        at = datetime.fromisoformat(now).replace(hour=23, minute=59, second=30)
        changed = replace(scenario, date=at.isoformat())
        yield "a minute before midnight", changed, _expected(base, changed, lambda leaf: leaf)


def _moved(by: timedelta) -> _Change:
    def later(found: re.Match[str]) -> str:
        with suppress(ValueError, OverflowError):
            return (date.fromisoformat(found.group()) + by).isoformat()
        return found.group()

    return lambda leaf: _ISO.sub(later, leaf) if isinstance(leaf, str) else leaf


_MUTATIONS: Mapping[str, Callable[[Base], Iterator[_Around]]] = {
    "chain": _chains,
    "edge": _edges,
    "foreign_id": _foreign_ids,
    "date": _dates,
}
