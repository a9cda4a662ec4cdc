"""Labeling outside the terminal: list the questions, show one, and store its answer.

A person must not be influenced by the judge: a run's judgment of a question is revealed only together with
the person's own answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from agentest.calibration.agreement import JudgeAnswer, JudgeOutcome, Pair
from agentest.calibration.conversations_to_label import GatheredConversations
from agentest.calibration.judge_answers import value_of
from agentest.calibration.label_file import LabelsFile, LabelWriter
from agentest.calibration.labels import (
    Label,
    LabelledConversation,
    LabelQuestion,
    LabelSet,
    choices,
    is_answerable,
    is_fault,
    questions_of,
)
from agentest.calibration.terminal_labelling import open_questions
from agentest.domain.metrics import BUILTIN, CRITERIA, GOAL, NO_FAILURE
from agentest.domain.results import (
    ConversationResult,
    CriterionOutcome,
    CriterionResult,
    GoalOutcome,
    MetricResult,
    Score,
    Skipped,
    Unscored,
)
from agentest.scenarios.discovery import matches_name
from agentest.support.errors import UsageError

NOT_ASKED = "The judge was not asked this in that run."


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeComparison:
    """A judge's answer compared with a person's.

    Attributes:
        answer: Unscored if the judge gave none.
        same_side: True if both or neither see a fault; None without an answer.
        said: their agreement in words.
    """

    answer: JudgeOutcome
    same_side: bool | None
    said: str


def beside(label: Label, stored: ConversationResult | None) -> JudgeComparison:
    """Compare the run's judgment with a person's label; None if the conversation is not from a run."""
    answer = judged(label.question, stored) if stored else Unscored(NOT_ASKED)
    if isinstance(answer, Unscored):
        return JudgeComparison(answer=answer, same_side=None, said="There is nothing to compare with.")
    pair = Pair(question=label.question, people=label.value, judge=answer)
    same = is_fault(label.value) == is_fault(answer.value)
    return JudgeComparison(answer=answer, same_side=same, said=_agreement_text(pair))


def _agreement_text(pair: Pair) -> str:
    if not pair.differ:
        return "You agree."
    if pair.miss:
        return "You differ: you see a fault, the judge sees none."
    if pair.false_alarm:
        return "You differ: the judge sees a fault, you see none."
    return "You nearly agree: both see a fault, or both see none, but not the very same."


def judged(question: LabelQuestion, stored: ConversationResult) -> JudgeOutcome:
    """Return the run's judgment of a question."""
    if question.metric == CRITERIA:
        found = next((each for each in stored.criteria if each.text == question.criterion), None)
        return _answer_of_criterion(found)
    return _answer_of_score(question.metric, _result(question, stored))


def _answer_of_criterion(found: CriterionResult | None) -> JudgeOutcome:
    if found is None or found.not_asked or found.without_model:
        return Unscored(NOT_ASKED)
    return JudgeAnswer(str(found.result), found.reason)


def _answer_of_score(metric: str, found: MetricResult | None) -> JudgeOutcome:
    match found:
        case None:
            return Unscored(NOT_ASKED)
        case Score():
            return JudgeAnswer(value_of(metric, found), found.reason)
        case Skipped():
            return Unscored(found.why)
        case Unscored():
            return found


def _result(question: LabelQuestion, stored: ConversationResult) -> MetricResult | None:
    if question.metric == GOAL or question.turn is None:
        return stored.metrics.get(question.metric)
    for turn in stored.turns:
        if turn.turn_index == question.turn:
            return turn.metrics.get(question.metric)
    return None


_WORST = (GoalOutcome.NOT_REACHED, CriterionOutcome.VIOLATED)


