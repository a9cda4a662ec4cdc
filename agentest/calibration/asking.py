"""The judge's answers to the questions that people have answered, asked as a run asks them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from agentest.calibration.comparison import Answer, Judged
from agentest.calibration.labels import (
    LabelledConversation,
    Question,
    Value,
    in_sight,
    questions_of,
)
from agentest.config.models import Batch
from agentest.domain.metrics import BUILTIN, CRITERIA, GOAL
from agentest.domain.results import GoalOutcome, Score, Unscored
from agentest.judging.answers import criterion_result, score_of
from agentest.judging.judge import Answers, Judge, Part, at_once, parts_of
from agentest.judging.questions import JudgeQuestion, criterion_question, metric_question
from agentest.judging.shown import conversation_context, part_context, turn_context
from agentest.models.port import CallKey
from agentest.scenarios.criteria import Criterion

SCOPE = "calibrate"
"""What the model's calls are counted and recorded under."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What is asked in one go: of a turn, of a conversation as a whole, or of all of it."""

    conversation: LabelledConversation
    turn: int | None
    questions: Mapping[Question, JudgeQuestion]
    all_turns: bool = False

    @property
    def calls(self) -> int:
        """How many calls a sample takes."""
        wanted = list(self.questions.values())
        return len(parts_of(wanted, len(self.conversation.turns))) if self.all_turns else 1


async def answers_to(
    questions: Sequence[Question],
    conversations: Mapping[str, LabelledConversation],
    judge: Judge,
    metrics: Iterable[str],
) -> dict[Question, Answer]:
    """What the judge says to each question. Never raises for what the model does.

    Args:
        metrics: what a run asks about. Where several questions are asked in one call, these are asked with
            those that have labels: what stands beside a question may change its answer.
    """
    asked = list(to_ask(questions, conversations, judge.batch, metrics))
    if not asked:
        return {}
    found = await at_once([partial(_ask, each, judge) for each in asked])
    answers = {question: answer for each in found for question, answer in each.items()}
    return {question: answers[question] for question in questions}


def to_ask(
    questions: Sequence[Question],
    conversations: Mapping[str, LabelledConversation],
    batch: Batch,
    metrics: Iterable[str],
) -> Iterator[Asked]:
    """What is asked, grouped as the configuration wants it."""
    labelled: dict[str, set[Question]] = {}
    for question in questions:
        labelled.setdefault(question.conversation, set()).add(question)
    beside = frozenset({*metrics, CRITERIA})
    for conversation_id, mine in labelled.items():
        conversation = conversations[conversation_id]
        of_a_run = {q for q in questions_of(conversation, beside) if in_sight(q, conversation)}
        asked = [q for q in questions_of(conversation, (*BUILTIN, CRITERIA)) if q in mine | of_a_run]
        yield from _grouped(conversation, asked, mine, batch)


def _grouped(
    conversation: LabelledConversation, asked: Sequence[Question], labelled: set[Question], batch: Batch
) -> Iterator[Asked]:
    if batch is Batch.CONVERSATION:
        questions = _for_judge(asked, conversation)
        yield Asked(conversation=conversation, turn=None, questions=questions, all_turns=True)
        return
    if batch is Batch.OFF:
        for question in (q for q in asked if q in labelled):
            questions = _for_judge([question], conversation)
            yield Asked(conversation=conversation, turn=question.turn, questions=questions)
        return
    for turn in dict.fromkeys(q.turn for q in asked if q in labelled):
        questions = _for_judge([q for q in asked if q.turn == turn], conversation)
        yield Asked(conversation=conversation, turn=turn, questions=questions)


def _for_judge(
    questions: Iterable[Question], conversation: LabelledConversation
) -> dict[Question, JudgeQuestion]:
    return {question: _judge_question(question, conversation) for question in questions}


def _judge_question(question: Question, conversation: LabelledConversation) -> JudgeQuestion:
    if question.metric != CRITERIA:
        return metric_question(question.metric, question.turn)
    number = conversation.criteria.index(question.criterion) + 1
    return criterion_question(number, Criterion(question.criterion))


async def _ask(asked: Asked, judge: Judge) -> dict[Question, Answer]:
    conversation, turns = asked.conversation, asked.conversation.turns
    key = CallKey("judge", SCOPE, _number(conversation.id), asked.turn)
    wanted = list(asked.questions.values())
    if asked.all_turns:

        def context(part: Part) -> str:
            return part_context(conversation.background, turns[: part.asked.stop], part.asked)

        found = await judge.ask_of_all_turns(wanted, len(turns), context, key)
    elif asked.turn is None:
        found = await judge.ask(wanted, conversation_context(conversation.background, turns), key)
    else:
        shown = turn_context(conversation.background, turns[: asked.turn + 1])
        found = await judge.ask(wanted, shown, key)
    return {
        question: _answer(question, found[each], len(turns)) for question, each in asked.questions.items()
    }


def _number(conversation: str) -> int:
    """The same whatever else is in the file, so that a recording can be used when labels were added."""
    return int(hashlib.sha256(conversation.encode()).hexdigest()[:8], 16)


def _answer(question: Question, found: Answers, turns: int) -> Answer:
    if not found.usable:
        return Unscored(found.problem)
    if question.metric == CRITERIA:
        result = criterion_result(Criterion(question.criterion), found.usable, found.asked, turns)
        return Judged(str(result.result), result.reason)
    score = score_of(question.metric, found.usable, found.asked)
    if isinstance(score, Unscored):
        return score
    return Judged(value_of(question.metric, score), score.reason)


def value_of(metric: str, score: Score) -> Value:
    """What a person would have to say to agree with a score."""
    if metric == GOAL:
        return str(score.outcome or (GoalOutcome.REACHED if score.value else GoalOutcome.NOT_REACHED))
    if isinstance(score.value, str):
        return score.labels or (score.value,)
    return int(score.value)
