"""Requests of agents to their models, recorded and replayed between the gateway and the model's API."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from functools import lru_cache, partial
from typing import Any
from urllib.parse import unquote

import aiohttp
from yarl import URL

from agentest.mocks.changed_answers import changed_at
from agentest.models.tape import CassetteMode
from agentest.plugins.protocols.model_messages import Json
from agentest.plugins.servers.agent_tape import AgentRequest, AgentTape
from agentest.plugins.servers.model_gateway.exchange import GatewayError, ModelResponse
from agentest.support.errors import ModelError
from agentest.support.http.address_guard import RefusedAddress
from agentest.support.http.client import Client, DirectResponse, Headers, StoredResponse
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.json_text import encoded, json_or, leaves
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.redaction import HIDDEN, header_secrets, url_secrets

_KEPT_HEADERS = re.compile(
    r"content-type|retry-after(-ms)?|x-should-retry|(x-)?request-id|(x|anthropic)-ratelimit-.+"
)
MAX_BODY_BYTES = 64 * 2**20  # maximum size of a request, and of an answer of the model
_REDIRECTS = (301, 302, 307, 308)
_IGNORED = "(ignored)"
_SESSION = "(session-id-of-agentest)"
_KEY = "(?:(?:api|access|account|private|secret)[-_]?key|token|secret|pass(?:wd|word|phrase)|authorization)"
_CREDENTIAL = re.compile(f"(?i){_KEY}$")
_IN_FORM = re.compile(rf'(?i){_KEY}(?:=|"\r\n(?:[^\r\n]++\r\n){{0,3}}+\r\n)([^&\s"]++)'.encode())
_SHORTEST_KEY = 12
"""Shorter credentials, which agents have where none is needed, may be words of the conversation."""


@lru_cache
def _keys_in_head(headers: Sequence[tuple[str, str]], url: str) -> tuple[str, ...]:
    secrets = (*header_secrets(dict(headers)), *url_secrets(url))
    return tuple(secret for secret in secrets if len(secret) >= _SHORTEST_KEY)


def keys_in(data: bytes, body: Any, messages: str = "") -> list[str]:
    """Return the credentials in JSON or a form, but for its `messages`, the key of which is given."""
    if isinstance(body, dict):
        settings = {key: value for key, value in body.items() if key != messages}
        found = [value for path, value in leaves(settings) if _is_credential(path, value)]
    else:
        found = [unquote(each.decode(errors="replace")) for each in _IN_FORM.findall(data)]
    return [word for value in found for word in value.split() if len(word) >= _SHORTEST_KEY]


def _is_credential(path: str, value: Any) -> bool:
    return isinstance(value, str) and "<" not in value and _CREDENTIAL.search(path) is not None


@dataclass(slots=True)
class LiveApi:
    """The model's own API, as a request of an agent calls it (implements `exchange.ModelApi`)."""

    client: Client
    method: str
    url: str
    headers: Headers
    given: tuple[Json, bytes] | None = None
    """The body of the agent's request, and how it came: so it passes on if nothing is changed."""

    @property
    def keys(self) -> tuple[str, ...]:
        """The credentials in its headers and its address."""
        return _keys_in_head(self.headers, self.url)

    async def send(self, body: Json) -> DirectResponse:
        given, data = self.given or (None, b"")
        return await self.send_bytes(data if body is given else encoded(body))

    async def send_bytes(self, data: bytes | None) -> DirectResponse:
        try:
            response = await self._sent(data)
            for _ in range(5):
                if response.status_code not in _REDIRECTS or self.method != "POST":
                    break
                await response.aclose()
                self.url = _redirected(self.url, response.headers.get("location", ""))
                response = await self._sent(data)
            if response.status_code == 101:
                await response.aclose()
                raise GatewayError("the model's API switches to a protocol that the gateway cannot read")
            response.allow(MAX_BODY_BYTES)
            return response
        except RefusedAddress as error:
            raise GatewayError(str(error)) from None
        except CONNECTION_ERRORS as error:
            raise GatewayError(
                f"the gateway cannot reach the model at {self.url.partition('?')[0]}: {describe(error)}"
            ) from None

    async def _sent(self, data: bytes | None) -> DirectResponse:
        try:
            return await self.client.send_direct(self.method, self.url, self.headers, data)
        except aiohttp.ServerDisconnectedError:  # it may have closed an idle connection
            return await self.client.send_direct(self.method, self.url, self.headers, data)


