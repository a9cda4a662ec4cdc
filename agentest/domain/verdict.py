"""Decide what passes. The functions here are pure, and no other module except `reasons` decides.

A scenario, a conversation, a metric with a threshold, a trajectory and a check each get a `Status`, which
reporters show.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from operator import add
from statistics import mean

from agentest.domain.figures import Measurements
from agentest.domain.metrics import COST, GOAL, LATENCY_P95, LIMITS, PASS_RATE
from agentest.domain.reasons import (
    MeasuredConversation,
    any_failed,
    conversation_failed,
    conversation_reasons,
    conversation_status,
    missed_goals,
)
from agentest.domain.results import (
    DECIDED,
    ChangedScenario,
    Changes,
    ConversationResult,
    Deduplication,
    MetricResult,
    MetricVerdict,
    Reason,
    ReasonKind,
    RunResult,
    Score,
    Severity,
    Skipped,
    Status,
    UniqueError,
    Unscored,
    Verdict,
)
from agentest.support.lazy_dataclasses import dataclass

_TOLERANCE = 1e-9  # a computed threshold such as 0.1 + 0.2 must not be missed because of a rounding error


def averages(conversations: Sequence[ConversationResult], *, exact: bool = False) -> dict[str, float]:
    """Return each metric's mean over all turns or conversations; `exact`: summed turn by turn, as in ADK."""
    values: dict[str, list[float]] = {}
    for name, result in _metric_results(conversations):
        if isinstance(result, Score) and not isinstance(result.value, str):
            values.setdefault(name, []).append(result.value)
    if exact and len(conversations) == 1:
        return {name: reduce(add, scores, 0.0) / len(scores) for name, scores in values.items()}
    # Sum exactly and round once: 4.2 must not miss a threshold of 4.2 because of a rounding error.
    return {name: float(mean(scores)) for name, scores in values.items()}


def skipped_metrics(conversations: Sequence[ConversationResult]) -> dict[str, str]:
    """Return the reason for each skipped metric, even if it was skipped in only one turn."""
    results = _metric_results(conversations)
    return {name: result.why for name, result in results if isinstance(result, Skipped)}


def decide(
    conversations: Sequence[ConversationResult],
    deduplication: Deduplication,
    thresholds: Mapping[str, float],
    fail_on: Severity,
    *,
    exact: bool = False,
    measured: Measurements | None = None,
) -> Verdict:
    """Decide about a scenario and collect every reason why it did not pass; failing reasons come first.

    Args:
        conversations: all conversations of the scenario, with or without `with_severe_failures`.
        measured: their measurements, if they no longer have them.
        exact: compare averages with thresholds to the last digit, as ADK does.
    """
    deduplication = with_failing_groups(deduplication, fail_on)
    conversations = with_severe_failures(conversations, deduplication)
    # An invalid conversation does not show how the agent behaves, so no rate counts it.
    informative = [each for each in conversations if each.invalid is None]
    rate = thresholds.get(PASS_RATE)
    reasons = [
        *(reason for each in conversations for reason in _decisive(conversation_reasons(each), thresholds)),
        *(
            Reason(Status.FAILED, ReasonKind.ERROR, _group_message(group), group=group)
            for group in deduplication.groups
            if group.fails
        ),
    ]
    if rate is not None:
        missed = _missed_rate(informative, rate)
        # With a rate, single conversations may fail; their reasons count only if too many do.
        unknown = (conversation_reasons(each) for each in conversations if not conversation_failed(each))
        reasons = [*missed, *reasons] if missed else [reason for each in unknown for reason in each]
    if deduplication.error:
        message = "errors could not be grouped, so a worse severity cannot be ruled out: "
        message += deduplication.error
        reasons.append(Reason(Status.ERRORED, ReasonKind.DEDUPLICATION, message))
    # If every conversation is invalid, a missing score is not a reason of its own.
    applicable = thresholds if informative or not conversations else {}
    by_threshold = list(_threshold_reasons(conversations, applicable, exact))
    reported = {reason.metric for reason in by_threshold if reason.actual is None}
    reasons += by_threshold
    if limits := [name for name in LIMITS if name in applicable]:
        averaged = averages(conversations)  # a custom metric may have the name
        limited = {name: applicable[name] for name in limits if name not in averaged}
        reasons += _limit_reasons(measured or Measurements.of(conversations), len(informative), limited)
    for name, message in _unscored(conversations, _problems(conversations, decided_by=thresholds)):
        if name not in reported:
            reasons.append(Reason(Status.ERRORED, ReasonKind.UNSCORED, message, metric=name))
    if not conversations:
        reasons.append(Reason(Status.ERRORED, ReasonKind.INTERRUPTED, "no conversation was finished"))
    failed = [r for r in reasons if r.status is Status.FAILED]
    errored = [r for r in reasons if r.status is Status.ERRORED]
    status = Status.FAILED if failed else Status.ERRORED if errored else Status.PASSED
    return Verdict(status, (*failed, *errored))


