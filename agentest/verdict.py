"""What passing means: the only place that knows (contract, section 9).

Pure functions of what was found out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import reduce
from operator import add
from statistics import mean

from agentest.metrics import PASS_RATE
from agentest.results import (
    CheckResult,
    ConversationResult,
    Deduplication,
    MetricResult,
    Reason,
    ReasonKind,
    RunResult,
    Score,
    Severity,
    Skipped,
    Status,
    TrajectoryResult,
    Unscored,
    Verdict,
)
from agentest.transcript import Blame

_TOLERANCE = 1e-9
"""A threshold that was computed, as 0.1 + 0.2, must not be missed by a rounding error."""


def averages(conversations: Sequence[ConversationResult], *, exact: bool = False) -> dict[str, float]:
    """Metric → mean of its numeric values: over all turns of all conversations, or over conversations.

    Args:
        exact: as ADK computes it, to the last digit: one run is summed up turn by turn, several are pooled.
    """
    values: dict[str, list[float]] = {}
    for name, result in _results(conversations):
        if isinstance(result, Score) and not isinstance(result.value, str):
            values.setdefault(name, []).append(result.value)
    if exact and len(conversations) == 1:
        return {name: reduce(add, found, 0.0) / len(found) for name, found in values.items()}
    # Exact, then rounded once: 4.2 must not miss a threshold of 4.2 by a rounding error of the sum.
    return {name: float(mean(found)) for name, found in values.items()}


def skipped_metrics(conversations: Sequence[ConversationResult]) -> dict[str, str]:
    """Metric → why it was skipped, for those that were, be it in one turn only."""
    return {name: result.why for name, result in _results(conversations) if isinstance(result, Skipped)}


def decide(
    conversations: Sequence[ConversationResult],
    deduplication: Deduplication,
    thresholds: Mapping[str, float],
    fail_on: Severity,
    *,
    exact: bool = False,
) -> Verdict:
    """The verdict on a scenario, with every reason why it did not pass; the failing ones first.

    Args:
        exact: compare averages with thresholds to the last digit, as ADK does.
    """
    by_conversation = [list(_conversation_reasons(c)) for c in conversations]
    rate = thresholds.get(PASS_RATE)
    reasons = [reason for found in by_conversation for reason in found]
    if rate is not None:
        missed = _missed_rate(by_conversation, rate)
        # With a rate, single conversations may fail; their reasons count only when too many do.
        reasons = [*missed, *reasons] if missed else [r for r in reasons if r.status is Status.ERRORED]
    reasons += _error_reasons(deduplication, fail_on)
    reasons += _threshold_reasons(conversations, thresholds, exact)
    reasons += _unscored_reasons(conversations)
    if not conversations:
        reasons.append(Reason(Status.ERRORED, ReasonKind.INTERRUPTED, "no conversation was finished"))
    failed = [r for r in reasons if r.status is Status.FAILED]
    errored = [r for r in reasons if r.status is Status.ERRORED]
    status = Status.FAILED if failed else Status.ERRORED if errored else Status.PASSED
    return Verdict(status, (*failed, *errored))


def conversation_passed(result: ConversationResult) -> bool:
    """Whether nothing in this conversation alone speaks against it."""
    return not any(True for _ in _conversation_reasons(result))


def run_status(result: RunResult) -> Status:
    """The whole run: failed before errored before passed. A run in which nothing ran is errored."""
    if result.with_status(Status.FAILED):
        return Status.FAILED
    if result.interrupted or result.with_status(Status.ERRORED) or not result.with_status(Status.PASSED):
        return Status.ERRORED
    return Status.PASSED


def _results(conversations: Sequence[ConversationResult]) -> Iterator[tuple[str, MetricResult]]:
    for conversation in conversations:
        for turn in conversation.turns:
            yield from turn.metrics.items()
        yield from conversation.metrics.items()


def _conversation_reasons(result: ConversationResult) -> Iterator[Reason]:
    conversation = result.conversation
    at = conversation.conversation_id
    failure = conversation.failure
    if failure:
        by_agent = failure.blame is Blame.AGENT
        yield Reason(
            Status.FAILED if by_agent else Status.ERRORED,
            ReasonKind.MODEL if failure.blame is Blame.MODEL else ReasonKind.CONVERSATION,
            failure.message,
            at,
            conversation.unfinished.turn_index if conversation.unfinished else None,
        )
    if result.trajectory and not result.trajectory.matched:
        status = _status_of(result.trajectory)
        yield Reason(status, ReasonKind.TRAJECTORY, f"trajectory: {result.trajectory.reason}", at)
    for turn in result.turns:
        if turn.trajectory and not turn.trajectory.matched:
            message = f"trajectory of the turn: {turn.trajectory.reason}"
            status = _status_of(turn.trajectory)
            yield Reason(status, ReasonKind.TRAJECTORY, message, at, turn.turn_index)
        for check in turn.checks:
            if not check.passed:
                message = f"{check.check}: {check.reason}"
                yield Reason(_status_of(check), ReasonKind.CHECK, message, at, turn.turn_index)


def _status_of(found: TrajectoryResult | CheckResult) -> Status:
    """What becomes of a conversation in which something did not hold, or could not be told."""
    return Status.ERRORED if found.error else Status.FAILED


def _missed_rate(by_conversation: Sequence[Sequence[Reason]], rate: float) -> list[Reason]:
    """The reason that too few conversations passed, however those had ended that could not be judged."""
    total = len(by_conversation)
    failed = sum(any(r.status is Status.FAILED for r in found) for found in by_conversation)
    if not total or (total - failed) / total >= rate - _TOLERANCE:
        return []
    passed = sum(not found for found in by_conversation)
    message = f"{PASS_RATE}: {passed} of {total} conversations passed, the threshold is {rate:g}"
    return [Reason(Status.FAILED, ReasonKind.PASS_RATE, message)]


def _error_reasons(deduplication: Deduplication, fail_on: Severity) -> Iterator[Reason]:
    for group in deduplication.groups:
        if group.severity >= fail_on:
            message = (
                f"error ({group.severity.label}): {group.label}, "
                f"{_times(len(group.occurrences))}: {group.explanation}"
            )
            yield Reason(Status.FAILED, ReasonKind.ERROR, message)
    if deduplication.error:
        message = (
            f"errors could not be grouped, so a worse severity cannot be ruled out: {deduplication.error}"
        )
        yield Reason(Status.ERRORED, ReasonKind.DEDUPLICATION, message)


def _threshold_reasons(
    conversations: Sequence[ConversationResult], thresholds: Mapping[str, float], exact: bool
) -> Iterator[Reason]:
    found = averages(conversations, exact=exact)
    tolerance = 0.0 if exact else _TOLERANCE
    skipped = skipped_metrics(conversations)
    for name, least in thresholds.items():
        if name == PASS_RATE:
            continue
        if name in found and found[name] < least - tolerance:
            message = f"{name}: average {found[name]:.2f} is below the threshold {least:g}"
            yield Reason(Status.FAILED, ReasonKind.THRESHOLD, message)
        elif name not in found or name in skipped:
            why = f" ({skipped[name]})" if name in skipped else ""
            message = f"{name} has a threshold of {least:g} but could not be scored{why}"
            yield Reason(Status.ERRORED, ReasonKind.THRESHOLD, message)


def _unscored_reasons(conversations: Sequence[ConversationResult]) -> Iterator[Reason]:
    """One reason for each metric that a judge owes somewhere."""
    problems: dict[str, list[str]] = {}
    asked: dict[str, int] = {}
    for name, result in _results(conversations):
        asked[name] = asked.get(name, 0) + 1
        if isinstance(result, Unscored):
            problems.setdefault(name, []).append(result.error)
    for name, errors in problems.items():
        message = f"{name} could not be scored {len(errors)} of {_times(asked[name])}: {errors[0]}"
        yield Reason(Status.ERRORED, ReasonKind.UNSCORED, message)


def _times(count: int) -> str:
    return "1 time" if count == 1 else f"{count} times"
