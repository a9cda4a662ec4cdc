"""The judge's answers to the questions that people have answered."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import anyio

from agentest.analysis.calibration.comparison import Answer, Judged
from agentest.analysis.calibration.labels import GOAL, LabelledConversation, Question, Value
from agentest.evaluate.judge import Judge
from agentest.evaluate.shown import conversation_context, turn_context
from agentest.llm.port import CallKey
from agentest.results import GoalOutcome, MetricResult, Score, Unscored

SCOPE = "calibrate"
"""What the model's calls are counted and recorded under."""


async def answers_to(
    questions: Sequence[Question], conversations: Mapping[str, LabelledConversation], judge: Judge
) -> dict[Question, Answer]:
    """What the judge says to each question, asked as in a run. Never raises for what the model does."""
    found: dict[Question, Answer] = {}

    async def ask(question: Question) -> None:
        found[question] = await _answer(question, conversations[question.conversation], judge)

    async with anyio.create_task_group() as tasks:
        for question in questions:
            tasks.start_soon(ask, question)
    return {question: found[question] for question in questions}


async def _answer(question: Question, conversation: LabelledConversation, judge: Judge) -> Answer:
    first = question.turn == 0
    result = await judge.score(
        question.metric, _context(question, conversation), _key(question), first_turn=first
    )
    return _judged(question.metric, result)


def _context(question: Question, conversation: LabelledConversation) -> str:
    if question.turn is None:
        return conversation_context(conversation.background, conversation.turns)
    return turn_context(conversation.background, conversation.turns[: question.turn + 1])


def _key(question: Question) -> CallKey:
    """The same whatever else is in the file, so that a recording can be used when labels were added."""
    number = int(hashlib.sha256(question.conversation.encode()).hexdigest()[:8], 16)
    return CallKey("judge", SCOPE, number, question.turn)


def _judged(metric: str, result: MetricResult) -> Answer:
    if not isinstance(result, Score):
        return result if isinstance(result, Unscored) else Unscored(result.why)
    return Judged(_value(metric, result), result.reason)


def _value(metric: str, score: Score) -> Value:
    """What a person would have to say to agree with a score."""
    if metric == GOAL:
        return str(score.outcome or (GoalOutcome.REACHED if score.value else GoalOutcome.NOT_REACHED))
    if isinstance(score.value, str):
        return score.labels or (score.value,)
    return int(score.value)