def metric_verdicts(
    averages: Mapping[str, float], thresholds: Mapping[str, float], *, exact: bool = False
) -> tuple[MetricVerdict, ...]:
    """Return the verdict on each metric with a threshold, by its average; `exact`: to the last digit."""
    return tuple(
        _metric_verdict(name, threshold, averages.get(name), 0.0 if exact else _TOLERANCE)
        for name, threshold in thresholds.items()
        if name != PASS_RATE and (name not in LIMITS or name in averages)
    )


def turn_verdict(name: str, threshold: float, result: MetricResult | None) -> MetricVerdict:
    """Return the verdict on a metric of one invocation of a case, compared to the last digit, as ADK does."""
    score = result.number if isinstance(result, Score) else None
    return _metric_verdict(name, threshold, score, 0.0)


def fails_scenario(result: ConversationResult, thresholds: Mapping[str, float]) -> bool:
    """True if this conversation fails a scenario without pass rate; a goal's threshold decides on goals."""
    return bool(result.severe_failures) or any_failed(_decisive(conversation_reasons(result), thresholds))


def with_failing_groups(deduplication: Deduplication, fail_on: Severity) -> Deduplication:
    """Mark each group whose severity is high enough to fail a scenario."""
    if not deduplication.groups:
        return deduplication
    groups = (replace(group, fails=group.severity >= fail_on) for group in deduplication.groups)
    return replace(deduplication, groups=tuple(groups))


def with_severe_failures(
    conversations: Sequence[ConversationResult], groups: Deduplication
) -> tuple[ConversationResult, ...]:
    """Return the conversations with their failures in failing groups."""
    return tuple(map(Severities.of(groups.groups, graded=groups.graded).mark, conversations))


@dataclass(frozen=True, slots=True)
class Severities:
    """What the groups of a scenario's failures say of its conversations."""

    severe: frozenset[str]  # the ids of failures in failing groups
    graded: bool  # False if other failures may be severe, too

    @classmethod
    def of(cls, groups: Iterable[UniqueError], *, graded: bool) -> Severities:
        return cls(frozenset(id for group in groups if group.fails for id in group.occurrences), graded)

    def __bool__(self) -> bool:
        return bool(self.severe) or not self.graded

    def mark(self, result: ConversationResult) -> ConversationResult:
        """Return the conversation with its severe failures."""
        if not (result.failures and self):
            return result
        severe = tuple(failure.id for failure in result.failures if failure.id in self.severe)
        return replace(result, severe_failures=severe, severity_unknown=not self.graded)

    def passed(self, measured: MeasuredConversation) -> bool | None:
        """Return True if the conversation passed, False if it failed, None if it is unknown."""
        if not self.severe.isdisjoint(measured.failures):
            return False
        return None if measured.passed and measured.failures and not self.graded else measured.passed


def threshold_status(metric: str, verdict: Verdict) -> Status:
    """Return the part of a scenario's verdict that is about one metric's threshold."""
    about = (r.status for r in verdict.reasons if r.kind is ReasonKind.THRESHOLD and r.metric == metric)
    return next(about, Status.PASSED)


