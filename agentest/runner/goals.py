"""Warnings about goals and expected outcomes: where the judge contradicts checks, or was never asked."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

from agentest.domain.goal_outcome import goal_outcome, goal_reason
from agentest.domain.metrics import ABOUT_CALLS, BUILTIN, GOAL
from agentest.domain.results import ConversationResult, GoalOutcome
from agentest.scenarios.model import Scenario

_FINAL_STATES = ("final_session_state", "final_state")


def _checks_the_goal(scenario: Scenario) -> bool:
    """True if a required call or a final state (of session or mocks) shows if the goal was reached.

    With an expected outcome, a call alone does not show it: the call may be a mere look-up.
    """
    # `within` lets every expected call be left out.
    requires_call = any(each.expected and each.match_mode != "within" for each in scenario.trajectory)
    state = scenario.final_session_state is not None or scenario.final_state is not None
    return state or (requires_call and not scenario.expected_outcome)


def disagreements(scenario: Scenario, conversations: Sequence[ConversationResult]) -> tuple[str, ...]:
    """Warnings where the judge contradicts required calls or a final state: one for each way."""
    if not _checks_the_goal(scenario):
        return ()
    found = [(each, _reached(each), goal_outcome(each)) for each in conversations]
    missed = [each for each, reached, said in found if reached is True and said is GoalOutcome.NOT_REACHED]
    reached = [each for each, reached, said in found if reached is False and said is GoalOutcome.REACHED]
    return (*_warning(missed, _DONE), *_warning(reached, _UNDONE))


def unjudged(scenario: Scenario, metrics: Collection[str]) -> Iterator[str]:
    """Warnings where a scenario says what it wants judged, and nobody judges it.

    Args:
        metrics: those that are judged where there is a goal.
    """
    named = [name for name in scenario.metrics or () if name in BUILTIN]
    for_nothing = [name for name in named if name != GOAL or not scenario.expected_outcome]
    if for_nothing and not scenario.goal and scenario.case is None:
        yield f"{', '.join(for_nothing)}: not judged, as the scenario has no `goal`"
    if scenario.expected_outcome and GOAL not in metrics:
        yield f"nobody judges the `expected_outcome`, as {GOAL} is not among the metrics"


def unasked(scenario: Scenario, conversations: Sequence[ConversationResult]) -> Iterator[str]:
    """A warning where the scenario names a metric of tool calls, and no turn could be judged, as no tool is
    known. Of the configuration's metrics nobody says that they are for this scenario."""
    turns = [turn for each in conversations for turn in each.turns]
    for name in ABOUT_CALLS.intersection(scenario.metrics or ()):
        if scenario.goal and turns and not any(name in turn.metrics for turn in turns):
            yield (
                f"{name}: judged in no turn, as no tool call was seen and no tool of the agent is known; "
                "`tools` of the agent or of the scenario name them"
            )


_DONE = (
    "the judge says that the goal was not reached{where}, but the required calls and the final state are as "
    "expected: {why}"
)
_UNDONE = (
    "the judge says that the goal was reached{where}, but the required calls or the final state are not as "
    "expected: {why}"
)


def _reached(result: ConversationResult) -> bool | None:
    """Whether the required calls were made and the final state is right; None: that is not known."""
    trajectory = result.trajectory
    checks = (*(check for turn in result.turns for check in turn.checks), *result.checks)
    state = [check for check in checks if check.check in _FINAL_STATES]
    if result.conversation.failure or any(each.error for each in (*state, trajectory) if each):
        return None
    if trajectory is not None and trajectory.missing_calls:
        return False
    if any(not check.passed for check in state):
        return False
    # Calls that are too many or in another order say nothing of the goal.
    return True if trajectory is None or trajectory.matched else None


def _warning(conversations: Sequence[ConversationResult], text: str) -> Iterator[str]:
    if conversations:
        first, more = conversations[0], len(conversations) - 1
        where = f" in {first.conversation.conversation_id}" + (f" and {more} more" if more else "")
        yield text.format(where=where, why=goal_reason(first) or "it gives no reason")
