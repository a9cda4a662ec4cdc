"""Background for judges: the user's goal, the agent's instructions and the visibility of its calls."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentest.domain.tool_visibility import cannot_be_seen
from agentest.domain.transcript import Conversation, Turn
from agentest.scenarios.model import Scenario

NO_KNOWN_TOOLS = "no tool call of the agent was seen, and which tools it has is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallVisibility:
    """Visibility of an agent's tool calls.

    Attributes:
        agent: the agent's name.
        blind: why its calls cannot be seen, and how to change that; None: they can be seen.
        told_counts: True if an answer that reports calls makes the calls of a `blind` agent visible.
        has_tools: True if a tool of the agent is known or its scenario expects calls.
        has_none: True if the agent is known to have no tools.
        reports_calls: True if the agent reports every call it makes, so that no report means no call.
        partial: True if `blind` applies to some of its calls only.
        untold: why calls are hidden if a mock server answered some and the agent reported none; None if the
            configuration says that the agent reports all calls, or if it has no mock server.
        listed: the tools whose calls are all visible even if other calls are hidden.
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
        """Return why calls cannot be seen, or None.

        Args:
            told: the turn or conversation to check, whose answers may report calls.
            turns: earlier turns, which may also show that the agent does not report its calls.
        """
        if told.call_refused:
            return told.call_refused
        if told.calls_hidden and self.blind is None:
            return f"{cannot_be_seen(self.agent)}: {told.calls_hidden}"
        blind = None if told.tells_calls and self.told_counts else self.blind
        return blind or (self.untold if any(one.keeps_calls_back for one in (told, *turns)) else None)

    def wholly_hidden(self, told: Turn | Conversation) -> str | None:
        """Return why no call can be judged; None if the visible ones can, although others may be hidden."""
        why = self.hidden(told)
        return None if why is not None and why in (self._partly_blind, self.untold) else why

    @property
    def _partly_blind(self) -> str | None:
        return self.blind if self.partial else None

    def listed_in(self, told: Turn | Conversation) -> frozenset[str] | None:
        """Return the tools whose calls are all visible; None if the calls of any tool may be hidden."""
        return None if self.wholly_hidden(told) else self.listed

    def may_lack_calls(self, turns: Sequence[Turn]) -> bool:
        """Return True if the last turn can be judged for missing calls.

        This requires that the agent has known tools or reports all its calls. An agent that answers with text
        only and has no known tools may call tools behind its endpoint.
        """
        reports_all = self.reports_calls or turns[-1].tells_calls
        return reports_all or self.has_tools or any(turn.tool_calls for turn in turns)

    def unseen(self, turns: Sequence[Turn]) -> str:
        """Return why the agent may have made calls that are not shown, or ""."""
        hidden = next((why for turn in turns if (why := self.hidden(turn))), "")
        return hidden or ("" if self.has_none or self.may_lack_calls(turns) else NO_KNOWN_TOOLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeBackground:
    """Information that judges receive in addition to the conversation. An empty text means unknown.

    Attributes:
        expected_outcome: the expected end of the conversation, in the words of the scenario's author.
        instructions: the agent's system prompt.
        tools: the agent's tools, one per line.
        date: the date or date-time of the conversation, which replaces `started_at`.
        started_at: start of the conversation, in ISO 8601.
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
class AgentBackground:
    """Information about an agent for judges. An empty text means unknown.

    Attributes:
        instructions: the agent's system prompt.
        tools: the agent's tools, one per line.
        sight: the visibility of its tool calls.
    """

    instructions: str = ""
    tools: str = ""
    sight: CallVisibility = CallVisibility()


def background_of(scenario: Scenario, agent: AgentBackground, turns: Sequence[Turn]) -> JudgeBackground:
    """Return the background for the judges of a scenario's conversation, in a run or a calibration.

    Args:
        turns: the turns that are shown; at least one.
    """
    return JudgeBackground(
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
