"""What became of goals and criteria in words, for all reporters."""

from __future__ import annotations

from agentest.domain.goal_outcome import goal_outcome, goal_reason
from agentest.domain.results import (
    ConversationResult,
    CriterionResult,
    CriterionTotals,
    GoalOutcome,
    Score,
)
from agentest.support.text import shortened

_REASON_CHARS = 400


def score_text(score: Score) -> str:
    """A score's value: all labels of a turn that failed."""
    if isinstance(score.value, str):
        return ", ".join(score.labels) or score.value
    return f"{score.value:g}"


def score_reason(score: Score) -> str:
    """A score's reason in one row, begun by what became of the goal or by what known facts say."""
    marks = [str(mark) for mark in (score.outcome, score.evidence) if mark is not None]
    return ": ".join([*marks, shortened(score.reason, _REASON_CHARS)])


def unreached_goal(result: ConversationResult) -> str | None:
    """What became of a goal that was not reached, or reached wrongly, with the reason; else None."""
    outcome = goal_outcome(result)
    if outcome is None or outcome is GoalOutcome.REACHED:
        return None
    return f"{outcome}: {shortened(goal_reason(result), _REASON_CHARS)}"


def criterion_name(criterion: CriterionResult | CriterionTotals) -> str:
    """The criterion's text, and that nothing hangs on it, where that is so."""
    return criterion.text if criterion.required else f"{criterion.text} (not required)"


def criterion_counts(criterion: CriterionTotals) -> str:
    """How many conversations met it."""
    return f"met {criterion.met}/{criterion.judged}"


def criterion_example(criterion: CriterionTotals, *, reason: bool = True) -> str:
    """Where the worst of its results was found first, and why; "" where all conversations met it."""
    if criterion.example is None:
        return ""
    conversation_id, found = criterion.example
    why = f": {shortened(found.reason, _REASON_CHARS)}" if reason else ""
    return f"{found.result} in {_place(criterion, conversation_id, found)}{why}"


def _place(criterion: CriterionTotals, conversation_id: str, found: CriterionResult) -> str:
    """The turn; the conversation before it where there are several."""
    turn = "" if found.turn_index is None else f"turn {found.turn_index}"
    if criterion.judged == 1:
        return turn or conversation_id
    return f"{conversation_id}, {turn}" if turn else conversation_id
