"""One unit (a scenario against one agent): its progress, its evaluation and its verdict."""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable, Collection, Hashable, Sequence
from dataclasses import field, fields
from operator import attrgetter
from time import perf_counter
from typing import TYPE_CHECKING, Any, TypeVar

import anyio

from agentest.domain import truncation
from agentest.domain.events import Emit, ScenarioFinished
from agentest.domain.figures import Measurements, totals_of, with_figures
from agentest.domain.metrics import PASS_RATE, TRAJECTORY_METRICS
from agentest.domain.results import (
    ConversationResult,
    Deduplication,
    Reason,
    ReasonKind,
    ScenarioCause,
    ScenarioResult,
    Status,
    TurnEvaluation,
    Verdict,
    total_usage,
)
from agentest.domain.transcript import Conversation, ToolCall, Turn, get_call_metadata
from agentest.domain.verdict import (
    averages,
    decide,
    skipped_metrics,
    with_failing_groups,
    with_severe_failures,
)
from agentest.judging.evaluation import ConversationEvaluation
from agentest.judging.evaluator import ScenarioEvaluator
from agentest.runner.plan import Unit
from agentest.runner.run_summary import (
    idle_user,
    known_agent,
    rerun_notes,
    scenario_result,
    stop_reason,
    unit_notes,
)
from agentest.runner.session import RunSession, Settings, Stop, UnitConnections
from agentest.runner.verdict_warnings import UnitEvidence, questioned, unit_warnings
from agentest.support.lazy_dataclasses import dataclass, replace

if TYPE_CHECKING:
    from agentest.judging.custom_metrics import Metric
    from agentest.judging.judge import Judge
    from agentest.runner.repetition import Schedule


_MAX_PARTS = 1000
"""The number of shared parts of a unit. Results with more distinct parts gain little from sharing."""
_T = TypeVar("_T")


def _facts(of: type, *others: str) -> Callable[[Any], Hashable]:
    """Return a function that returns the fields of a value, apart from these."""
    return attrgetter(*(each.name for each in fields(of) if each.name not in others))


_conversation_facts = _facts(Conversation, "turns", "unfinished", "time", "user_calls", "sent", "live_state")
_turn_facts = _facts(Turn, "tool_calls", *truncation.MEASURED_OF_TURN)
_evaluation_facts = _facts(TurnEvaluation, "metrics")
_result_facts = _facts(ConversationResult, "conversation", "turns", "metrics", "time", "reasons")


def _call_key(call: ToolCall) -> Hashable:
    return get_call_metadata(call), call.args or type(call.args)


