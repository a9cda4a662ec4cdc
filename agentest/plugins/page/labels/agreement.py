"""Agreement between people and a judge: figures per metric, kappa with its interval, and the differences."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import combinations
from random import Random
from statistics import quantiles
from typing import TypeGuard

from agentest.domain.metrics import BUILTIN, CRITERIA, Kind
from agentest.domain.results import ModelUsage, Unscored
from agentest.plugins.page.labels.labels import (
    LabelledConversation,
    LabelQuestion,
    LabelSet,
    Value,
    format_label_value,
    is_fault,
)
from agentest.support.json_text import Json
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.statistics.intervals import ConfidenceInterval, wilson
from agentest.support.text import count, shortened, turn_name

FEW = 20  # with fewer labels, the figures say hardly anything


@dataclass(frozen=True, slots=True)
class JudgeAnswer:
    """The judge's answer to a question."""

    value: Value
    reason: str


JudgeOutcome = JudgeAnswer | Unscored  # the judge's answer, or why there is none


def are_numbers(both: tuple[Value, Value]) -> TypeGuard[tuple[int, int]]:
    """Return True if both values are numbers."""
    return all(isinstance(value, int) for value in both)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """A question that people and judge have answered."""

    question: LabelQuestion
    people: Value
    judge: JudgeAnswer
    note: str = ""  # a person's note on the label

    @property
    def faults(self) -> tuple[bool, bool]:
        """Whether people see a fault, and whether the judge does."""
        return is_fault(self.people), is_fault(self.judge.value)

    @property
    def false_alarm(self) -> bool:
        return self.faults == (False, True)

    @property
    def miss(self) -> bool:
        return self.faults == (True, False)

    @property
    def same_side(self) -> bool:
        """Return True if both or neither see a fault."""
        return not (self.false_alarm or self.miss)

    @property
    def differ(self) -> bool:
        return self.people != self.judge.value

    @property
    def in_words(self) -> str:
        if not self.differ:
            return "You agree."
        if self.miss:
            return "You differ: you see a fault, the judge sees none."
        if self.false_alarm:
            return "You differ: the judge sees a fault, you see none."
        return "You nearly agree: both see a fault, or both see none, but not the very same."

    @property
    def slight(self) -> bool:
        """Return True if the values differ by one, and both or neither see a fault."""
        return self.seriousness <= (0, 1) and isinstance(self.people, int)

    @property
    def seriousness(self) -> tuple[int, int]:
        """Sort key: missed faults first, then false alarms, then large differences."""
        both = self.people, self.judge.value
        apart = abs(both[0] - both[1]) if are_numbers(both) else 0
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
    consensus = Consensus()
    for question, by_person in labels.by_question().items():
        value = _majority_value([label.value for label in by_person.values()])
        if value is None:
            consensus.undecided.append(question)
            continue
        consensus.values[question] = value
        consensus.notes[question] = "; ".join(label.note for label in by_person.values() if label.note)
    return consensus


