"""Conversations that go first, alone: they show whether an agent hands its calls over or runs real tools.

Some protocols allow tools on either side. Where such an agent runs a mocked tool itself, the real tool has
run before anyone can know, so only one conversation may find that out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import anyio

from agentest.agents.own_tools import named_tools
from agentest.domain.results import ConversationResult
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall
from agentest.runner.plan import Unit

MOST_TRIALS = 5
"""How many conversations with an agent go alone at most: a suite that calls nothing must not stay slow."""
_HANDED_OVER = (SeenBy.CALLER, SeenBy.MOCK_SERVER)


def is_handed_over(calls: Iterable[ToolCall]) -> bool:
    """Whether any of these calls came to us to be answered."""
    return any(call.mocked or call.seen_by in _HANDED_OVER for call in calls)


def bypass_reason(unit: Unit, result: ConversationResult) -> str | None:
    """Why the run must stop: the agent ran a mocked tool itself. None: it did not."""
    failure = result.conversation.failure
    if failure is None or not failure.bypassed:
        return None
    return (
        f"agent {unit.agent!r} ran {named_tools(failure.bypassed)} itself, which scenario "
        f"{unit.scenario.name!r} mocks: the real tool ran, so the run was stopped"
    )


class Trial:
    """One conversation that goes alone."""

    def __init__(self) -> None:
        self.decided = anyio.Event()
        """Set when the next one may begin."""
        self.ended = anyio.Event()
        """Set when it has ended, and no real tool ran in it."""


class Trials:
    """Which agents still have to show that they hand their calls over.

    Args:
        live: whether conversations are held now; those of an earlier run call no tools.
    """

    def __init__(self, *, live: bool = True) -> None:
        self._live = live
        self._settled: set[str] = set()
        self._ended: Counter[str] = Counter()
        self._under_way: dict[str, Trial] = {}

    def are_needed(self, unit: Unit) -> bool:
        """Whether this unit's conversations must go alone, as far as is known by now."""
        wanted = self._live and unit.about.tools_on_either_side and unit.scenario.tools
        return bool(wanted) and unit.agent not in self._settled

    def begin(self, agent: str) -> Trial:
        """Begin one more conversation alone."""
        trial = self._under_way[agent] = Trial()
        return trial

    def hand_over(self, agent: str) -> None:
        """Note that the agent handed a call over: all others may begin."""
        self._settled.add(agent)
        if trial := self._under_way.get(agent):
            trial.decided.set()

    def end(self, agent: str, trial: Trial) -> None:
        """Note that a conversation alone has ended, and that no real tool ran in it."""
        self._ended[agent] += 1
        if self._ended[agent] >= MOST_TRIALS:
            self._settled.add(agent)
        trial.decided.set()
        trial.ended.set()
