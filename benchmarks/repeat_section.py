"""`repeat`: how often a decided verdict is wrong, and how many conversations it takes, beside fixed numbers.

Agents of known pass rate, and of known scores, are simulated; nothing is asked or sent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random

from agentest.domain.repeat_setting import Repeat
from agentest.runner.repetition import tests_of
from agentest.support.statistics.intervals import wilson
from agentest.support.statistics.sequential import Path, SequentialDecision, SequentialTest
from benchmarks.results import Found, Target, table
from benchmarks.workload import Options

_AGENTS, _SCORED_AGENTS = 10_000, 2_000
_RATES = (0.7, 0.8, 0.9)
_TRUTHS = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)
_JUST_BELOW = 0.001
_REPEATS = (Repeat(max=20), Repeat(max=50))
_FIXED = 3
_MOST_WRONG_PERCENT = 5.0
_TURNS = 4
_SCORES = {
    "mostly 5": {5: 0.75, 4: 0.2, 3: 0.05},
    "mostly 4": {5: 0.3, 4: 0.5, 3: 0.15, 2: 0.05},
    "just 4": {5: 0.4, 4: 0.3, 3: 0.2, 2: 0.1},
    "3 to 4": {4: 0.5, 3: 0.5},
    "5 or 1": {5: 0.75, 1: 0.25},
    "mostly 3": {5: 0.05, 4: 0.25, 3: 0.5, 2: 0.2},
}
"""Name → score → probability."""
_THRESHOLDS = (3.5, 4.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of many agents that are alike."""

    right: float
    """Shares: decided and right, decided and wrong, any verdict that is wrong."""
    wrong: float
    wrong_verdicts: float
    average: float
    """Conversations."""


def section(options: Options) -> Found:
    """Simulate, and tell it."""
    del options  # the size is that of the question
    rates = {(repeat, rate): _of_rate(repeat, rate) for repeat in _REPEATS for rate in _RATES}
    scores = {repeat: _of_scores(repeat) for repeat in _REPEATS}
    parts = [
        f"{_AGENTS:,} simulated agents a row, {_SCORED_AGENTS:,} where they have scores: shares are off by "
        "some tenths of a point.",
        *(_rate_table(repeat, rate, found) for (repeat, rate), found in rates.items()),
        *(_score_table(repeat, found) for repeat, found in scores.items()),
    ]
    exactly = max(
        _exactly_wrong(repeat, rate, truth) for (repeat, rate), found in rates.items() for truth in found
    )
    of_scores = max(outcome.wrong for found in scores.values() for outcome in found.values())
    claim = "decided verdicts that are wrong, in any row"
    targets = (
        Target(f"`pass_rate`: {claim}, summed up over all paths", exactly * 100, _MOST_WRONG_PERCENT, "%"),
        Target(f"scores: {claim}", of_scores * 100, _MOST_WRONG_PERCENT, "%"),
    )
    return Found("\n\n".join(parts), targets)


def _of_rate(repeat: Repeat, rate: float) -> dict[float, Outcome]:
    question = tests_of(repeat, {"pass_rate": rate})["pass_rate"]
    truths = sorted({*_TRUTHS, rate - _JUST_BELOW})
    return {
        truth: _outcome(question, repeat, rate, truth >= rate, _passing(truth), _AGENTS) for truth in truths
    }


def _exactly_wrong(repeat: Repeat, rate: float, truth: float) -> float:
    """The probability that what is decided is wrong."""
    wrong = SequentialDecision.MISSED if truth >= rate else SequentialDecision.HOLDS
    return sum(chance for path, chance in _ends(repeat, rate, truth).items() if path.standing is wrong)


def _covered(repeat: Repeat, rate: float, truth: float) -> float:
    """The probability that the interval of the pass rate holds the truth, when it has ended."""
    held = 0.0
    for path, chance in _ends(repeat, rate, truth).items():
        found = wilson(path.hits, path.values)
        held += chance * (found is not None and found.low <= truth <= found.high)
    return held


@cache
def _ends(repeat: Repeat, rate: float, truth: float) -> Mapping[Path, float]:
    """All that can come of an agent's conversations → its probability."""
    question = tests_of(repeat, {"pass_rate": rate})["pass_rate"]
    paths = {question.begin(): 1.0}
    for _ in range(repeat.max):
        further: dict[Path, float] = {}
        for path, chance in paths.items():
            for value, part in ((1.0, truth), (0.0, 1 - truth)):
                after = question.add(path, value)
                further[after] = further.get(after, 0.0) + chance * part
        paths = further
    return paths


