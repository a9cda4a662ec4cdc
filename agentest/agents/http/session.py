"""Send the requests of `setup` and `teardown`, and share one login between conversations."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import field
from typing import Any

import anyio

from agentest.agents.http.exchange import Cookie, CookieJar, send_with_status_errors
from agentest.agents.http.extraction import SavedValueSources, piece_of_response
from agentest.agents.http.requests import RequestTemplate
from agentest.agents.http_sender import HttpSender
from agentest.agents.port import NoReply
from agentest.agents.reply_paths import empty_path_message
from agentest.config.agents.http_requests import SetUpRequest
from agentest.support.errors import AgentestError
from agentest.support.http.client import DirectResponse
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.templates import Values

_HIDDEN = "…"


class SetUpStep:
    """A request of `setup` or `teardown`, and the values that it saves."""

    def __init__(self, place: str, step: SetUpRequest, request: RequestTemplate) -> None:
        """Create a step. `place` is its position in the configuration, such as `setup[0]`."""
        self.place = place
        self._request = request
        self._kept = SavedValueSources(step.save)

    @property
    def names(self) -> frozenset[str]:
        """The names of the saved values."""
        return self._kept.names

    async def take(
        self, sender: HttpSender, jar: CookieJar, values: Values, absent: Collection[str] = ()
    ) -> dict[str, Any]:
        """Send the request and return the saved values. Raises NoReply (Unauthorized), CannotSend."""
        request = self._request.filled(values, absent)
        try:
            answered = await send_with_status_errors(sender, request, self._read)
        except NoReply as error:
            raise type(error)(f"{self.place}: {error}", error.retries) from None
        kept, answer = answered.value
        kept = {**kept, **self._kept.in_jar(jar)}
        for name in self._kept.names - kept.keys():
            problem = self._kept.missing(
                name, f"save.{name}", lambda key, path: empty_path_message(key, path, _without_texts(answer))
            )
            raise NoReply(f"{self.place}: {request.method} {request.url}: {problem}", answered.retries)
        return kept

    async def _read(self, response: DirectResponse) -> tuple[dict[str, Any], Any]:
        """Return the saved values and the response."""
        text = b"".join([piece async for piece in response.pieces()]).decode("utf-8", errors="replace")
        try:
            answer: Any = json.loads(text)
        except (ValueError, RecursionError):
            answer = text
        kept = self._kept
        found = {**kept.in_piece(piece_of_response(answer)), **kept.in_text(text)}
        return {**found, **kept.in_headers(response.headers)}, answer


def _without_texts(answer: Any) -> Any:
    """Return a response without its texts, because a login response may contain secrets."""
    if isinstance(answer, Mapping):
        return {key: _without_texts(value) for key, value in answer.items()}
    if isinstance(answer, list):
        return [_without_texts(item) for item in answer]
    return _HIDDEN if isinstance(answer, str) else answer


def secrets_of(kept: Mapping[str, Any]) -> list[str]:
    """Return the texts in saved values, because they may be tokens."""
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
"""Creates a sender that uses a cookie jar."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoginResult:
    """The result of one login."""

    number: int
    """The number of the login, from 1."""
    saved: Mapping[str, Any]
    cookies: tuple[Cookie, ...]


@dataclass(slots=True)
class _LoginAttempt:
    """A login in progress that all conversations wait for."""

    over: anyio.Event = field(default_factory=anyio.Event)
    problem: AgentestError | None = None


class Login:
    """Sends the `setup` requests with `per: run`: on first use, and again after the login expires."""

    def __init__(
        self,
        steps: Sequence[SetUpStep],
        open_sender: OpenSender,
        on_secret: Callable[[Iterable[str]], None],
    ) -> None:
        self._steps = steps
        self._open_sender = open_sender
        self._on_secret = on_secret
        self._last_login: LoginResult | None = None
        self._attempt: _LoginAttempt | None = None

    @property
    def can_be_repeated(self) -> bool:
        return bool(self._steps)

    @property
    def last(self) -> LoginResult | None:
        """The last login, if there was one."""
        return self._last_login

    async def newer_than(self, number: int) -> LoginResult:
        """Return a login newer than this number. Conversations that call this concurrently share one login.

        Raises NoReply, CannotSend or HeldUp, in every conversation that waits for a login that fails.
        """
        while self._last_login is None or self._last_login.number <= number:
            if self._attempt is None:
                await self._log_in_for_all()
                continue
            attempt = self._attempt
            await attempt.over.wait()
            if attempt.problem:
                raise attempt.problem
        return self._last_login

    async def _log_in_for_all(self) -> None:
        """Log in for all that wait. If this task is cancelled, another one takes over."""
        attempt = self._attempt = _LoginAttempt()
        try:
            self._last_login = await self._log_in()
        except AgentestError as error:
            attempt.problem = error
            raise
        finally:
            self._attempt = None
            attempt.over.set()

    async def _log_in(self) -> LoginResult:
        jar, saved = CookieJar(), dict[str, Any]()
        sender = self._open_sender(jar)
        for step in self._steps:
            saved |= await step.take(sender, jar, saved)
            self._on_secret(secrets_of(saved))
        number = self._last_login.number + 1 if self._last_login else 1
        return LoginResult(number=number, saved=saved, cookies=tuple(jar))
