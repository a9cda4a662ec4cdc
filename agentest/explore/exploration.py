"""Explores: tries variations of passing scenarios, and confirms, reduces and saves what fails.

The order of tries depends on the seed alone, and results are looked at in that order, so that a run with
replayed models is equal to the byte whatever the concurrency. Every conversation has a name and a number, by
which a resumed exploration takes it from the journal instead of running it again.
"""

from __future__ import annotations

import hashlib
import random
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from functools import partial
from itertools import zip_longest

import anyio

from agentest.domain.results import ConversationResult
from agentest.domain.results.exploration import Explored, ExploredPart, Finding, FindingStatus, NotTried
from agentest.domain.transcript import Blame, Conversation, failed
from agentest.explore.budget import ConversationBudget
from agentest.explore.model import (
    LATE,
    Base,
    BudgetSpent,
    FindingKey,
    Invariants,
    Observe,
    Reduce,
    Reduced,
    Save,
    TryOutcome,
    Variation,
    Vary,
    Violation,
)
from agentest.explore.reductions import SeenConversations, scripted
from agentest.runner.plan import Unit
from agentest.scenarios.model import Scenario
from agentest.support.lazy_dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """What an exploration works with."""

    parts: Mapping[ExploredPart, Vary]
    invariants: Invariants
    reduce: Reduce
    save: Save
    describe: Callable[[Violation], tuple[str, tuple[str, ...]]] = lambda _: ("", ())
    """Returns the hint and the tags of a violation."""


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
    signatures: set[str] = field(default_factory=set)
    total: int = 0
    """The number of variations that could be tried."""


class Exploration:
    """One exploration.

    Args:
        known: identifier of a finding → its saved file, of findings that were saved before.
        saved: the findings whose saved scenarios ran before the exploration: known and fixed ones.
        width: how many tries run before their results are looked at.
        show: receives the progress after every step.
    """

    def __init__(
        self,
        tools: Tools,
        budget: ConversationBudget,
        *,
        seed: int = 0,
        width: int = 20,
        known: Mapping[str, str] | None = None,
        saved: Sequence[Finding] = (),
        show: Callable[[ExplorationProgress], object] = lambda _: None,
    ) -> None:
        self._tools = tools
        self._budget = budget
        self._seed = seed
        self._width = width
        self._known = known or {}
        self._saved = saved
        self._show = show
        self._unconfirmed: Counter[FindingKey] = Counter()
        self.progress = ExplorationProgress()

    def explored(self) -> Explored:
        """Return what was tried and found so far."""
        progress = self.progress
        by_id = {each.id: each for each in (*self._saved, *progress.findings.values())}
        order = sorted(
            by_id.values(),
            key=lambda each: (-each.severity, -(each.rate.k / each.rate.n if each.rate else 0), each.id),
        )
        return Explored(
            findings=tuple(order),
            tries=progress.tries.total(),
            by_part=dict(progress.tries),
            not_tried=tuple(progress.not_tried),
            signatures=len(progress.signatures),
            conversations=self._budget.spent,
            cost=self._budget.cost,
        )

    async def run(self, bases: Sequence[Base], converse: Callable[[Unit], Observe]) -> None:
        """Try the variations of the bases until all are tried or the budget is spent.

        Args:
            converse: returns the function that runs conversations of a changed scenario of a unit.
        """
        await self._look_at_bases(bases, converse)
        variations = ordered(
            [(base, each) for base in bases for vary in self._tools.parts.values() for each in vary(base)],
            self._seed,
        )
        self.progress.total = len(variations)
        rest = iter(variations)
        while wave := self._next_wave(rest):
            results = await self._try(wave, converse)
            candidates = []
            for (base, variation), result in zip(wave, results, strict=True):
                self.progress.tries[variation.part] += 1
                candidates += self._candidates(base, variation, result)
                failure = result.conversation.failure
                if variation.scenario.attack and failure and failure.blame is not Blame.AGENT:
                    self.progress.not_tried.append(NotTried(variation.name, failure.message))
            await self._reduce_all(candidates, converse)
            self._show(self.progress)
        self._note_untried(rest)

    async def _look_at_bases(self, bases: Sequence[Base], converse: Callable[[Unit], Observe]) -> None:
        candidates = []
        for base in bases:
            unchanged = Variation(part=ExploredPart.BASE, name="", group="", scenario=base.unit.scenario)
            for result in base.conversations:
                candidates += self._candidates(base, unchanged, result)
        await self._reduce_all(candidates, converse)

    def _next_wave(self, rest: Iterator[tuple[Base, Variation]]) -> list[tuple[Base, Variation]]:
        wave: list[tuple[Base, Variation]] = []
        while len(wave) < self._width and self._budget.take_try():
            following = next(rest, None)
            if following is None:
                self._budget.give_back()
                break
            wave.append(following)
        return wave

    async def _try(
        self, wave: Sequence[tuple[Base, Variation]], converse: Callable[[Unit], Observe]
    ) -> list[ConversationResult]:
        results: dict[int, ConversationResult] = {}

        async def run(place: int, base: Base, variation: Variation) -> None:
            results[place] = await converse(base.unit)(variation.scenario, variation.name, 1)

        async with anyio.create_task_group() as tasks:
            for place, (base, variation) in enumerate(wave):
                tasks.start_soon(run, place, base, variation)
        return [results[place] for place in range(len(wave))]

    def _candidates(self, base: Base, variation: Variation, result: ConversationResult) -> list[_Candidate]:
        """Return the violations in a conversation whose keys are new, or were seen only once so far."""
        fresh = []
        self.progress.signatures.add(signature(result.conversation))
        for violation in self._tools.invariants(TryOutcome(base, variation, result)):
            earlier = self.progress.findings.get(violation.key)
            is_rare = earlier is not None and earlier.status is FindingStatus.SEEN_ONCE
            if earlier is None or (is_rare and self._unconfirmed[violation.key] < MOST_CONFIRMATIONS):
                fresh.append(_Candidate(base, variation, violation, result, self._budget.spent))
        return fresh

    async def _reduce_all(
        self, candidates: Iterable[_Candidate], converse: Callable[[Unit], Observe]
    ) -> None:
        """Confirm and reduce one candidate of each key, all at once."""
        first: dict[FindingKey, _Candidate] = {}
        for each in candidates:
            first.setdefault(each.violation.key, each)
        async with anyio.create_task_group() as tasks:
            for each in first.values():
                tasks.start_soon(self._reduce, each, converse(each.base.unit))

    async def _reduce(self, candidate: _Candidate, observe: Observe) -> None:
        key, tries = candidate.violation.key, 0
        if finding_id(key) in self._known:
            self._add(candidate, None, FindingStatus.KNOWN, 0)
            return

        async def counted(scenario: Scenario, name: str, number: int) -> ConversationResult:
            nonlocal tries
            self._budget.take()
            tries += 1
            return await observe(scenario, name, number)

        scenario = candidate.variation.scenario
        if scenario.attack:  # its messages prove it, whatever a model would write next time
            scenario = next(
                iter(scripted(scenario, SeenConversations(candidate.result.conversation))), scenario
            )
        try:
            name = f"{candidate.variation.name} · {finding_id(key)}"
            reduced = await self._tools.reduce(scenario, name, counted, partial(self._violation, candidate))
        except BudgetSpent:
            self.progress.not_tried.append(
                NotTried(candidate.violation.title, "the budget was spent before it could be confirmed")
            )
            return
        status = FindingStatus.NEW if reduced else FindingStatus.SEEN_ONCE
        self._unconfirmed[key] += reduced is None
        self._add(candidate, reduced, status, tries)

    def _violation(
        self, candidate: _Candidate, scenario: Scenario, result: ConversationResult
    ) -> Violation | None:
        """Return the violation of the candidate's key in a conversation of a reduced scenario."""
        changed = replace(candidate.variation, scenario=scenario)
        found = self._tools.invariants(TryOutcome(candidate.base, changed, result))
        return next((each for each in found if each.key == candidate.violation.key), None)

    def _add(self, candidate: _Candidate, reduced: Reduced | None, status: FindingStatus, tries: int) -> None:
        violation = reduced.violation if reduced else candidate.violation
        unit, key = candidate.base.unit, candidate.violation.key
        file = self._known.get(finding_id(key))
        if reduced:
            file = self._tools.save(key, reduced, unit, candidate.variation)
        hint, tags = self._tools.describe(violation)
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

    def _note_untried(self, rest: Iterable[tuple[Base, Variation]]) -> None:
        left = Counter(variation.part for _, variation in rest)
        for part, count in left.items():
            self.progress.not_tried.append(NotTried(f"{count} {part}", self._budget.why))


