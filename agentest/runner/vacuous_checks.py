"""Checks of a scenario that pass regardless of the agent."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from itertools import chain

from agentest.domain.metrics import METRICS, PASS_RATE, Kind
from agentest.mocks.binding import BoundFunction, Mock, MockSequence, tool_specs
from agentest.runner.plan import Unit
from agentest.scenarios.calls import ExpectedCall, is_one_tool
from agentest.scenarios.model import Scenario
from agentest.scenarios.trajectory import Trajectory

_EXACT_MODES = ("strict", "unordered", "within")
"""They forbid every call that is not expected."""
_PROBES = ("a", "7", "…", "Ж", "{", "A longer reply, with 2 words or more.")
"""Texts that no pattern matches together unless it matches everything."""


def vacuous_checks(unit: Unit) -> Iterator[str]:
    """Yield a message for each check that cannot fail, beginning with its key.

    Skips criteria of evaluation sets, where a threshold of 0 is the usual way to show a score.
    """
    scenario = unit.scenario
    if scenario.case is not None:
        return
    yield from _thresholds(unit.thresholds)
    turns = len(scenario.turns) if scenario.scripted else unit.max_turns
    for key, trajectory in _trajectories(scenario):
        if not _demands_anything(trajectory, turns):
            yield f"{key} demands nothing that a conversation could miss"
        for banned in trajectory.forbidden:
            yield from _unknown_arguments(key, banned, scenario.tools)
    for at, turn in enumerate(scenario.turns):
        for pattern in turn.expect.regex if turn.expect else ():
            if _matches_everything(pattern):
                yield f"turns[{at}].expect.regex: {pattern.pattern!r} matches every reply"
    if scenario.final_state is not None and not _is_state_written(scenario):
        yield (
            "final_state: no mock of the scenario takes `ctx`, so none can change the state, and it ends as "
            "it began"
        )


def _thresholds(thresholds: Mapping[str, float]) -> Iterator[str]:
    for name, least in thresholds.items():
        if name == PASS_RATE and least <= 0:
            yield f"thresholds.{name}: {least:g} is met even if every conversation fails"
        elif name in METRICS and least <= (1 if METRICS[name].kind is Kind.SCALE else 0):
            yield f"thresholds.{name}: no average is below {least:g}"


def _trajectories(scenario: Scenario) -> Iterator[tuple[str, Trajectory]]:
    yield from (("trajectory", each) for each in scenario.trajectory)
    for at, turn in enumerate(scenario.turns):
        yield from ((f"turns[{at}].trajectory", each) for each in turn.trajectory)


def _demands_anything(trajectory: Trajectory, turns: int) -> bool:
    expected = trajectory.expected
    return bool(
        trajectory.forbidden
        or trajectory.orders
        or expected
        or (expected is not None and trajectory.match_mode in _EXACT_MODES)
        or trajectory.max_calls is not None
        or trajectory.max_calls_per_tool not in (None, {})
        or trajectory.min_calls
        or (trajectory.max_turns is not None and trajectory.max_turns < turns)
    )


def _unknown_arguments(key: str, banned: ExpectedCall, tools: Mapping[str, Mock]) -> Iterator[str]:
    """Yield bans on calls with an argument that the tool's mock does not take, so that no call has it."""
    if not is_one_tool(banned.name) or banned.name not in tools or not banned.args:
        return
    [spec] = tool_specs({str(banned.name): tools[str(banned.name)]})
    known = spec.parameters.get("properties")
    if known is None or spec.parameters.get("additionalProperties") is not False:
        return
    for name in banned.args:
        if re.split(r"[.\[]", name)[0] not in known and name not in known:
            yield f"{key}.forbidden: the mock of tool {banned.name!r} has no parameter {name!r}"


def matches_any_text(pattern: re.Pattern[str]) -> bool:
    """Return True if a pattern matches every text that is not empty. Skips patterns that forbid text."""
    looks_for_absence = "(?!" in pattern.pattern or "(?<!" in pattern.pattern
    return not looks_for_absence and all(map(pattern.search, _PROBES))


def _matches_everything(pattern: re.Pattern[str]) -> bool:
    return matches_any_text(pattern) and pattern.search("") is not None


def _is_state_written(scenario: Scenario) -> bool:
    mocks = chain(scenario.tools.values(), scenario.user_tools.values())
    steps = chain.from_iterable(mock.steps if isinstance(mock, MockSequence) else (mock,) for mock in mocks)
    return any(isinstance(step, BoundFunction) and step.receives_context for step in steps)
