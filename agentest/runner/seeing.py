"""Whether mocks reach the tools of agents, and what to say of agents that were never seen to call one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentest.config.agent_types import AgentConfig, hands_calls_over
from agentest.config.ways_to_see import ways_to_mock
from agentest.domain.metrics import ABOUT_CALLS
from agentest.domain.results import RunWarning, ScenarioResult
from agentest.domain.tool_visibility import Sight
from agentest.runner.plan import Plan, Unit
from agentest.support.errors import ConfigError

_SHOWN_SCENARIOS = 3
_WAY = "\n  - "
_HIDDEN = {
    Sight.RETURNED: "it runs its tools itself, and the real ones have run",
    Sight.REPORTED: "it does not tell of them",
    Sight.PARTIAL: "it made calls of which nothing tells",
}
_PAST_SERVERS = (
    "its tools never asked the mock servers beside it, and the real ones have run: see that all of them are "
    "given the address ({{mcp_url}}, {{rest_url}}; AGENTEST_MCP_URL, AGENTEST_REST_URL)"
)


def sights_of_run(plan: Plan, results: Mapping[str, ScenarioResult]) -> dict[str, Sight]:
    """How the calls of each agent came to be known in the whole run.

    Reported, too, where every turn showed that the agent tells of its calls though its type does not say so.
    Partial where mock servers answered calls of which it told none.

    Args:
        results: by scope of the unit; those that are missing were never begun.
    """
    return {name: _sight_of_run(_units_of(plan, name), results) for name in plan.agents}


def _units_of(plan: Plan, agent: str) -> list[Unit]:
    return [unit for unit in plan.units if unit.agent == agent]


def _sight_of_run(units: Sequence[Unit], results: Mapping[str, ScenarioResult]) -> Sight:
    totals = [results[unit.scope].totals for unit in units if unit.scope in results]
    turns = sum(each.turns for each in totals)
    told = turns > 0 and turns == sum(each.told_turns for each in totals)
    about = units[0].about
    if about.untold and any(each.keeps_calls_back for each in totals):
        return Sight.PARTIAL
    hidden = about.sight in (Sight.UNSEEN, Sight.PARTIAL)
    return Sight.REPORTED if told and about.told_counts and hidden else about.sight


def check_mocks(plan: Plan) -> None:
    """Raise ConfigError where scenarios have mocks for an agent that runs its own tools.

    They would be ignored, and the real tools would run: book, send and pay.
    """
    for name, agent in plan.agents.items():
        mocked = [unit for unit in _units_of(plan, name) if unit.scenario.tools]
        if mocked and not hands_calls_over(agent) and not agent.mock_servers:
            raise ConfigError(_unreached(name, agent, mocked))


def _unreached(name: str, agent: AgentConfig, mocked: Sequence[Unit]) -> str:
    may_run = "if its real tools may run: leave the mocks out (`tools`, --mocks), unmocked_tools: passthrough"
    ways = [may_run, *ways_to_mock(agent)]
    return (
        f"the mocks of {_named(mocked)} cannot reach the tools of agent {name!r}: it runs its tools itself "
        f"(type: {agent.type}, tool calls: {mocked[0].about.sight.words}), so the real ones would run. No "
        f"conversation was begun. Ways out:{''.join(f'{_WAY}{way}' for way in ways)}"
    )


def _named(units: Sequence[Unit]) -> str:
    shown = [f"{u.scenario.name!r} ({u.file}:{u.scenario.line})" for u in units[:_SHOWN_SCENARIOS]]
    more = f" and {len(units) - len(shown)} more" if len(units) > len(shown) else ""
    return f"scenario{'' if len(units) == 1 else 's'} {', '.join(shown)}{more}"


def silence(
    plan: Plan, results: Mapping[str, ScenarioResult], sights: Mapping[str, Sight]
) -> dict[RunWarning, Sequence[Unit]]:
    """A warning for each agent that was never seen to call a tool, though these scenarios speak of calls.

    Args:
        results: by scope of the unit; those that are missing were never begun.
        sights: of the whole run (`sights_of_run`).
    """
    warnings: dict[RunWarning, Sequence[Unit]] = {}
    for name, sight in sights.items():
        held = [(u, results[u.scope]) for u in _units_of(plan, name) if _replied(results.get(u.scope))]
        of_calls = [unit for unit, _ in held if _speaks_of_calls(unit)]
        called = any(result.totals.tool_calls for _, result in held)
        if sight is not Sight.UNSEEN and of_calls and not called:
            vacuous = [unit for unit, result in held if result.totals.held_without_calls]
            why = _PAST_SERVERS if plan.agents[name].mock_servers else _hidden(sight)
            warnings[_silent(name, why, of_calls, vacuous)] = of_calls
    return warnings


def _speaks_of_calls(unit: Unit) -> bool:
    graded = any(grader.name in ABOUT_CALLS for grader in unit.graders)
    return unit.scenario.speaks_of_calls or (graded and unit.scenario.expects_calls)


def _replied(result: ScenarioResult | None) -> bool:
    """Whether the agent has closed any turn: one that only failed is no riddle."""
    return result is not None and bool(result.totals.slowest)


def _hidden(sight: Sight) -> str:
    return f"{_HIDDEN[sight]} (then tool_visibility: unseen says so)"


def _silent(agent: str, why: str, units: Sequence[Unit], vacuous: Sequence[Unit]) -> RunWarning:
    """`why`: what may hide its calls."""
    first = units[0]
    who = ("it" if len(units) == 1 else "they") if vacuous == units else _named(vacuous)
    says = "says" if len(vacuous) == 1 else "say"
    held = f". What {who} {says} of calls held by this alone: it is `vacuous` in results.json"
    message = (
        f"not one tool call of agent {agent!r} was seen in the whole run, though {_named(units)} "
        f"{'has' if len(units) == 1 else 'have'} mocks, trajectories or expected calls. Either it needed "
        f"none, or {why}{held if vacuous else ''}"
    )
    return RunWarning(message, agent, first.file, first.scenario.line)
