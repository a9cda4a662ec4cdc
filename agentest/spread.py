"""How sure the averages of a scenario are, as far as its conversations tell."""

from __future__ import annotations

from collections.abc import Sequence
from math import sqrt

from agentest.results import ConversationResult, Score

_STUDENT = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228),
    *(2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093, 2.086),
    *(2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's quantiles that leave 2.5 % above them, for 1 to 30 degrees of freedom."""
_NORMAL = 1.96


def spreads(conversations: Sequence[ConversationResult]) -> dict[str, float]:
    """Metric → half of the 95 % interval of its average, where two conversations or more have a value.

    Conversations are drawn, not turns: the turns of one go together. Student's distribution, as there mostly
    are few of them.
    """
    values: dict[str, list[tuple[float, int]]] = {}
    for result in conversations:
        for name, (total, turns) in _sums(result).items():
            values.setdefault(name, []).append((total, turns))
    return {name: _half_interval(sums) for name, sums in values.items() if len(sums) > 1}


def _sums(result: ConversationResult) -> dict[str, tuple[float, int]]:
    """Metric → the sum of a conversation's numbers, and how many they are."""
    sums: dict[str, tuple[float, int]] = {}
    for name, score in result.metric_results:
        if isinstance(score, Score) and score.number is not None:
            total, turns = sums.get(name, (0.0, 0))
            sums[name] = total + score.number, turns + 1
    return sums


def _half_interval(sums: Sequence[tuple[float, int]]) -> float:
    """Of an average over all turns: conversations of many turns weigh more."""
    clusters, turns = len(sums), sum(each for _, each in sums)
    average = sum(total for total, _ in sums) / turns
    squares = sum((total - average * each) ** 2 for total, each in sums)
    error = sqrt(clusters / (clusters - 1) * squares) / turns
    return (_STUDENT[clusters - 2] if clusters - 2 < len(_STUDENT) else _NORMAL) * error