def _of_scores(repeat: Repeat) -> dict[tuple[str, float], Outcome]:
    found = {}
    for name, chances in _SCORES.items():
        for least in _THRESHOLDS:
            question = tests_of(repeat, {"helpfulness": least})["helpfulness"]
            holds, draw = _average(chances) >= least - 1e-9, _scoring(chances)
            found[name, least] = _outcome(question, repeat, least, holds, draw, _SCORED_AGENTS)
    return found


def _passing(truth: float) -> Callable[[Random], float]:
    return lambda random: float(random.random() < truth)


def _scoring(chances: dict[int, float]) -> Callable[[Random], float]:
    scores, weights = list(chances), list(chances.values())
    return lambda random: sum(random.choices(scores, weights, k=_TURNS)) / _TURNS


def _outcome(
    question: SequentialTest,
    repeat: Repeat,
    least: float,
    holds: bool,
    draw: Callable[[Random], float],
    agents: int,
) -> Outcome:
    random, seen, held, wrong_verdicts = Random(1), Counter[SequentialDecision](), 0, 0
    for _ in range(agents):
        values, standing = _held(question, repeat, draw, random)
        seen[standing] += 1
        held += len(values)
        wrong_verdicts += (sum(values) / len(values) >= least - 1e-9) is not holds
    right, wrong = (
        (SequentialDecision.HOLDS, SequentialDecision.MISSED)
        if holds
        else (SequentialDecision.MISSED, SequentialDecision.HOLDS)
    )
    return Outcome(seen[right] / agents, seen[wrong] / agents, wrong_verdicts / agents, held / agents)


def _held(
    question: SequentialTest, repeat: Repeat, draw: Callable[[Random], float], random: Random
) -> tuple[Sequence[float], SequentialDecision]:
    """The values of one agent's conversations, until they are enough."""
    path, values = question.begin(), list[float]()
    while len(values) < repeat.max and path.standing is SequentialDecision.OPEN:
        values.append(draw(random))
        path = question.add(path, values[-1])
    return values, path.standing


def _rate_table(repeat: Repeat, rate: float, found: dict[float, Outcome]) -> str:
    head = (
        "agent passes",
        "decided, right",
        "decided, **wrong**",
        "not decided",
        "conversations",
        f"of {repeat.max}",
        "wrong verdicts",
        f"with {_FIXED} fixed",
        "interval holds the truth",
    )
    rows = []
    for truth, outcome in found.items():
        shares = outcome.wrong_verdicts, _fixed_wrong(rate, truth), _covered(repeat, rate, truth)
        rows.append([f"{truth:.1%}", *_cells(outcome, repeat), *map(_share, shares)])
    return f"`repeat: {repeat}` against `pass_rate: {rate:g}`:\n\n{table(head, rows)}"


def _score_table(repeat: Repeat, found: dict[tuple[str, float], Outcome]) -> str:
    head = (
        "scores of turns",
        "average",
        "threshold",
        "decided, right",
        "decided, **wrong**",
        "not decided",
        "conversations",
        f"of {repeat.max}",
    )
    rows = [
        [name, f"{_average(_SCORES[name]):.2f}", f"{least:g}", *_cells(outcome, repeat)]
        for (name, least), outcome in found.items()
    ]
    return f"`repeat: {repeat}` against a threshold on a score from 1 to 5:\n\n{table(head, rows)}"


def _cells(outcome: Outcome, repeat: Repeat) -> list[str]:
    undecided = 1 - outcome.right - outcome.wrong
    decided = [_share(each) for each in (outcome.right, outcome.wrong, undecided)]
    return [*decided, f"{outcome.average:.1f}", f"{outcome.average / repeat.max:.0%}"]


def _share(value: float) -> str:
    return f"{value:.1%}"


def _average(chances: dict[int, float]) -> float:
    return sum(score * chance for score, chance in chances.items())


def _fixed_wrong(rate: float, truth: float) -> float:
    """How often the share of a few conversations gives the wrong verdict."""
    random, wrong = Random(2), 0
    for _ in range(_AGENTS):
        passed = sum(random.random() < truth for _ in range(_FIXED))
        wrong += (passed / _FIXED >= rate) is not (truth >= rate)
    return wrong / _AGENTS
