"""What judges are told of a unit's agent: the same in a run and for a calibration."""

from __future__ import annotations

from collections.abc import Callable

from agentest.domain.tool_visibility import Sight
from agentest.judging.background import KnownAgent
from agentest.judging.sight_of_calls import SightOfCalls
from agentest.runner.known_tools import NOTHING_KNOWN, KnownTools, known_tools
from agentest.runner.plan import Unit


def known_agent(unit: Unit, redact: Callable[[str], str]) -> KnownAgent:
    """What is known of the unit's agent, with its tools; without secrets."""
    scenario, about = unit.scenario, unit.about
    tools = known_tools(about.tools, scenario.tools, scenario.named_tools)
    return KnownAgent(
        instructions=redact(about.instructions), tools=redact(tools.text), sight=_sight(unit, tools)
    )


def agent_without_judge(unit: Unit) -> KnownAgent:
    """What is known of the unit's agent where no judge asks: its tools need not be read."""
    return KnownAgent(sight=_sight(unit, NOTHING_KNOWN))


def _sight(unit: Unit, tools: KnownTools) -> SightOfCalls:
    return SightOfCalls(
        agent=unit.agent,
        blind=unit.about.blind,
        told_counts=unit.about.told_counts,
        has_tools=tools.some or unit.scenario.speaks_of_calls,
        has_none=bool(tools.text) and not tools.some,
        reports_calls=unit.about.sight is Sight.REPORTED,
        partial=unit.about.sight is Sight.PARTIAL,
        untold=unit.about.untold,
        listed=unit.about.tools.listed if unit.about.mock_servers else frozenset(),
    )
