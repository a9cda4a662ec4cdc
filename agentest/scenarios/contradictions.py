"""Detect expectations that no conversation can meet when a scenario file is read.

Each function raises ValueError with a message that names both conflicting keys.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import fields
from typing import Any

from agentest.scenarios.expectations import Saying
from agentest.scenarios.matchers.comparison import is_same
from agentest.scenarios.matchers.display import brief
from agentest.scenarios.matchers.values import OneOf, Text
from agentest.scenarios.model import ScriptedTurn
from agentest.scenarios.trajectory import (
    ANYTHING,
    AnyOf,
    ExpectedCall,
    Step,
    ToolName,
    Trajectory,
    calls_in,
    covers,
    is_one_tool,
    name_text,
)
from agentest.support.errors import errors_as
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.patterns import PatternTimeout

_CALL_FIELDS = tuple(each.name for each in fields(ExpectedCall) if each.compare)


def check_trajectory(trajectory: Trajectory, key: str, calls_key: str = "expected") -> None:
    """Raise ValueError if two options of a trajectory contradict each other."""
    with errors_as(ValueError, f"{key}: ", PatternTimeout):
        problem = next(_problems(trajectory, f"{key}.{calls_key}", key), None)
    if problem:
        raise ValueError(problem)


def check_writes(trajectory: Trajectory, key: str) -> None:
    """Raise ValueError if a tool is expected as a write but listed in `reads`."""
    for at, each in _calls_with_keys(trajectory.expected or (), f"{key}.expected_writes"):
        read = next((name for name in trajectory.reads if covers(name, each.name)), None)
        if read is not None:
            raise ValueError(
                f"{at}: {name_text(each.name)} is expected as a write, but `reads` has {name_text(read)}"
            )


def _problems(trajectory: Trajectory, calls: str, key: str) -> Iterator[str]:
    if trajectory.rounds and trajectory.match_mode not in ("strict", "in_order"):
        yield f"{key}.rounds: is about an order, which `match_mode` {trajectory.match_mode!r} has not"
    if trajectory.rounds and trajectory.expected is None and not trajectory.orders:
        yield f"{key}.rounds: is about an order, but there is no `expected`"
    if trajectory.at_most_once and trajectory.expected is None:
        yield f"{key}.at_most_once: is about the calls of `expected`, which is missing"
    most, least = trajectory.max_calls, trajectory.min_calls
    if most is not None and least is not None and least > most:
        yield f"{key}.min_calls: is {least}, more than `max_calls`, which is {most}"
    yield from _position_problems(trajectory, calls, key)
    for call_key, each in _calls_with_keys(trajectory.expected or (), calls):
        for at, banned in enumerate(trajectory.forbidden):
            if forbids(banned, each):
                yield (
                    f"{call_key}: {name_text(each.name)} is expected, but {key}.forbidden[{at}] forbids it; "
                    "take it out of one of them"
                )
    for order in trajectory.orders:
        if order.kind == "before" and are_equivalent_steps(order.first, order.then):
            yield (
                f"{key}.before: {_step_text(order.first)} is expected before {_step_text(order.then)}, which "
                "no call can be: it would have to come before itself"
            )


def _position_problems(trajectory: Trajectory, calls: str, key: str) -> Iterator[str]:
    banned = ((f"{key}.forbidden[{at}]", each) for at, each in enumerate(trajectory.forbidden))
    for call_key, each in (*_calls_with_keys(trajectory.expected or (), calls), *banned):
        if each.nth is not None:
            yield from _positions_of_free_calls(trajectory, call_key, each)
    for call_key, each in _calls_with_keys(trajectory.expected or (), calls):
        if each.nth is None:
            continue
        if trajectory.max_calls is not None and abs(each.nth) > trajectory.max_calls:
            yield f"{_nth_key(call_key, each)}, but `max_calls` is {trajectory.max_calls}"
        # A call that may be of several tools has no limit of one.
        limit = trajectory.limit_of(str(each.name)) if is_one_tool(each.name) else None
        if limit is not None and abs(each.nth) > limit:
            yield (
                f"{_nth_key(call_key, each)}, but `max_calls_per_tool` is {limit} for {name_text(each.name)}"
            )
    if trajectory.match_mode != "within":
        first_uses: dict[tuple[ToolName, int], tuple[int, ExpectedCall]] = {}
        for at, step in enumerate(trajectory.expected or ()):
            if isinstance(step, ExpectedCall) and step.nth is not None:
                position = step.name, step.nth
                if position in first_uses:
                    other = _nth_key(f"{calls}[{first_uses[position][0]}]", first_uses[position][1])
                    name = name_text(step.name)
                    yield f"{_nth_key(f'{calls}[{at}]', step)}, but {other} for the same call of {name}"
                first_uses.setdefault(position, (at, step))


def _positions_of_free_calls(trajectory: Trajectory, call_key: str, each: ExpectedCall) -> Iterator[str]:
    not_counted = "calls that are free are not counted"
    read = next((name for name in trajectory.reads if covers(name, each.name)), None)
    if read is not None:
        yield (
            f"{_nth_key(call_key, each)}, but {name_text(each.name)} is free, as `reads` has "
            f"{name_text(read)}; {not_counted}"
        )
    if trajectory.ignore_failed and _requires_failure(each.result):
        yield (
            f"{_nth_key(call_key, each)}, but a call with the `result` {brief(each.result)} has failed, and "
            f"`ignore_failed` makes it free; {not_counted}. Leave out one of the three"
        )


def _nth_key(call_key: str, each: ExpectedCall) -> str:
    return f"{call_key}.{each.place_word}: is {each.nth if each.place_word == 'nth' else True}"


def _requires_failure(result: Any) -> bool:
    if not isinstance(result, Mapping):
        return False
    keys = [key for key in result if isinstance(key, str) and (key == "error" or key.startswith("error."))]
    return any(key != "error" or _is_never_empty(result[key]) for key in keys)


def _is_never_empty(wanted: Any) -> bool:
    if isinstance(wanted, OneOf):
        return all(map(_is_never_empty, wanted.values))
    if isinstance(wanted, re.Pattern):
        return wanted.fullmatch("") is None
    if isinstance(wanted, Text):
        return bool(wanted.value.strip())
    return isinstance(wanted, str | int | float | Mapping | list | tuple) and bool(wanted)


def forbids(banned: ExpectedCall, wanted: ExpectedCall) -> bool:
    """Return True if every call that matches `wanted` certainly matches `banned`."""
    asks_more = (
        (banned.where is not None and banned.where is not wanted.where)
        or (banned.result is not ANYTHING and not is_same(banned.result, wanted.result))
        or (banned.nth is not None and (banned.nth, banned.name) != (wanted.nth, wanted.name))
    )
    return not asks_more and covers(banned.name, wanted.name) and _covers_arguments(banned, wanted)


def _covers_arguments(banned: ExpectedCall, wanted: ExpectedCall) -> bool:
    if banned.args is None or banned.arg_match_mode == "ignore":
        return True
    if banned.arg_match_mode == "exact":
        return wanted.arg_match_mode == "exact" and is_same(banned.args, wanted.args)
    if not banned.args:
        return True
    wanted_args = {} if wanted.args is None or wanted.arg_match_mode == "ignore" else wanted.args
    return all(
        name in wanted_args and is_same(value, wanted_args[name]) for name, value in banned.args.items()
    )


def are_equivalent_steps(step: Step, other: Step) -> bool:
    """Return True if two calls, or alternatives, are equivalent."""
    if isinstance(step, ExpectedCall) and isinstance(other, ExpectedCall):
        return all(is_same(getattr(step, name), getattr(other, name)) for name in _CALL_FIELDS)
    if not isinstance(step, AnyOf) or not isinstance(other, AnyOf):
        return False
    return [*map(len, step.paths)] == [*map(len, other.paths)] and all(
        all(map(are_equivalent_steps, *paths)) for paths in zip(step.paths, other.paths, strict=True)
    )


def _calls_with_keys(steps: tuple[Step, ...], key: str) -> Iterator[tuple[str, ExpectedCall]]:
    for at, step in enumerate(steps):
        for each in calls_in([step]):
            yield f"{key}[{at}]", each


def _step_text(step: Step) -> str:
    return " or ".join(name_text(each.name) for each in calls_in([step]))


def check_sayings(turns: Sequence[ScriptedTurn], expect: Sequence[Saying]) -> None:
    """Raise ValueError if the same text is required and forbidden."""
    located = [*_located_sayings(turns, expect)]
    bans = [each for each in located if each.never]
    for demand in located:
        ban = next((each for each in bans if not demand.never and each.bans(demand)), None)
        if ban:
            raise ValueError(f"{demand.key}: what must be said, {ban.key} forbids; leave out one of them")


@dataclass(frozen=True, slots=True)
class _LocatedSaying:
    key: str
    wanted: Any
    never: bool
    turn: int | None  # None: any turn, or every turn

    def bans(self, demand: _LocatedSaying) -> bool:
        if self.turn is not None and self.turn != demand.turn:
            return False
        if isinstance(self.wanted, str) and isinstance(demand.wanted, str):
            return self.wanted in demand.wanted
        return is_same(self.wanted, demand.wanted)


def _located_sayings(turns: Sequence[ScriptedTurn], expect: Sequence[Saying]) -> Iterator[_LocatedSaying]:
    for each in expect:
        word = "never_says" if each.never else "says"
        turn_index = each.in_turn % len(turns) if turns and each.in_turn else each.in_turn
        yield _LocatedSaying(f"expect.{word}", each.wanted, each.never, turn_index)
    for at, turn in enumerate(turns):
        for word in ("contains", "not_contains", "says", "never_says") if turn.expect else ():
            for wanted in getattr(turn.expect, word):
                is_ban = word in ("not_contains", "never_says")
                yield _LocatedSaying(f"turns[{at}].expect.{word}", wanted, is_ban, at)


def check_user_tools(trajectories: Iterable[Trajectory], user_tools: Mapping[str, Any]) -> None:
    """Raise ValueError if a trajectory names a tool of the simulated user."""
    for trajectory in trajectories:
        for name in sorted(trajectory.named_tools & user_tools.keys()):
            key = f"trajectory {trajectory.name!r}" if trajectory.name else "trajectory"
            raise ValueError(
                f"{key}: {name} is one of the `user_tools`, whose calls are in no trajectory; "
                f"use `final_state` or `check` for their effects"
            )
