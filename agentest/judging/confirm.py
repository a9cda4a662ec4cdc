"""A second model's opinion on answers that would fail a scenario (`judge.confirm`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from agentest.config.models import Batch
from agentest.domain.metrics import GOAL, NO_FAILURE
from agentest.domain.results import CriterionOutcome, CriterionResult, Score, Severity, Unscored
from agentest.judging.answers import criterion_result, score_of
from agentest.judging.judge import Answers, Judge
from agentest.judging.questions import JudgeQuestion, criterion_question
from agentest.models.port import CallKey, Model
from agentest.scenarios.criteria import Criterion
from agentest.support.text import shortened

_REASON_CHARS = 300
"""How much of each model's reason is quoted where they differ."""

_Opinion = Score | CriterionResult | Unscored


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfirmedJudge(Judge):
    """A judge whose answers fail a scenario only where a second model agrees.

    Where the two differ, or the second model gives no usable answer, the question has no answer: a metric is
    unscored, a criterion cannot be told.
    """

    second: Judge
    """Asks the confirming model."""
    criteria: Mapping[str, Criterion] = field(default_factory=dict)
    """Name of a question → the scenario's criterion. Those that are not required fail nothing."""
    thresholds: Mapping[str, float] = field(default_factory=dict)
    """Metric → least average. Scores below it can fail the scenario."""
    fail_on: Severity = Severity.HIGH
    """Failures that a judge grades lower fail nothing."""

    async def ask(
        self, questions: Sequence[JudgeQuestion], context: str, key: CallKey
    ) -> dict[JudgeQuestion, Answers]:
        # `super()` finds nothing in a dataclass with slots.
        first = await Judge.ask(self, questions, context, key)
        failing = self._failing(first)
        if not failing:
            return first
        return first | self._compared(failing, await self.second.ask(list(failing), context, key))

    async def ask_of_all_turns(
        self, questions: Sequence[JudgeQuestion], *conversation: Any, **more: Any
    ) -> dict[JudgeQuestion, Answers]:
        first = await Judge.ask_of_all_turns(self, questions, *conversation, **more)
        failing = self._failing(first)
        if not failing:
            return first
        second = await self.second.ask_of_all_turns(list(failing), *conversation, **more)
        return first | self._compared(failing, second)

    def _failing(self, found: Mapping[JudgeQuestion, Answers]) -> dict[JudgeQuestion, Answers]:
        return {
            question: answers
            for question, answers in found.items()
            if answers.usable and self._fails(question, self._opinion(question, answers))
        }

    def _compared(
        self, first: Mapping[JudgeQuestion, Answers], second: Mapping[JudgeQuestion, Answers]
    ) -> dict[JudgeQuestion, Answers]:
        """The first answers where the second agree; elsewhere none, and why."""
        return {
            question: answers
            if self._agrees(question, second[question])
            else Answers((), answers.asked, self._difference(question, answers, second[question]))
            for question, answers in first.items()
        }

    def _agrees(self, question: JudgeQuestion, answers: Answers) -> bool:
        return bool(answers.usable) and self._fails(question, self._opinion(question, answers))

    def _fails(self, question: JudgeQuestion, opinion: _Opinion) -> bool:
        """Whether this can fail the scenario."""
        match opinion:
            case CriterionResult():
                return opinion.required and opinion.result is CriterionOutcome.VIOLATED
            case Score(value=str() as label, severity=severity):
                return label != NO_FAILURE and (severity is None or severity >= self.fail_on)
            case Score(number=float() as value):
                least = self.thresholds.get(question.name)
                return (question.name == GOAL and value == 0) or (least is not None and value < least)
            case _:
                return False

    def _opinion(self, question: JudgeQuestion, answers: Answers) -> _Opinion:
        criterion = self.criteria.get(question.name)
        if criterion:
            return criterion_result(criterion, answers.usable, answers.asked, turns=0)
        return score_of(question.name, answers.usable, answers.asked)

    def _difference(self, question: JudgeQuestion, first: Answers, second: Answers) -> str:
        said = self._said(question, first, self.model.name)
        return f"not confirmed: {said}; {self._said(question, second, self.second.model.name)}"

    def _said(self, question: JudgeQuestion, answers: Answers, model: str) -> str:
        if not answers.usable:
            return f"{model} gave no usable answer: {answers.problem}"
        match self._opinion(question, answers):
            case CriterionResult(result=result, reason=reason):
                value = result.value
            case Score(value=number, outcome=outcome, severity=severity, reason=reason):
                value = outcome.value if outcome else str(number)
                if severity is not None:
                    value += f", {severity.label}"
            case Unscored(error=error):
                return f"{model} gave no usable answer: {error}"
        return f"{model} answered {value!r} ({shortened(reason, _REASON_CHARS)})"


def confirmed_judge(
    judge: Judge,
    confirming: Model,
    criteria: Sequence[Criterion],
    thresholds: Mapping[str, float],
    fail_on: Severity,
) -> Judge:
    """The judge of one scenario, confirmed by a second model.

    Args:
        criteria: the scenario's.
        thresholds: those that the scenario is held to.
        fail_on: the least severity of a failure that fails it.
    """
    # The second model gives the sample after the judge's: calls and recordings stay apart.
    second = Judge(confirming, batch=Batch.TURN, first_sample=judge.samples)
    named = {criterion_question(n, each).name: each for n, each in enumerate(criteria, start=1)}
    own = {each.name: getattr(judge, each.name) for each in fields(Judge)}
    return ConfirmedJudge(**own, second=second, criteria=named, thresholds=thresholds, fail_on=fail_on)
