"""Agreement between people and a judge: figures per metric, kappa with its interval, and the differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random

from agentest.calibration.labels import (
    Label,
    LabelledConversation,
    LabelQuestion,
    LabelSet,
    Value,
    is_fault,
    shown_value,
)
from agentest.domain.metrics import BUILTIN, CRITERIA, Kind
from agentest.domain.results import Unscored
from agentest.support.statistics.intervals import ConfidenceInterval, wilson

FEW = 20
"""With fewer labels, the figures say hardly anything."""


@dataclass(frozen=True, slots=True)
class JudgeAnswer:
    """The judge's answer to a question."""

    value: Value
    reason: str


JudgeOutcome = JudgeAnswer | Unscored
"""The judge's answer, or why there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A question that people and judge have answered."""

    question: LabelQuestion
    people: Value
    judge: JudgeAnswer
    note: str = ""
    """A person's note on the label."""

    @property
    def false_alarm(self) -> bool:
        return is_fault(self.judge.value) and not is_fault(self.people)

    @property
    def miss(self) -> bool:
        return is_fault(self.people) and not is_fault(self.judge.value)

    @property
    def differ(self) -> bool:
        return self.people != self.judge.value

    @property
    def slight(self) -> bool:
        """Return True if the values differ by one, and both or neither see a fault."""
        return self.seriousness <= (0, 1) and isinstance(self.people, int)

    @property
    def seriousness(self) -> tuple[int, int]:
        """Sort key: missed faults first, then false alarms, then large differences."""
        both = self.people, self.judge.value
        apart = abs(both[0] - both[1]) if isinstance(both[0], int) and isinstance(both[1], int) else 0
        return 2 * self.miss + self.false_alarm, apart


