"""When a conversation may begin whose agent calls tools at our servers.

Calls can be told apart only where they name their conversation. Whether those of an agent do is not known
before some have come: until the calls of two conversations have named them rightly, one conversation at a
time is under way. Where they do not, it stays like that for the whole run.
"""

from __future__ import annotations

import math
from collections import deque
from contextlib import nullcontext

import anyio

from agentest.mock_servers.port import Outside

_PROOFS = 2
"""Conversations that must have been named. One is not enough: an MCP session that was opened in the first
one may carry its name for ever."""
_SILENT = 3
"""Conversations without any call after which nothing is to be expected."""


class Admission:
    """Lets the conversations of agents that share servers begin."""

    def __init__(self, *, exclusive: bool, open_at_once: bool = False) -> None:
        """What is known from the start.

        Args:
            exclusive: the user says that there is one conversation at a time, whatever its calls name.
            open_at_once: else any number of them, without proof.
        """
        self.promised = exclusive
        self.exclusive = exclusive
        """Whether it is so: promised, or found out."""
        self._open = open_at_once
        self._under_way = 0
        self._named: set[str] = set()
        self._silent = 0
        self._waiting: deque[anyio.Event] = deque()
        self._quiet_from = -math.inf

    async def enter(self, outside: Outside = nullcontext) -> None:
        """Wait, in the block that `outside` opens, until a conversation may begin."""
        if self._may_begin() and not self._waiting and not self.resting:
            self._under_way += 1
            return
        begin = anyio.Event()
        self._waiting.append(begin)
        self._admit()
        try:
            async with outside():
                await begin.wait()
                if self.resting:
                    await anyio.sleep_until(self._quiet_from)
        except BaseException:
            if begin.is_set():
                self._under_way -= 1
            else:
                self._waiting.remove(begin)
            self._admit()
            raise

    def leave(self, *, called: bool, at_work_s: float = 0.0) -> bool:
        """A conversation has ended; whether the next one waits for its agent to come to rest.

        Args:
            called: whether any call of it came.
            at_work_s: for how long its agent may go on with it: then calls without names may be of it.
        """
        self._under_way -= 1
        if not called:
            self._silent += 1
        rests = at_work_s > 0 and not self._named
        if rests:
            self._quiet_from = anyio.current_time() + at_work_s
        self._admit()
        return rests

    @property
    def names_are_right(self) -> bool:
        """Whether the calls of two conversations have named them, and none has come without a name."""
        return len(self._named) >= _PROOFS and not self.exclusive

    @property
    def resting(self) -> bool:
        """Whether calls without names may be of a conversation that has ended."""
        return self._quiet_from > -math.inf and anyio.current_time() < self._quiet_from

    def note_named(self, key: str) -> None:
        """A call has named the conversation that it was of."""
        self._named.add(key)
        self._admit()

    def note_unnamed(self) -> bool:
        """A call came without a name; whether that is news."""
        news = not self.exclusive
        self.exclusive = True
        return news

    def _may_begin(self) -> bool:
        if self.exclusive:
            return self._under_way == 0
        self._open = self._open or len(self._named) >= _PROOFS or self._silent >= _SILENT
        return self._open or self._under_way == 0

    def _admit(self) -> None:
        while self._waiting and self._may_begin():
            self._under_way += 1
            self._waiting.popleft().set()