def signature(conversation: Conversation) -> str:
    """Return the sequence of tools and outcomes of a conversation as text."""
    calls = (f"{call.name} {'failed' if failed(call) else 'ok'}" for call in conversation.tool_calls)
    end = conversation.failure.blame if conversation.failure else conversation.ending
    return "\n".join((*calls, str(end)))


def changes_of(scenario: Scenario, variation: Variation) -> tuple[ExploredPart, str]:
    """Return the part and a description of what was changed, as far as a reduced scenario still has it."""
    faults = [f"{each.kind} of {each.tool}, call {each.at}" for each in scenario.faults]
    planted = [f"{each.technique} at {each.at}, goal {each.goal}" for each in scenario.injections]
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


def ordered(variations: Sequence[tuple[Base, Variation]], seed: int) -> list[tuple[Base, Variation]]:
    """Return variations in the order of trying.

    One of each group is tried before a second of any group, and those of a rank from `LATE` after all others.
    Among those of equal place the parts alternate, and lower ranks come first.
    """
    groups: defaultdict[tuple[ExploredPart, str], list[tuple[Base, Variation]]] = defaultdict(list)
    for entry in variations:
        groups[entry[1].part, entry[1].group].append(entry)
    rounds: defaultdict[int, defaultdict[ExploredPart, list[_Placed]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for (part, name), group in groups.items():
        tie = random.Random(f"{seed} {part} {name}").random()
        for place, entry in enumerate(sorted(group, key=lambda each: each[1].rank)):
            late = len(variations) if entry[1].rank >= LATE else 0
            rounds[place + late][part].append((entry[1].rank, tie, entry))
    in_order = []
    for _, parts in sorted(rounds.items()):
        columns = (sorted(each, key=lambda placed: placed[:2]) for each in parts.values())
        in_order += [placed[2] for row in zip_longest(*columns) for placed in row if placed]
    return in_order


_Placed = tuple[int, float, tuple[Base, Variation]]
"""Rank, a random number by which equal ranks are ordered, and the variation."""