@dataclass(frozen=True, slots=True)
class Share:
    """A count out of a total."""

    times: int
    of: int

    @property
    def value(self) -> float | None:
        return self.times / self.of if self.of else None

    @property
    def interval(self) -> ConfidenceInterval | None:
        return wilson(self.times, self.of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """The agreement of a metric's judge with people.

    Attributes:
        n: number of labeled questions that the judge answered and on which people agree.
        agreement: of all, those where both or neither see a fault.
        false_alarms: of those where people see no fault, those where the judge does.
        misses: of those where people see a fault, those where the judge does not.
        exact: of all, those with the same value.
        within_one: for numbers: those that differ by at most one.
        kappa: Cohen's kappa of fault or no fault, with an interval by a bootstrap of conversations; None if
            not defined.
        weighted: for numbers: kappa with quadratic weights.
        confusion: (people, judge) → count; the values in words.
        unscored: questions that the judge could not answer. They do not count as agreement.
        undecided: questions on which people are evenly divided.
        between_people: kappa between people, and the number of pairs of labels behind it.
    """

    metric: str
    n: int
    conversations: int
    agreement: Share
    false_alarms: Share
    misses: Share
    exact: Share
    within_one: Share | None
    kappa: float | None
    kappa_interval: ConfidenceInterval | None
    weighted: float | None
    confusion: Mapping[tuple[str, str], int]
    unscored: int
    undecided: int
    between_people: tuple[float | None, int]


@dataclass(slots=True)
class Consensus:
    """One value per question from several people's labels, and the questions without a majority."""

    values: dict[LabelQuestion, Value] = field(default_factory=dict)
    undecided: list[LabelQuestion] = field(default_factory=list)
    notes: dict[LabelQuestion, str] = field(default_factory=dict)


def consensus_of(labels: LabelSet) -> Consensus:
    """Return the majority's value for each question."""
    found = Consensus()
    for question, by in labels.by_question().items():
        value = _majority_value([label.value for label in by.values()])
        if value is None:
            found.undecided.append(question)
            continue
        found.values[question] = value
        found.notes[question] = "; ".join(label.note for label in by.values() if label.note)
    return found


def _majority_value(values: Sequence[Value]) -> Value | None:
    """Decide by majority whether there is a fault, then for the most frequent value or the lower median.

    Returns None if as many people see a fault as do not.
    """
    faults = [value for value in values if is_fault(value)]
    if 2 * len(faults) == len(values):
        return None
    agreeing = faults if 2 * len(faults) > len(values) else [v for v in values if not is_fault(v)]
    numbers = sorted(value for value in agreeing if isinstance(value, int))
    if numbers:
        return numbers[(len(numbers) - 1) // 2]
    return Counter(agreeing).most_common(1)[0][0]


def figures_of(
    metric: str, labels: LabelSet, consensus: Consensus, answers: Mapping[LabelQuestion, JudgeOutcome]
) -> Figures:
    """Compute the figures of one metric.

    Args:
        answers: the judge's answers.
    """
    pairs = [pair for pair in pairs_of(consensus, answers) if pair.question.metric == metric]
    well, badly = [p for p in pairs if not is_fault(p.people)], [p for p in pairs if is_fault(p.people)]
    clusters = list(_group_by_conversation(pairs).values())
    numbers = metric != CRITERIA and BUILTIN[metric].kind is Kind.SCALE
    mine = [question for question in consensus.values if question.metric == metric]
    return Figures(
        metric=metric,
        n=len(pairs),
        conversations=len(clusters),
        agreement=Share(sum(not (p.false_alarm or p.miss) for p in pairs), len(pairs)),
        false_alarms=Share(sum(p.false_alarm for p in well), len(well)),
        misses=Share(sum(p.miss for p in badly), len(badly)),
        exact=Share(sum(not p.differ for p in pairs), len(pairs)),
        within_one=Share(sum(p.seriousness[1] <= 1 for p in pairs), len(pairs)) if numbers else None,
        kappa=kappa_of_counts(counted(_fault_pairs(pairs))),
        kappa_interval=kappa_interval([_fault_pairs(cluster) for cluster in clusters]),
        weighted=weighted_kappa(list(_number_pairs(pairs))) if numbers else None,
        confusion=Counter((shown_value(p.people), shown_value(p.judge.value)) for p in pairs),
        unscored=sum(isinstance(answers.get(question), Unscored) for question in mine),
        undecided=sum(question.metric == metric for question in consensus.undecided),
        between_people=_between_people(metric, labels),
    )


def pairs_of(consensus: Consensus, answers: Mapping[LabelQuestion, JudgeOutcome]) -> list[Pair]:
    """Pair the values of people and judge for each question that both have answered."""
    return [
        Pair(question=question, people=value, judge=judged, note=consensus.notes.get(question, ""))
        for question, value in consensus.values.items()
        if isinstance(judged := answers.get(question), JudgeAnswer)
    ]


def differences(pairs: Iterable[Pair]) -> list[Pair]:
    """Return the questions on which judge and people differ, the most serious first."""
    return sorted((pair for pair in pairs if pair.differ), key=lambda p: p.seriousness, reverse=True)


def _fault_pairs(pairs: Sequence[Pair]) -> list[tuple[bool, bool]]:
    return [(is_fault(pair.people), is_fault(pair.judge.value)) for pair in pairs]


def _number_pairs(pairs: Sequence[Pair]) -> Iterable[tuple[int, int]]:
    for pair in pairs:
        if isinstance(pair.people, int) and isinstance(pair.judge.value, int):
            yield pair.people, pair.judge.value


def _group_by_conversation(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(pair.question.conversation, []).append(pair)
    return found


def _between_people(metric: str, labels: LabelSet) -> tuple[float | None, int]:
    """Compute kappa of fault or no fault over all pairs of people who answered the same question."""
    both = [
        (is_fault(first.value), is_fault(second.value))
        for question, by in labels.by_question().items()
        if question.metric == metric
        for first, second in combinations(_sorted_labels(by), 2)
    ]
    return kappa_of_counts(counted(both)), len(both)


def _sorted_labels(by: Mapping[str, Label]) -> list[Label]:
    """Sort labels by person, so that the order within a pair is stable."""
    return [by[name] for name in sorted(by)]


def labelled_metrics(labels: LabelSet, wanted: Container[str]) -> list[str]:
    """Return the wanted metrics that have labels, in the order of the table, criteria last.

    Metrics count even if people are divided on all of their questions.
    """
    labelled = {label.question.metric for label in labels.labels}
    return [metric for metric in (*BUILTIN, CRITERIA) if metric in labelled and metric in wanted]


def where(question: LabelQuestion, conversations: Mapping[str, LabelledConversation]) -> str:
    """Describe the conversation and turn of a question for people."""
    conversation = conversations[question.conversation]
    turn = "" if question.turn is None else f", turn {question.turn}"
    return f"{conversation.source or conversation.id}{turn}"


Table = tuple[int, int, int, int]
"""Counts of: both yes, only the first, only the second, neither."""

_RESAMPLES = 2000
_SEED = 20_260_101


def weighted_kappa(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Compute Cohen's kappa of numbers with quadratic weights: a difference of two weighs four times one.

    Returns None if it is not defined, because both raters give only one and the same number.
    """
    n = len(pairs)
    if n == 0:
        return None
    left, right = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    seen = sum((a - b) ** 2 for a, b in pairs) / n
    by_chance = sum((a - b) ** 2 * left[a] * right[b] for a in left for b in right) / (n * n)
    return None if by_chance == 0 else 1 - seen / by_chance


def kappa_of_counts(counts: Sequence[float]) -> float | None:
    """Compute Cohen's kappa of two yes-or-no raters; None if it is not defined.

    Args:
        counts: a Table, or shares in its order.
    """
    both, first, second, neither = counts
    n = both + first + second + neither
    # Compare as whole numbers, so that a rounding error is not taken for a small expected disagreement.
    by_chance = (both + first) * (both + second) + (neither + first) * (neither + second)
    if n * n == by_chance:
        return None
    return ((both + neither) * n - by_chance) / (n * n - by_chance)


def counted(pairs: Iterable[tuple[bool, bool]]) -> Table:
    """Count the pairs by kind."""
    times = Counter(pairs)
    return times[True, True], times[True, False], times[False, True], times[False, False]


def kappa_interval(
    clusters: Sequence[Sequence[tuple[bool, bool]]], *, resamples: int = _RESAMPLES, seed: int = _SEED
) -> ConfidenceInterval | None:
    """Return the 95 % interval of Cohen's kappa, or None if kappa is not defined.

    The bootstrap draws whole clusters, because the turns of one conversation are correlated. If the data
    hardly vary, that interval is too narrow, so the result also includes kappa for tables in which one kind
    of pair is more frequent by as much as Wilson's interval allows for a kind that was never observed. The
    interval contains kappa, never has zero width, and is the same for the same data.
    """
    tables = [counted(cluster) for cluster in clusters if cluster]
    if not tables:
        return None
    whole = _sum(tables)
    kappa = kappa_of_counts(whole)
    if kappa is None:
        return None
    found = [
        kappa,
        *_kappas_with_unseen_kind(whole, len(tables)),
        *_bootstrap(tables, resamples, Random(seed)),
    ]
    return ConfidenceInterval(max(-1.0, min(found)), min(1.0, max(found)))


def _kappas_with_unseen_kind(table: Table, clusters: int) -> Iterator[float]:
    """Yield kappa with one kind of pair more frequent, for each kind."""
    unseen = wilson(0, clusters)
    assert unseen
    n = sum(table)
    for kind in range(len(table)):
        shares = [(1 - unseen.high) * times / n for times in table]
        shares[kind] += unseen.high
        value = kappa_of_counts(shares)
        if value is not None:
            yield value


def _bootstrap(tables: Sequence[Table], resamples: int, random: Random) -> tuple[float, ...]:
    """Return both ends of the middle 95 % of kappa over random draws; () if no draw defines it."""
    drawn = (_sum(random.choices(tables, k=len(tables))) for _ in range(resamples))
    found = sorted(value for table in drawn if (value := kappa_of_counts(table)) is not None)
    if not found:
        return ()
    return _quantile(found, 0.025), _quantile(found, 0.975)


def _sum(tables: Sequence[Table]) -> Table:
    both, first, second, neither = map(sum, zip(*tables, strict=True))
    return both, first, second, neither


def _quantile(ordered: Sequence[float], share: float) -> float:
    """Return a quantile, interpolated linearly."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
