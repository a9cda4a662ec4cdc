"""What people say against what the judge says: figures by metric, and the differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from random import Random

from agentest.calibration.labels import (
    Label,
    LabelledConversation,
    Labels,
    Question,
    Value,
    is_fault,
    shown_value,
)
from agentest.domain.metrics import BUILTIN, CRITERIA, Kind
from agentest.domain.results import Unscored
from agentest.support.statistics.intervals import Interval, wilson

FEW = 20
"""Of fewer labels hardly anything can be said."""


@dataclass(frozen=True, slots=True)
class Judged:
    """The judge's answer to a question."""

    value: Value
    reason: str


Answer = Judged | Unscored
"""What came of asking the judge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A question that both have answered."""

    question: Question
    people: Value
    judge: Judged
    note: str = ""
    """What a person wrote beside the label."""

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
        """Whether they differ by one number, and both see a fault, or none."""
        return self.seriousness <= (0, 1) and isinstance(self.people, int)

    @property
    def seriousness(self) -> tuple[int, int]:
        """The larger, the worse: a missed fault, a false alarm, then what is far apart."""
        both = self.people, self.judge.value
        apart = abs(both[0] - both[1]) if isinstance(both[0], int) and isinstance(both[1], int) else 0
        return 2 * self.miss + self.false_alarm, apart


@dataclass(frozen=True, slots=True)
class Share:
    """So many of so many."""

    times: int
    of: int

    @property
    def value(self) -> float | None:
        return self.times / self.of if self.of else None

    @property
    def interval(self) -> Interval | None:
        return wilson(self.times, self.of)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """How far the judge of one metric agrees with people.

    Attributes:
        n: labelled questions that the judge answered and about which people agree.
        agreement: of all, those where both see a fault or both see none.
        false_alarms: of those in which people see no fault, those in which the judge does.
        misses: of those in which people see a fault, those in which the judge does not.
        exact: of all, those where both say the very same.
        within_one: for numbers: those that differ by one at most.
        kappa: Cohen's, of fault or none, with an interval by a bootstrap of conversations; None: not defined.
        weighted: for numbers: kappa with quadratic weights.
        confusion: (people, judge) → how often; the values in words.
        unscored: questions that the judge could not answer. They are no agreement.
        undecided: questions about which as many people say one thing as another.
        between_people: kappa of the people among each other, and of how many pairs of labels.
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
    kappa_interval: Interval | None
    weighted: float | None
    confusion: Mapping[tuple[str, str], int]
    unscored: int
    undecided: int
    between_people: tuple[float | None, int]


@dataclass(slots=True)
class Consensus:
    """What people say of each question, and where they cannot be summed up."""

    values: dict[Question, Value] = field(default_factory=dict)
    undecided: list[Question] = field(default_factory=list)
    notes: dict[Question, str] = field(default_factory=dict)


def consensus_of(labels: Labels) -> Consensus:
    """One value for each question: of several people's, what most say."""
    found = Consensus()
    for question, by in labels.by_question().items():
        value = _majority([label.value for label in by.values()])
        if value is None:
            found.undecided.append(question)
            continue
        found.values[question] = value
        found.notes[question] = "; ".join(label.note for label in by.values() if label.note)
    return found


