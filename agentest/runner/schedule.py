"""How many conversations a unit with `repeat` needs: a batch at a time, until its verdict is decided.

A batch is as many conversations as are needed at the least to decide anything. Nothing can be decided before
its end, so that none is held in vain, and what is decided does not depend on which of them ends first.

A conversation that says nothing of the agent, as its user or a judge failed, takes one of the places and is
no part of the tests. The verdict itself is the one of `agentest.domain.verdict`, from all that was held: the tests
only say when that is enough.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil, log
from statistics import mean

from agentest.domain.metrics import BUILTIN, PASS_RATE, TRAJECTORY_METRICS, Kind
from agentest.domain.repeat import MOST, Repeat
from agentest.domain.results import ConversationResult, Score, Status, Verdict
from agentest.domain.verdict import conversation_status, fails_scenario
from agentest.support.statistics.sequential import (
    Errors,
    Look,
    MeanTest,
    Question,
    ShareTest,
    Standing,
    Undecidable,
    look,
    path_of,
)
from agentest.support.text import count

_SCALE = 1.0, 5.0
_SHARE = 0.0, 1.0


def how_many(*said: tuple[Repeat | None, int | None]) -> tuple[Repeat | None, int]:
    """When to stop, and how many conversations there are then at most: as the first says that says either.

    Args:
        said: by those who may say it, the weightiest first; the last says something.
    """
    repeat, number = next(each for each in said if any(each))
    return repeat, repeat.max if repeat else number or 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """When the conversations of a unit are enough."""

    repeat: Repeat
    thresholds: Mapping[str, float]

    def more(self, results: Sequence[ConversationResult]) -> int:
        """How many conversations to hold next, when all these have finished; 0: they are enough."""
        left = self.repeat.max - len(results)
        found = self._look(results)
        if found.standing is not Standing.OPEN:
            return 0
        # Without a rate, the next one that fails decides.
        soonest = 1 if PASS_RATE not in self.thresholds else found.fewest
        return left if soonest is None else min(left, soonest)

    def decided_after(self, results: Sequence[ConversationResult], verdict: Verdict) -> int | None:
        """After how many conversations the verdict was decided; None: it is not decided."""
        standing = self._look(results).standing
        decided = {
            Status.PASSED: standing is Standing.HOLDS,
            Status.FAILED: standing is Standing.MISSED,
        }
        return len(results) if decided.get(verdict.status) else None

    def _look(self, results: Sequence[ConversationResult]) -> Look:
        if PASS_RATE not in self.thresholds and any(
            fails_scenario(each, self.thresholds) for each in results
        ):
            return Look(standing=Standing.MISSED, fewest=0)
        values = {name: values_of(name, results) for name in self.thresholds}
        return look(tests_of(self.repeat, self.thresholds), values, self.repeat.max - len(results))


def tests_of(repeat: Repeat, thresholds: Mapping[str, float]) -> dict[str, Question]:
    """One test for each threshold. They share the error of a verdict that fails: one that is missed decides.

    For a verdict that passes all must hold, so that each may err as often as the verdict.
    """
    error = 1 - repeat.confidence
    errors = Errors(missed=error / max(1, len(thresholds)), holds=error)
    return {name: _test(name, least, repeat, errors) for name, least in thresholds.items()}


def _test(name: str, least: float, repeat: Repeat, errors: Errors) -> Question:
    kind = BUILTIN[name].kind if name in BUILTIN else None
    if name == PASS_RATE or kind is Kind.BINARY:
        return ShareTest(least=least, first=repeat.min, last=repeat.max, errors=errors)
    if kind is not Kind.SCALE and name not in TRAJECTORY_METRICS:
        return Undecidable()
    low, high = _SHARE if name in TRAJECTORY_METRICS else _SCALE
    return MeanTest(least=least, low=low, high=high, first=repeat.min, errors=errors)


def values_of(name: str, results: Sequence[ConversationResult]) -> list[float]:
    """The value of each conversation that has one: its average, or whether it passed."""
    if name == PASS_RATE:
        statuses = map(conversation_status, results)
        return [float(status is Status.PASSED) for status in statuses if status is not Status.ERRORED]
    scores = ([*_scores(name, each)] for each in results)
    return [mean(numbers) for numbers in scores if numbers]


def _scores(name: str, result: ConversationResult) -> list[float]:
    found = (score for metric, score in result.metric_results if metric == name)
    return [each.number for each in found if isinstance(each, Score) and each.number is not None]


def undecidable(units: Iterable[tuple[str, Repeat | None, Mapping[str, float]]]) -> Iterator[str]:
    """A note on each threshold that the most conversations cannot decide as met, however good they all are.

    Args:
        units: the name of each one's scenario, its `repeat` and its thresholds.
    """
    found: dict[tuple[str, float, Repeat], list[str]] = {}
    for scenario, repeat, thresholds in units:
        if repeat is None:
            continue
        for name in _out_of_reach(repeat, thresholds):
            found.setdefault((name, thresholds[name], repeat), []).append(scenario)
    for (name, least, repeat), scenarios in found.items():
        yield _note(name, least, repeat, scenarios)


def _note(name: str, least: float, repeat: Repeat, scenarios: Sequence[str]) -> str:
    more = f" and {count(len(scenarios) - 1, 'more scenario')}" if scenarios[1:] else ""
    error = 1 - repeat.confidence
    enough = tests_of(replace(repeat, max=MOST), {name: least})[name]
    if isinstance(enough, ShareTest):
        needed = ceil(log(error) / log(least)) if least < 1 else None
    else:
        needed = enough.soonest(enough.begin(), MOST, good=True)
    advice = f"{needed} can, if all are: raise max" if needed else "no number of them can"
    return (
        f"{scenarios[0]!r}{more}: at most {repeat.max} conversations cannot decide that {name} is at least "
        f"{least:g}, however good all of them are; {advice}. A verdict that passes will be called not decided"
    )


def _out_of_reach(repeat: Repeat, thresholds: Mapping[str, float]) -> Iterator[str]:
    for name, question in tests_of(repeat, thresholds).items():
        best = path_of(question, [question.range[1]] * repeat.max)
        if best.standing is not Standing.HOLDS:
            yield name
