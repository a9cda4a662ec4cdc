"""Report the result of a calibration as text or JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agentest.calibration.agreement import FEW, Figures, Pair, Share, where
from agentest.calibration.labels import LabelledConversation, LabelQuestion, Value, shown_value
from agentest.domain.results import ModelUsage, Unscored
from agentest.support.json_text import Json
from agentest.support.statistics.intervals import ConfidenceInterval
from agentest.support.text import count, shortened

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
    yield from _unscored(result)
    yield ""
    yield _usage(result.usage)


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
        yield from _confusion_lines(figures)
    kappa, times = figures.between_people
    if times:
        shown = "not defined" if kappa is None else f"{kappa:.2f}"
        yield f"  people among each other: kappa {shown}, {count(times, 'pair')} of labels"
    if figures.undecided:
        yield f"  left out: {count(figures.undecided, 'question')} about which people are divided equally"
    if figures.unscored:
        yield f"  not scored: {count(figures.unscored, 'question')} that the judge could not answer"


def _share(share: Share) -> str:
    if share.value is None or share.interval is None:
        return "none to tell from"
    return f"{share.value:.0%} ({share.times} of {share.of}; 95 % {_percent(share.interval)})"


def _percent(interval: ConfidenceInterval) -> str:
    return f"{interval.low:.0%} to {interval.high:.0%}"


def _kappa(figures: Figures) -> str:
    if figures.kappa is None:
        return "not defined: there is one answer only, a fault or none, from both"
    interval = figures.kappa_interval
    assert interval  # an interval exists whenever kappa is defined
    return f"{figures.kappa:.2f} (95 % {interval.low:.2f} to {interval.high:.2f})"


def _confusion_lines(figures: Figures) -> Iterator[str]:
    """Yield the pairs of different values, the most frequent first."""
    wrong = {pair: times for pair, times in figures.confusion.items() if pair[0] != pair[1]}
    ordered = sorted(wrong.items(), key=lambda item: -item[1])
    for (people, judge), times in ordered[:_SHOWN_CONFUSIONS]:
        yield f"    {times:4} {'time' if times == 1 else 'times'} people {people}, judge {judge}"
    if len(ordered) > _SHOWN_CONFUSIONS:
        yield f"    and {count(len(ordered) - _SHOWN_CONFUSIONS, 'other confusion')}"


def _difference_lines(result: CalibrationResult) -> Iterator[str]:
    worth_reading = [pair for pair in result.differences if not pair.slight]
    if worth_reading:
        yield ""
        yield "Where they differ, the most serious first"
    for pair in worth_reading[:_SHOWN]:
        yield from _difference(pair, result)
    if len(worth_reading) > _SHOWN:
        yield f"  and {len(worth_reading) - _SHOWN} more; --json has them all"
    if slight := len(result.differences) - len(worth_reading):
        yield ""
        yield f"Besides, {count(slight, 'pair')} of numbers that lie one apart, with the same meaning"


def _difference(pair: Pair, result: CalibrationResult) -> Iterator[str]:
    kind = " (missed)" if pair.miss else " (false alarm)" if pair.false_alarm else ""
    yield f"  {where(pair.question, result.conversations)}: {_what(pair.question)}{kind}"
    yield f"    people {shown_value(pair.people)}" + (f": {pair.note}" if pair.note else "")
    yield f"    judge  {shown_value(pair.judge.value)}: {shortened(pair.judge.reason, _REASON_CHARS)}"


def _what(question: LabelQuestion) -> str:
    return f"criterion {question.criterion!r}" if question.criterion else question.metric


def _unscored(result: CalibrationResult) -> Iterator[str]:
    if not result.unscored:
        return
    question, first = next(iter(result.unscored.items()))
    yield ""
    yield (
        f"Not scored: {count(len(result.unscored), 'question')}, as "
        f"{where(question, result.conversations)}, {_what(question)}: {shortened(first.error, _REASON_CHARS)}"
    )


def _usage(usage: ModelUsage) -> str:
    tokens = f"{usage.tokens.prompt_tokens:,} prompt + {usage.tokens.completion_tokens:,} completion tokens"
    cost = "cost unknown" if usage.cost is None else f"{usage.cost:.4f} USD"
    return f"{count(usage.calls, 'model call')}, {tokens}, {cost}"


def as_json(result: CalibrationResult) -> Json:
    """Return the result as JSON values."""
    return {
        "judge": result.judge,
        "metrics": {figures.metric: _figures_json(figures) for figures in result.figures},
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


def _figures_json(figures: Figures) -> Json:
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