@dataclass(slots=True)
class UnitProgress:
    """The progress of a unit. A run that is stopped makes the unit's result from it."""

    unit: Unit
    keeps_conversations: bool = True  # True if reports show conversations even if they passed
    most_whole: int = 300  # how many conversations that did not pass stay whole, of the first kind
    start: float = field(default_factory=perf_counter)
    wanted: int = field(init=False)  # how many conversations to run, as far as known now
    _schedule: Schedule | None = field(init=False, default=None)
    """Decides how many more conversations are needed; None: the number is fixed."""
    _wanted_changed: anyio.Event = field(default_factory=anyio.Event)
    results: dict[int, ConversationResult] = field(default_factory=dict)
    """Number → result of each finished conversation; slim ones without measurements, so that many are equal
    and share their memory."""
    measured: Measurements = field(default_factory=Measurements)  # of all finished conversations
    _known: dict[Hashable, Any] = field(default_factory=dict)  # the shared parts of slim results
    _whole: dict[Hashable, list[int]] = field(default_factory=dict)
    """Kind of conversations that did not pass → the numbers of the first ones, which are whole."""
    rerun_reason: dict[int, str] = field(default_factory=dict)
    """Number → reason, for conversations that ran again because the simulated user broke its role."""

    def __post_init__(self) -> None:
        repeat = self.unit.repeat
        self.wanted = repeat.min if repeat else self.unit.conversations
        if repeat:
            from agentest.runner.repetition import Schedule

            self._schedule = Schedule(repeat=repeat, thresholds=self.unit.thresholds)
        earlier = self.unit.finished_part
        for number, result in zip(earlier.numbers, earlier.conversations, strict=True):
            self.add(number, result)

    def add(self, number: int, result: ConversationResult) -> None:
        """Add a finished conversation."""
        self.measured.add(number, result)
        # The console shows a case's scores together with its messages.
        keeps_whole = self.keeps_conversations or self.unit.scenario.case is not None
        slim = result if keeps_whole else truncation.without_unneeded(result)
        self.results[number] = self._shared(truncation.without_measurements(slim)) if slim.slim else slim
        if not (keeps_whole or slim.slim):
            self._limit_whole(number, result)

    def _limit_whole(self, number: int, result: ConversationResult) -> None:
        """Drop the texts of a conversation, or of a later one, if there are enough of its kind."""
        numbers = self._whole.setdefault(truncation.kind_of(result), [])
        insort(numbers, number)
        # The prompt that groups failures shows the first of each label; three are examples elsewhere.
        most = self.most_whole if result.failures else max(3, self.most_whole // len(self._whole))
        if len(numbers) > most:
            last = numbers.pop()
            slim = truncation.without_texts(self.results[last])
            shared = self._shared(replace(slim, failures=(), reasons=None))
            self.results[last] = replace(shared, failures=slim.failures, reasons=slim.reasons)

    def _shared(self, result: ConversationResult) -> ConversationResult:
        """Return an equal result that shares its parts with earlier ones."""
        conversation = result.conversation
        calls = tuple(tuple(map(_call_key, of.tool_calls)) for of in conversation.started_turns)
        of_conversation = (
            _conversation_facts(conversation),
            conversation.unfinished and replace(conversation.unfinished, tool_calls=()),
            tuple(map(_turn_facts, conversation.turns)),
            (*calls, tuple(map(_call_key, conversation.user_calls))),
        )
        of_turns = [(_evaluation_facts(each), *each.metrics.items()) for each in result.turns]
        key = (of_conversation, *of_turns, tuple(result.metrics.items()), _result_facts(result))
        try:
            if known := self._known.get(key):
                return known  # type: ignore[no-any-return]
            conversation = self._first_equal(of_conversation, conversation)
            turns = tuple(map(self._first_equal, of_turns, result.turns))
            return self._first_equal(key, replace(result, conversation=conversation, turns=turns))
        except TypeError:  # something cannot be hashed
            return result

    def _first_equal(self, key: Hashable, part: _T) -> _T:
        if len(self._known) >= _MAX_PARTS:
            self._known.clear()
        first: _T = self._known.setdefault(key, part)
        return first

    async def wants(self, number: int) -> bool:
        """Return True if a conversation of this number is needed. Waits until that is known."""
        while number > self.wanted and self._schedule:
            await self._wanted_changed.wait()
        return number <= self.wanted

    def is_complete(self) -> bool:
        """Return True if all needed conversations have finished, as if unknown severities were harmless."""
        # An earlier run may have finished several batches.
        while self._schedule and len(self.results) >= self.wanted:
            if not self._wants_more(self._schedule, self.ordered):
                return True
        return len(self.results) >= self.wanted

    def close(self, graded: Sequence[ConversationResult]) -> bool:
        """Require no more conversations unless severe failures leave the verdict open. True if closed."""
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
        changed, self._wanted_changed = self._wanted_changed, anyio.Event()
        changed.set()

    @property
    def ordered(self) -> tuple[ConversationResult, ...]:
        """The results in the order of their conversations."""
        return tuple(self.results[number] for number in sorted(self.results))


class UnitEvaluation:
    """Evaluates the conversations of units."""

    def __init__(self, custom: Sequence[Metric], settings: Settings, connections: UnitConnections) -> None:
        self._custom = custom
        self._redact = connections.redact
        self._judge: Judge | None = None
        self._models = connections.models
        if model := connections.models.judge:
            from agentest.judging.judge import Judge

            judge = settings.judge
            self._judge = Judge(model, judge.samples, judge.batch, context=judge.context)
        self._settings = settings
        self.needs_judge = self._judge is not None or bool(self._models.named)
        self._evaluators: dict[str, ScenarioEvaluator] = {}  # by scope, for units in progress

    def may_wait(self, unit: Unit) -> bool:
        """Return True if the evaluation of a turn may wait: for a judge or for functions of users."""
        checked = any(turn.trajectory or turn.expect for turn in unit.scenario.turns)
        return checked or self.needs_judge or bool(self._custom)

    def begin(self, unit: Unit, number: int, *, at_end: bool = False) -> ConversationEvaluation:
        """Begin to evaluate one conversation, turn by turn as they close, or with `at_end` all at once."""
        if unit.scope not in self._evaluators:
            self._evaluators[unit.scope] = ScenarioEvaluator(
                scenario=unit.scenario,
                scope=unit.scope,
                metrics=unit.metrics,
                custom=[metric for metric in self._custom if metric.name not in unit.unmeasured],
                graders=unit.graders,
                judge=self._judge_of(unit),
                named=self._models.named,
                redact=self._redact.error,
                agent=known_agent(unit, self._redact, is_judged=self._judge is not None),
                unstreamed=unit.traits.unstreamed,
                metrics_named=unit.metrics_named,
                credited=tuple(TRAJECTORY_METRICS.keys() & unit.thresholds.keys()),
                information=unit.information,
                idle_user=None if self._models.user_for(None) else idle_user(unit.scenario),
                # If some conversations may fail, judges of a failed one can still affect the verdict.
                skip_decided=self._settings.judge.skip_decided and PASS_RATE not in unit.thresholds,
            )
        return ConversationEvaluation(self._evaluators[unit.scope], number, at_end=at_end)

    def end(self, unit: Unit) -> None:
        """Release a unit whose conversations have all been evaluated."""
        self._evaluators.pop(unit.scope, None)

    def _judge_of(self, unit: Unit) -> Judge | None:
        if self._judge is None or self._models.confirm is None:
            return self._judge
        from agentest.judging.judge import confirmed_judge  # needed only if a second model is configured

        criteria = unit.scenario.criteria
        return confirmed_judge(
            self._judge, self._models.confirm, criteria, unit.thresholds, self._settings.fail_on
        )


class UnitDecision:
    """Decides whether units pass."""

    def __init__(self, settings: Settings, connections: UnitConnections) -> None:
        self._fail_on = settings.fail_on
        self._strict = settings.strict
        self._models = connections.models
        self._ledger = connections.ledger
        self._redact = connections.redact

    async def decide(self, progress: UnitProgress, problem: Reason | None = None) -> ScenarioResult | None:
        """Return the result of a finished unit; None if it needs more. `problem`: why it cannot pass."""
        deduplication = with_failing_groups(await self._deduplicate(progress), self._fail_on)
        if not progress.close(with_severe_failures(progress.ordered, deduplication)):
            return None
        unit = progress.unit
        if problem is None and unit.conversations < unit.planned:
            message = f"of {unit.planned} conversations the earlier run finished {unit.conversations}"
            problem = Reason(Status.ERRORED, ReasonKind.INTERRUPTED, message)
        return self._result(progress, deduplication, problem)

    def decide_early(self, progress: UnitProgress, stop: Stop) -> ScenarioResult:
        """Return the result of an interrupted unit from the conversations that finished."""
        from agentest.judging.error_grouping import group_by_label

        # Grouping would cost another model call, so the severity of the failures stays unknown.
        failures = [failure for result in progress.results.values() for failure in result.failures]
        reason = stop_reason(stop, len(progress.results), progress.unit)
        groups = replace(group_by_label(failures), graded=not failures)
        return self._result(progress, with_failing_groups(groups, self._fail_on), reason)

    async def _deduplicate(self, progress: UnitProgress) -> Deduplication:
        unit = progress.unit
        failures = [failure for result in progress.ordered for failure in result.failures]
        if not failures:
            return Deduplication()
        from agentest.judging.error_grouping import group_failures

        groups = await group_failures(
            failures,
            unit.scenario,
            self._models.judge,
            unit.scope,
            progress.ordered,
            instructions=self._redact(unit.traits.instructions),
        )
        return replace(groups, error=self._redact.error(groups.error)) if groups.error else groups

    def _result(
        self, progress: UnitProgress, deduplication: Deduplication, stopped: Reason | None
    ) -> ScenarioResult:
        unit, conversations = progress.unit, with_severe_failures(progress.ordered, deduplication)
        thresholds = unit.thresholds
        if stopped:  # the missing conversations might have met them, and one failed one need not decide
            thresholds = {PASS_RATE: 0.0} if PASS_RATE in thresholds else {}
        exact = unit.scenario.case is not None
        if deduplication.groups:
            from agentest.judging.error_grouping import add_examples

            deduplication = add_examples(deduplication, conversations, self._redact)
        verdict = decide(
            conversations, deduplication, thresholds, self._fail_on, exact=exact, measured=progress.measured
        )
        notes = unit_notes(unit, conversations, thresholds, has_user_model=self._models.user is not None)
        final, of_repeat = verdict, dict[str, int | None]()
        if stopped:  # it may have failed already, but it cannot pass
            status = Status.FAILED if verdict.status is Status.FAILED else stopped.status
            others = (reason for reason in verdict.reasons if reason.kind is not ReasonKind.INTERRUPTED)
            final = Verdict(status, (*others, stopped))
        elif unit.repeat:
            from agentest.runner.repetition import Schedule

            schedule = Schedule(repeat=unit.repeat, thresholds=unit.thresholds)
            decided_after = schedule.decided_after(conversations, verdict)
            of_repeat = {"planned": len(conversations), "decided_after": decided_after}
        result = scenario_result(
            unit,
            final,
            self._redact,
            **of_repeat,
            conversations=conversations,
            averages=averages(conversations, exact=exact),
            errors=deduplication.groups,
            severity_unknown=not deduplication.graded,
            causes=_causes(verdict, conversations),
            skipped_metrics=skipped_metrics(conversations),
            duration_ms=(perf_counter() - progress.start) * 1000,
            usage=total_usage([unit.finished_part.usage, self._ledger.of(unit.scope)]),
            totals=totals_of(conversations, progress.measured),
            warnings=tuple(map(self._redact.error, notes)) + rerun_notes(unit.slug, progress.rerun_reason),
        )
        result = with_figures(result, conversations)
        evidence = UnitEvidence(unit=unit, conversations=conversations, verdict=result.verdict)
        warnings = [
            replace(each, message=self._redact.error(each.message))
            for each in unit_warnings(evidence, complete=stopped is None)
        ]
        return questioned(result, warnings, strict=self._strict)


def _causes(verdict: Verdict, conversations: Sequence[ConversationResult]) -> tuple[ScenarioCause, ...]:
    if not verdict.reasons:
        return ()
    from agentest.domain.root_causes import find_scenario_causes

    return find_scenario_causes(verdict.reasons, conversations)


def report_finished(session: RunSession) -> dict[str, ScenarioResult]:
    """Report units that an earlier run finished. Returns their results by scope."""
    finished = ((unit.scope, unit.finished_part.result) for unit in session.prepared.plan.units)
    settings, emit = session.settings, session.emit
    return {scope: report_result(result, emit, settings) for scope, result in finished if result}


def report_never_begun(session: RunSession, begun: Collection[str]) -> dict[str, ScenarioResult]:
    """Report the finished part of units that a stop kept from `begun`. Returns results by scope."""
    results, settings = dict[str, ScenarioResult](), session.settings
    decision = UnitDecision(settings, UnitConnections(redact=session.prepared.loaded.redact))
    for unit in session.prepared.plan.units:
        if unit.finished_part.conversations and unit.scope not in begun:
            result = decision.decide_early(UnitProgress(unit, settings.keep_conversations), session.stop)
            results[unit.scope] = report_result(result, session.emit, settings)
    return results


def report_result(result: ScenarioResult, emit: Emit, settings: Settings) -> ScenarioResult:
    """Report the result of a unit, and return the part that the run retains."""
    emit(ScenarioFinished(result))
    return result if settings.keep_conversations else replace(result, conversations=())
