"""What judges are told besides the conversation: who wanted what, and what the agent was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentest.domain.transcript import Turn
from agentest.judging.sight_of_calls import SightOfCalls
from agentest.scenarios.model import Scenario


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """What is known before the first word is said. Empty texts stand for what is not known.

    Attributes:
        expected_outcome: what should happen in the end, in the words of the scenario's author.
        instructions: what the agent was told to do and not to do.
        tools: which tools the agent has, a line each.
        date: the date or date-time that the conversation takes place at, in place of `started_at`.
        started_at: when the conversation began, in ISO 8601.
        unseen: why the agent may have made tool calls that are not shown; "": all are shown.
    """

    goal: str = ""
    profile: str = ""
    knowledge: tuple[str, ...] = ()
    expected_outcome: str = ""
    instructions: str = ""
    tools: str = ""
    date: str = ""
    started_at: str = ""
    unseen: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownAgent:
    """What is known of an agent before its first word, for judges. Empty texts: that is not known.

    Attributes:
        instructions: what it was told to do and not to do.
        tools: which tools it has, a line each.
        sight: whether its calls can be seen.
    """

    instructions: str = ""
    tools: str = ""
    sight: SightOfCalls = SightOfCalls()  # noqa: RUF009 - it holds nothing that could change


def background_of(scenario: Scenario, agent: KnownAgent, turns: Sequence[Turn]) -> Background:
    """What judges of a scenario's conversation are told, be it in a run or for a calibration.

    Args:
        turns: those that are shown; one at least.
    """
    return Background(
        goal=scenario.goal,
        profile=scenario.profile,
        knowledge=scenario.knowledge,
        expected_outcome=scenario.expected_outcome,
        instructions=agent.instructions,
        tools=agent.tools,
        date=scenario.date or "",
        started_at=turns[0].started_at or "",
        unseen=agent.sight.unseen(turns),
    )
