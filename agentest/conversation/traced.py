"""What the spans of an agent tell of one conversation: calls, and the use of models."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agentest.mock_servers.port import AskedTurn, TellsSpans, TurnTraces
from agentest.mocks.resolver import MockResolver


class Traced:
    """A conversation whose agent sends traces."""

    def __init__(self, mocks: MockResolver, source: TellsSpans, *, alone: bool) -> None:
        """`alone`: whether nobody else tells of the agent's calls: missing spans hide them then."""
        self._mocks = mocks
        self._source = source
        self._alone = alone
        self._asked: dict[int, AskedTurn] = {}
        self._missing: dict[int, str] = {}
        """Turn → why it was not complete when it closed."""
        self._stays_open = False
        """Whether the spans of all turns end with the conversation."""
        self._told: set[str] = set()
        """The spans whose calls are in the record."""

    async def see(self, asked: AskedTurn) -> TurnTraces:
        """Wait for the spans of a turn, and record their calls. Raises AgentError for a name that is none."""
        self._stays_open |= asked.stays_open
        self._asked[asked.turn_index] = asked
        told = await self._source.spans_of(replace(asked, wait=asked.wait and not self._stays_open))
        if told.missing:
            self._missing[asked.turn_index] = told.missing
        self._observe(told)
        return told if self._alone else replace(told, missing=None)

    async def see_late(self) -> Mapping[int, str]:
        """Record the calls of spans that came after their turns had closed. Raises as `see`.

        Returns:
            Turn → why its calls were hidden, for the turns whose calls are known by now.
        """
        mended: dict[int, str] = {}
        for turn_index, asked in self._asked.items():
            missing = turn_index in self._missing
            # What was asked for in its turn has been waited for.
            wait = self._stays_open and missing and not mended
            told = await self._source.spans_of(replace(asked, wait=wait))
            self._observe(told)
            if missing and not told.missing:
                mended[turn_index] = self._missing[turn_index]
        return mended

    def _observe(self, told: TurnTraces) -> None:
        new = [each for each in told.calls if not each.spans & self._told]
        self._mocks.observe([each.call for each in new])
        self._told.update(*(each.spans for each in told.calls))
