"""ADK's multi-turn metrics: a judge scores the whole conversation, and the last turn gets the score."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import fsum
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from agentest.adk.formats.eval_set import Rubric, RubricContent
from agentest.adk.metrics.grader import CriterionGrader
from agentest.adk.metrics.prompts import (
    TASKS,
    TOOL_TASKS,
    TOOL_USE,
    TRAJECTORY,
    background_of,
    goals_question,
    properties_question,
)
from agentest.adk.metrics.rubrics import (
    check_rubrics_of_whole,
    combined,
    rubric_answers,
    rubrics_of_whole,
)
from agentest.adk.metrics.turn_judge import JudgePanel, Sampled, no_model, samples_of, turn_as_judged
from agentest.domain.results import MetricResult, RubricScore, Score, Skipped, Unscored
from agentest.domain.transcript import Conversation
from agentest.judging.grader import GraderResult
from agentest.judging.judge_input import conversation_context
from agentest.judging.questions import judge_messages
from agentest.models.port import CallKey, Message, Model
from agentest.models.structured_output import WITHOUT_DESCRIPTION


class ConversationJudge(CriterionGrader):
    """Judge a conversation as a whole. As in google-adk, the last turn gets the score."""

    __slots__ = ()

    async def grade(self, conversation: Conversation, model: Model | None, key: CallKey) -> GraderResult:
        if model is None:
            return GraderResult(whole=no_model(self.criterion))
        if not conversation.turns:
            return GraderResult(whole=Skipped("no turn of the conversation was finished"))
        last = conversation.turns[-1].turn_index
        panel = JudgePanel.of(self.criterion, model, key)
        return GraderResult({last: await self._score(conversation, panel, last)})

    def most_calls(self, turns: int) -> int:
        """Return one call per sample, however many turns there are."""
        del turns
        return samples_of(self.criterion)

    @abstractmethod
    async def _score(self, conversation: Conversation, panel: JudgePanel, last: int) -> MetricResult:
        """Score the conversation; `last` is the turn that gets the score."""

    def _messages(self, conversation: Conversation, question: str) -> list[Message]:
        scenario = self.case.conversation_scenario
        turns = [turn_as_judged(turn, self.criterion) for turn in conversation.turns]
        goal = scenario.conversation_plan if scenario else ""
        return judge_messages(conversation_context(background_of(self.facts, goal, turns), turns), question)


class Goal(BaseModel):
    """A goal of the user, and whether it was reached."""

    model_config = WITHOUT_DESCRIPTION

    goal: str
    reason: str
    reached: Literal["yes", "no"]


class Goals(BaseModel):
    """The goals of the user, and which were reached."""

    model_config = WITHOUT_DESCRIPTION

    goals: Annotated[list[Goal], Field(min_length=1)]

    def share(self) -> float:
        return sum(goal.reached == "yes" for goal in self.goals) / len(self.goals)


class TaskSuccess(ConversationJudge):
    """`multi_turn_task_success_v1`: the share of the user's goals that were reached; the mean of samples."""

    __slots__ = ()

    async def _score(self, conversation: Conversation, panel: JudgePanel, last: int) -> MetricResult:
        messages = self._messages(conversation, goals_question())
        return _task_success_score(await panel.ask(messages, Goals, last), panel.samples)


class _Properties(ConversationJudge):
    """The share of properties that the conversation has."""

    __slots__ = ()

    async def _score(self, conversation: Conversation, panel: JudgePanel, last: int) -> MetricResult:
        rubrics = self._rubrics()
        messages = self._messages(conversation, properties_question(rubrics, self._judged_aspect()))
        return combined(rubrics, await panel.ask(messages, rubric_answers(len(rubrics)), last), panel.samples)

    @abstractmethod
    def _rubrics(self) -> Sequence[Rubric]:
        """Return the properties, at least one."""

    def _judged_aspect(self) -> str:
        return TASKS


class TrajectoryQuality(_Properties):
    """`multi_turn_trajectory_quality_v1`: the quality of the agent's steps, by predefined properties."""

    __slots__ = ()

    def _rubrics(self) -> Sequence[Rubric]:
        return _as_rubrics(TRAJECTORY)


class ToolUseQuality(_Properties):
    """`multi_turn_tool_use_quality_v1`: the quality of all tool calls, by predefined properties."""

    __slots__ = ()

    def _rubrics(self) -> Sequence[Rubric]:
        return _as_rubrics(TOOL_USE)

    def _judged_aspect(self) -> str:
        return TOOL_TASKS


@dataclass(frozen=True, slots=True)
class RubricTrajectory(_Properties):
    """`rubric_based_multi_turn_trajectory_quality_v1`: custom rubrics for the whole conversation.

    The constructor raises UsageError if there is no rubric, or if an id has two texts.
    """

    def __post_init__(self) -> None:
        check_rubrics_of_whole(self.case, self.criterion)

    def _rubrics(self) -> Sequence[Rubric]:
        return rubrics_of_whole(self.case, self.criterion)


def _as_rubrics(properties: Mapping[str, str]) -> tuple[Rubric, ...]:
    return tuple(Rubric(name, RubricContent(text)) for name, text in properties.items())


def _task_success_score(sampled: Sampled[Goals], sample_count: int) -> Score | Unscored:
    """Return the mean share, with the goals of the sample closest to it."""
    answers = sampled.answers
    if not answers:
        return Unscored(sampled.problem)
    shares = tuple(answer.share() for answer in answers)
    value = fsum(shares) / len(shares)
    shown = min(answers, key=lambda answer: abs(answer.share() - value))
    goals = tuple(RubricScore(one.goal, float(one.reached == "yes"), one.reason) for one in shown.goals)
    return Score(value, _reason(shown), shares if sample_count > 1 else (), goals)


def _reason(answer: Goals) -> str:
    missed = [f"{one.goal}: {one.reason}" for one in answer.goals if one.reached == "no"]
    if missed:
        return "not reached: " + "; ".join(missed)
    return "reached: " + "; ".join(f"{one.goal}: {one.reason}" for one in answer.goals)
