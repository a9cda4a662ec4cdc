"""One scenario against one agent: how its conversations are evaluated, and how its verdict is decided."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from time import perf_counter

import anyio

from agentest.domain.confidence import with_figures
from agentest.domain.metrics import PASS_RATE, TRAJECTORY_METRICS
from agentest.domain.results import (
    ConversationResult,
    Deduplication,
    Reason,
    ReasonKind,
    ScenarioResult,
    Status,
    Verdict,
    VerdictWarning,
)
from agentest.domain.root_causes import causes_of
from agentest.domain.scenario_stats import totals_of
from agentest.domain.verdict import (
    averages,
    decide,
    skipped_metrics,
    undecisive_problems,
    with_failing_groups,
    with_severe_failures,
)
from agentest.judging.custom import Metric
from agentest.judging.dedup import deduplicate, group_by_label
from agentest.judging.evaluation import OngoingEvaluation
from agentest.judging.evaluator import ScenarioEvaluator
from agentest.judging.examples import with_examples
from agentest.judging.judge import Judge
from agentest.runner.connections import Connections
from agentest.runner.frame import scenario_result, stop_reason, with_wishes
from agentest.runner.goals import disagreements, unasked, unjudged
from agentest.runner.kept import joined
from agentest.runner.known_agents import agent_without_judge, known_agent
from agentest.runner.partial import partial_visibility
from agentest.runner.plan import Unit
from agentest.runner.schedule import Schedule
from agentest.runner.settings import Settings
from agentest.runner.stop import Stop
from agentest.runner.totals import held_again, idle_user, tools_without_model, warnings_of
from agentest.runner.verdict_warnings import questioned, unit_warnings


@dataclass(slots=True)
class UnitProgress:
    """What a unit has come to so far; a run that is stopped makes its result from it."""

    unit: Unit
    start: float = 0.0
    wanted: int = field(init=False)
    """How many conversations are to be held, as far as that is known."""
    _schedule: Schedule | None = field(init=False)
    """Says how many more there are to be; None: it is known from the first."""
    _looked: anyio.Event = field(default_factory=anyio.Event)
    results: dict[int, ConversationResult] = field(default_factory=dict)
    """Number → result, of the conversations that have finished."""
    held_again: dict[int, str] = field(default_factory=dict)
    """Number → why, of the conversations whose simulated user broke its role the first time."""

    def __post_init__(self) -> None:
        repeat = self.unit.repeat
        self.wanted = repeat.min if repeat else self.unit.conversations
        self._schedule = Schedule(repeat=repeat, thresholds=self.unit.thresholds) if repeat else None

    async def wants(self, number: int) -> bool:
        """Whether a conversation of this number is to be held, as soon as that is known."""
        while number > self.wanted and self._schedule:
            await self._looked.wait()
        return number <= self.wanted

    def is_complete(self) -> bool:
        """True if all conversations that are wanted have finished. It may want more from now on.

        Failures whose severity is not known yet are taken for harmless: `close` looks again.
        """
        # What an earlier run had finished may be several batches.
        while self._schedule and len(self.results) >= self.wanted:
            if not self._wants_more(self._schedule, self.ordered):
                return True
        return len(self.results) >= self.wanted

    def close(self, graded: Sequence[ConversationResult]) -> bool:
        """Want no more conversations, unless severe failures leave the verdict open; return True if closed.

        Args:
            graded: the results with the severity of their failures (`verdict.with_severe_failures`).
        """
        if self._schedule and self._wants_more(self._schedule, graded):
            return False
        self._schedule = None
        self._wake()
        return True

    def _wants_more(self, schedule: Schedule, results: Sequence[ConversationResult]) -> bool:
        more = schedule.more(results)
        if more:
            self.wanted = len(results) + more
            self._wake()
        return more > 0

    def _wake(self) -> None:
        looked, self._looked = self._looked, anyio.Event()
        looked.set()

    @property
    def left(self) -> list[int]:
        """The numbers of the conversations that are to be held and have not finished."""
        return [n for n in range(1, self.wanted + 1) if n not in self.results]

    @property
    def ordered(self) -> tuple[ConversationResult, ...]:
        """The results in the order of their conversations."""
        return tuple(self.results[number] for number in sorted(self.results))


class UnitEvaluation:
    """Evaluates the conversations of units."""

    def __init__(self, custom: Sequence[Metric], settings: Settings, connections: Connections) -> None:
        self._custom = custom
        self._skip_decided = settings.skip_decided
        self._redact = connections.redact
        model = connections.models.judge
        self._judge = Judge(model, settings.samples, settings.batch) if model else None
        self._confirm = connections.models.confirm
        self._fail_on = settings.fail_on
        self._named = connections.models.named
        self._user_for = connections.models.user_for
        self._evaluators: dict[str, ScenarioEvaluator] = {}
        """By scope, of the units that are under way."""

    @property
    def asks_judge(self) -> bool:
        """Whether a model judges."""
        return self._judge is not None or bool(self._named)

    def begin(self, unit: Unit, number: int, *, at_end: bool = False) -> OngoingEvaluation:
        """The evaluation of one conversation, to which its turns are added as they close.

        Args:
            at_end: whether nothing is to be evaluated before it has ended.
        """
        if unit.scope not in self._evaluators:
            self._evaluators[unit.scope] = self._evaluator(unit)
        return OngoingEvaluation(self._evaluators[unit.scope], number, at_end=at_end)

    def end(self, unit: Unit) -> None:
        """Forget a unit whose conversations have all been evaluated."""
        self._evaluators.pop(unit.scope, None)

    def _judge_of(self, unit: Unit) -> Judge | None:
        if self._judge is None or self._confirm is None:
            return self._judge
        from agentest.judging.confirm import confirmed_judge  # only where a second model is configured

        criteria = unit.scenario.criteria
        return confirmed_judge(self._judge, self._confirm, criteria, unit.thresholds, self._fail_on)

    def _evaluator(self, unit: Unit) -> ScenarioEvaluator:
        return ScenarioEvaluator(
            scenario=unit.scenario,
            scope=unit.scope,
            metrics=unit.metrics,
            custom=self._custom,
            graders=unit.graders,
            judge=self._judge_of(unit),
            named=self._named,
            redact=self._redact.error,
            agent=known_agent(unit, self._redact) if self._judge else agent_without_judge(unit),
            unstreamed=unit.about.unstreamed,
            metrics_named=unit.metrics_named,
            credited=tuple(TRAJECTORY_METRICS.keys() & unit.thresholds.keys()),
            information=unit.information,
            idle_user=None if self._user_for(None) else idle_user(unit.scenario),
            # Where some conversations may fail, what judges say of one that did can still decide.
            skip_decided=self._skip_decided and PASS_RATE not in unit.thresholds,
        )


class UnitDecision:
    """Decides whether units have passed."""

    def __init__(self, settings: Settings, connections: Connections) -> None:
        self._fail_on = settings.fail_on
        self._strict = settings.strict
        self._judge = connections.models.judge
        self._user = connections.models.user
        self._ledger = connections.ledger
        self._redact = connections.redact

    async def decide(self, progress: UnitProgress, problem: Reason | None = None) -> ScenarioResult | None:
        """The result of a unit whose conversations have all finished; None if it wants more of them now.

        Args:
            problem: why it cannot pass, whatever its conversations show.
        """
        deduplication = with_failing_groups(await self._deduplicate(progress), self._fail_on)
        if not progress.close(_graded(progress.ordered, deduplication)):
            return None
        return self._result(progress, deduplication, problem or _missing(progress.unit))

    def decide_early(self, progress: UnitProgress, stop: Stop) -> ScenarioResult:
        """The result of a unit that a stop has ended, from the conversations that had finished."""
        # Groups would cost another call to the model, so how severe the failures are stays unknown.
        failures = [failure for result in progress.results.values() for failure in result.failures]
        reason = stop_reason(stop, len(progress.results), progress.unit)
        groups = replace(group_by_label(failures), graded=not failures)
        return self._result(progress, with_failing_groups(groups, self._fail_on), reason)

    async def _deduplicate(self, progress: UnitProgress) -> Deduplication:
        unit = progress.unit
        failures = [failure for result in progress.ordered for failure in result.failures]
        groups = await deduplicate(
            failures,
            unit.scenario,
            self._judge,
            unit.scope,
            progress.ordered,
            instructions=self._redact(unit.about.instructions),
        )
        return replace(groups, error=self._redact.error(groups.error)) if groups.error else groups

    def _result(
        self, progress: UnitProgress, deduplication: Deduplication, stopped: Reason | None
    ) -> ScenarioResult:
        unit, conversations = progress.unit, _graded(progress.ordered, deduplication)
        thresholds = _thresholds_of_a_part(unit.thresholds) if stopped else unit.thresholds
        exact = unit.scenario.case is not None
        deduplication = with_examples(deduplication, conversations, self._redact)
        verdict = decide(conversations, deduplication, thresholds, self._fail_on, exact=exact)
        warnings = (
            *warnings_of(conversations),
            *disagreements(unit.scenario, conversations),
            *unjudged(unit.scenario, unit.metrics),
            *undecisive_problems(conversations, thresholds),
            *unasked(unit.scenario, conversations),
            *(() if self._user else tools_without_model(unit.scenario, conversations)),
        )
        questions = unit_warnings(unit, conversations, complete=stopped is None)
        result = scenario_result(
            unit,
            _cut_short(verdict, stopped) if stopped else verdict,
            **({} if stopped else _decided(unit, conversations, verdict)),
            conversations=conversations,
            averages=averages(conversations, exact=exact),
            errors=deduplication.groups,
            severity_unknown=not deduplication.graded,
            causes=causes_of(verdict.reasons, conversations),
            skipped_metrics=skipped_metrics(conversations),
            duration_ms=(perf_counter() - progress.start) * 1000,
            usage=joined(unit.kept.usage, self._ledger.of(unit.scope)),
            totals=totals_of(conversations),
            warnings=tuple(map(self._redact.error, warnings)) + held_again(unit.slug, progress.held_again),
        )
        result = with_figures(with_wishes(result, unit, self._redact), conversations)
        questions += partial_visibility(unit, conversations, result.verdict)
        return questioned(result, self._without_secrets(questions), strict=self._strict)

    def _without_secrets(self, warnings: Iterable[VerdictWarning]) -> tuple[VerdictWarning, ...]:
        return tuple(replace(each, message=self._redact.error(each.message)) for each in warnings)


def _graded(
    conversations: Sequence[ConversationResult], deduplication: Deduplication
) -> tuple[ConversationResult, ...]:
    return with_severe_failures(conversations, deduplication.groups, graded=deduplication.graded)


def _decided(
    unit: Unit, conversations: Sequence[ConversationResult], verdict: Verdict
) -> dict[str, int | None]:
    """What the result of a unit with `repeat` says besides: how many it took, and whether that decides it."""
    if unit.repeat is None:
        return {}
    schedule = Schedule(repeat=unit.repeat, thresholds=unit.thresholds)
    return {
        "planned": len(conversations),
        "decided_after": schedule.decided_after(conversations, verdict),
    }


def _missing(unit: Unit) -> Reason | None:
    """Why the unit cannot pass: an earlier run ended before all of its conversations."""
    if unit.conversations >= unit.planned:
        return None
    message = f"of {unit.planned} conversations the earlier run held {unit.conversations}"
    return Reason(Status.ERRORED, ReasonKind.INTERRUPTED, message)


def _thresholds_of_a_part(thresholds: Mapping[str, float]) -> dict[str, float]:
    """No thresholds for a part of a scenario, as the rest might have met them; nor does one failed
    conversation decide where some may fail."""
    return {PASS_RATE: 0.0} if PASS_RATE in thresholds else {}


def _cut_short(verdict: Verdict, stopped: Reason) -> Verdict:
    """The verdict on a part of a scenario: it may have failed already, but it cannot have passed."""
    status = Status.FAILED if verdict.status is Status.FAILED else stopped.status
    kept = tuple(r for r in verdict.reasons if r.kind is not ReasonKind.INTERRUPTED)
    return Verdict(status, (*kept, stopped))
