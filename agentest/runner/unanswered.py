"""What to say of tool calls that were answered with null, as nothing had an answer to them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from agentest.domain.results import RunWarning, ScenarioResult
from agentest.runner.plan import Plan, Unit

_SHOWN = 3
Held = tuple[Unit, ScenarioResult]


def unanswered(plan: Plan, results: Mapping[str, ScenarioResult]) -> tuple[RunWarning, ...]:
    """A warning for each tool of which calls were answered with null, however many there were.

    Args:
        results: by scope of the unit; those that are missing were never begun.
    """
    held = [(unit, results[unit.scope]) for unit in plan.units if unit.scope in results]
    tools = dict.fromkeys(tool for _, result in held for tool in result.totals.unanswered)
    return tuple(_warning(tool, [one for one in held if tool in one[1].totals.unanswered]) for tool in tools)


def _warning(tool: str, held: Sequence[Held]) -> RunWarning:
    units = [unit for unit, _ in held]
    calls = sum(result.totals.unanswered[tool] for _, result in held)
    of_cases = units[0].scenario.case is not None
    message = (
        f"{calls} call{'s' * (calls != 1)} of tool {tool!r} {'was' if calls == 1 else 'were'} answered with "
        f"null, as nothing here answers {'it' if calls == 1 else 'them'} ({_named(units, of_cases)})"
        f"{_other_arguments(tool, units)}. {_ways(tool, of_cases)}"
    )
    first = units[0]
    return RunWarning(message, first.agent, first.file, first.scenario.line)


def _named(units: Iterable[Unit], of_cases: bool) -> str:
    names = list(dict.fromkeys(unit.scenario.name for unit in units))
    what = ("case" if of_cases else "scenario") + "s" * (len(names) != 1)
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{what} {', '.join(map(repr, names[:_SHOWN]))}{more}"


def _other_arguments(tool: str, units: Iterable[Unit]) -> str:
    """What was recorded answers the call that it was recorded with; to another one it may be wrong."""
    recorded = any(answer.name == tool for unit in units for answer in unit.scenario.recorded or ())
    return ": what the set recorded answers calls with other arguments" if recorded else ""


def _ways(tool: str, of_cases: bool) -> str:
    mocks = f'tools = {{"{tool}": …}}'
    if of_cases:
        return (
            f"To answer them: --mocks FILE with {mocks}, or `tool_responses` in the set; to have them fail "
            "their cases: --unmocked-tools error"
        )
    return (
        f"To answer them: {mocks.replace(' = ', '=')} in the scenario; to have them fail it: "
        "--unmocked-tools error"
    )