class AnswerConflict(UsageError):
    """The same person has answered the question in another session since it was shown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AnswerChoice:
    """A possible answer. `key` is the key to type."""

    key: str
    value: int | str
    meaning: str


@dataclass(frozen=True, slots=True, kw_only=True)
class QuestionView:
    """A question with its person's answer.

    Attributes:
        times: number of times that the person has answered; saving requires that it is unchanged.
        judge: the judge's answer, once the person has answered.
    """

    question: LabelQuestion
    conversation: LabelledConversation
    times: int = 0
    mine: Label | None = None
    judge: JudgeComparison | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LabellingSession:
    """One person's labels of collected conversations, in one file."""

    gathered: GatheredConversations
    file: LabelsFile
    by: str = ""

    def labels(self) -> LabelSet:
        """Return the file's current content; empty if there is no file. Raises UsageError."""
        return self.file.read() if self.file.path.exists() else LabelSet()

    def questions(self, metrics: Sequence[str], scenarios: tuple[str, ...] = ()) -> list[LabelQuestion]:
        """Return every question in the order to ask, answered or not."""
        chosen = [
            each
            for each in self.gathered.conversations.values()
            if not scenarios or matches_name(each.scenario, scenarios)
        ]
        return open_questions(chosen, metrics, ())

    def opened(self, question: LabelQuestion, labels: LabelSet | None = None) -> QuestionView:
        """Return a question to answer. Raises LookupError if there is no such question."""
        conversation = self.gathered.conversations[question.conversation]
        if question not in questions_of(conversation, [question.metric]) or not is_answerable(
            question, conversation
        ):
            raise LookupError(question)
        said = _labels_of_person(self.labels() if labels is None else labels, self.by).get(question, ())
        if not said:
            return QuestionView(question=question, conversation=conversation)
        judge = beside(said[-1], self.gathered.judged.get(question.conversation))
        return QuestionView(
            question=question, conversation=conversation, times=len(said), mine=said[-1], judge=judge
        )

    def agreement(self, questions: Sequence[LabelQuestion], labels: LabelSet) -> tuple[int, int]:
        """Return how many answers are on the judge's side, of how many that a judge has answered, too."""
        said = _labels_of_person(labels, self.by)
        sides = [
            beside(said[each][-1], self.gathered.judged.get(each.conversation)).same_side
            for each in questions
            if each in said
        ]
        known = [side for side in sides if side is not None]
        return sum(known), len(known)

    def answered(self, labels: LabelSet) -> Mapping[LabelQuestion, Label]:
        """Return the person's last label of each question."""
        return {question: said[-1] for question, said in _labels_of_person(labels, self.by).items()}

    def keep(self, label: Label, times: int) -> QuestionView:
        """Save an answer, and return its question with the judge's answer.

        Args:
            times: number of times that the person had answered when the question was shown.

        Raises LookupError and UsageError. Raises AnsweredMeanwhile, and writes nothing, if there is a newer
        answer.
        """
        labels = self.labels()
        before = self.opened(label.question, labels)
        if before.times != times:
            raise AnswerConflict("This question was answered in another place since it was shown here.")
        LabelWriter(self.file.path, set(labels.conversations)).add(before.conversation, label)
        return self.opened(label.question)


def _labels_of_person(labels: LabelSet, by: str) -> dict[LabelQuestion, list[Label]]:
    found: dict[LabelQuestion, list[Label]] = {}
    for label in labels.labels:
        if label.by == by:
            found.setdefault(label.question, []).append(label)
    return found


def answer_choices(metric: str) -> tuple[AnswerChoice, ...]:
    """Return the possible answers in the order of their keys. As in the terminal, 0 means no failure."""
    known = choices(metric)
    first = 0 if NO_FAILURE in known else 1
    if known:
        return tuple(
            AnswerChoice(key=str(number), value=str(name), meaning=meaning)
            for number, (name, meaning) in enumerate(known.items(), start=first)
        )
    anchors = BUILTIN[metric].anchors
    meanings = {1: anchors.one, 3: anchors.three, 5: anchors.five} if anchors else {}
    return tuple(AnswerChoice(key=str(n), value=n, meaning=meanings.get(n, "")) for n in range(1, 6))


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortcuts:
    """The keys of the best answer, of the worst, and of the exclusive one; None if there is none."""

    best: str
    worst: str | None
    alone: str | None


def shortcuts(choices: Sequence[AnswerChoice]) -> Shortcuts:
    """Return the shortcuts for answers: numbers end with the best one, names start with it."""
    if isinstance(choices[0].value, int):
        return Shortcuts(best=choices[-1].key, worst=choices[0].key, alone=None)
    keys = {each.value: each.key for each in choices}
    worst = next((keys[value] for value in _WORST if value in keys), None)
    return Shortcuts(best=choices[0].key, worst=worst, alone=keys.get(NO_FAILURE))


def has_several_values(metric: str) -> bool:
    """Return True if an answer can have several labels."""
    return metric != CRITERIA and NO_FAILURE in choices(metric)
