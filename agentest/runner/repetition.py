"""Repeated conversations: decide when a unit has enough of them, and note what they cannot decide."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from math import ceil, log
from statistics import mean

from agentest.domain.metrics import BUILTIN, PASS_RATE, TRAJECTORY_METRICS, Kind
from agentest.domain.reasons import conversation_status
from agentest.domain.repeat_setting import MOST, Repeat
from agentest.domain.results import ConversationResult, Score, Status, Verdict
from agentest.domain.verdict import fails_scenario
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.statistics import sequential
from agentest.support.text import count


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Decides when a unit has enough conversations."""

    repeat: Repeat
    thresholds: Mapping[str, float]

    def more(self, results: Sequence[ConversationResult]) -> int:
        """Return how many conversations to run after all of these have finished; 0: they are enough."""
        left = self.repeat.max - len(results)
        assessment = self._assess(results)
        if assessment.standing is not sequential.SequentialDecision.OPEN:
            return 0
        # Without a pass rate, the next failed conversation decides.
        next_decision = 1 if PASS_RATE not in self.thresholds else assessment.fewest
        return left if next_decision is None else min(left, next_decision)

    def decided_after(self, results: Sequence[ConversationResult], verdict: Verdict) -> int | None:
        """Return after how many conversations the verdict was decided; None: it is undecided."""
        standing = self._assess(results).standing
        decided = {
            Status.PASSED: standing is sequential.SequentialDecision.HOLDS,
            Status.FAILED: standing is sequential.SequentialDecision.MISSED,
        }
        return len(results) if decided.get(verdict.status) else None

    def _assess(self, results: Sequence[ConversationResult]) -> sequential.CombinedLook:
        if PASS_RATE not in self.thresholds and any(
            fails_scenario(each, self.thresholds) for each in results
        ):
            return sequential.CombinedLook(standing=sequential.SequentialDecision.MISSED, fewest=0)
        values = {name: values_of(name, results) for name in self.thresholds}
        return sequential.look(tests_of(self.repeat, self.thresholds), values, self.repeat.max - len(results))


def tests_of(repeat: Repeat, thresholds: Mapping[str, float]) -> dict[str, sequential.SequentialTest]:
    """Return one test for each threshold.

    One missed threshold fails the unit, so the tests share the error rate of a fail verdict. A pass needs all
    thresholds, so each test may err as often as a pass verdict.
    """
    error = 1 - repeat.confidence
    errors = sequential.ErrorRates(missed=error / max(1, len(thresholds)), holds=error)
    return {name: _test(name, least, repeat, errors) for name, least in thresholds.items()}


def _test(
    name: str, least: float, repeat: Repeat, errors: sequential.ErrorRates
) -> sequential.SequentialTest:
    kind = BUILTIN[name].kind if name in BUILTIN else None
    if name == PASS_RATE or kind is Kind.BINARY:
        return sequential.ShareTest(least=least, first=repeat.min, last=repeat.max, errors=errors)
    if kind is not Kind.SCALE and name not in TRAJECTORY_METRICS:
        return sequential.Undecidable()
    low, high = (0.0, 1.0) if name in TRAJECTORY_METRICS else (1.0, 5.0)
    return sequential.MeanTest(least=least, low=low, high=high, first=repeat.min, errors=errors)


def values_of(name: str, results: Sequence[ConversationResult]) -> list[float]:
    """Return each conversation's value, if it has one: its average, or whether it passed."""
    if name == PASS_RATE:
        statuses = map(conversation_status, results)
        return [float(status is Status.PASSED) for status in statuses if status is not Status.ERRORED]
    values: list[float] = []
    for result in results:
        scores = (score for metric, score in result.metric_results if metric == name)
        numbers = [each.number for each in scores if isinstance(each, Score) and each.number is not None]
        values += [mean(numbers)] if numbers else []
    return values


def undecidable(units: Iterable[tuple[str, Repeat | None, Mapping[str, float]]]) -> Iterator[str]:
    """Note each threshold that the most conversations cannot meet; units: name, `repeat`, thresholds."""
    scenarios_by_threshold: dict[tuple[str, float, Repeat], list[str]] = {}
    for scenario, repeat, thresholds in units:
        if repeat is None:
            continue
        for name, question in tests_of(repeat, thresholds).items():
            best = sequential.replay_values(question, [question.range[1]] * repeat.max)
            if best.standing is not sequential.SequentialDecision.HOLDS:
                scenarios_by_threshold.setdefault((name, thresholds[name], repeat), []).append(scenario)
    for (name, least, repeat), scenarios in scenarios_by_threshold.items():
        yield _note(name, least, repeat, scenarios)


def _note(name: str, least: float, repeat: Repeat, scenarios: Sequence[str]) -> str:
    more = f" and {count(len(scenarios) - 1, 'more scenario')}" if scenarios[1:] else ""
    error = 1 - repeat.confidence
    enough = tests_of(replace(repeat, max=MOST), {name: least})[name]
    if isinstance(enough, sequential.ShareTest):
        needed = ceil(log(error) / log(least)) if least < 1 else None
    else:
        needed = enough.soonest(enough.begin(), MOST, good=True)
    advice = f"{needed} can, so raise max" if needed else "no number of conversations can"
    return (
        f"{scenarios[0]!r}{more}: at most {repeat.max} conversations cannot prove that {name} is at least "
        f"{least:g}, even if all of them pass; {advice}. A passing verdict will be reported as not decided"
    )