def _majority(values: Sequence[Value]) -> Value | None:
    """Whether there is a fault by majority, then what most of those say; of numbers the lower median.

    None where as many see a fault as see none: nobody knows who is right.
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
    metric: str, labels: Labels, consensus: Consensus, answers: Mapping[Question, Answer]
) -> Figures:
    """The figures of one metric.

    Args:
        answers: those of the judge.
    """
    pairs = [pair for pair in pairs_of(consensus, answers) if pair.question.metric == metric]
    well, badly = [p for p in pairs if not is_fault(p.people)], [p for p in pairs if is_fault(p.people)]
    clusters = list(_by_conversation(pairs).values())
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
        kappa=kappa_of_counts(counted(_faults(pairs))),
        kappa_interval=kappa_interval([_faults(cluster) for cluster in clusters]),
        weighted=weighted_kappa(list(_numbers(pairs))) if numbers else None,
        confusion=Counter((shown_value(p.people), shown_value(p.judge.value)) for p in pairs),
        unscored=sum(isinstance(answers.get(question), Unscored) for question in mine),
        undecided=sum(question.metric == metric for question in consensus.undecided),
        between_people=_between_people(metric, labels),
    )


def pairs_of(consensus: Consensus, answers: Mapping[Question, Answer]) -> list[Pair]:
    """The questions that people and judge have answered."""
    return [
        Pair(question=question, people=value, judge=judged, note=consensus.notes.get(question, ""))
        for question, value in consensus.values.items()
        if isinstance(judged := answers.get(question), Judged)
    ]


def differences(pairs: Iterable[Pair]) -> list[Pair]:
    """The questions about which judge and people differ, the most serious first."""
    return sorted((pair for pair in pairs if pair.differ), key=lambda p: p.seriousness, reverse=True)


def _faults(pairs: Sequence[Pair]) -> list[tuple[bool, bool]]:
    return [(is_fault(pair.people), is_fault(pair.judge.value)) for pair in pairs]


def _numbers(pairs: Sequence[Pair]) -> Iterable[tuple[int, int]]:
    for pair in pairs:
        if isinstance(pair.people, int) and isinstance(pair.judge.value, int):
            yield pair.people, pair.judge.value


def _by_conversation(pairs: Iterable[Pair]) -> dict[str, list[Pair]]:
    found: dict[str, list[Pair]] = {}
    for pair in pairs:
        found.setdefault(pair.question.conversation, []).append(pair)
    return found


def _between_people(metric: str, labels: Labels) -> tuple[float | None, int]:
    """Kappa of fault or none over all pairs of people who have answered the same question."""
    both = [
        (is_fault(first.value), is_fault(second.value))
        for question, by in labels.by_question().items()
        if question.metric == metric
        for first, second in combinations(_in_order(by), 2)
    ]
    return kappa_of_counts(counted(both)), len(both)


def _in_order(by: Mapping[str, Label]) -> list[Label]:
    """By name, so that a pair of people always stands the same way round."""
    return [by[name] for name in sorted(by)]


def labelled_metrics(labels: Labels, wanted: Container[str]) -> list[str]:
    """The wanted metrics that have labels, be people divided about all of them; in the order of the table,
    criteria last."""
    labelled = {label.question.metric for label in labels.labels}
    return [metric for metric in (*BUILTIN, CRITERIA) if metric in labelled and metric in wanted]


def where(question: Question, conversations: Mapping[str, LabelledConversation]) -> str:
    """Which conversation and turn a question is about, as people find it."""
    conversation = conversations[question.conversation]
    turn = "" if question.turn is None else f", turn {question.turn}"
    return f"{conversation.source or conversation.id}{turn}"


Table = tuple[int, int, int, int]
"""How often both say yes, only the first, only the second, neither."""

_RESAMPLES = 2000
_SEED = 20_260_101


def weighted_kappa(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Cohen's kappa of numbers with quadratic weights: to be off by two counts four times as much as by one.

    None where it is not defined: both raters only ever give one and the same number.
    """
    n = len(pairs)
    if n == 0:
        return None
    left, right = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    seen = sum((a - b) ** 2 for a, b in pairs) / n
    by_chance = sum((a - b) ** 2 * left[a] * right[b] for a in left for b in right) / (n * n)
    return None if by_chance == 0 else 1 - seen / by_chance


def kappa_of_counts(counts: Sequence[float]) -> float | None:
    """Cohen's kappa of two raters who say yes or no; None where it is not defined.

    Args:
        counts: a Table, or shares in its order.
    """
    both, first, second, neither = counts
    n = both + first + second + neither
    # As whole numbers: a rounding error must not pass for a little chance.
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
) -> Interval | None:
    """Return the 95 % interval of Cohen's kappa, or None where kappa is not defined.

    A bootstrap draws whole clusters, because the turns of one conversation go together. Where little varies,
    that is too narrow, so the interval also includes kappa if one kind of pair were as much more frequent as
    Wilson's interval allows for a kind that was never seen. It contains kappa and never has zero width.

    The result is the same for the same data.
    """
    tables = [counted(cluster) for cluster in clusters if cluster]
    if not tables:
        return None
    whole = _sum(tables)
    kappa = kappa_of_counts(whole)
    if kappa is None:
        return None
    found = [kappa, *_with_unseen(whole, len(tables)), *_bootstrap(tables, resamples, Random(seed))]
    return Interval(max(-1.0, min(found)), min(1.0, max(found)))


def _with_unseen(table: Table, clusters: int) -> Iterator[float]:
    """Kappa if one kind of pair were more frequent, each kind in turn."""
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
    """Both ends of the middle 95 % of kappa over random draws; nothing where none of them defines it."""
    drawn = (_sum(random.choices(tables, k=len(tables))) for _ in range(resamples))
    found = sorted(value for table in drawn if (value := kappa_of_counts(table)) is not None)
    if not found:
        return ()
    return _quantile(found, 0.025), _quantile(found, 0.975)


def _sum(tables: Sequence[Table]) -> Table:
    both, first, second, neither = map(sum, zip(*tables, strict=True))
    return both, first, second, neither


def _quantile(ordered: Sequence[float], share: float) -> float:
    """By linear interpolation between neighbours."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])
