"""The lines of the journal; what they hold has the shape that it has in results.json (`shapes`)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from agentest.domain.results import ModelUsage
from agentest.store.shapes import Mode, StoredAgent

RUN, CONVERSATION, SCENARIO, END = "run", "conversation", "scenario", "end"
"""What the lines are, by their `type`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedConversations:
    """How many conversations of a scenario with an agent were planned."""

    scenario: str
    agent: str
    conversations: int
    fingerprint: str = ""
    """Tells whether scenario and configuration have changed since."""
    usage: Mapping[str, ModelUsage] = field(default_factory=dict)
    """By role: what an earlier run, which this one goes on with, had used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunLine:
    """The first line of a journal."""

    type: str = RUN
    schema_version: int
    version: str
    started_at: str
    agents: Mapping[str, StoredAgent]
    models: Mapping[str, str | None]
    mode: Mode
    planned: tuple[PlannedConversations, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ConversationLine:
    """A finished conversation in a journal; `conversation` is in JSON types."""

    type: str = CONVERSATION
    scenario: str
    agent: str
    number: int
    conversation: object


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioLine:
    """A finished scenario in a journal, without conversations; `scenario` is in JSON types."""

    type: str = SCENARIO
    scenario: object
    amended: bool = False
    """Whether it replaces the line that the scenario had when it finished."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EndLine:
    """The last line of a journal: the head of results.json, in JSON types."""

    type: str = END
    run: object
