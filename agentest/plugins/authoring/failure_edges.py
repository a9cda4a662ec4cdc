"""Find the edge of a failure: which values of a failing scenario fail, and which pass."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import field, replace
from typing import Any

from agentest.mocks.binding import tool_specs
from agentest.scenarios.calls import ExpectedCall
from agentest.scenarios.model import Scenario
from agentest.scenarios.trajectory import Trajectory
from agentest.support.lazy_dataclasses import dataclass

Passes = Callable[[Scenario], Awaitable[bool | None]]
"""Runs a scenario once; None: nothing was decided."""
_NUMBER = re.compile(r"(?<![\w.,:/-])\d{1,6}(?![\w:/-]|[.,]\d)")
_MOST_VALUES = 3
_MOST_TRIES = 16


@dataclass(slots=True, kw_only=True)
class FailureEdge:
    """What a value of a failing scenario decides. `tried`: value → passed; None: not decided."""

    scenario: str
    value: int | str
    tried: dict[int | str, bool | None] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """Say which values fail and which pass."""
        fails, passes = self._with(False), self._with(True)
        undecided = f" ({_listed(self._with(None))} not decided)" if self._with(None) else ""
        if not passes:
            return f"{self.value}: fails with every value tried: {_listed(fails)}{undecided}"
        numbers = isinstance(self.value, int)
        low, high = (
            [each for each in passes if each < fails[0]],
            [each for each in passes if each > fails[-1]],
        )
        if numbers and len(low) + len(high) == len(passes):  # the failures are in one piece
            about = [f"passes up to {low[-1]}"] if low else []
            about += [f"passes from {high[0]} on"] if high else []
            first, last = fails[0], fails[-1]
            where = f"from {first} to {last}" if first != last else f"at {first}"
            if not (low and high):
                where = f"from {first} on" if low else f"up to {last}"
            return f"{self.value}: fails {where}, {', '.join(about)}{undecided}"
        return f"{self.value}: fails with {_listed(fails)}; passes with {_listed(passes)}{undecided}"

    def _with(self, passed: bool | None) -> list[Any]:
        return sorted(value for value, each in self.tried.items() if each is passed)


async def find_edges(scenario: Scenario, passes: Passes) -> list[FailureEdge]:
    """Try other values of a scenario that failed, each once, until the edge of the failure is known.

    Numbers of its messages are replaced by numbers around them, closing in on the edge by halves; words that
    are a choice of a mock's parameter by the other choices. A value occurs in messages, knowledge, expected
    calls and mocks, and is replaced in all of them.
    """
    found = []
    for value, others in _values(scenario):
        edge = FailureEdge(scenario=scenario.name, value=value, tried={value: False})

        async def try_value(other: int | str, edge: FailureEdge = edge) -> bool | None:
            if other not in edge.tried:
                edge.tried[other] = await passes(with_value(scenario, edge.value, other))
            return edge.tried[other]

        for other in others:
            await try_value(other)
        if isinstance(value, int):
            for step in (-1, 1):
                await _close_in(value, step, try_value)
        found.append(edge)
    return found


async def _close_in(value: int, step: int, try_value: Callable[[int], Awaitable[bool | None]]) -> None:
    """Find the nearest value that passes in one direction: by doubled steps, then by halves."""
    failing, distance = value, 1
    for _ in range(_MOST_TRIES // 2):
        other = value + step * distance
        if other < 0:
            return
        passed = await try_value(other)
        if passed is None:
            return
        if passed:
            break
        failing, distance = other, distance * 2
    else:
        return
    while abs(other - failing) > 1:
        middle = (other + failing) // 2
        passed = await try_value(middle)
        if passed is None:
            return
        if passed:
            other = middle
        else:
            failing = middle


def _values(scenario: Scenario) -> Iterator[tuple[int | str, list[int | str]]]:
    """Yield the values in the user's words that may decide, each with other choices."""
    texts = [*(turn.user_message for turn in scenario.turns), scenario.goal, *scenario.knowledge]
    numbers = dict.fromkeys(int(each) for text in texts for each in _NUMBER.findall(text))
    yield from ((each, []) for each in list(numbers)[:_MOST_VALUES])
    words = {word.lower() for text in texts for word in re.findall(r"\w+", text)}
    for spec in tool_specs(scenario.tools):
        for property in spec.parameters.get("properties", {}).values():
            choices = [each for each in property.get("enum", ()) if isinstance(each, str)]
            if used := next((each for each in choices if each.lower() in words), None):
                yield used, [each for each in choices if each != used]


def with_value(scenario: Scenario, old: int | str, new: int | str) -> Scenario:
    """Return the scenario with another value wherever it has this one."""
    pattern = re.compile(rf"(?<![\w.,:/-]){re.escape(str(old))}(?![\w:/-]|[.,]\d)", re.IGNORECASE)

    def put(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(str(new), value)
        if isinstance(value, Mapping):
            return {key: put(item) for key, item in value.items()}
        if isinstance(value, list):
            return [put(item) for item in value]
        return new if not isinstance(value, bool) and value == old else value

    def put_trajectories(given: tuple[Trajectory, ...]) -> tuple[Trajectory, ...]:
        def put_call(call: Any) -> Any:
            is_call = isinstance(call, ExpectedCall) and isinstance(call.args, Mapping)
            return replace(call, args=put(call.args)) if is_call else call

        return tuple(
            replace(each, expected=tuple(map(put_call, each.expected))) if each.expected else each
            for each in given
        )

    return replace(
        scenario,
        turns=tuple(
            replace(turn, user_message=put(turn.user_message), trajectory=put_trajectories(turn.trajectory))
            for turn in scenario.turns
        ),
        goal=put(scenario.goal),
        knowledge=tuple(map(put, scenario.knowledge)),
        tools={name: put(mock) for name, mock in scenario.tools.items()},
        trajectory=put_trajectories(scenario.trajectory),
    )


def _listed(values: list[Any]) -> str:
    return ", ".join(map(str, values))
