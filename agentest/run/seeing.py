"""Whether mocks reach the tools of agents, and what to say of agents that were never seen to call one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentest.config.agent_types import AgentConfig
from agentest.errors import ConfigError
from agentest.metrics import ABOUT_CALLS
from agentest.results import RunWarning, ScenarioResult
from agentest.run.plan import Plan, Unit
from agentest.sight import Sight

_SHOWN_SCENARIOS = 3
_WAY = "\n  - "
_HIDDEN = {
    Sight.RETURNED: "it runs its tools itself, and the real ones have run",
    Sight.REPORTED: "it does not tell of them",
}


def check_mocks(plan: Plan) -> None:
    """Raise ConfigError where scenarios have mocks for an agent that runs its own tools.

    They would be ignored, and the real tools would run: book, send and pay.
    """
    for name, agent in plan.agents.items():
        mocked = [unit for unit in plan.units if unit.agent == name and unit.scenario.tools]
        if mocked and mocked[0].sight is not Sight.RETURNED:
            raise ConfigError(_unreached(name, agent, mocked))


def _unreached(name: str, agent: AgentConfig, mocked: Sequence[Unit]) -> str:
    ways = [
        "if its real tools may run: leave the mocks out (`tools`, --mocks), unmocked_tools: passthrough",
        "if they must not: test it through a handler (type: custom) that calls them by ctx.resolve_tool",
    ]
    if agent.natural_sight is Sight.RETURNED:
        ways.append("if it does hand its calls to the caller: tool_visibility: returned")
    return (
        f"the mocks of {_named(mocked)} cannot reach the tools of agent {name!r}: it runs its tools itself "
        f"(type: {agent.type}, tool calls: {mocked[0].sight.words}), so the real ones would run. No "
        f"conversation was begun. Ways out:{''.join(f'{_WAY}{way}' for way in ways)}"
    )


def _named(units: Sequence[Unit]) -> str:
    shown = [f"{u.scenario.name!r} ({u.file}:{u.scenario.line})" for u in units[:_SHOWN_SCENARIOS]]
    more = f" and {len(units) - len(shown)} more" if len(units) > len(shown) else ""
    return f"scenario{'' if len(units) == 1 else 's'} {', '.join(shown)}{more}"


def silence(plan: Plan, results: Mapping[str, ScenarioResult]) -> tuple[RunWarning, ...]:
    """A warning for each agent that was never seen to call a tool, though its scenarios speak of calls.

    Args:
        results: by scope of the unit; those that are missing were never begun.
    """
    warnings = []
    for name in plan.agents:
        mine = [unit for unit in plan.units if unit.agent == name and unit.sight is not Sight.UNSEEN]
        held = [(unit, results[unit.scope]) for unit in mine if _replied(results.get(unit.scope))]
        of_calls = [unit for unit, _ in held if _speaks_of_calls(unit)]
        if of_calls and not any(result.totals.tool_calls for _, result in held):
            warnings.append(_silent(name, of_calls))
    return tuple(warnings)


def _speaks_of_calls(unit: Unit) -> bool:
    graded = any(grader.name in ABOUT_CALLS for grader in unit.graders)
    return unit.scenario.speaks_of_calls or (graded and unit.scenario.expects_calls)


def _replied(result: ScenarioResult | None) -> bool:
    """Whether the agent has closed any turn: one that only failed is no riddle."""
    return result is not None and bool(result.totals.slowest)


def _silent(agent: str, units: Sequence[Unit]) -> RunWarning:
    first = units[0]
    message = (
        f"not one tool call of agent {agent!r} was seen in the whole run, though {_named(units)} "
        f"{'has' if len(units) == 1 else 'have'} mocks, trajectories or expected calls. Either it needed "
        f"none, or {_HIDDEN[first.sight]} (then tool_visibility: unseen says so). Bans and limits that held "
        "by this alone are marked `vacuous` in results.json"
    )
    return RunWarning(message, agent, first.file, first.scenario.line)
