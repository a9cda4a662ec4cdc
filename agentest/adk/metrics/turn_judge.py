"""Base class of graders that judge each turn, and the panel that samples a judge's answers."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import field, replace
from functools import partial
from typing import Generic, TypeVar

import anyio
from pydantic import BaseModel

from agentest.adk.formats.criteria import MetricCriterion
from agentest.adk.formats.eval_set import EvalCase, Invocation, InvocationEvents, text_of
from agentest.adk.metrics.grader import AgentFacts, CriterionGrader
from agentest.adk.metrics.prompts import turn_messages
from agentest.domain.metrics import ADK_METRICS
from agentest.domain.results import NO_MODEL, MetricResult, Score, Skipped, Unscored
from agentest.domain.transcript import Conversation, Turn
from agentest.judging.answers import BinaryAnswer
from agentest.judging.grader import GraderResult
from agentest.judging.judge import ask_model
from agentest.models.port import CallKey, Message, Model
from agentest.models.structured_output import AnswerProblem
from agentest.support.calling import run_concurrently
from agentest.support.lazy_dataclasses import dataclass


async def each_turn(
    turns: Sequence[Turn], score: Callable[[Turn], Awaitable[MetricResult | None]]
) -> GraderResult:
    """Score all turns concurrently. A turn whose score is None is left out."""
    results = zip(turns, await concurrently(score, turns), strict=True)
    return GraderResult({turn.turn_index: result for turn, result in results if result is not None})


class TurnJudge(CriterionGrader):
    """Ask a judge the same question about every turn of a conversation."""

    __slots__ = ()

    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> GraderResult:
        skipped = self._skipped(conversation)
        if skipped or model is None:
            return GraderResult(conversation=skipped or no_model(self.criterion))
        panel = JudgePanel.of(self.criterion, model, key)

        async def score(turn: Turn) -> MetricResult | None:
            return await self._score(turn, conversation, panel)

        graded = await each_turn(conversation.turns, score)
        return graded if graded.turns else GraderResult(conversation=self._no_turn())

    @abstractmethod
    async def _score(self, turn: Turn, conversation: Conversation, panel: JudgePanel) -> MetricResult | None:
        """Score a turn; None if there is nothing to judge."""

    def _skipped(self, conversation: Conversation) -> Skipped | None:  # noqa: ARG002 - for those that look at it
        """Return why the conversation cannot be judged by any judge; None if it can."""
        return None

    def _no_turn(self) -> Skipped | None:
        """Return why no turn has a score."""
        return None


SIMULATED = Skipped("a simulated user leads the case, so there is nothing written out to compare with")
NO_REFERENCE = Skipped(
    "no turn has a `final_response` (in the `data` form: `reference_answer`) in the evaluation set "
    "to compare with"
)


def invocation_at(case: EvalCase, turn_index: int) -> Invocation | None:
    """Return the case's invocation of a turn; None if the case does not write it out."""
    written = case.conversation or ()
    return written[turn_index] if turn_index < len(written) else None


def reply_of(turn: Turn, criterion: MetricCriterion) -> str:
    """Return the text to judge: with `include_intermediate_responses_in_final`, all messages of the agent."""
    if not criterion.include_intermediate_responses_in_final:
        return turn.agent_message
    messages = [*(remark.text for remark in turn.remarks), turn.agent_message]
    return "\n".join(text for text in messages if text)


def turn_as_judged(turn: Turn, criterion: MetricCriterion) -> Turn:
    """Return the turn as judges see it, with all text that counts as the reply in the reply alone."""
    if not criterion.include_intermediate_responses_in_final:
        return turn
    return replace(turn, agent_message=reply_of(turn, criterion), remarks=())


def reference_of(case: EvalCase, turn_index: int, criterion: MetricCriterion) -> str | None:
    """Return the reference of a turn; None if the case has none, or one without text."""
    invocation = invocation_at(case, turn_index)
    text = text_of(invocation.final_response) if invocation else ""
    if invocation is None or not text.strip():
        return None
    if not criterion.include_intermediate_responses_in_final:
        return text
    return "\n".join([*_intermediate_texts(invocation), text])