def run_status(result: RunResult) -> Status:
    """Return the status of the whole run: failed before errored before passed; errored if nothing ran.

    A run with unclaimed calls is errored, because they may have violated a ban of any conversation. A shard
    without scenarios passes.
    """
    if result.real_tool_ran:
        return Status.ERRORED
    if result.with_status(Status.FAILED) or (result.explored and result.explored.fails):
        return Status.FAILED
    if result.unclaimed:
        return Status.ERRORED
    if result.shard and not result.scenarios and not result.interrupted and not result.stopped:
        return Status.PASSED
    if result.interrupted or result.with_status(Status.ERRORED) or not result.with_status(Status.PASSED):
        return Status.ERRORED
    return Status.PASSED


def _metric_verdict(name: str, threshold: float, score: float | None, tolerance: float) -> MetricVerdict:
    status = Status.ERRORED
    if score is not None:
        status = Status.FAILED if score < threshold - tolerance else Status.PASSED
    return MetricVerdict(name=name, threshold=threshold, score=score, status=status)


def _metric_results(conversations: Sequence[ConversationResult]) -> Iterator[tuple[str, MetricResult]]:
    for conversation in conversations:
        yield from conversation.metric_results


def _decisive(reasons: Iterable[Reason], thresholds: Mapping[str, float]) -> Iterator[Reason]:
    return (reason for reason in reasons if reason.kind is not ReasonKind.GOAL or GOAL not in thresholds)


def _missed_rate(conversations: Sequence[ConversationResult], rate: float) -> list[Reason]:
    statuses = Counter(map(conversation_status, conversations))
    total, failed = len(conversations), statuses[Status.FAILED]
    if not total or (total - failed) / total >= rate - _TOLERANCE:
        return []
    # Use the rate of reports, which ignores unknown ones; it is below the rate that counts them as passed.
    passed = statuses[Status.PASSED]
    known = passed + failed
    unknown = f" ({total - known} could not be judged)" if known < total else ""
    message = f"{PASS_RATE}: {passed} of {known} conversations passed{unknown}, the threshold is {rate:g}"
    return [
        Reason(
            Status.FAILED,
            ReasonKind.PASS_RATE,
            message,
            metric=PASS_RATE,
            expected=rate,
            actual=passed / known,
        )
    ]


def _group_message(group: UniqueError) -> str:
    times = _times(len(group.occurrences))
    return f"error ({group.severity.label}): {group.label}, {times}: {group.explanation}"


def _threshold_reasons(
    conversations: Sequence[ConversationResult], thresholds: Mapping[str, float], exact: bool
) -> Iterator[Reason]:
    if not thresholds:
        return
    problems, not_asked = _problems(conversations), _not_asked(conversations)
    skipped = {name: why for name, why in skipped_metrics(conversations).items() if why != DECIDED}
    for metric in metric_verdicts(averages(conversations, exact=exact), thresholds, exact=exact):
        if metric.score is not None and metric.status is Status.FAILED:
            message = f"{metric.name}: average {metric.score:.2f} is below the threshold {metric.threshold:g}"
            message += missed_goals(conversations) if metric.name == GOAL else ""
            yield _threshold_reason(metric, Status.FAILED, message)
        elif metric.name in skipped or (metric.score is None and metric.name not in not_asked):
            unjudged = ": no conversation got as far as being judged"
            why = f" ({skipped[metric.name]})" if metric.name in skipped else unjudged
            if metric.score is None and metric.name in problems:
                why = f": {problems[metric.name][0]}"
            message = f"{metric.name} has a threshold of {metric.threshold:g} but could not be scored{why}"
            yield _threshold_reason(metric, Status.ERRORED, message)


