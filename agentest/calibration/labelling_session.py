"""Labelling away from a terminal: which questions there are, one of them, and an answer that is kept.

A person is blind to the judge: what a run's judge said to a question leaves this room only beside the
person's own answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentest.calibration.agreement import Answer, Judged, Pair
from agentest.calibration.candidates import Gathered
from agentest.calibration.judge_answers import value_of
from agentest.calibration.label_file import LabelsFile, LabelWriter
from agentest.calibration.labels import (
    Label,
    LabelledConversation,
    Labels,
    Question,
    choices,
    in_sight,
    is_fault,
    questions_of,
)
from agentest.calibration.terminal_labelling import open_questions
from agentest.domain.metrics import BUILTIN, CRITERIA, GOAL, NO_FAILURE
from agentest.domain.results import (
    CriterionOutcome,
    CriterionResult,
    GoalOutcome,
    MetricResult,
    Score,
    Skipped,
    Unscored,
)
from agentest.scenarios.discovery import name_fits
from agentest.store.shapes import StoredConversation
from agentest.support.errors import UsageError

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
    return Beside(answer=answer, same_side=same, said=_judged_said(pair))


def _judged_said(pair: Pair) -> str:
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


_WORST = (GoalOutcome.NOT_REACHED, CriterionOutcome.VIOLATED)


class AnsweredMeanwhile(UsageError):
    """The same person has answered the question elsewhere since they were shown it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """An answer that can be given. `key` is what is typed for it."""

    key: str
    value: int | str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """A question, and what its person has said to it.

    Attributes:
        times: how often they have said something: who answers says how often that was when they looked.
        judge: only beside an answer of theirs.
    """

    question: Question
    conversation: LabelledConversation
    times: int = 0
    mine: Label | None = None
    judge: Beside | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """One person's labels of gathered conversations, in one file."""

    gathered: Gathered
    file: LabelsFile
    by: str = ""

    def labels(self) -> Labels:
        """What the file has now; nothing where there is none. Raises UsageError."""
        return self.file.read() if self.file.path.exists() else Labels()

    def questions(self, metrics: Sequence[str], scenarios: tuple[str, ...] = ()) -> list[Question]:
        """Every question there is, in the order in which they are asked, answered or not."""
        chosen = [
            each
            for each in self.gathered.conversations.values()
            if not scenarios or name_fits(each.scenario, scenarios)
        ]
        return open_questions(chosen, metrics, ())

    def opened(self, question: Question, labels: Labels | None = None) -> Opened:
        """A question to be answered. Raises LookupError where there is no such question."""
        conversation = self.gathered.conversations[question.conversation]
        if question not in questions_of(conversation, [question.metric]) or not in_sight(
            question, conversation
        ):
            raise LookupError(question)
        said = _said(self.labels() if labels is None else labels, self.by).get(question, ())
        if not said:
            return Opened(question=question, conversation=conversation)
        judge = beside(said[-1], self.gathered.judged.get(question.conversation))
        return Opened(
            question=question, conversation=conversation, times=len(said), mine=said[-1], judge=judge
        )

    def agreement(self, questions: Sequence[Question], labels: Labels) -> tuple[int, int]:
        """Of the answered questions that a judge has answered, too: with how many it is on the same side,
        and how many they are."""
        said = _said(labels, self.by)
        sides = [
            beside(said[each][-1], self.gathered.judged.get(each.conversation)).same_side
            for each in questions
            if each in said
        ]
        known = [side for side in sides if side is not None]
        return sum(known), len(known)

    def answered(self, labels: Labels) -> Mapping[Question, Label]:
        """The person's last label of each question."""
        return {question: said[-1] for question, said in _said(labels, self.by).items()}

    def keep(self, label: Label, times: int) -> Opened:
        """Write an answer down, and open its question with what the judge said.

        Args:
            times: how often the person had answered when they were shown the question.

        Raises LookupError, UsageError, and AnsweredMeanwhile where nothing is written, as there is another.
        """
        labels = self.labels()
        before = self.opened(label.question, labels)
        if before.times != times:
            raise AnsweredMeanwhile("This question was answered in another place since it was shown here.")
        LabelWriter(self.file.path, set(labels.conversations)).add(before.conversation, label)
        return self.opened(label.question)


def _said(labels: Labels, by: str) -> dict[Question, list[Label]]:
    found: dict[Question, list[Label]] = {}
    for label in labels.labels:
        if label.by == by:
            found.setdefault(label.question, []).append(label)
    return found


def answers_to(metric: str) -> tuple[Choice, ...]:
    """What can be answered, in the order of the keys: as in the terminal, 0 is that nothing failed."""
    known = choices(metric)
    first = 0 if NO_FAILURE in known else 1
    if known:
        return tuple(
            Choice(key=str(number), value=str(name), meaning=meaning)
            for number, (name, meaning) in enumerate(known.items(), start=first)
        )
    anchors = BUILTIN[metric].anchors
    meanings = {1: anchors.one, 3: anchors.three, 5: anchors.five} if anchors else {}
    return tuple(Choice(key=str(n), value=n, meaning=meanings.get(n, "")) for n in range(1, 6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortcuts:
    """The keys of the best answer, of the worst, and of what excludes all others; None: there is none."""

    best: str
    worst: str | None
    alone: str | None


def shortcuts(choices: Sequence[Choice]) -> Shortcuts:
    """Those of some answers: numbers rise to the best one, names begin with it."""
    if isinstance(choices[0].value, int):
        return Shortcuts(best=choices[-1].key, worst=choices[0].key, alone=None)
    keys = {each.value: each.key for each in choices}
    worst = next((keys[value] for value in _WORST if value in keys), None)
    return Shortcuts(best=choices[0].key, worst=worst, alone=keys.get(NO_FAILURE))


def takes_several(metric: str) -> bool:
    """Whether an answer may be several labels."""
    return metric != CRITERIA and NO_FAILURE in choices(metric)
