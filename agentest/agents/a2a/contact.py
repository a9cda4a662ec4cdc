"""How one agent is talked to: found out once, and shared by all of its conversations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import TypeVar
from urllib.parse import urljoin

import anyio

from agentest.agents.a2a.card import Card
from agentest.agents.a2a.finding import Fetch, base_of, find_card
from agentest.agents.a2a.ways import Version, Way, same_origin, ways
from agentest.support.errors import AgentError

_CARD_TIMEOUT_S = 10.0

T = TypeVar("T")
Say = Callable[[Way, bool], Awaitable[T]]


class WayRefused(AgentError):
    """The agent cannot be talked to in this way; nothing of the request has been done."""

    def __init__(self, message: str, *, nowhere: bool = False) -> None:
        """`nowhere`: nobody takes requests at that address, in whatever version."""
        super().__init__(message)
        self.nowhere = nowhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """Where an agent is said to be, and what the user wishes."""

    name: str
    endpoint: str
    version: Version | None
    in_process: bool
    """Whether an application takes the requests, whose card cannot know the address."""


class Contact:
    """The ways to talk to an agent. One conversation tries them out, the others wait for what it finds."""

    def __init__(self, address: Address, timeout_s: float, on_note: Callable[[str], None]) -> None:
        self._address = address
        self._timeout_s = min(timeout_s, _CARD_TIMEOUT_S)
        self._on_note = on_note
        self._lock = anyio.Lock()
        self._ways: tuple[Way, ...] | None = None
        self._settled = False
        self.card: Card | None = None

    async def talk(self, fetch: Fetch, say: Say[T]) -> T:
        """What `say` makes of the first way that is not refused.

        Args:
            fetch: gets the JSON value at an address, for the card.
            say: gets a way, and whether there is no other address to try; raises WayRefused where the agent
                does not take this way.
        """
        if not self._settled:
            async with self._lock:
                if self._ways is None:
                    await self._look_around(fetch)
                # An agent with a card has said how it is talked to: nobody need wait for its first answer.
                self._settled = self._settled or self.card is not None
                if not self._settled:
                    return await self._first(say)
        return await self._say(say)

    async def _first(self, say: Say[T]) -> T:
        try:
            return await self._say(say)
        finally:
            self._settled = True

    async def _look_around(self, fetch: Fetch) -> None:
        address = self._address
        with anyio.move_on_after(self._timeout_s):
            self.card = await find_card(address.endpoint, fetch)
        base = base_of(address.endpoint)
        self._ways = ways(base, self.card, address.version)
        if self.card is not None and not address.in_process:
            self._note_elsewhere(base, self.card)

    def _note_elsewhere(self, base: str, card: Card) -> None:
        urls = [urljoin(base, offer.url) for offer in card.offers]
        elsewhere = [url for url in urls if not same_origin(base, url)]
        if elsewhere and len(elsewhere) == len(card.offers):
            self._on_note(
                f"agent {self._address.name!r}: its card names another address, {elsewhere[0]}; requests go "
                "to the configured endpoint all the same"
            )

    async def _say(self, say: Say[T]) -> T:
        refusals: list[str] = []
        while True:
            if not self._ways:
                raise self._nothing_spoken()
            way = self._ways[0]
            try:
                return await say(way, all(one.url == way.url for one in self._ways))
            except WayRefused as refused:
                refusals.append(str(refused))
                if not self._leave(way, refused.nowhere):
                    raise AgentError("; then: ".join(dict.fromkeys(refusals))) from None

    def _leave(self, way: Way, nowhere: bool) -> bool:
        """Go on to the next way, if others have not done so already; whether there is one to try."""
        known = self._ways or ()
        if way != known[0]:
            return True
        left = tuple(one for one in known[1:] if not (nowhere and one.url == way.url))
        if left:
            self._ways = left
        return bool(left)

    def _nothing_spoken(self) -> AgentError:
        offered = ", ".join(self.card.refused) if self.card else "nothing"
        return AgentError(
            f"the agent's card offers {offered}; spoken here are JSON-RPC (1.0 and 0.3) and HTTP+JSON (1.0)"
        )
