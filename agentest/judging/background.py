"""What judges are told besides the conversation: who wanted what, and what the agent was given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentest.domain.tool_visibility import cannot_be_seen
from agentest.domain.transcript import Conversation, Turn
from agentest.scenarios.model import Scenario

NO_TOOL_KNOWN = "no tool call of the agent was seen, and which tools it has is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class SightOfCalls:
    """What is known of an agent's calls as such.

    Attributes:
        agent: its name.
        blind: why its calls cannot be seen, and what to do about it; None: they can.
        told_counts: whether answers that tell of calls make an agent seen whose calls otherwise cannot be.
        has_tools: whether any tool of the agent is known, or its scenario speaks of calls.
        has_none: whether it is known to have no tool.
        reports_calls: whether the agent tells of all calls that it makes: then none told is none made.
        partial: whether `blind` is about some of its calls alone.
        untold: why calls are hidden where a mock server answered some, and the agent reported none; None: its
            configuration says that it reports all, or it has no mock server.
        listed: the tools whose every call is seen all the same.
    """

    agent: str = ""
    blind: str | None = None
    told_counts: bool = True
    has_tools: bool = False
    has_none: bool = False
    reports_calls: bool = False
    partial: bool = False
    untold: str | None = None
    listed: frozenset[str] = frozenset()

    def hidden(self, told: Turn | Conversation, turns: Sequence[Turn] = ()) -> str | None:
        """Why calls cannot be seen, by what the answers themselves show of it, and by the agent's sight.

        `turns`: those before that may show it as well.
        """
        if told.call_refused:
            return told.call_refused
        if told.calls_hidden and self.blind is None:
            return f"{cannot_be_seen(self.agent)}: {told.calls_hidden}"
        blind = None if told.tells_calls and self.told_counts else self.blind
        return blind or (self.untold if any(one.keeps_calls_back for one in (told, *turns)) else None)

    def wholly_hidden(self, told: Turn | Conversation) -> str | None:
        """Why no call can be judged; None: those that are seen can, though there may be others."""
        why = self.hidden(told)
        return None if why is not None and why in (self._partly_blind, self.untold) else why

    @property
    def _partly_blind(self) -> str | None:
        return self.blind if self.partial else None

    def listed_in(self, told: Turn | Conversation) -> frozenset[str] | None:
        """The tools of which every call is seen, though others may be hidden; None: all may be."""
        return None if self.wholly_hidden(told) else self.listed

    def may_lack_calls(self, turns: Sequence[Turn]) -> bool:
        """Whether the last of the turns can be judged for the calls that it lacks.

        The agent is known to have tools, or to tell of all its calls. One that answers by text alone, and of
        which no tool is known, may run its own behind its endpoint.
        """
        told = self.reports_calls or turns[-1].tells_calls
        return told or self.has_tools or any(turn.tool_calls for turn in turns)

    def unseen(self, turns: Sequence[Turn]) -> str:
        """Why the agent may have made calls that are not shown: then no claim is false for that alone."""
        hidden = next((why for turn in turns if (why := self.hidden(turn))), "")
        return hidden or ("" if self.has_none or self.may_lack_calls(turns) else NO_TOOL_KNOWN)


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
    sight: SightOfCalls = SightOfCalls()


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
