"""Explores: tries variations of passing scenarios, and confirms, reduces and saves what fails.

The order of tries depends on the seed and on earlier results, which are looked at in that order. So a run
with replayed models is equal to the byte whatever the concurrency. Every conversation has a name and a
number, by which a resumed exploration takes it from the journal instead of running it again. A budget counts
conversations, minutes, model calls and cost.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field
from functools import partial
from time import monotonic

import anyio

from agentest.domain.results import ConversationResult, ModelUsage
from agentest.domain.results.exploration import Explored, ExploredPart, Finding, FindingStatus, NotTried
from agentest.domain.transcript import Blame, Conversation
from agentest.plugins.explore.corpus import CorpusEntry, CoverageCounter, SeenElements, signature
from agentest.plugins.explore.model import (
    Base,
    BudgetSpent,
    FindingKey,
    Invariants,
    Observation,
    Observe,
    Reduce,
    Reduced,
    Save,
    Variation,
    Vary,
    Violation,
)
from agentest.plugins.explore.reduction_steps import SeenConversations, scripted
from agentest.plugins.explore.search import Search, ordered
from agentest.runner.plan import Unit
from agentest.scenarios.model import Scenario
from agentest.support.lazy_dataclasses import dataclass, replace

RESERVED = 0.3
"""The share of every budget that confirming and reducing may count on."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The components of an exploration."""

    parts: Mapping[ExploredPart, Vary]
    invariants: Invariants
    reduce: Reduce
    save: Save
    describe: Callable[[Violation], tuple[str, tuple[str, ...]]] = lambda _: ("", ())
    """Returns the hint and the tags of a violation."""
    coverage: CoverageCounter | None = None


@dataclass(slots=True)
class _Candidate:
    base: Base
    variation: Variation
    violation: Violation
    result: ConversationResult
    found_after: int


@dataclass(slots=True)
class ExplorationProgress:
    """The state of an exploration, which is complete at any moment: a stop may come at any time."""

    findings: dict[FindingKey, Finding] = field(default_factory=dict)
    tries: Counter[ExploredPart] = field(default_factory=Counter)
    conversations: int = 0
    not_tried: list[NotTried] = field(default_factory=list)
    seen: SeenElements = field(default_factory=SeenElements)
    """The elements of the signatures of its conversations."""
    total: int = 0
    """The number of variations that could be tried."""