def _redirected(url: str, location: str) -> str:
    old, new = URL(url), URL(url).join(URL(location))
    if new.host != old.host or (old.scheme, new.scheme) == ("https", "http"):
        raise GatewayError(
            f"the model at {url.partition('?')[0]} redirects to another host, {location[:200]!r}: "
            "write the address of the model into `model_gateway.upstream`"
        )
    return str(new)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedApi:
    """A model's API whose responses are recorded or replayed (implements `exchange.ModelApi`).

    Args:
        path: the path of the request after the API's base, with its query.
        ignored: parts of bodies that differ from run to run, as in `ModelGateway.ignore`.
        session_id: the id that Agentest made for the session, which is another in every run.
        keys: the credentials that agents have sent.
        on_problem: receives the error that ends the conversation.
    """

    live: LiveApi
    tape: AgentTape
    path: str
    ignored: Sequence[str]
    session_id: str | None
    keys: Collection[str]
    on_problem: Callable[[ModelError], None]

    async def send(self, body: Json) -> ModelResponse:
        """Return the recorded response, else the live one, which is recorded when it has been read.

        Raises GatewayError if nothing is recorded and the model must not be asked.
        """
        return await self._answered(body, partial(self.live.send, body))

    async def send_bytes(self, data: bytes | None) -> ModelResponse:
        body = json_or(data, data.decode(errors="backslashreplace")) if data else {}
        body = body if isinstance(body, dict) else {"body": body}
        return await self._answered(body, partial(self.live.send_bytes, data))

    async def _answered(self, body: Json, send: Callable[[], Awaitable[ModelResponse]]) -> ModelResponse:
        live, hidden = self.live, dict.fromkeys(self.keys, HIDDEN)
        if self.session_id:
            hidden[self.session_id] = _SESSION

        def hide(text: str) -> str:
            for part, replacement in hidden.items():
                text = text.replace(part, replacement)
            return text

        sent = _mapped({live.method: self.path, **body}, hide)
        model = body.get("model")
        compared = partial(without_ignored, ignored=self.ignored)
        taped = self.tape.begin(sent, model if isinstance(model, str) else "", compared)
        if recorded := taped.recorded():
            session_id = self.session_id or _SESSION
            return replace(recorded, body=recorded.body.replace(_SESSION.encode(), session_id.encode()))
        if self.tape.mode is CassetteMode.REPLAY:
            raise self._fail(ModelError(taped.missing()))
        return _Taped(await send(), taped, hide, self._fail)

    def _fail(self, error: ModelError) -> GatewayError:
        self.on_problem(error)
        return GatewayError(str(error), 409)


class _Taped:
    """A live response that is recorded once it has been read, or when the agent reads no further."""

    def __init__(
        self,
        response: ModelResponse,
        request: AgentRequest,
        hide: Callable[[str], str],
        fail: Callable[[ModelError], GatewayError],
    ) -> None:
        self.status_code, self.headers = response.status_code, response.headers
        self.is_success = response.is_success
        self._response, self._request, self._hide, self._fail = response, request, hide, fail
        self._unfinished: bytearray | None = None

    async def read(self) -> bytes:
        body = await self._response.read()
        self._record(body)
        return body

    async def pieces(self) -> AsyncIterator[bytes]:
        read = self._unfinished = bytearray()
        async for piece in self._response.pieces():
            read += piece
            yield piece
        self._unfinished = None
        self._record(bytes(read))

    async def aclose(self) -> None:
        try:
            if self._unfinished:
                self._record(bytes(self._unfinished), cut=True)
        finally:
            await self._response.aclose()

    def _record(self, body: bytes, *, cut: bool = False) -> None:
        hide, headers = self._hide, self.headers
        kept = {
            name.lower(): hide(value)
            for name, value in headers.items()
            if _KEPT_HEADERS.fullmatch(name.lower())
        }
        text = hide(body.decode(errors="surrogateescape"))
        stored = StoredResponse(
            status_code=self.status_code,
            headers=kept,
            body=text.encode(errors="surrogateescape"),
            cut=cut,
        )
        try:
            self._request.record(stored)
        except ModelError as error:
            raise self._fail(error) from None


def without_ignored(body: Any, ignored: Sequence[str]) -> Any:
    """Return a request without what differs from run to run.

    Args:
        ignored: paths such as `messages[*].tool_calls[*].id`, and patterns for parts of texts such as
            `/session-\\w+/`.
    """
    patterns = [re.compile(each[1:-1]) for each in ignored if each.startswith("/")]

    def replaced(text: str) -> str:
        for pattern in patterns:
            text = pattern.sub(_IGNORED, text)
        return text

    body = _mapped(body, replaced) if patterns else body
    for path in (each for each in ignored if not each.startswith("/")):
        body = changed_at(body, path, lambda _: _IGNORED)
    return body


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    if isinstance(value, str):
        return change(value)
    if isinstance(value, list):
        return [_mapped(item, change) for item in value]
    if isinstance(value, dict):
        return {
            key: HIDDEN if _is_credential(key, item) else _mapped(item, change) for key, item in value.items()
        }
    return value
