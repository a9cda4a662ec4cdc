"""Warnings about a scenario's conversations, and what of one need not be kept until its scenario ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from agentest.domain.reasons import counted_trajectories
from agentest.domain.results import (
    ConversationResult,
    CriterionOutcome,
    CriterionResult,
    GoalOutcome,
    MetricResult,
    Score,
    TrajectoryResult,
    TurnEvaluation,
)
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall, Turn, mismatch
from agentest.domain.verdict import conversation_passed
from agentest.scenarios.model import Scenario
from agentest.support.error_texts import reads_like_error
from agentest.support.replacing import replace
from agentest.support.text import shortened

_SHOWN = 3


def warnings_of(conversations: Sequence[ConversationResult]) -> tuple[str, ...]:
    """One text for each tool whose mock does not take the arguments that the agent called it with."""
    misfits: dict[str, list[ToolCall]] = {}
    for result in conversations:
        for call in result.conversation.tool_calls:
            if mismatch(call):
                misfits.setdefault(call.name, []).append(call)
    return tuple(_warning(name, calls) for name, calls in misfits.items())


def _warning(name: str, calls: Sequence[ToolCall]) -> str:
    times = "" if len(calls) == 1 else f" {len(calls)} times"
    at_server = calls[0].seen_by is SeenBy.MOCK_SERVER
    what = "in a way that does not fit" if at_server else "with arguments that its mock does not take"
    mend = "its mock, or the description of the tools" if at_server else "the parameters of the mock"
    return (
        f"{name} was called{times} {what}: {mismatch(calls[0])}. The agent was answered an error; if the "
        f"call is right, mend {mend}"
    )


def tools_without_model(scenario: Scenario, conversations: Sequence[ConversationResult]) -> tuple[str, ...]:
    """A warning where the user has tools of its own, and no model to say when it uses them."""
    idle = idle_user(scenario)
    if idle is None or any(each.conversation.user_calls for each in conversations):
        return ()
    return (idle,)


def idle_user(scenario: Scenario) -> str | None:
    """That a user without a model uses none of its tools, and how to have it use them; None: it has none."""
    if not scenario.user_tools:
        return None
    tools = ", ".join(scenario.user_tools)
    return (
        f"the simulated user used none of its tools ({tools}): offline it says its facts and does nothing "
        "else; configure a model, or name one with --model, to have it use them"
    )


def held_again(slug: str, whys: Mapping[int, str]) -> tuple[str, ...]:
    """One text about the conversations that were held again, with the first of them and why.

    Args:
        slug: what the ids of the conversations begin with.
        whys: number of a conversation → what its simulated user did.
    """
    if not whys:
        return ()
    shown = "; ".join(f"{slug}-{number}, as {whys[number].rstrip('.')}" for number in sorted(whys)[:_SHOWN])
    more = f"; and {len(whys) - _SHOWN} more" if len(whys) > _SHOWN else ""
    what = "1 conversation was" if len(whys) == 1 else f"{len(whys)} conversations were"
    return (f"{what} held again, the first did not count: {shown}{more}",)


def slimmed(result: ConversationResult) -> ConversationResult:
    """A conversation that passed without what nobody asks for any more: texts, arguments, reasons.

    One that something speaks against stays whole, and so does one whose calls are not as expected and only
    count: it is shown when its scenario ends.
    """
    if result.failures or not conversation_passed(result) or counted_trajectories(result):
        return result
    turns = tuple(_slim_turn(turn) for turn in result.conversation.turns)
    return replace(
        result,
        conversation=replace(result.conversation, turns=turns, mock_state=None),
        turns=tuple(map(_slim_evaluation, result.turns)),
        metrics=_slim_metrics(result.metrics),
        trajectory=_slim_trajectory(result.trajectory),
        criteria=tuple(map(_slim_criterion, result.criteria)),
    )


def _slim_turn(turn: Turn) -> Turn:
    calls = tuple(
        replace(call, args={} if isinstance(call.args, Mapping) else "", result=None)
        for call in turn.tool_calls
    )
    # The scenario's warnings are about replies that read like errors.
    reply = shortened(turn.agent_message) if reads_like_error(turn.agent_message) else ""
    return replace(turn, user_message="", agent_message=reply, tool_calls=calls, remarks=(), state_after=None)


def _slim_evaluation(turn: TurnEvaluation) -> TurnEvaluation:
    return replace(turn, metrics=_slim_metrics(turn.metrics), trajectory=_slim_trajectory(turn.trajectory))


def _slim_trajectory(trajectory: TrajectoryResult | None) -> TrajectoryResult | None:
    if trajectory is None:
        return None
    parts = tuple(filter(None, map(_slim_trajectory, trajectory.parts)))
    return replace(trajectory, alignment=(), alignment_more=0, parts=parts)


def _slim_metrics(metrics: Mapping[str, MetricResult]) -> dict[str, MetricResult]:
    return {
        name: _slim_score(result) if isinstance(result, Score) else result for name, result in metrics.items()
    }


def _slim_score(score: Score) -> Score:
    """Why a goal was not reached, or reached wrongly, is shown with the verdict."""
    missed = score.outcome is not None and score.outcome is not GoalOutcome.REACHED
    return score if missed else replace(score, reason="")


def _slim_criterion(criterion: CriterionResult) -> CriterionResult:
    return replace(criterion, reason="") if criterion.result is CriterionOutcome.MET else criterion
