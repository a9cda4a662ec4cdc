"""Outcomes of goals and criteria: values, sentences and totals. `verdict` decides what they mean."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agentest.domain.end_reason import IN_WORDS
from agentest.domain.metrics import GOAL
from agentest.domain.results import (
    NO_MODEL,
    ConversationResult,
    CriterionOutcome,
    CriterionResult,
    CriterionTotals,
    GoalOutcome,
    Score,
)
from agentest.support.text import shortened

_SHOWN_MISSES = 3
_REASON_CHARS = 500
"""The maximum length of a judge's reason in a message; the full reason is in the result."""
_WORST_FIRST = tuple(CriterionOutcome)


def goal_outcome(result: ConversationResult) -> GoalOutcome | None:
    """Return the outcome of the conversation's goal, in older results by its score; None if it is unknown."""
    score = result.metrics.get(GOAL)
    if not isinstance(score, Score) or score.number is None:
        return None
    return score.outcome or (GoalOutcome.REACHED if score.number else GoalOutcome.NOT_REACHED)


def missed_goal(result: ConversationResult) -> bool:
    """True if the judge found that the goal was not reached, or was reached wrongly."""
    outcome = goal_outcome(result)
    return outcome is not None and not outcome.value_of_goal


def goal_reason(result: ConversationResult) -> str:
    """Return the reason for the outcome of the conversation's goal."""
    score = result.metrics.get(GOAL)
    return score.reason if isinstance(score, Score) else ""


def missed_goal_message(result: ConversationResult) -> str:
    """Explain why the goal counts as missed, with the outcome and the judge's reason."""
    why = shortened(goal_reason(result), _REASON_CHARS)
    return f"goal {goal_outcome(result)}" + (f": {why}" if why else "")


def missed_goals(conversations: Iterable[ConversationResult]) -> str:
    """List the first conversations that missed their goal, with end and reason, each after a line break."""
    missed = [each for each in conversations if missed_goal(each)]
    rows = [_missed_goal(each) for each in missed[:_SHOWN_MISSES]]
    if missed[_SHOWN_MISSES:]:
        rows.append(f"and {len(missed) - _SHOWN_MISSES} more that did not reach it")
    return "".join(f"\n{row}" for row in rows)


def _missed_goal(result: ConversationResult) -> str:
    conversation = result.conversation
    ended = IN_WORDS[conversation.ending]
    why = shortened(goal_reason(result), _REASON_CHARS)  # one row: a line break would begin another
    return f"{conversation.conversation_id}: goal {goal_outcome(result)}; {ended}: {why}"


def criterion_message(criterion: CriterionResult) -> str:
    """Describe a criterion that is violated or unknown, with its text and the reason."""
    what = "violated" if criterion.result is CriterionOutcome.VIOLATED else "could not be judged"
    return f"criterion {criterion.text!r} {what}: {shortened(criterion.reason, _REASON_CHARS)}"


def unasked_message(criteria: Sequence[CriterionResult]) -> str:
    """Name, in one sentence, the criteria that no model judged."""
    more = f" and {len(criteria) - 1} more" if criteria[1:] else ""
    return (
        f"criterion {criteria[0].text!r}{more} could not be judged: {NO_MODEL}; name one (`model`, --model), "
        "or let the criterion decide nothing: Criterion(…, required=False)"
    )


def criteria_totals(conversations: Iterable[ConversationResult]) -> tuple[CriterionTotals, ...]:
    """Count the outcomes of each criterion over all conversations in which it was judged."""
    by_text: dict[str, list[tuple[str, CriterionResult]]] = {}
    for conversation in conversations:
        for criterion in conversation.criteria:
            if not criterion.not_asked:
                at = conversation.conversation.conversation_id, criterion
                by_text.setdefault(criterion.text, []).append(at)
    return tuple(map(_totals, by_text.values()))


def _totals(criteria: Sequence[tuple[str, CriterionResult]]) -> CriterionTotals:
    results = [criterion.result for _, criterion in criteria]
    first = min(criteria, key=lambda each: _WORST_FIRST.index(each[1].result))
    return CriterionTotals(
        text=first[1].text,
        required=first[1].required,
        met=results.count(CriterionOutcome.MET),
        violated=results.count(CriterionOutcome.VIOLATED),
        undecided=results.count(CriterionOutcome.CANNOT_TELL),
        example=None if first[1].result is CriterionOutcome.MET else first,
    )
