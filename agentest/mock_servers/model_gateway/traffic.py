"""The conversations of one gateway that are under way."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager, nullcontext
from dataclasses import field

import anyio

from agentest.mock_servers.model_gateway.conversation import GatewayConversation, GatewayState
from agentest.mock_servers.model_gateway.placement import Unplaced
from agentest.mock_servers.port import ActiveConversation, Identity, WaitingBlock
from agentest.support.lazy_dataclasses import dataclass

_MOST_NOTES = 5
_REMEMBERED = 200


@dataclass(slots=True, kw_only=True)
class GatewayTraffic:
    """What passes through one gateway (implements `mock_servers.port.ModelTraffic`)."""

    agent: str
    mocks: bool
    allows_real: bool
    on_note: Callable[[str], None]
    on_request: Callable[[], None]
    """Is called for each request to a model."""
    state: GatewayState = field(default_factory=GatewayState)
    ended: deque[GatewayConversation] = field(default_factory=lambda: deque(maxlen=_REMEMBERED))
    """The conversations that ended last."""
    _active: dict[str, GatewayConversation] = field(default_factory=dict)
    _openings: dict[str, anyio.Lock] = field(default_factory=dict)
    _noted: set[str] = field(default_factory=set)

    @property
    def active(self) -> Collection[GatewayConversation]:
        """The conversations under way."""
        return self._active.values()

    def named(self, key: str) -> GatewayConversation | None:
        """Return the conversation under way with this key."""
        return self._active.get(key)

    def last_id(self, known: str) -> str:
        """Return the provider's id of the last answer behind an id that an agent received."""
        owner = self.state.owners.get(known)
        answers = owner.answers if owner else ()
        return next((each.answer_id for each in answers if each.answer_id and known in each.shown.ids), known)

    @asynccontextmanager
    async def under_way(
        self,
        who: Identity,
        serving: ActiveConversation,
        mocked: Collection[str],
        opening: str,
        outside: WaitingBlock = nullcontext,
        recorded: Collection[str] = (),
    ) -> AsyncIterator[GatewayConversation]:
        lock = self._openings.setdefault(opening, anyio.Lock())
        if lock.locked():
            async with outside():
                await lock.acquire()
        else:
            await lock.acquire()
        self.state.begun += 1
        conversation = GatewayConversation(
            gateway=self.state,
            number=self.state.begun,
            who=who,
            serving=serving,
            mocked=frozenset(mocked) if self.mocks else frozenset(),
            allows_real=self.allows_real,
            recorded=frozenset(recorded) if self.mocks else frozenset(),
        )
        self._active[who.key] = conversation
        try:
            yield conversation
        finally:
            del self._active[who.key]
            conversation.end()
            if len(self.ended) == _REMEMBERED:
                self.ended[0].forget()
            self.ended.append(conversation)
            lock.release()

    async def note_unplaced(self, unplaced: Unplaced, *, offers_tools: bool) -> None:
        """Tell of a request that belongs to no certain conversation, and doubt the calls of all under way."""
        if unplaced.why not in self._noted and len(self._noted) < _MOST_NOTES:
            self._noted.add(unplaced.why)
            self.on_note(
                f"a request of agent {self.agent!r} to its model could not be placed: {unplaced.why}. To run "
                "many conversations at once, send the agent {{model_url}}, which names the conversation, or "
                "write exclusive: true"
            )
        if not offers_tools:
            return
        for each in list(self._active.values()):
            await each.serving.refused(f"a request to the model that may have been of it: {unplaced.why}")
