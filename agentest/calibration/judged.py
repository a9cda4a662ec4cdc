"""What a run's judge had said to a question, for people who have answered it themselves."""

from __future__ import annotations

from dataclasses import dataclass

from agentest.calibration.asking import value_of
from agentest.calibration.comparison import Answer, Judged, Pair
from agentest.calibration.labels import Label, Question, is_fault
from agentest.domain.metrics import CRITERIA, GOAL
from agentest.domain.results import CriterionResult, MetricResult, Score, Skipped, Unscored
from agentest.store.shapes import StoredConversation

NOT_ASKED = "The judge was not asked this in that run."


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """A judge's answer beside a person's.

    Attributes:
        answer: Unscored where the judge gave none.
        same_side: whether both see a fault, or both see none; None without an answer.
        said: how far they agree, in words.
    """

    answer: Answer
    same_side: bool | None
    said: str


def beside(label: Label, stored: StoredConversation | None) -> Beside:
    """The judge's answer in a run to what a person has labelled. None: it is of no run."""
    answer = judged(label.question, stored) if stored else Unscored(NOT_ASKED)
    if isinstance(answer, Unscored):
        return Beside(answer=answer, same_side=None, said="There is nothing to compare with.")
    pair = Pair(question=label.question, people=label.value, judge=answer)
    same = is_fault(label.value) == is_fault(answer.value)
    return Beside(answer=answer, same_side=same, said=_said(pair))


def _said(pair: Pair) -> str:
    if not pair.differ:
        return "You agree."
    if pair.miss:
        return "You differ: you see a fault, the judge sees none."
    if pair.false_alarm:
        return "You differ: the judge sees a fault, you see none."
    return "You nearly agree: both see a fault, or both see none, but not the very same."


def judged(question: Question, stored: StoredConversation) -> Answer:
    """The judge's answer to a question in a run."""
    if question.metric == CRITERIA:
        found = next((each for each in stored.criteria if each.text == question.criterion), None)
        return _of_criterion(found)
    return _of_score(question.metric, _result(question, stored))


def _of_criterion(found: CriterionResult | None) -> Answer:
    if found is None or found.not_asked or found.without_model:
        return Unscored(NOT_ASKED)
    return Judged(str(found.result), found.reason)


def _of_score(metric: str, found: MetricResult | None) -> Answer:
    match found:
        case None:
            return Unscored(NOT_ASKED)
        case Score():
            return Judged(value_of(metric, found), found.reason)
        case Skipped():
            return Unscored(found.why)
        case Unscored():
            return found


def _result(question: Question, stored: StoredConversation) -> MetricResult | None:
    evaluation = stored.evaluation
    if question.metric == GOAL:
        return evaluation.goal_completion
    if question.turn is None:
        return evaluation.conversation_metrics.get(question.metric)
    for turn in evaluation.turn_evaluations:
        if turn.turn_index == question.turn:
            return turn.metrics.get(question.metric)
    return None
