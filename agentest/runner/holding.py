"""One conversation of a unit: held, looked at and judged, in the process that talks with the agent.

Judging a turn starts when it closes, in the conversation's own task group but outside its place among those
that are under way: a slow judge delays no conversation, until very many wait for theirs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

import anyio

from agentest.conversation.loop import OnTurn
from agentest.domain.end_reason import Ending
from agentest.domain.results import ConversationResult
from agentest.domain.transcript import Blame, Conversation, Failure, Turn
from agentest.domain.truncation import stored
from agentest.judging.custom import Metric
from agentest.models.port import CallKey
from agentest.runner.connections import Connections
from agentest.runner.plan import Unit
from agentest.runner.settings import Settings
from agentest.runner.sources import ConversationSource
from agentest.runner.trials import is_handed_over
from agentest.runner.units import UnitEvaluation
from agentest.runner.user_check import Finding, user_check
from agentest.support.replacing import replace

_JUDGED_FOR_EACH_PLACE = 10
"""How many conversations that have been held may wait for judges: those of a night would fill the memory."""


class Ongoing(Protocol):
    """One conversation that is under way, as the order of the run knows it."""

    def on_turn(self, conversation_id: str, turn_index: int, *, handed_over: bool) -> None:
        """A turn of it has closed. `handed_over`: the agent handed a call over in it."""
        ...

    def on_held(self) -> None:
        """It has been held, and leaves its place; judges may still be at work."""
        ...

    def outside(self) -> AbstractAsyncContextManager[None]:
        """A block in which it waits for others, and leaves its place to them."""
        ...

    async def again(self) -> None:
        """It is to be held once more, as what came of it is lost: wait until it has a place again."""
        ...


@dataclass(frozen=True, slots=True)
class Finished:
    """A conversation that was held and judged."""

    result: ConversationResult
    """Only in part, where a worker has written its JSON: what nobody asks for until its scenario ends is
    left out."""
    json: bytes | None = None
    """As in results.json, where a worker has written it."""
    held_again: str = ""
    """Why it was held a second time: its simulated user broke its role."""


class Holder(Protocol):
    """Holds conversations and has them judged: in this process, or in others."""

    async def hold(self, unit: Unit, number: int, ongoing: Ongoing) -> Finished:
        """Hold the conversation of this number (from 1). Raises nothing for what happens inside of it."""
        ...

    def end(self, unit: Unit) -> None:
        """Forget a unit whose conversations have all finished."""
        ...

    async def settle(self) -> None:
        """After a stop: wait until it is known what the conversations have used that it has ended."""
        ...


@dataclass(frozen=True, slots=True)
class _Held:
    """A conversation that was held, and when that was, by `perf_counter`."""

    conversation: Conversation
    began: float
    """Without the time in which it waited for others."""
    ended: float


@dataclass(slots=True)
class _Waiting:
    """How long a conversation has waited for others, which is no part of its own time."""

    ongoing: Ongoing
    seconds: float = 0.0

    @asynccontextmanager
    async def outside(self) -> AsyncIterator[None]:
        """A block in which it waits."""
        began = perf_counter()
        try:
            async with self.ongoing.outside():
                yield
        finally:
            self.seconds += perf_counter() - began


class HeldHere:
    """Holds conversations in this process."""

    def __init__(
        self,
        source: ConversationSource,
        custom: Sequence[Metric],
        settings: Settings,
        connections: Connections,
    ) -> None:
        self._source = source
        self._evaluation = UnitEvaluation(custom, settings, connections)
        self._check = user_check(connections.models.judge, settings.samples, wanted=settings.check_user)
        self._redact = connections.redact
        self._being_judged = anyio.Semaphore(_JUDGED_FOR_EACH_PLACE * settings.concurrency, fast_acquire=True)

    async def hold(self, unit: Unit, number: int, ongoing: Ongoing, ids_end: str = "") -> Finished:
        """Hold the conversation of this number, and have it judged.

        Args:
            ids_end: what its id ends with: agents may know the one of the same number that was lost.
        """
        one = _OneConversation(unit, number, ongoing, ids_end)
        told = self._source.told_to_user(unit) if self._check else None
        # Judges wait for the check of the user: what is thrown away need not be judged.
        evaluation = self._evaluation.begin(unit, number, at_end=told is not None)
        held_again = ""
        async with AsyncExitStack() as until_judged, anyio.create_task_group() as judging:

            def judge(turns: tuple[Turn, ...]) -> None:
                judging.start_soon(evaluation.add_turn, turns)

            if told is None:
                held = await self._hold(one, judge)
            else:
                held, held_again = await self._hold_checked(one, told)
            await until_judged.enter_async_context(self._being_judged)
            ongoing.on_held()
            conversation = held.conversation
            if conversation.invalid is None:
                await evaluation.add_conversation(conversation)
        now = perf_counter()
        judges_ms = (now - held.ended) * 1000 if self._evaluation.asks_judge else 0.0
        time = replace(conversation.time, total_ms=(now - held.began) * 1000, judges_ms=judges_ms)
        if conversation.invalid is not None:
            result = ConversationResult(conversation, time=time, invalid=conversation.invalid)
        else:
            result = replace(evaluation.result(conversation), time=time)
        return Finished(stored(result, self._redact), held_again=held_again)

    def end(self, unit: Unit) -> None:
        self._evaluation.end(unit)

    async def settle(self) -> None:
        """Nothing is left to wait for: what was cancelled has ended."""

    async def _hold_checked(self, one: _OneConversation, told: str) -> tuple[_Held, str]:
        """A conversation, held again where its user broke the role, and why. Judges wait: the first may not
        count.

        It keeps its place meanwhile, so that the second follows the first before another begins.
        """
        first = await self._hold(one, _nothing)
        found = await self._look_at(first, one, told)
        if found is None or not found.broken:
            return _marked(first, found), ""
        second = await self._hold(one, _nothing, attempt=1)
        return _marked(second, await self._look_at(second, one, told, attempt=1)), found.text

    async def _look_at(
        self, held: _Held, one: _OneConversation, told: str, attempt: int = 0
    ) -> Finding | None:
        """What a judge finds wrong with a user. What ended with an error tells that, whoever the user was."""
        conversation = held.conversation
        if self._check is None or conversation.failure or not conversation.turns:
            return None
        key = CallKey("judge", one.unit.scope, one.number)
        has_tools = bool(one.unit.scenario.user_tools)
        found = await self._check.look_at(told, conversation, key, attempt, has_tools=has_tools)
        return found and replace(found, text=self._redact.error(found.text))

    async def _hold(self, one: _OneConversation, judge: OnTurn, attempt: int = 0) -> _Held:
        conversation_id = one.id_of(attempt)
        waiting = _Waiting(one.ongoing)

        def on_turn(turns: tuple[Turn, ...]) -> None:
            calls = turns[-1].tool_calls
            handed_over = one.unit.about.tools_on_either_side and is_handed_over(calls)
            one.ongoing.on_turn(conversation_id, turns[-1].turn_index, handed_over=handed_over)
            judge(turns)

        began = perf_counter()
        conversation = await self._source.converse(
            one.unit, one.number, conversation_id, on_turn, waiting.outside, attempt
        )
        return _Held(conversation, began + waiting.seconds, perf_counter())


@dataclass(frozen=True, slots=True)
class _OneConversation:
    """Which conversation is held."""

    unit: Unit
    number: int
    ongoing: Ongoing
    ids_end: str

    def id_of(self, attempt: int) -> str:
        return f"{self.unit.slug}-{self.number}{'-again' * attempt}{self.ids_end}"


def came_to_nothing(unit: Unit, number: int, problem: str) -> ConversationResult:
    """A conversation of which nothing is known but the problem, which is not the agent's."""
    failure = Failure(Blame.INTERNAL, problem)
    return ConversationResult(Conversation(f"{unit.slug}-{number}", (), Ending.ERROR, failure))


def _marked(held: _Held, found: Finding | None) -> _Held:
    """The conversation, marked where it says nothing of the agent."""
    if found is None:
        return held
    return replace(held, conversation=replace(held.conversation, invalid=found.text))


def _nothing(turns: tuple[Turn, ...]) -> None:
    """Judges wait."""