def _majority_value(values: Sequence[Value]) -> Value | None:
    """Decide by majority whether there is a fault, then for the most frequent value or the lower median."""
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
    """Compute how well the judge agrees with people on one metric, and people with each other."""
    pairs = [pair for pair in pairs_of(consensus, answers) if pair.question.metric == metric]
    well, badly = [p for p in pairs if not is_fault(p.people)], [p for p in pairs if is_fault(p.people)]
    clusters: dict[str, list[tuple[bool, bool]]] = {}
    for pair in pairs:
        clusters.setdefault(pair.question.conversation, []).append(pair.faults)
    values = [(pair.people, pair.judge.value) for pair in pairs]
    numbers = metric != CRITERIA and BUILTIN[metric].kind is Kind.SCALE
    mine = [question for question in consensus.values if question.metric == metric]
    both = [
        (is_fault(first.value), is_fault(second.value))
        for question, by_person in labels.by_question().items()
        if question.metric == metric
        for (_, first), (_, second) in combinations(sorted(by_person.items()), 2)
    ]
    return Figures(
        metric=metric,
        n=len(pairs),
        conversations=len(clusters),
        agreement=Share(sum(p.same_side for p in pairs), len(pairs)),
        false_alarms=Share(sum(p.false_alarm for p in well), len(well)),
        misses=Share(sum(p.miss for p in badly), len(badly)),
        exact=Share(sum(not p.differ for p in pairs), len(pairs)),
        within_one=Share(sum(p.seriousness[1] <= 1 for p in pairs), len(pairs)) if numbers else None,
        kappa=kappa_of_counts(counted(pair.faults for pair in pairs)),
        kappa_interval=kappa_interval(list(clusters.values())),
        weighted=weighted_kappa([both for both in values if are_numbers(both)]) if numbers else None,
        confusion=Counter(
            (format_label_value(people), format_label_value(judge)) for people, judge in values
        ),
        unscored=sum(isinstance(answers.get(question), Unscored) for question in mine),
        undecided=sum(question.metric == metric for question in consensus.undecided),
        between_people=(kappa_of_counts(counted(both)), len(both)),
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


def labelled_metrics(labels: LabelSet, wanted: Container[str]) -> list[str]:
    """Return the wanted metrics that have labels, in the order of the table, criteria last.

    Metrics count even if people are divided on all of their questions.
    """
    labelled = {label.question.metric for label in labels.labels}
    return [metric for metric in (*BUILTIN, CRITERIA) if metric in labelled and metric in wanted]


def where(question: LabelQuestion, conversations: Mapping[str, LabelledConversation]) -> str:
    """Describe the conversation and turn of a question for people."""
    conversation = conversations[question.conversation]
    turn = "" if question.turn is None else f", {turn_name(question.turn)}"
    return f"{conversation.source or conversation.id}{turn}"


Table = tuple[int, int, int, int]  # counts of: both yes, only the first, only the second, neither

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
    observed = sum((a - b) ** 2 for a, b in pairs) / n
    by_chance = sum((a - b) ** 2 * left[a] * right[b] for a in left for b in right) / (n * n)
    return None if by_chance == 0 else 1 - observed / by_chance


def kappa_of_counts(counts: Sequence[float]) -> float | None:
    """Compute Cohen's kappa of two yes-or-no raters; None if it is not defined."""
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
    clusters: Sequence[Sequence[tuple[bool, bool]]], *, resamples: int = _RESAMPLES
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
    total = _sum(tables)
    kappa = kappa_of_counts(total)
    if kappa is None:
        return None
    kappas = [
        kappa,
        *_kappas_with_unseen_kind(total, len(tables)),
        *_bootstrap(tables, resamples, Random(_SEED)),
    ]
    return ConfidenceInterval(max(-1.0, min(kappas)), min(1.0, max(kappas)))


def _kappas_with_unseen_kind(table: Table, clusters: int) -> Iterator[float]:
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
    drawn = (_sum(random.choices(tables, k=len(tables))) for _ in range(resamples))
    kappas = [value for table in drawn if (value := kappa_of_counts(table)) is not None]
    if len(kappas) < 2:
        return tuple(kappas)
    ends = quantiles(kappas, n=40, method="inclusive")
    return ends[0], ends[-1]


def _sum(tables: Sequence[Table]) -> Table:
    both, first, second, neither = map(sum, zip(*tables, strict=True))
    return both, first, second, neither


_SHOWN = 20
_REASON_CHARS = 300
_SHOWN_CONFUSIONS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class CalibrationResult:
    """The complete result of a calibration."""

    judge: str
    figures: Sequence[Figures]
    differences: Sequence[Pair]
    unscored: Mapping[LabelQuestion, Unscored]
    conversations: Mapping[str, LabelledConversation]
    usage: ModelUsage


def as_text(result: CalibrationResult) -> Iterator[str]:
    """Yield rows of text: figures per metric, then the differences between judge and people."""
    yield f"judge {result.judge} against people's labels"
    for figures in result.figures:
        yield ""
        yield from _figures(figures)
    yield from _difference_lines(result)
    for question, first in list(result.unscored.items())[:1]:
        yield ""
        yield (
            f"Not scored: {count(len(result.unscored), 'question')}, as "
            f"{where(question, result.conversations)}, {question.description}: "
            f"{shortened(first.error, _REASON_CHARS)}"
        )
    usage, tokens = result.usage, result.usage.tokens
    used = f"{tokens.prompt_tokens:,} prompt + {tokens.completion_tokens:,} completion tokens"
    cost = "cost unknown" if usage.cost is None else f"{usage.cost:.4f} USD"
    yield ""
    yield f"{count(usage.calls, 'model call')}, {used}, {cost}"


def _figures(figures: Figures) -> Iterator[str]:
    few = f"; of fewer than {FEW} labels hardly anything can be said" if 0 < figures.n < FEW else ""
    yield f"{figures.metric}  n {figures.n} ({count(figures.conversations, 'conversation')}){few}"
    if figures.n:
        yield f"  agreement     {_share(figures.agreement)}"
        yield f"  false alarms  {_share(figures.false_alarms)}  the judge sees a fault, people see none"
        yield f"  misses        {_share(figures.misses)}  people see a fault, the judge sees none"
        yield f"  kappa         {_kappa(figures)}"
        yield f"  the very same {_share(figures.exact)}"
        if figures.within_one is not None:
            weighted = "not defined" if figures.weighted is None else f"{figures.weighted:.2f}"
            yield f"  within one    {_share(figures.within_one)}; quadratic-weighted kappa {weighted}"
        wrong = {pair: times for pair, times in figures.confusion.items() if pair[0] != pair[1]}
        ordered = sorted(wrong.items(), key=lambda item: -item[1])
        for (people, judge), times in ordered[:_SHOWN_CONFUSIONS]:
            yield f"    {times:4} {'time' if times == 1 else 'times'} people {people}, judge {judge}"
        if len(ordered) > _SHOWN_CONFUSIONS:
            yield f"    and {count(len(ordered) - _SHOWN_CONFUSIONS, 'other confusion')}"
    kappa, times = figures.between_people
    if times:
        value_text = "not defined" if kappa is None else f"{kappa:.2f}"
        yield f"  people among each other: kappa {value_text}, {count(times, 'pair')} of labels"
    if figures.undecided:
        yield f"  left out: {count(figures.undecided, 'question')} about which people are divided equally"
    if figures.unscored:
        yield f"  not scored: {count(figures.unscored, 'question')} that the judge could not answer"


def _share(share: Share) -> str:
    interval = share.interval
    if share.value is None or interval is None:
        return "none to tell from"
    ends = f"{interval.low:.0%} to {interval.high:.0%}"
    return f"{share.value:.0%} ({share.times} of {share.of}; 95 % {ends})"


def _kappa(figures: Figures) -> str:
    if figures.kappa is None:
        return "not defined: there is one answer only, a fault or none, from both"
    interval = figures.kappa_interval
    assert interval  # an interval exists whenever kappa is defined
    return f"{figures.kappa:.2f} (95 % {interval.low:.2f} to {interval.high:.2f})"


def _difference_lines(result: CalibrationResult) -> Iterator[str]:
    worth_reading = [pair for pair in result.differences if not pair.slight]
    if worth_reading:
        yield ""
        yield "Where they differ, the most serious first"
    for pair in worth_reading[:_SHOWN]:
        kind = " (missed)" if pair.miss else " (false alarm)" if pair.false_alarm else ""
        yield f"  {where(pair.question, result.conversations)}: {pair.question.description}{kind}"
        yield f"    people {format_label_value(pair.people)}" + (f": {pair.note}" if pair.note else "")
        reason = shortened(pair.judge.reason, _REASON_CHARS)
        yield f"    judge  {format_label_value(pair.judge.value)}: {reason}"
    if len(worth_reading) > _SHOWN:
        yield f"  and {len(worth_reading) - _SHOWN} more; --json has them all"
    if slight := len(result.differences) - len(worth_reading):
        yield ""
        yield f"Besides, {count(slight, 'pair')} of numbers that lie one apart, with the same meaning"


def as_json(result: CalibrationResult) -> Json:
    """Return the result as JSON values."""
    return {
        "judge": result.judge,
        "metrics": {figures.metric: figures_as_json(figures) for figures in result.figures},
        "differences": [_pair_json(pair, result) for pair in result.differences],
        "unscored": [
            {**_question_json(question), "error": problem.error}
            for question, problem in result.unscored.items()
        ],
        "usage": {
            "calls": result.usage.calls,
            "promptTokens": result.usage.tokens.prompt_tokens,
            "completionTokens": result.usage.tokens.completion_tokens,
            "cost": result.usage.cost,
        },
    }


def figures_as_json(figures: Figures) -> Json:
    """Return the figures of one metric as JSON values."""
    kappa, pairs = figures.between_people
    return {
        "n": figures.n,
        "conversations": figures.conversations,
        "agreement": _share_json(figures.agreement),
        "falseAlarms": _share_json(figures.false_alarms),
        "misses": _share_json(figures.misses),
        "exact": _share_json(figures.exact),
        "withinOne": _share_json(figures.within_one) if figures.within_one else None,
        "kappa": {"value": figures.kappa, **_ends(figures.kappa_interval)},
        "weightedKappa": figures.weighted,
        "confusion": [
            {"people": people, "judge": judge, "times": times}
            for (people, judge), times in sorted(figures.confusion.items())
        ],
        "unscored": figures.unscored,
        "undecided": figures.undecided,
        "betweenPeople": {"kappa": kappa, "pairs": pairs},
    }


def _share_json(share: Share) -> Json:
    return {"value": share.value, "times": share.times, "of": share.of, **_ends(share.interval)}


def _ends(interval: ConfidenceInterval | None) -> Json:
    return {"low": interval.low if interval else None, "high": interval.high if interval else None}


def _pair_json(pair: Pair, result: CalibrationResult) -> Json:
    return {
        **_question_json(pair.question),
        "source": result.conversations[pair.question.conversation].source,
        "people": _value_json(pair.people),
        "judge": _value_json(pair.judge.value),
        "reason": pair.judge.reason,
        "note": pair.note,
    }


def _question_json(question: LabelQuestion) -> Json:
    about = {"criterion": question.criterion} if question.criterion else {"metric": question.metric}
    return {"conversation": question.conversation, "turn": question.turn, **about}


def _value_json(value: Value) -> object:
    return list(value) if isinstance(value, tuple) else value
