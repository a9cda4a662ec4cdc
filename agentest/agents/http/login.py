"""The requests that are made once for all conversations of a run: the login, and its end."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from agentest.agents.http.cookies import Cookie, CookieJar
from agentest.agents.http.steps import SetUpStep, secrets_of
from agentest.agents.http_sender import HttpSender
from agentest.support.errors import AgentestError

OpenSender = Callable[[CookieJar], HttpSender]
"""Makes a sender with the cookies of a jar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggedIn:
    """What the requests of a run have given."""

    number: int
    """Of the login, from 1."""
    saved: Mapping[str, Any]
    cookies: tuple[Cookie, ...]


@dataclass(slots=True)
class _Attempt:
    """A login under way, for which all conversations wait."""

    over: anyio.Event = field(default_factory=anyio.Event)
    problem: AgentestError | None = None


class Login:
    """Makes the requests `per: run` of an agent's setup: when first needed, and again when worn out."""

    def __init__(
        self,
        steps: Sequence[SetUpStep],
        open_sender: OpenSender,
        on_secret: Callable[[Iterable[str]], None],
    ) -> None:
        self._steps = steps
        self._open_sender = open_sender
        self._on_secret = on_secret
        self._last: LoggedIn | None = None
        self._attempt: _Attempt | None = None

    @property
    def can_be_repeated(self) -> bool:
        return bool(self._steps)

    @property
    def last(self) -> LoggedIn | None:
        """The last login; None as long as there was none."""
        return self._last

    async def newer_than(self, number: int) -> LoggedIn:
        """A login after that of this number. Conversations that ask at the same time share one.

        Raises NoReply, CannotSend, HeldUp: each of those who waited for one that failed.
        """
        while self._last is None or self._last.number <= number:
            if self._attempt is None:
                await self._lead()
                continue
            attempt = self._attempt
            await attempt.over.wait()
            if attempt.problem:
                raise attempt.problem
        return self._last

    async def _lead(self) -> None:
        """Log in for all who wait; if we are cancelled meanwhile, one of them leads."""
        attempt = self._attempt = _Attempt()
        try:
            self._last = await self._log_in()
        except AgentestError as error:
            attempt.problem = error
            raise
        finally:
            self._attempt = None
            attempt.over.set()

    async def _log_in(self) -> LoggedIn:
        jar, saved = CookieJar(), dict[str, Any]()
        sender = self._open_sender(jar)
        for step in self._steps:
            saved |= await step.take(sender, jar, saved)
            self._on_secret(secrets_of(saved))
        number = self._last.number + 1 if self._last else 1
        return LoggedIn(number=number, saved=saved, cookies=tuple(jar))
