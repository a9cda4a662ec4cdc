"""The result of an exploration: findings, and what was tried."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from enum import StrEnum

from agentest.domain.results.evaluations import ConversationResult, Severity
from agentest.support.lazy_dataclasses import dataclass


class ExploredPart(StrEnum):
    """The parts of an exploration, in the order in which they are tried."""

    BASE = "base"  # the scenario as it is: it passes, but breaks an invariant
    FAULTS = "faults"
    INJECTIONS = "injections"
    MUTATIONS = "mutations"
    ATTACKS = "attacks"


class FindingStatus(StrEnum):
    """Whether a finding is already known."""

    NEW = "new"
    KNOWN = "known"  # a saved scenario has the same finding, and still fails
    FIXED = "fixed"  # a saved scenario had the finding, and passes now
    SEEN_ONCE = "seen once"  # it never occurred again, so it is not saved and does not affect the exit status


@dataclass(frozen=True, slots=True)
class FindingRate:
    """How often a finding occurs: in `k` of `n` conversations, with the 95 % interval of the share."""

    k: int
    n: int
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A failure that an exploration found. Its scenario is reduced as far as the budget allowed."""

    id: str  # identical in every run that has this finding
    title: str
    oracle: str  # the invariant that was broken
    severity: Severity
    status: FindingStatus
    part: ExploredPart
    change: str = ""  # the fault, injection or mutation that showed it; "": the scenario as it is
    scenario: str  # the name of the scenario that was changed
    agent: str
    source: str  # the file of that scenario, as in `ScenarioResult.file`
    line: int
    rate: FindingRate | None = None  # None for a finding that was seen once, or fixed
    minimal: bool = False  # True if every single further reduction was tried and rejected
    file: str | None = None  # the saved scenario, relative to the project; None if it is not saved
    text: str = ""  # what happened in the example, in one sentence
    turn_index: int | None = None
    transcript: ConversationResult | None = None  # a conversation of the reduced scenario that shows it
    hint: str = ""  # what usually helps
    tags: tuple[str, ...] = ()  # categories of published lists, such as `LLM01`
    also: tuple[str, ...] = ()  # the titles of other violations that have the same cause
    tries: int = 0  # the number of conversations for confirming, reducing and measuring
    conversations_to_find: int = 0  # the number of conversations until it was seen first


@dataclass(frozen=True, slots=True)
class NotTried:
    """Something that was not tried, and why."""

    what: str
    why: str


@dataclass(frozen=True, slots=True)
class ExploredCoverage:
    """The coverage of an exploration. A count of 0 means reachable but not reached."""

    tools: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """Tool → outcome (`ok`, `error`, or the kind of a fault) → how many calls had it."""
    rules: Mapping[str, int] = field(default_factory=dict)
    """Invariant, ban or criterion → how many conversations could have broken it."""
    cells: Mapping[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    """Part → tool or scenario → class of faults, place or mutation → how many tries reached the agent."""

    @property
    def never_reached(self) -> tuple[tuple[str, str], ...]:
        """The tools and outcomes that no call had."""
        return tuple(
            (tool, each) for tool, outcomes in self.tools.items() for each, n in outcomes.items() if not n
        )

    @property
    def never_exercised(self) -> tuple[str, ...]:
        """The rules that no conversation could have broken."""
        return tuple(rule for rule, n in self.rules.items() if not n)

    @property
    def size(self) -> int:
        """The number of tools' outcomes, reached or not."""
        return sum(map(len, self.tools.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class Explored:
    """The tries and findings of an exploration."""

    findings: tuple[Finding, ...] = ()  # the worst and most frequent first
    tries: int = 0  # the number of changed scenarios that were tried
    by_part: Mapping[ExploredPart, int] = field(default_factory=dict)
    not_tried: tuple[NotTried, ...] = ()
    untried: int = 0  # the number of single variations that were not tried
    signatures: int = 0
    """The number of different elements of the signatures of conversations (`explore.corpus`)."""
    conversations: int = 0
    """All conversations, including those of unchanged scenarios, and those that confirm and reduce."""
    cost: float | None = None  # in US dollars; None if unknown
    coverage: ExploredCoverage | None = None  # None in results of older versions
    fail_on: Severity = Severity.HIGH
    """From this severity on, a finding fails the run. Known only during the run."""

    @property
    def fails(self) -> bool:
        """True if a new or known finding has at least the severity that fails the run."""
        counted = (FindingStatus.NEW, FindingStatus.KNOWN)
        return any(each.status in counted and each.severity >= self.fail_on for each in self.findings)
