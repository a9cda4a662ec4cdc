"""Select the questions for judges about a conversation and its turns, and convert the answers to results.

What judges are asked depends on which of the agent's calls can be seen (`CallVisibility`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, TypeAlias

from agentest.config.models import Batch
from agentest.domain.end_reason import Ending
from agentest.domain.messages import earlier_messages
from agentest.domain.metrics import ABOUT_CALLS, BUILTIN, GOAL, MetricLevel
from agentest.domain.results import (
    NO_MODEL,
    CriterionOutcome,
    CriterionResult,
    MetricResult,
    Skipped,
    Unscored,
)
from agentest.domain.tool_visibility import cannot_be_seen
from agentest.domain.transcript import Conversation, ModelBriefing, Turn
from agentest.judging.judge_input import (
    NO_KNOWN_TOOLS,
    Context,
    JudgeBackground,
    JudgeQuestion,
    conversation_context,
    criterion_question,
    part_context,
    turn_context,
)
from agentest.models.port import CallKey
from agentest.scenarios.model import Criterion, Scenario
from agentest.support.calling import run_concurrently
from agentest.support.lazy_dataclasses import dataclass

if TYPE_CHECKING:
    from agentest.judging.judge import Judge, JudgedPart, SampledAnswers

_NO_JUDGE_OF_OUTCOME = (
    f"the scenario has an `expected_outcome`, but {NO_MODEL}; name one (`model`, --model), or check the "
    "outcome without a judge (`trajectory`, `expect`, `final_state`)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CallVisibility:
    """Visibility of an agent's tool calls.

    Attributes:
        agent: the agent's name.
        blind: why its calls cannot be seen, and how to change that; None: they can be seen.
        replies_show_calls: True if an answer that reports calls makes the `blind` calls visible.
        has_tools: True if a tool of the agent is known or its scenario expects calls.
        has_none: True if the agent is known to have no tools.
        reports_calls: True if the agent reports every call it makes, so that no report means no call.
        partial: True if `blind` applies to some of its calls only.
        unreported: why calls are hidden if a mock server answered some and the agent reported none; None if
            the configuration says that the agent reports all calls, or if it has no mock server.
        listed: the tools whose calls are all visible even if other calls are hidden.
    """

    agent: str = ""
    blind: str | None = None
    replies_show_calls: bool = True
    has_tools: bool = False
    has_none: bool = False
    reports_calls: bool = False
    partial: bool = False
    unreported: str | None = None
    listed: frozenset[str] = frozenset()

    def hidden(self, record: Turn | Conversation, turns: Sequence[Turn] = ()) -> str | None:
        """Return why calls of a turn or conversation cannot be seen, as earlier turns may show; or None."""
        if record.call_refused:
            return record.call_refused
        if record.calls_hidden and self.blind is None:
            return f"{cannot_be_seen(self.agent)}: {record.calls_hidden}"
        blind = None if record.tells_calls and self.replies_show_calls else self.blind
        if blind or not self.unreported:
            return blind
        return self.unreported if any(each.withholds_calls for each in (record, *turns)) else None

    def wholly_hidden(self, record: Turn | Conversation) -> str | None:
        """Return why no call can be judged; None if the visible ones can, although others may be hidden."""
        why = self.hidden(record)
        return why if record.calls_hidden or self.listed_if(why) is None else None

    def listed_if(self, why: str | None) -> frozenset[str] | None:
        """Return the tools with no hidden calls, given why some are hidden; None: any tool may have some."""
        partly = (None, self.unreported, self.blind if self.partial else None)
        if why not in partly and self.blind is None and str(why).startswith(cannot_be_seen(self.agent)):
            return frozenset()  # in some turns
        return self.listed if why in partly else None

    def may_lack_calls(self, turns: Sequence[Turn]) -> bool:
        """Return True if the last turn can be judged for missing calls.

        This requires that the agent has known tools or reports all its calls. An agent that answers with text
        only and has no known tools may call tools behind its endpoint.
        """
        reports_all = self.reports_calls or turns[-1].tells_calls
        return reports_all or self.has_tools or any(turn.tool_calls for turn in turns)

    def unseen(self, turns: Sequence[Turn]) -> str:
        """Return why the agent may have made calls that are not shown, or ""."""
        hidden = next((why for turn in turns if (why := self.hidden(turn))), "")
        return hidden or ("" if self.has_none or self.may_lack_calls(turns) else NO_KNOWN_TOOLS)


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentBackground:
    """Information about an agent for judges. An empty text means unknown. `tools` has one tool per line."""

    instructions: str = ""
    tools: str = ""
    visibility: CallVisibility = CallVisibility()
    briefed: Callable[[ModelBriefing], AgentBackground] | None = None
    """Returns the same with what the agent told its model; None if nobody sees that."""


def background_of(
    scenario: Scenario, agent: AgentBackground, turns: Sequence[Turn], ending: Ending | None = None
) -> JudgeBackground:
    """Return the background for the judges of a scenario's conversation.

    Args:
        turns: the turns that are shown, at least one.
        ending: why the conversation ended after them; None if it went on.
    """
    briefing = next((turn.briefing for turn in reversed(turns) if turn.briefing), None)
    if briefing and agent.briefed:
        agent = agent.briefed(briefing)
    return JudgeBackground(
        goal=scenario.goal,
        profile=scenario.profile,
        knowledge=scenario.knowledge,
        expected_outcome=scenario.expected_outcome,
        instructions=agent.instructions,
        tools=agent.tools,
        date=scenario.date or "",
        started_at=turns[0].started_at or "",
        unseen=agent.visibility.unseen(turns),
        ended=str(ending or ""),
        history=earlier_messages(scenario.history),
    )


QuestionOutcome: TypeAlias = "SampledAnswers | str"
QuestionOutcomes = Mapping[JudgeQuestion, QuestionOutcome]
TurnMetrics = Mapping[int, Mapping[str, MetricResult]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Judges' results by turn index, for the whole conversation, and for criteria."""

    turns: TurnMetrics = field(default_factory=dict)
    judged_ms: Mapping[int, float] = field(default_factory=dict)
    """Duration in milliseconds by turn index, for turns that were judged in separate calls."""
    metrics: Mapping[str, MetricResult] = field(default_factory=dict)
    criteria: tuple[CriterionResult, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioJudge:
    """Judges the conversations of a scenario. It stores no state of any conversation."""

    scenario: Scenario
    scope: str
    metrics: Sequence[str] = ()
    judge: Judge | None = None
    redact: Callable[[str], str] = field(default=str)
    agent: AgentBackground = AgentBackground()
    """Information about the agent.

    If its calls cannot be seen, checks of calls are unscored, unless visible calls already violate them or
    its answers show that it reports all calls.
    """
    metrics_named: bool = True
    """True if `metrics` were named explicitly; else all run by default, and those that cannot be judged are
    skipped.
    """

    async def judge_conversation(self, conversation: Conversation, number: int) -> Judgement:
        """Judge metrics of the whole conversation, and criteria. Never raises."""
        if not (self.metrics or self.scenario.criteria):
            return Judgement()
        questions = self._conversation_questions(conversation)
        if self.judge is None or not questions:
            return self._conversation_results(conversation, dict.fromkeys(questions, NO_MODEL))
        context = self._whole_context(conversation, self.judge)
        outcomes = await self.judge.ask(questions, context, CallKey("judge", self.scope, number))
        return self._conversation_results(conversation, outcomes)

    def _whole_context(self, conversation: Conversation, judge: Judge) -> Context:
        background = background_of(self.scenario, self.agent, conversation.turns, conversation.ending)
        return conversation_context(background, conversation.turns, judge.room)

    async def settled_goal(
        self, goal: MetricResult, scores: TurnMetrics, conversation: Conversation, number: int
    ) -> MetricResult:
        """Return the goal's result, judged again if it excludes the scores of all turns. Never raises."""
        from agentest.judging.answers import excluded_goal
        from agentest.judging.questions import objection

        if not self.judge or not (excluded := excluded_goal(goal, scores)):
            return goal
        question = JudgeQuestion(GOAL)
        context = objection(self._whole_context(conversation, self.judge), [excluded])
        outcomes = await self.judge.ask([question], context, CallKey("judge", self.scope, number))
        again = self._metric_result(question, outcomes[question])
        excluded = excluded_goal(again, scores)
        return Unscored(f"the judge's answers cannot be used: {excluded}") if excluded else again

    async def everything(self, conversation: Conversation, number: int) -> Judgement:
        """Judge all turns and the whole conversation after it has ended. Never raises."""
        if self.judge and self.judge.batch is Batch.CONVERSATION:

            def context(part: JudgedPart, room: int) -> Context:
                visible = conversation.turns[: part.turn_indexes.stop]
                ending = conversation.ending if part.is_last else None
                background = background_of(self.scenario, self.agent, visible, ending)
                return part_context(background, visible, part.turn_indexes, room)

            questions, key = self._all_questions(conversation), CallKey("judge", self.scope, number)
            return self._all_results(
                conversation,
                await self.judge.ask_of_all_turns(questions, len(conversation.turns), context, key),
            )
        parts = await run_concurrently(
            [
                *(partial(self.one_turn, turns, number) for turns in growing_histories(conversation)),
                partial(self.judge_conversation, conversation, number),
            ]
        )
        turns = {index: metrics for part in parts for index, metrics in part.turns.items()}
        judged_ms = {index: took for part in parts for index, took in part.judged_ms.items()}
        return replace(parts[-1], turns=turns, judged_ms=judged_ms)

    async def one_turn(self, turns: Sequence[Turn], number: int) -> Judgement:
        """Judge the last of the turns and measure the duration. Never raises."""
        index, began = turns[-1].turn_index, perf_counter()
        if not self.metrics:
            return Judgement(turns={index: {}})
        questions = self._turn_questions(turns)
        if self.judge is None or not questions:
            return Judgement(turns={index: self._turn_results(turns[-1], dict.fromkeys(questions, NO_MODEL))})
        context = turn_context(background_of(self.scenario, self.agent, turns), turns, self.judge.room)
        answers = await self.judge.ask(questions, context, CallKey("judge", self.scope, number, index))
        judged_ms = {index: (perf_counter() - began) * 1000}
        return Judgement(turns={index: self._turn_results(turns[-1], answers)}, judged_ms=judged_ms)

    def skip(self, conversation: Conversation, why: str) -> Judgement:
        """Return results for a conversation that is not judged, each with the given reason."""
        return self._all_results(conversation, dict.fromkeys(self._all_questions(conversation), why))

    def _all_questions(self, conversation: Conversation) -> list[JudgeQuestion]:
        of_turns = [each for turns in growing_histories(conversation) for each in self._turn_questions(turns)]
        return [*of_turns, *self._conversation_questions(conversation)]

    def _turn_questions(self, turns: Sequence[Turn]) -> list[JudgeQuestion]:
        visibility = self.agent.visibility
        about_calls = visibility.may_lack_calls(turns) and not visibility.wholly_hidden(turns[-1])
        names = [
            name for name in self._metrics_of(MetricLevel.TURN) if about_calls or name not in ABOUT_CALLS
        ]
        return [JudgeQuestion(name, turns[-1].turn_index) for name in names]

    def _metrics_of(self, level: MetricLevel) -> list[str]:
        return [name for name in self.metrics if BUILTIN[name].level is level]

    def _conversation_questions(self, conversation: Conversation) -> list[JudgeQuestion]:
        if conversation.failure or not conversation.turns:
            return []
        return [*map(JudgeQuestion, self._metrics_of(MetricLevel.CONVERSATION)), *self._criteria]

    @property
    def _criteria(self) -> dict[JudgeQuestion, Criterion]:
        return {criterion_question(n, each): each for n, each in enumerate(self.scenario.criteria, start=1)}

    def _all_results(self, conversation: Conversation, outcomes: QuestionOutcomes) -> Judgement:
        turns = {
            turns[-1].turn_index: self._turn_results(
                turns[-1], {q: outcomes[q] for q in self._turn_questions(turns)}
            )
            for turns in growing_histories(conversation)
        }
        return replace(self._conversation_results(conversation, outcomes), turns=turns)

    def _turn_results(self, turn: Turn, outcomes: QuestionOutcomes) -> dict[str, MetricResult]:
        results = {q.name: self._metric_result(q, outcome) for q, outcome in outcomes.items()}
        return results | self._unseen_results(turn)

    def _unseen_results(self, turn: Turn) -> dict[str, MetricResult]:
        blind = self.agent.visibility.wholly_hidden(turn)
        if not blind or not self.judge:
            return {}
        result = Unscored(self.redact(blind)) if self.metrics_named else Skipped(blind)
        return {name: result for name in self._metrics_of(MetricLevel.TURN) if name in ABOUT_CALLS}

    def _conversation_results(self, conversation: Conversation, outcomes: QuestionOutcomes) -> Judgement:
        criteria = self._criteria
        questions = self._conversation_questions(conversation)
        return Judgement(
            metrics={q.name: self._metric_result(q, outcomes[q]) for q in questions if q not in criteria},
            criteria=tuple(
                self._criterion_result(criteria[q], outcomes[q], len(conversation.turns))
                for q in questions
                if q in criteria
            ),
        )

    def _metric_result(self, question: JudgeQuestion, outcome: QuestionOutcome) -> MetricResult:
        if isinstance(outcome, str):
            if outcome == NO_MODEL and question.name == GOAL and self.scenario.expected_outcome:
                return Unscored(_NO_JUDGE_OF_OUTCOME)
            return Skipped(outcome)
        if not outcome.usable:
            return Unscored(self.redact(outcome.problem))
        from agentest.judging.answers import score_of

        return score_of(question.name, outcome.usable, outcome.requested)

    def _criterion_result(
        self, criterion: Criterion, outcome: QuestionOutcome, turns: int
    ) -> CriterionResult:
        if not isinstance(outcome, str) and outcome.usable:
            from agentest.judging.answers import criterion_result

            return criterion_result(criterion, outcome.usable, outcome.requested, turns)
        return CriterionResult(
            text=criterion.text,
            required=criterion.required,
            result=CriterionOutcome.CANNOT_TELL,
            turn_index=None,
            reason=outcome if isinstance(outcome, str) else self.redact(outcome.problem),
        )


def growing_histories(conversation: Conversation) -> list[Sequence[Turn]]:
    """Return the conversation up to each turn."""
    return [conversation.turns[: n + 1] for n in range(len(conversation.turns))]
