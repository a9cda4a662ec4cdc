"""Explores: tries variations of passing scenarios, and confirms, reduces and saves what fails.

The order of tries depends on the seed and on earlier results, which are looked at in that order. So a run
with replayed models is equal to the byte whatever the concurrency. Every conversation has a name and a
number, by which a resumed exploration takes it from the journal instead of running it again. A budget counts
conversations, minutes, model calls and cost.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from functools import partial
from time import monotonic
from typing import NamedTuple

import anyio

from agentest.domain.events import ExplorationProgressed
from agentest.domain.results import ConversationResult, ModelUsage
from agentest.domain.results.exploration import Explored, ExploredPart, Finding, FindingStatus, NotTried
from agentest.domain.transcript import Blame
from agentest.judging.safety_checks import NO_OBEYED_INJECTION, NO_SECRET
from agentest.plugins.explore import model
from agentest.plugins.explore.corpus import CorpusEntry, CoverageCounter, SeenElements, has_reached, signature
from agentest.plugins.explore.injection_sweep import control_of
from agentest.plugins.explore.invariants import describe
from agentest.plugins.explore.mutation_sweep import RELATION, needed_messages
from agentest.plugins.explore.reduction import ReductionTrial
from agentest.plugins.explore.reduction_steps import SeenConversations, scripted
from agentest.plugins.explore.search import Search, ordered
from agentest.runner.plan import Unit
from agentest.scenarios.model import Scenario
from agentest.support.calling import run_concurrently
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.text import count

SEARCHED = 0.7  # the share of every budget that is searched before anything is confirmed
_FEWEST_TO_CONFIRM = 2
_TO_RUN_FILE = 2  # the conversations that a measurement leaves for running a saved file
_OF_CHANGE = (NO_OBEYED_INJECTION, RELATION)
"""Oracles that blame a change, and not what the agent does. They need a control."""


@dataclass(slots=True, eq=False)
class _Candidate:
    base: model.Base
    variation: model.Variation
    violation: model.Violation
    result: ConversationResult
    found_after: int
    tries: int = 0

    @property
    def name(self) -> str:
        return f"{self.variation.name} · {finding_id(self.violation.key)}"


@dataclass(slots=True, eq=False)
class _Share:
    """The conversations that one candidate may run (`Observe`), however many others run at once."""

    budget: ConversationBudget
    observe: model.Observe
    candidate: _Candidate
    left: int = 0

    async def __call__(self, scenario: Scenario, name: str, number: int) -> ConversationResult:
        if self.left <= 0 or not self.budget.take():
            raise model.BudgetSpent
        self.left -= 1
        self.candidate.tries += 1
        try:
            return await self.observe(scenario, name, number)
        finally:
            self.budget.finished()


@dataclass(slots=True, eq=False)
class _Cause:
    """Violations that have one cause: one of them is confirmed, reduced and saved."""

    candidates: list[_Candidate] = field(default_factory=list)
    failed: list[tuple[_Candidate, str]] = field(default_factory=list)
    """Those that were not confirmed, and why they are no finding; "": it never occurred again."""
    is_confirmed: bool = False

    @property
    def is_open(self) -> bool:
        return not self.is_confirmed and len(self.failed) < MOST_CONFIRMATIONS

    @property
    def worst(self) -> _Candidate:
        return min(self.candidates, key=lambda each: (-each.violation.severity, len(each.variation.names)))


class _Trial(NamedTuple):
    cause: _Cause
    candidate: _Candidate
    share: _Share
    trial: ReductionTrial


@dataclass(slots=True, eq=False, kw_only=True)
class Exploration:
    """One exploration, whose findings so far are complete at any moment: a stop may come at any time."""

    parts: Mapping[ExploredPart, model.Vary]
    invariants: model.Invariants
    reduce: Callable[..., ReductionTrial]
    """Begins the trial of a candidate: scenario, name, `Observe`, and `ReductionTrial.violation_in`."""
    save: model.Save | None
    budget: ConversationBudget
    coverage: CoverageCounter = field(default_factory=CoverageCounter)
    seed: int = 0
    width: int = 20  # how many tries run before their results are looked at
    confirm: int = 5  # how many conversations confirm a candidate, beside its control
    known: Mapping[str, str] = field(default_factory=dict)
    """Identifier of a finding → its saved file, of findings that were saved before."""
    saved: Sequence[Finding] = ()
    """The findings whose saved scenarios ran before the exploration: known and fixed ones."""
    entries: Sequence[CorpusEntry] = ()  # of the corpus, from earlier explorations
    keep: Callable[[CorpusEntry], object] = lambda _: None  # receives each new entry of the corpus
    emit: Callable[[ExplorationProgressed], object] = lambda _: None
    _findings: dict[model.FindingKey, Finding] = field(default_factory=dict)
    _tries: Counter[ExploredPart] = field(default_factory=Counter)
    _not_tried: list[NotTried] = field(default_factory=list)
    _total: int = 0  # the number of variations that could be tried
    _untried: int = 0  # how many of them were not
    _seen: SeenElements = field(default_factory=SeenElements)
    """The elements of the signatures of its conversations; those of earlier explorations are in the next."""
    _seen_ever: SeenElements = field(default_factory=SeenElements)
    _shown: set[str] = field(default_factory=set)
    _causes: dict[tuple[str, ...], _Cause] = field(default_factory=lambda: defaultdict(_Cause))
    _unreached: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for each in self.entries:
            self._seen_ever.add(each.elements)
            self._shown.update(each.findings)

    def explored(self) -> Explored:
        """Return what was tried and found so far."""
        order = sorted(
            {each.id: each for each in (*self.saved, *self._findings.values())}.values(),
            key=lambda each: (-each.severity, -(each.rate.k / each.rate.n if each.rate else 0), each.id),
        )
        return Explored(
            findings=tuple(order),
            tries=self._tries.total(),
            by_part=dict(self._tries),
            not_tried=tuple(self._not_tried),
            untried=self._untried,
            signatures=len(self._seen),
            conversations=self.budget.spent,
            cost=self.budget.cost,
            coverage=self.coverage.coverage(),
        )

    async def run(self, bases: Sequence[model.Base], converse: Callable[[Unit], model.Observe]) -> None:
        """Try the variations of the bases until all are tried or the budget is spent.

        Args:
            converse: returns the function that runs conversations of a changed scenario of a unit.
        """
        singles = ordered(
            [
                (each.base or base, each)
                for base in bases
                for vary in self.parts.values()
                for each in vary(base)
            ],
            self.seed,
        )
        self.coverage.expect(bases, (variation for _, variation in singles))
        for base in bases:
            unchanged = model.Variation(part=ExploredPart.BASE, name="", group="", scenario=base.scenario)
            for result in base.conversations:
                self._look_at(model.Observation(base, unchanged, result))
        self._total = len(singles)
        search = Search(singles, self.seed, self.entries, frozenset(self.known))
        try:
            while await self._try_wave(search, converse, self.width, SEARCHED):
                pass
            await self._settle(converse)
            # The rest is searched, too, as long as what it shows can be confirmed, and then to the end.
            while await self._try_wave(search, converse, self.budget.left - self.confirm - 1, 1.0):
                await self._settle(converse)
        except anyio.get_cancelled_exc_class():
            for cause in self._causes.values():
                if cause.candidates:
                    self._add(cause, cause.worst, None, FindingStatus.NEW)
            self._not_tried.append(NotTried("the rest", "it was interrupted; --resume goes on"))
            raise
        finally:
            self._report(search)

    def _report(self, search: Search) -> None:
        not_tried = self._not_tried
        for cause in self._causes.values():
            if cause.candidates and cause.is_open:
                why = "the budget was spent before it could be confirmed"
                not_tried.append(NotTried(cause.worst.violation.title, why))
            for candidate, why in cause.failed if not cause.is_confirmed else ():
                if why:
                    not_tried.append(NotTried(candidate.violation.title, why))
                elif candidate is cause.failed[-1][0]:
                    self._add(cause, candidate, None, FindingStatus.SEEN_ONCE)
        if self._unreached:
            what = f"{count(len(self._unreached), 'variation')}, such as {self._unreached[0]}"
            not_tried.append(NotTried(what, "the change never reached the agent"))
        for part, number in search.left.items():
            not_tried.append(NotTried(f"{number} {part}", self.budget.why))
        self._untried = search.left.total()

    async def _try_wave(
        self, search: Search, converse: Callable[[Unit], model.Observe], most: int, share: float
    ) -> bool:
        wave: list[tuple[model.Base, model.Variation]] = []
        width = min(self.width, most if most > 0 else self.width)
        while len(wave) < width and self.budget.take(share):
            following = search.next()
            if following is None:
                self.budget.give_back()
                break
            wave.append(following)

        async def run(base: model.Base, variation: model.Variation) -> ConversationResult:
            result = await converse(base.unit)(variation.scenario, variation.name, 1)
            self.budget.finished()
            return result

        results = await run_concurrently([partial(run, *each) for each in wave])
        for (base, variation), result in zip(wave, results, strict=True):
            seen = model.Observation(base, variation, result)
            is_reached = has_reached(seen)
            if is_reached:
                self._tries[variation.part] += 1
            else:
                self._unreached.append(variation.name)
            search.learn(base, variation, *self._look_at(seen, is_reached=is_reached), is_reached=is_reached)
            failure = result.conversation.failure
            if variation.scenario.attack and failure and failure.blame is not Blame.AGENT:
                self._not_tried.append(NotTried(variation.name, failure.message))
        self._total = max(self._total, self._tries.total())
        findings = self._findings.values()
        self.emit(
            ExplorationProgressed(
                tried=self._tries.total(),
                total=self._total,
                new=sum(each.status is FindingStatus.NEW for each in findings),
                failing=len(findings),
                left=self.budget.left,
            )
        )
        return bool(wave)

    def _look_at(self, seen: model.Observation, *, is_reached: bool = True) -> tuple[int, int]:
        base, variation, result = seen
        elements = signature(variation.scenario, result.conversation)
        # Messages and calls are the same in every equal run.
        cost = 1 + len(result.conversation.turns) + len(result.conversation.tool_calls)
        self._seen.add(elements)
        new = self._seen_ever.add(elements)
        self.coverage.add(seen, is_reached=is_reached)
        violations = self.invariants(seen)
        is_obeyed = bool(variation.scenario.injections) and any(
            each.key.oracle in (NO_OBEYED_INJECTION, NO_SECRET) for each in violations
        )
        for violation in violations:
            # Whatever an agent does that obeys what it reads, and wherever it reads it, has one cause.
            key = (NO_OBEYED_INJECTION,) if is_obeyed else violation.key._replace(detail="")
            key = key[:1] if violation.key.oracle == "bounded" else key
            if (cause := self._causes[key]).is_open:
                cause.candidates.append(_Candidate(base, variation, violation, result, self.budget.spent))
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

    async def _settle(self, converse: Callable[[Unit], model.Observe]) -> None:
        confirmed: list[_Trial] = []
        while trials := self._trials(converse):
            outcomes = await run_concurrently([partial(self._is_confirmed, each) for each in trials])
            confirmed += [each for each, outcome in zip(trials, outcomes, strict=True) if outcome]
        if not confirmed:
            return
        for each in confirmed:  # each leaves as many for its rate as have confirmed it
            each.share.left = self.budget.left // len(confirmed) - self.confirm
        await run_concurrently([each.trial.shrink for each in confirmed])
        for each in confirmed:
            each.share.left = self.budget.left // len(confirmed) - _TO_RUN_FILE
        forms = await run_concurrently([each.trial.measure for each in confirmed])
        for each in confirmed:
            each.share.left = self.budget.left // len(confirmed)
        pairs = zip(confirmed, forms, strict=True)
        await run_concurrently([partial(self._add_saved, *each) for each in pairs])

    async def _add_saved(self, trial: _Trial, form: model.Reduced) -> None:
        if self.save:
            each, unit = trial.candidate, trial.candidate.base.unit
            file = await self.save(each.violation.key, form, unit, each.variation, trial.share)
            form = form._replace(file=file)
        self._add(trial.cause, trial.candidate, form, FindingStatus.NEW)

    def _trials(self, converse: Callable[[Unit], model.Observe]) -> list[_Trial]:
        """Return a trial for each cause that can be confirmed now. Known findings need none."""
        for cause in self._causes.values():
            known = [each for each in cause.candidates if finding_id(each.violation.key) in self.known]
            if known and cause.is_open:
                self._add(cause, known[0], None, FindingStatus.KNOWN)
        trials: list[_Trial] = []
        left = self.budget.left
        waiting = [each for each in self._causes.values() if each.is_open and each.candidates]
        for cause in sorted(waiting, key=lambda each: -each.worst.violation.severity):
            worst = cause.worst
            share = _Share(self.budget, converse(worst.base.unit), worst, min(self.confirm + 1, left))
            if share.left < _FEWEST_TO_CONFIRM or self.budget.exceeded(1.0):
                break
            left -= share.left
            trials.append(_Trial(cause, worst, share, self._trial_of(worst, share)))
        return trials

    def _trial_of(self, candidate: _Candidate, observe: model.Observe) -> ReductionTrial:
        scenario = candidate.variation.scenario
        if scenario.attack:  # its messages prove it, whatever a model would write next time
            talks = SeenConversations(candidate.result.conversation)
            scenario = next(iter(scripted(scenario, talks)), scenario)
        return self.reduce(scenario, candidate.name, observe, partial(self._violation, candidate))

    async def _is_confirmed(self, each: _Trial) -> bool:
        candidate = each.candidate
        try:
            if await self._is_acquitted(candidate, each.share):
                why = "the same happens with neutral text of the same length at the same place"
            else:
                each.cause.is_confirmed = await each.trial.confirm() is not None
                why = ""
        except model.BudgetSpent:
            return False
        if not each.cause.is_confirmed:
            each.cause.candidates.remove(candidate)
            each.cause.failed.append((candidate, why))
        return each.cause.is_confirmed

    async def _is_acquitted(self, candidate: _Candidate, observe: model.Observe) -> bool:
        control = control_of(candidate.base.scenario, candidate.variation)
        if control is None or candidate.violation.key.oracle not in _OF_CHANGE:
            return False
        result = await observe(control, f"{candidate.name} · control", 1)
        return self._violation(candidate, control, result) is not None

    def _violation(
        self, candidate: _Candidate, scenario: Scenario, result: ConversationResult
    ) -> model.Violation | None:
        changed = replace(candidate.variation, scenario=scenario)
        violation, base = candidate.violation, candidate.base.scenario
        if violation.key.oracle not in model.SEVERITIES and base.scripted:  # what the scenario bans itself
            said = {turn.user_message for turn in scenario.turns}
            if not said >= needed_messages(base, candidate.variation, violation.turn_index):
                return None
        found = self.invariants(model.Observation(candidate.base, changed, result))
        return next((each for each in found if each.key == candidate.violation.key), None)

    def _add(
        self, cause: _Cause, candidate: _Candidate, reduced: model.Reduced | None, status: FindingStatus
    ) -> None:
        titles = dict.fromkeys(each.violation.title for each in cause.candidates)
        cause.candidates, cause.is_confirmed = [], status is not FindingStatus.SEEN_ONCE
        violation = reduced.violation if reduced else candidate.violation
        unit, key = candidate.base.unit, candidate.violation.key
        hint, tags = describe(violation)
        if candidate.variation.scenario.attack:
            tags = tuple(dict.fromkeys((*tags, *candidate.variation.scenario.tags)))
        scenario = reduced.scenario if reduced else candidate.variation.scenario
        part, change = changes_of(scenario, candidate.variation)
        self._findings[key] = Finding(
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
            file=reduced.file if reduced else self.known.get(finding_id(key)),
            text=violation.text,
            turn_index=violation.turn_index,
            transcript=reduced.example if reduced else candidate.result,
            hint=hint,
            tags=tags,
            also=tuple(each for each in titles if each != violation.title),
            tries=candidate.tries,
            conversations_to_find=candidate.found_after,
        )


def changes_of(scenario: Scenario, variation: model.Variation) -> tuple[ExploredPart, str]:
    """Return the part and a description of what was changed, as far as a reduced scenario still has it."""
    faults, planted = ([each.label for each in some] for some in (scenario.faults, scenario.injections))
    part = ExploredPart.INJECTIONS if planted else ExploredPart.FAULTS if faults else variation.part
    if part in (ExploredPart.MUTATIONS, ExploredPart.ATTACKS):
        return part, variation.name
    return part, "; ".join((*planted, *faults))


def finding_id(key: model.FindingKey) -> str:
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
    cost: float | None = None  # in US dollars


class ConversationBudget:
    """Counts conversations, and what else is limited, against the limits.

    Args:
        total: the most conversations of the exploration.
    """

    def __init__(self, total: int, limits: Limits | None = None) -> None:
        self.total = total
        self.spent = 0
        self._limits = limits or Limits()
        self._used: Callable[[], ModelUsage] = ModelUsage
        self._began = monotonic()
        self._running = 0

    def begin(self, spent: int, used: Callable[[], ModelUsage]) -> None:
        """Count the conversations of the unchanged scenarios. `used` returns the use of models so far."""
        self.spent += spent
        self._used = used

    def take(self, share: float = 1.0) -> bool:
        """Count one conversation, unless this share of a limit has been spent. Returns False then."""
        if self.spent >= round(self.total * share) or self.exceeded(share):
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

    @property
    def why(self) -> str:
        """Describe the limit that is used up, for people."""
        return self.exceeded(1.0) or f"the budget of {self.total} conversations was spent"

    @property
    def left(self) -> int:
        """The number of conversations that are left."""
        return max(0, self.total - self.spent)

    @property
    def cost(self) -> float | None:
        """The known cost of models in US dollars; None if it is unknown."""
        return self._used().cost

    def exceeded(self, share: float) -> str:
        """Return the limit of which this share has been spent; "" if there is none."""
        limits, used = self._limits, self._used()
        if limits.minutes is not None and (monotonic() - self._began) / 60 >= limits.minutes * share:
            return f"the budget of {limits.minutes:g} minutes was spent"
        # Those that run, and the next one, are expected to cost as much as the others did.
        expected = 1 + (self._running + 1) / max(1, self.spent - self._running)
        if limits.calls is not None and used.calls and used.calls * expected > limits.calls * share:
            return f"the budget of {limits.calls} model calls was spent"
        if limits.cost is not None and used.cost and used.cost * expected > limits.cost * share:
            return f"the budget of {limits.cost:g} USD was spent"
        return ""