def reply_messages(
    case: EvalCase,
    criterion: MetricCriterion,
    conversation: Conversation,
    turn: Turn,
    question: str,
    facts: AgentFacts,
) -> list[Message]:
    """Return the messages that ask a judge about a turn's reply in its context."""
    goal = case.conversation_scenario.conversation_plan if case.conversation_scenario else ""
    before = [earlier for earlier in conversation.turns if earlier.turn_index < turn.turn_index]
    return turn_messages(goal, [*before, turn_as_judged(turn, criterion)], facts, question)


def _intermediate_texts(invocation: Invocation) -> list[str]:
    data = invocation.intermediate_data
    if data is None:
        return []
    if isinstance(data, InvocationEvents):
        texts = [text_of(event.content) for event in data.invocation_events]
    else:
        texts = ["\n".join(p.text for p in parts if p.text) for _, parts in data.intermediate_responses]
    return [text for text in texts if text]


Answer = TypeVar("Answer", bound=BaseModel)
Item = TypeVar("Item")
Result = TypeVar("Result")


def samples_of(criterion: MetricCriterion) -> int:
    """Return the number of samples per question."""
    return criterion.num_samples or ADK_METRICS[criterion.metric].samples


def no_model(criterion: MetricCriterion) -> Skipped:
    """Return why a judged metric has no value in an offline run."""
    if criterion.judge_model is None:
        return Skipped(NO_MODEL)
    return Skipped(
        f"{NO_MODEL} (the criteria name {criterion.judge_model}: "
        "configure `model`, set AGENTEST_MODEL, or name one with --model)"
    )


@dataclass(frozen=True, slots=True)
class Sampled(Generic[Answer]):
    """The samples with an answer, in order, and the first problem.

    Like google-adk, ADK's metrics ignore unreadable samples and let the others decide, however few remain.
    Agentest's own metrics have no score unless more than half of the samples have an answer.
    """

    answers: tuple[Answer, ...]
    problem: str = ""


@dataclass(frozen=True, slots=True)
class JudgePanel:
    """The judge of one grader: its model, and the number of samples per question."""

    model: Model
    samples: int
    key: CallKey
    places: AbstractAsyncContextManager[object] = field(default_factory=nullcontext)
    """Limits the number of concurrent questions."""

    @classmethod
    def of(cls, criterion: MetricCriterion, model: Model, key: CallKey) -> JudgePanel:
        """Create the panel for one conversation, with the criterion's limit of concurrent calls."""
        judge_key = replace(key, metric=criterion.metric)
        if criterion.parallelism_limit is None:
            return cls(model, samples_of(criterion), judge_key)
        return cls(model, samples_of(criterion), judge_key, anyio.Semaphore(criterion.parallelism_limit))

    async def ask(
        self, messages: Sequence[Message], answer: type[Answer], turn: int, nth: int = 0
    ) -> Sampled[Answer]:
        """Return the samples' answers to a question. `nth` distinguishes several questions of a turn."""

        async def sample(n: int) -> Answer | AnswerProblem:
            key = replace(self.key, turn=turn, sample=nth * self.samples + n)
            async with self.places:
                sampled: Answer | AnswerProblem = await ask_model(self.model, messages, answer, key)
                return sampled

        replies = await concurrently(sample, range(self.samples))
        problems = [reply.text for reply in replies if isinstance(reply, AnswerProblem)]
        return Sampled(
            tuple(reply for reply in replies if not isinstance(reply, AnswerProblem)),
            problems[0] if problems else "no judge was asked",
        )


async def concurrently(function: Callable[[Item], Awaitable[Result]], items: Sequence[Item]) -> list[Result]:
    """Call the function for all items concurrently, and return the results in order."""
    return await run_concurrently([partial(function, item) for item in items])


def majority(votes: Sequence[bool]) -> bool:
    """Return True if more than half of the votes are yes: a tie is no."""
    return 2 * sum(votes) > len(votes)


def voted(sampled: Sampled[BinaryAnswer], sample_count: int) -> Score | Unscored:
    """Return 1 or 0 by majority, a tie being 0, with the reason of a judge in the majority."""
    answers = sampled.answers
    if not answers:
        return Unscored(sampled.problem)
    value = int(majority([answer.value == 1 for answer in answers]))
    reason = next(answer.reason for answer in answers if answer.value == value)
    return Score(value, reason, tuple(answer.value for answer in answers) if sample_count > 1 else ())
