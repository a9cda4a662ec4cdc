"""Asking for the result of a job until it is there."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import anyio

from agentest.agents.http.gathering import Gathering
from agentest.agents.port import NoReply
from agentest.config.agents.http_requests import Poll
from agentest.support.deadlines import TimeLimit
from agentest.support.json_path import JsonPath

Ask = Callable[[], Awaitable[Gathering]]
"""Sends the request once and reads its answer."""


class Polling:
    """The rule by which a job is waited for."""

    def __init__(self, poll: Poll) -> None:
        self._until = JsonPath(poll.until)
        self._every_s = poll.every_ms / 1000

    async def result(self, ask: Ask, left_s: float, timeout_s: float) -> tuple[Gathering, float]:
        """The first answer for which `until` holds, and the milliseconds until then. Raises NoReply.

        Args:
            left_s: what is left of the turn's time, which was `timeout_s`.
        """
        limit = TimeLimit(left_s)
        last: Gathering | None = None
        try:
            with limit:
                while True:
                    last = await ask()
                    if self._until.holds(last.answer):
                        return last, limit.elapsed * 1000
                    await anyio.sleep(self._every_s)
        except TimeoutError:
            raise NoReply(self._never(last, timeout_s)) from None

    def _never(self, last: Gathering | None, timeout_s: float) -> str:
        answer = f"the last answer: {last.shown}" if last else "no answer came"
        return (
            f"the job was not done within {timeout_s:g} s (request_timeout_ms): "
            f"`poll.until: {self._until.text}` never held; {answer}"
        )
