"""The requests of `setup` and `teardown`."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import anyio

from agentest.agents.http.cookies import Cookie, CookieJar
from agentest.agents.http.exchange import exchanged
from agentest.agents.http.extraction import Sources, of_answer
from agentest.agents.http.requests import RequestTemplate
from agentest.agents.http_sender import HttpSender
from agentest.agents.port import NoReply
from agentest.agents.reply_paths import nothing_found
from agentest.config.agents.http_requests import Step
from agentest.support.errors import AgentestError
from agentest.support.http.client import DirectResponse
from agentest.support.templates import Values

_HIDDEN = "…"


class SetUpStep:
    """A request of `setup` or `teardown`, and what is kept of its answer."""

    def __init__(self, place: str, step: Step, request: RequestTemplate) -> None:
        """`place` is where it stands in the configuration: `setup[0]`."""
        self.place = place
        self._request = request
        self._kept = Sources(step.save)

    @property
    def names(self) -> frozenset[str]:
        """The names of what is kept."""
        return self._kept.names

    async def take(
        self, sender: HttpSender, jar: CookieJar, values: Values, absent: Collection[str] = ()
    ) -> dict[str, Any]:
        """Send the request; what is kept of the answer. Raises NoReply (Unauthorized), CannotSend."""
        request = self._request.filled(values, absent)
        try:
            answered = await exchanged(sender, request, self._read)
        except NoReply as error:
            raise type(error)(f"{self.place}: {error}", error.retries) from None
        kept, answer = answered.value
        kept = {**kept, **self._kept.in_jar(jar)}
        for name in self._kept.names - kept.keys():
            problem = self._kept.missing(
                name, f"save.{name}", lambda key, path: nothing_found(key, path, _shape(answer))
            )
            raise NoReply(f"{self.place}: {request.method} {request.url}: {problem}", answered.retries)
        return kept

    async def _read(self, response: DirectResponse) -> tuple[dict[str, Any], Any]:
        """What is kept, and the answer itself."""
        text = b"".join([piece async for piece in response.pieces()]).decode("utf-8", errors="replace")
        try:
            answer: Any = json.loads(text)
        except (ValueError, RecursionError):
            answer = text
        kept = self._kept
        found = {**kept.in_piece(of_answer(answer)), **kept.in_text(text)}
        return {**found, **kept.in_headers(response.headers)}, answer


def _shape(answer: Any) -> Any:
    """An answer without its texts: what a login answers is not to be shown."""
    if isinstance(answer, Mapping):
        return {key: _shape(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [_shape(item) for item in answer]
    return _HIDDEN if isinstance(answer, str) else answer


def secrets_of(kept: Mapping[str, Any]) -> list[str]:
    """The texts in what was kept, which may be tokens."""
    found: list[str] = []
    for value in kept.values():
        if isinstance(value, str):
            found.append(value)
        elif isinstance(value, Mapping):
            found += secrets_of(value)
        elif isinstance(value, list):
            found += secrets_of(dict(enumerate(value)))  # type: ignore[arg-type]
    return found


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
