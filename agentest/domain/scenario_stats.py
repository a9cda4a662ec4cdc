"""A scenario's conversations in numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import nlargest

from agentest.domain.goal_outcome import criteria_totals
from agentest.domain.results import ConversationResult, Evidence, Score, SlowTurn, Totals
from agentest.domain.transcript import TimeSpent, Turn, UnfinishedTurn, Usage, unanswered
from agentest.domain.verdict import conversation_passed

KEPT_SLOWEST = 5


def totals_of(conversations: Sequence[ConversationResult]) -> Totals:
    """The numbers that stay when the conversations have been let go."""
    held = [result.conversation for result in conversations]
    turns = [turn for conversation in held for turn in conversation.turns]
    started: list[Turn | UnfinishedTurn] = [*turns, *(c.unfinished for c in held if c.unfinished)]
    return Totals(
        conversations=len(held),
        passed=sum(map(conversation_passed, conversations)),
        turns=len(started),
        tool_calls=sum(len(turn.tool_calls) for turn in started),
        agent_calls=sum(turn.requests for turn in started),
        agent_retries=sum(turn.retries for turn in started),
        agent_tokens=sum((turn.usage for turn in turns), Usage()),
        slowest=_slowest(conversations),
        time=sum((result.time for result in conversations), TimeSpent()),
        unanswered=dict(Counter(c.name for turn in started for c in turn.tool_calls if unanswered(c))),
        told_turns=sum(turn.tells_calls for turn in turns),
        keeps_calls_back=any(c.keeps_calls_back for c in held),
        held_without_calls=any(map(_held_without_calls, conversations)),
        evidence=_evidence(conversations),
        criteria=criteria_totals(conversations),
        called=frozenset(call.name for turn in started for call in turn.tool_calls),
    )


def _evidence(conversations: Sequence[ConversationResult]) -> dict[str, dict[Evidence, int]]:
    """The evidence that speaks against what was said; the worst first."""
    found: dict[str, Counter[Evidence]] = {}
    for result in conversations:
        for name, score in result.metric_results:
            if isinstance(score, Score) and score.evidence not in (None, Evidence.SUPPORTED):
                found.setdefault(name, Counter())[score.evidence] += 1
    return {name: {each: counts[each] for each in Evidence if counts[each]} for name, counts in found.items()}


def _held_without_calls(result: ConversationResult) -> bool:
    trajectories = (result.trajectory, *(turn.trajectory for turn in result.turns))
    return any(trajectory is not None and trajectory.without_calls for trajectory in trajectories)


def _slowest(conversations: Sequence[ConversationResult]) -> tuple[SlowTurn, ...]:
    turns = (
        SlowTurn(turn.latency_ms, result.conversation.conversation_id, turn.turn_index, turn.first_token_ms)
        for result in conversations
        for turn in result.conversation.turns
    )
    return tuple(nlargest(KEPT_SLOWEST, turns, key=lambda turn: turn.latency_ms))
