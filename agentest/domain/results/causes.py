"""Root causes: what made scenarios fail or err, the same cause counted once for many conversations."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from agentest.domain.results.evaluations import Severity


class CauseKind(StrEnum):
    """Where a root cause shows."""

    AGENT_ERROR = "agent_error"
    """The agent's own error ended the conversation."""
    UNMOCKED_TOOL = "unmocked_tool"
    TRAJECTORY = "trajectory"
    CHECK = "check"
    CRITERION = "criterion"
    GOAL = "goal"
    JUDGED = "judged"
    """Failures that judges labelled, grouped by their cause."""
    THRESHOLD = "threshold"
    PASS_RATE = "pass_rate"
    ERRORED = "errored"
    """Something outside the agent kept the scenario from being judged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioCause:
    """What speaks against some conversations of one scenario, without a judge's labels."""

    kind: CauseKind
    title: str
    """In full where all conversations agree, else the pattern."""
    pattern: str
    """The title without values that differ from one conversation to the next. It identifies the cause."""
    conversations: int
    conversation_id: str | None = None
    """The first conversation; None: the cause is not about a single one."""
    turn_index: int | None = None
    text: str = ""
    """What was found in the first conversation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseExample:
    """One place where a root cause shows."""

    scenario: str
    agent: str = ""
    conversation_id: str | None = None
    turn_index: int | None = None
    text: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CausePlace:
    """A scenario with an agent in which a root cause shows, and its first conversation there."""

    scenario: str
    agent: str
    conversations: int
    conversation_id: str | None = None
    turn_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """One cause of failures or errors in the whole run."""

    id: str
    """The same in every run that has this cause."""
    title: str
    kind: CauseKind
    severity: Severity
    scenarios: int
    conversations: int
    agents: tuple[str, ...] = ()
    example: CauseExample
    places: tuple[CausePlace, ...] = ()
    """The first scenarios with the cause; `scenarios` counts all of them."""
    labels: tuple[str, ...] = ()
    """The labels of groups that a model joined, normalised; empty: it joined none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CauseJoin:
    """Labels of judged groups that have one root cause, and what it is called."""

    title: str
    labels: tuple[str, ...]
