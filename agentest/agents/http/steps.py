"""The requests of `setup` and `teardown`."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from typing import Any

from agentest.agents.http.cookies import CookieJar
from agentest.agents.http.exchange import exchanged
from agentest.agents.http.pieces import of_answer
from agentest.agents.http.requests import RequestTemplate
from agentest.agents.http.sources import Sources
from agentest.agents.http_sender import HttpSender
from agentest.agents.paths import nothing_found
from agentest.agents.port import NoReply
from agentest.config.agents.http_requests import Step
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
