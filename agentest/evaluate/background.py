"""What judges are told besides the conversation: who wanted what, and what the agent was given."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Background:
    """What is known before the first word is said. Empty texts stand for what is not known.

    Attributes:
        expected_outcome: what should happen in the end, in the words of the scenario's author.
        instructions: what the agent was told to do and not to do.
        tools: which tools the agent has, a line each.
        started_at: when the conversation began, in ISO 8601.
        unseen: why the agent may have made tool calls that are not shown; "": all are shown.
    """

    goal: str = ""
    profile: str = ""
    knowledge: tuple[str, ...] = ()
    expected_outcome: str = ""
    instructions: str = ""
    tools: str = ""
    started_at: str = ""
    unseen: str = ""