@dataclass(slots=True, eq=False)
class Exploration:
    """One exploration."""

    tools: Tools
    budget: ConversationBudget
    seed: int = 0
    width: int = 20
    """How many tries run before their results are looked at."""
    known: Mapping[str, str] = field(default_factory=dict)
    """Identifier of a finding → its saved file, of findings that were saved before."""
    saved: Sequence[Finding] = ()
    """The findings whose saved scenarios ran before the exploration: known and fixed ones."""
    entries: Sequence[CorpusEntry] = ()
    """Of the corpus, from earlier explorations."""
    keep: Callable[[CorpusEntry], object] = lambda _: None
    """Receives each new entry of the corpus."""
    show: Callable[[ExplorationProgress], object] = lambda _: None
    """Receives the progress after every step."""
    progress: ExplorationProgress = field(default_factory=ExplorationProgress)
    _seen_ever: SeenElements = field(default_factory=SeenElements)
    _shown: set[str] = field(default_factory=set)
    """The identifiers of findings that the corpus has."""
    _unconfirmed: Counter[FindingKey] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        for each in self.entries:
            self._seen_ever.add(each.elements)
            self._shown.update(each.findings)

    def explored(self) -> Explored:
        """Return what was tried and found so far."""
        progress = self.progress
        by_id = {each.id: each for each in (*self.saved, *progress.findings.values())}
        order = sorted(
            by_id.values(),
            key=lambda each: (-each.severity, -(each.rate.k / each.rate.n if each.rate else 0), each.id),
        )
        return Explored(
            findings=tuple(order),
            tries=progress.tries.total(),
            by_part=dict(progress.tries),
            not_tried=tuple(progress.not_tried),
            signatures=len(progress.seen),
            conversations=self.budget.spent,
            cost=self.budget.cost,
            coverage=self.tools.coverage.coverage() if self.tools.coverage else None,
        )

    async def run(self, bases: Sequence[Base], converse: Callable[[Unit], Observe]) -> None:
        """Try the variations of the bases until all are tried or the budget is spent.

        Args:
            converse: returns the function that runs conversations of a changed scenario of a unit.
        """
        singles = ordered(
            [(base, each) for base in bases for vary in self.tools.parts.values() for each in vary(base)],
            self.seed,
        )
        if self.tools.coverage:
            self.tools.coverage.expect(bases, (variation for _, variation in singles))
        await self._look_at_bases(bases, converse)
        self.progress.total = len(singles)
        search = Search(singles, self.seed, self.entries, frozenset(self.known))
        while wave := self._next_wave(search):
            results = await self._try(wave, converse)
            candidates: list[_Candidate] = []
            for (base, variation), result in zip(wave, results, strict=True):
                self.progress.tries[variation.part] += 1
                search.learn(base, variation, *self._look_at(base, variation, result, candidates))
                failure = result.conversation.failure
                if variation.scenario.attack and failure and failure.blame is not Blame.AGENT:
                    self.progress.not_tried.append(NotTried(variation.name, failure.message))
            await self._reduce_all(candidates, converse)
            self.progress.total = max(self.progress.total, self.progress.tries.total())
            self.show(self.progress)
        for part, number in search.left.items():
            self.progress.not_tried.append(NotTried(f"{number} {part}", self.budget.why))

    async def _look_at_bases(self, bases: Sequence[Base], converse: Callable[[Unit], Observe]) -> None:
        candidates: list[_Candidate] = []
        for base in bases:
            unchanged = Variation(part=ExploredPart.BASE, name="", group="", scenario=base.scenario)
            for result in base.conversations:
                self._look_at(base, unchanged, result, candidates)
        await self._reduce_all(candidates, converse)

    def _next_wave(self, search: Search) -> list[tuple[Base, Variation]]:
        wave: list[tuple[Base, Variation]] = []
        while len(wave) < self.width and self.budget.take_try():
            following = search.next()
            if following is None:
                self.budget.give_back()
                break
            wave.append(following)
        return wave

    async def _try(
        self, wave: Sequence[tuple[Base, Variation]], converse: Callable[[Unit], Observe]
    ) -> list[ConversationResult]:
        results: dict[int, ConversationResult] = {}

        async def run(place: int, base: Base, variation: Variation) -> None:
            results[place] = await converse(base.unit)(variation.scenario, variation.name, 1)
            self.budget.finished()

        async with anyio.create_task_group() as tasks:
            for place, (base, variation) in enumerate(wave):
                tasks.start_soon(run, place, base, variation)
        return [results[place] for place in range(len(wave))]

    def _look_at(
        self, base: Base, variation: Variation, result: ConversationResult, candidates: list[_Candidate]
    ) -> tuple[int, int]:
        """Look at one conversation. Returns how many elements of its signature are new, and its cost.

        Adds the violations whose keys are new, or were seen only once so far, to the candidates.
        """
        conversation = result.conversation
        elements = signature(variation.scenario, conversation)
        cost = conversation_cost(conversation)
        self.progress.seen.add(elements)
        new = self._seen_ever.add(elements)
        outcome = Observation(base, variation, result)
        if self.tools.coverage:
            self.tools.coverage.add(outcome)
        violations = self.tools.invariants(outcome)
        for violation in violations:
            earlier = self.progress.findings.get(violation.key)
            is_rare = earlier is not None and earlier.status is FindingStatus.SEEN_ONCE
            if earlier is None or (is_rare and self._unconfirmed[violation.key] < MOST_CONFIRMATIONS):
                candidates.append(_Candidate(base, variation, violation, result, self.budget.spent))
        findings = tuple(sorted(finding_id(each.key) for each in violations))
        if (new or not self._shown.issuperset(findings)) and variation.part is not ExploredPart.BASE:
            self._shown.update(findings)
            unit = base.unit
            self.keep(
                CorpusEntry(
                    scenario=unit.scenario.name,
                    file=unit.file,
                    agent=unit.agent,
                    changes=variation.names,
                    elements=tuple(sorted(elements)),
                    new=new,
                    cost=cost,
                    findings=findings,
                )
            )
        return new, cost

    async def _reduce_all(
        self, candidates: Iterable[_Candidate], converse: Callable[[Unit], Observe]
    ) -> None:
        first: dict[FindingKey, _Candidate] = {}
        for each in candidates:
            first.setdefault(each.violation.key, each)
        async with anyio.create_task_group() as tasks:
            for each in first.values():
                tasks.start_soon(self._reduce, each, converse(each.base.unit))

    async def _reduce(self, candidate: _Candidate, observe: Observe) -> None:
        key, tries = candidate.violation.key, 0
        if finding_id(key) in self.known:
            self._add(candidate, None, FindingStatus.KNOWN, 0)
            return

        async def counted(scenario: Scenario, name: str, number: int) -> ConversationResult:
            nonlocal tries
            self.budget.take()
            tries += 1
            try:
                return await observe(scenario, name, number)
            finally:
                self.budget.finished()

        scenario = candidate.variation.scenario
        if scenario.attack:  # its messages prove it, whatever a model would write next time
            scenario = next(
                iter(scripted(scenario, SeenConversations(candidate.result.conversation))), scenario
            )
        try:
            name = f"{candidate.variation.name} · {finding_id(key)}"
            reduced = await self.tools.reduce(scenario, name, counted, partial(self._violation, candidate))
        except BudgetSpent:
            self.progress.not_tried.append(
                NotTried(candidate.violation.title, "the budget was spent before it could be confirmed")
            )
            return
        except anyio.get_cancelled_exc_class():
            self._add(candidate, None, FindingStatus.NEW, tries)
            text = f"reducing {candidate.violation.title!r}"
            self.progress.not_tried.append(NotTried(text, "it was interrupted; --resume goes on"))
            raise
        status = FindingStatus.NEW if reduced else FindingStatus.SEEN_ONCE
        self._unconfirmed[key] += reduced is None
        self._add(candidate, reduced, status, tries)

    def _violation(
        self, candidate: _Candidate, scenario: Scenario, result: ConversationResult
    ) -> Violation | None:
        changed = replace(candidate.variation, scenario=scenario)
        found = self.tools.invariants(Observation(candidate.base, changed, result))
        return next((each for each in found if each.key == candidate.violation.key), None)

    def _add(self, candidate: _Candidate, reduced: Reduced | None, status: FindingStatus, tries: int) -> None:
        violation = reduced.violation if reduced else candidate.violation
        unit, key = candidate.base.unit, candidate.violation.key
        file = self.known.get(finding_id(key))
        if reduced:
            file = self.tools.save(key, reduced, unit, candidate.variation)
        hint, tags = self.tools.describe(violation)
        if candidate.variation.scenario.attack:
            tags = tuple(dict.fromkeys((*tags, *candidate.variation.scenario.tags)))
        scenario = reduced.scenario if reduced else candidate.variation.scenario
        part, change = changes_of(scenario, candidate.variation)
        self.progress.findings[key] = Finding(
            id=finding_id(key),
            title=violation.title,
            oracle=key.oracle,
            severity=violation.severity,
            status=status,
            part=part,
            change=change,
            scenario=unit.scenario.name,
            agent=unit.agent,
            source=unit.file,
            line=unit.scenario.line,
            rate=reduced.rate if reduced else None,
            minimal=bool(reduced and reduced.minimal),
            file=file,
            text=violation.text,
            turn_index=violation.turn_index,
            transcript=reduced.example if reduced else candidate.result,
            hint=hint,
            tags=tags,
            tries=tries,
            conversations_to_find=candidate.found_after,
        )


