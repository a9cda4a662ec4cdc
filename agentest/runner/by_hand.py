"""A person at the other end of a conversation: what they say, and which calls they answer by hand."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from agentest.conversation.users import Said
from agentest.domain.end_reason import Ending
from agentest.domain.transcript import UNANSWERED, ToolCall, Turn
from agentest.mocks.attending import Given, Outcome
from agentest.mocks.calls import RecordedCall


class NotNow(Exception):
    """What a person wants is not to be done now; the message says why."""


class Visitor:
    """A user whose messages come one by one, when the conversation waits for them."""

    def __init__(self, on_listening: Callable[[], object]) -> None:
        """`on_listening` is called whenever the next message is waited for."""
        self._on_listening = on_listening
        self._next: asyncio.Future[Said | Ending] | None = None

    @property
    def awaited(self) -> bool:
        return self._next is not None and not self._next.done()

    async def next_message(self, turns: Sequence[Turn]) -> Said | Ending:
        """What is said next."""
        del turns  # the person remembers
        self._next = asyncio.get_running_loop().create_future()
        self._on_listening()
        return await self._next

    def say(self, text: str) -> None:
        """Say something. Raises NotNow where nobody listens."""
        if self._next is None or self._next.done():
            raise NotNow("the agent is at work on the message before: wait for its reply, or stop it")
        self._next.set_result(Said(text))

    def leave(self) -> bool:
        """End the conversation where the next message is waited for; False: it is in the middle of a turn."""
        if self._next is None or self._next.done():
            return False
        self._next.set_result(Ending.SATISFIED)
        return True


@dataclass(frozen=True, slots=True, kw_only=True)
class CallSeen:
    """A call as it stands; told of again whenever more is known."""

    number: int
    """From 0, in the order in which calls became known."""
    call: ToolCall
    waiting: bool = False
    """Whether a person must answer it."""
    proposed: Outcome | None = None
    """What its mock answers, where it is waiting; None: nothing mocks the tool."""
    by_hand: bool = False
    """Whether a person gave the answer, or changed it."""

    @property
    def answered(self) -> bool:
        return self.call.error != UNANSWERED


@dataclass(slots=True)
class _Waiting:
    """A call that waits for a person."""

    proposed: Outcome | None
    answer: asyncio.Future[Given | None]


@dataclass(slots=True)
class _Known:
    """What is known of a call besides its record."""

    number: int
    by_hand: bool = False


@dataclass(slots=True)
class Desk:
    """Where calls come to a person: to be looked at, and answered by hand (`mocks.attending.Attendant`).

    A mock is asked in any case, so that sequences go on and states change whatever is answered in the end.
    """

    tell: Callable[[CallSeen], object]
    """Receives calls in the event loop's thread."""
    holds: bool = False
    """Whether every call waits for the person; one that nothing mocks always does."""
    _loop: asyncio.AbstractEventLoop = field(default_factory=asyncio.get_running_loop)
    _calls: dict[RecordedCall, _Known] = field(default_factory=dict)
    _waiting: dict[int, _Waiting] = field(default_factory=dict)

    def noticed(self, call: RecordedCall) -> None:
        """A call is new, or more is known of it. Agents in this process may tell from any thread."""
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._told(call)
        else:
            self._loop.call_soon_threadsafe(self._told, call)

    async def answer(self, call: RecordedCall, proposed: Outcome | None) -> Given | None:
        """What the person answers; None: what the mock proposes."""
        known = self._known(call)
        if proposed is not None and not self.holds:
            return None
        waiting = _Waiting(proposed, self._loop.create_future())
        self._waiting[known.number] = waiting
        self._told(call)
        try:
            given = await waiting.answer
        finally:
            del self._waiting[known.number]
        known.by_hand = given is not None
        return given

    def give(self, number: int, given: Given | None) -> None:
        """Answer a call that waits; None: as its mock proposes. Raises NotNow."""
        waiting = self._waiting.get(number)
        if waiting is None or waiting.answer.done():
            raise NotNow("this call does not wait for an answer any more")
        if given is None and waiting.proposed is None:
            raise NotNow("nothing mocks this tool: write its answer")
        waiting.answer.set_result(given)

    def hold(self, *, calls: bool) -> None:
        """Have every call wait from now on, or none; those that wait go on as their mocks propose."""
        self.holds = calls
        for waiting in self._waiting.values():
            if not calls and waiting.proposed is not None and not waiting.answer.done():
                waiting.answer.set_result(None)

    def _known(self, call: RecordedCall) -> _Known:
        return self._calls.setdefault(call, _Known(len(self._calls)))

    def _told(self, call: RecordedCall) -> None:
        known = self._known(call)
        waiting = self._waiting.get(known.number)
        self.tell(
            CallSeen(
                number=known.number,
                call=call.call,
                waiting=waiting is not None,
                proposed=waiting.proposed if waiting else None,
                by_hand=known.by_hand,
            )
        )