def _limit_reasons(
    measured: Measurements, conversations: int, thresholds: Mapping[str, float]
) -> Iterator[Reason]:
    if LATENCY_P95 in thresholds:
        found = sorted(filter(None, measured.latencies))  # recorded sessions have no latency
        actual = found[math.ceil(0.95 * len(found)) - 1] if found else None
        text = f"95 % of the agent's turns took at most {actual:,.0f} ms" if found else "it is unknown"
        yield from _limit_reason(LATENCY_P95, thresholds[LATENCY_P95], actual, text)
    if COST in thresholds:
        known = [cost for cost in measured.costs if cost is not None]
        actual = math.fsum(known) / conversations if known and len(known) == len(measured.costs) else None
        text = "the cost of the agent's models is unknown; it is measured with `model_gateway`"
        if actual is not None:
            text = f"the agent's models cost {actual:.4g} USD a conversation"
        yield from _limit_reason(COST, thresholds[COST], actual, text)


def _limit_reason(name: str, limit: float, actual: float | None, text: str) -> Iterator[Reason]:
    if actual is not None and actual <= limit + _TOLERANCE:
        return
    status = Status.ERRORED if actual is None else Status.FAILED
    message = f"{name}: {text}, the limit is {limit:g}"
    yield Reason(status, ReasonKind.THRESHOLD, message, metric=name, expected=limit, actual=actual)


def _not_asked(conversations: Sequence[ConversationResult]) -> set[str]:
    whys: dict[str, set[str]] = {}
    for name, result in _metric_results(conversations):
        whys.setdefault(name, set()).add(result.why if isinstance(result, Skipped) else "")
    return {name for name, reasons in whys.items() if reasons == {DECIDED}}


def _threshold_reason(metric: MetricVerdict, status: Status, message: str) -> Reason:
    return Reason(
        status,
        ReasonKind.THRESHOLD,
        message,
        metric=metric.name,
        expected=metric.threshold,
        actual=metric.score,
    )


def undecisive_problems(
    conversations: Sequence[ConversationResult], thresholds: Mapping[str, float]
) -> tuple[str, ...]:
    """Describe failures in the code of custom metrics without thresholds, which decide nothing."""
    problems = _problems(conversations)
    if not problems:
        return ()
    deciding = _problems(conversations, decided_by=thresholds)
    problems = {name: texts for name, texts in problems.items() if name not in deciding}
    why = "; without a threshold it does not change the verdict"
    return tuple(message + why for _, message in _unscored(conversations, problems))


def _unscored(
    conversations: Sequence[ConversationResult], problems: Mapping[str, Sequence[str]]
) -> Iterator[tuple[str, str]]:
    scored = Counter(name for name, _ in _metric_results(conversations)) if problems else {}
    for name, errors in problems.items():
        yield name, f"{name} could not be scored {len(errors)} of {_times(scored[name])}: {errors[0]}"


def _problems(
    conversations: Sequence[ConversationResult], *, decided_by: Mapping[str, float] | None = None
) -> dict[str, list[str]]:
    problems: dict[str, list[str]] = {}
    for name, result in _metric_results(conversations):
        if not isinstance(result, Unscored):
            continue
        if decided_by is None or name in decided_by or not result.own_code:
            problems.setdefault(name, []).append(result.error)
    return problems


def _times(count: int) -> str:
    return "1 time" if count == 1 else f"{count} times"


_FAILING = (Status.FAILED, Status.ERRORED)


def changes_since(earlier: Mapping[tuple[str, str, str], Status], result: RunResult) -> Changes:
    """Compare the verdicts of a run with earlier ones; scenarios that are new or not decided are left out.

    Args:
        earlier: file, scenario and agent → the earlier verdict.
    """
    failing, fixed, still = [], [], []
    for each in result.finished:
        before, now = earlier.get((each.file, each.name, each.agent)), each.verdict.status
        changed = ChangedScenario(name=each.name, agent=each.agent, file=each.file, line=each.line)
        if before is Status.PASSED and now is Status.FAILED:
            failing.append(changed)
        elif before in _FAILING and now is Status.PASSED:
            fixed.append(changed)
        elif before in _FAILING and now is Status.FAILED:
            still.append(changed)
    return Changes(newly_failing=tuple(failing), newly_fixed=tuple(fixed), still_failing=tuple(still))