def conversation_cost(conversation: Conversation) -> int:
    """Return the cost of a conversation: its messages and calls, which are the same in every equal run."""
    return 1 + len(conversation.turns) + len(conversation.tool_calls)


def changes_of(scenario: Scenario, variation: Variation) -> tuple[ExploredPart, str]:
    """Return the part and a description of what was changed, as far as a reduced scenario still has it."""
    faults, planted = ([each.label for each in some] for some in (scenario.faults, scenario.injections))
    part = ExploredPart.INJECTIONS if planted else ExploredPart.FAULTS if faults else variation.part
    if part in (ExploredPart.MUTATIONS, ExploredPart.ATTACKS):
        return part, variation.name
    return part, "; ".join((*planted, *faults))


def finding_id(key: FindingKey) -> str:
    """Return an identifier that is the same in every run, and a safe name of a file."""
    digest = hashlib.sha256("\0".join(key).encode(errors="surrogatepass")).hexdigest()[:6]
    names = (_UNSAFE.sub("_", part).strip("._")[:_MOST_NAME_CHARS] for part in (key.oracle, key.tool))
    return "-".join(part for part in (*names, digest) if part)


MOST_CONFIRMATIONS = 3
"""How often a finding that was seen once, and not again, is confirmed when other changes show it, too."""
_UNSAFE = re.compile(r"[^A-Za-z0-9._]+")
_MOST_NAME_CHARS = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of an exploration other than the number of conversations; None: unlimited."""

    minutes: float | None = None
    calls: int | None = None
    cost: float | None = None
    """In US dollars."""


class ConversationBudget:
    """Counts conversations, and what else is limited, against the limits.

    Args:
        total: the most conversations of the exploration.
        spent: those that were run already.
        clock: returns seconds.
    """

    def __init__(
        self,
        total: int,
        spent: int = 0,
        limits: Limits | None = None,
        *,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self.total = total
        self.spent = spent
        self._limits = limits or Limits()
        self._used: Callable[[], ModelUsage] = ModelUsage
        self._clock = clock
        self._began = clock()
        self._spent_on_reducing = 0
        self._running = 0

    def begin(self, spent: int, used: Callable[[], ModelUsage]) -> None:
        """Count the conversations of the unchanged scenarios. `used` returns the use of models so far."""
        self.spent += spent
        self._used = used

    def take_try(self) -> bool:
        """Count one try, unless only the reserve is left. Returns False then."""
        reserve = max(0, round(self.total * RESERVED) - self._spent_on_reducing)
        if self.spent + reserve >= self.total or self._exceeded(1 - RESERVED):
            return False
        self.spent += 1
        self._running += 1
        return True

    def give_back(self) -> None:
        """Uncount one try that was not made."""
        self.spent -= 1
        self._running -= 1

    def finished(self) -> None:
        """Count a conversation as finished: what it has cost is known."""
        self._running -= 1

    def take(self) -> None:
        """Count one conversation that confirms or reduces. Raises BudgetSpent."""
        if self.spent >= self.total or self._exceeded(1.0):
            raise BudgetSpent
        self.spent += 1
        self._running += 1
        self._spent_on_reducing += 1

    @property
    def why(self) -> str:
        """Describe the limit that is used up, for people."""
        return self._exceeded(1 - RESERVED) or f"the budget of {self.total} conversations was spent"

    @property
    def left(self) -> int:
        """The number of conversations that are left."""
        return max(0, self.total - self.spent)

    @property
    def cost(self) -> float | None:
        """The known cost of models in US dollars; None if it is unknown."""
        return self._used().cost

    def _exceeded(self, share: float) -> str:
        """Return which limit has less left than its share for this purpose; "" if none has."""
        limits, used = self._limits, self._used()
        if limits.minutes is not None and (self._clock() - self._began) / 60 >= limits.minutes * share:
            return f"the budget of {limits.minutes:g} minutes was spent"
        # Those that run, and the next one, are expected to cost as much as the others did.
        expected = 1 + (self._running + 1) / max(1, self.spent - self._running)
        if limits.calls is not None and used.calls and used.calls * expected > limits.calls * share:
            return f"the budget of {limits.calls} model calls was spent"
        if limits.cost is not None and used.cost and used.cost * expected > limits.cost * share:
            return f"the budget of {limits.cost:g} USD was spent"
        return ""
