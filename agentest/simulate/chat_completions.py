"""An agent that speaks OpenAI's chat completions over HTTP."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from time import perf_counter
from urllib.parse import urljoin, urlsplit

import anyio
import httpx

from agentest.config import ChatCompletionsAgent, check_url
from agentest.errors import AgentError
from agentest.http import (
    CONNECTION_ERRORS,
    AddressGuard,
    RefusedAddress,
    describe,
    pause_before_retry,
    retry_after,
    was_refused,
)
from agentest.simulate.agents import AgentReply, Message, NoReply, TurnContext
from agentest.simulate.completion import read_completion, read_stream
from agentest.simulate.sse import events

MAX_BODY_BYTES = 10 * 1024 * 1024
MAX_REDIRECTS = 5
_RETRIED = {429, 502, 503, 504}
_SHOWN_BODY_BYTES = 10_000
# Of the codings that could be decoded only those whose pieces stay small: brotli and zstd unpack a few bytes
# to gigabytes before anything can be counted.
_ENCODINGS = ("gzip", "deflate")


class _TryAgain(Exception):
    """This attempt failed in a way that is not yet the agent's answer."""

    def __init__(self, problem: str, wait: float | None = None) -> None:
        super().__init__(problem)
        self.wait = wait


class ChatCompletionsClient:
    """Sends conversations to one endpoint. Holds nothing of any conversation."""

    def __init__(self, config: ChatCompletionsAgent, client: httpx.AsyncClient, timeout_s: float) -> None:
        self.name = config.name
        self._config = config
        self._client = client
        self._timeout_s = timeout_s
        self._headers = {
            "accept": "text/event-stream" if config.streaming else "application/json",
            "accept-encoding": ", ".join(_ENCODINGS),
            "content-type": "application/json",
            **{name.lower(): value for name, value in config.headers.items()},
        }
        self._first_messages = list(config.body.get("messages", []))
        self._extra = {key: value for key, value in config.body.items() if key != "messages"}
        if config.streaming:
            self._extra["stream"] = True

    async def reply(self, messages: Sequence[Message], _: TurnContext) -> AgentReply:
        """The agent's answer. Raises NoReply; each attempt has the whole time-out."""
        payload = {**self._extra, "messages": [*self._first_messages, *messages]}
        content = json.dumps(payload).encode()
        for attempt in range(1, self._config.retries + 2):
            started = perf_counter()
            try:
                reply = await self._attempt(content)
            except _TryAgain as error:
                if attempt > self._config.retries:
                    tries = f" ({attempt} attempts)" if attempt > 1 else ""
                    raise NoReply(f"{error}{tries}", attempt - 1) from None
                await anyio.sleep(pause_before_retry(attempt, error.wait))
                continue
            except AgentError as error:
                raise NoReply(str(error), attempt - 1) from None
            return replace(reply, latency_ms=(perf_counter() - started) * 1000, retries=attempt - 1)
        raise AssertionError("unreachable: the last attempt either answers or raises")

    async def _attempt(self, content: bytes) -> AgentReply:
        try:
            with anyio.fail_after(self._timeout_s):
                return await self._send(content)
        except TimeoutError:
            raise AgentError(
                f"{self._config.endpoint}: no complete answer within {self._timeout_s:g} s "
                "(request_timeout_ms)"
            ) from None
        except RefusedAddress as error:
            raise AgentError(str(error)) from None

    async def _send(self, content: bytes) -> AgentReply:
        url, headers = self._config.endpoint, self._headers
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._request(url, headers, content)
            try:
                if response.status_code not in (307, 308):
                    return await self._read(response)
                url, headers = self._redirected(url, headers, response)
            finally:
                await response.aclose()
        raise AgentError(f"{self._config.endpoint}: more than {MAX_REDIRECTS} redirects")

    async def _request(self, url: str, headers: dict[str, str], content: bytes) -> httpx.Response:
        raw_headers = [(name.encode(), value.encode()) for name, value in headers.items()]
        try:
            request = self._client.build_request("POST", url, headers=raw_headers, content=content)
            return await self._client.send(request, stream=True)
        except CONNECTION_ERRORS as error:
            problem = f"{url}: {describe(error)}"
            if was_refused(error):
                # Nothing of an answer has come: sending it again cannot make the agent answer twice.
                raise _TryAgain(problem) from None
            raise AgentError(problem) from None

    def _redirected(
        self, url: str, headers: dict[str, str], response: httpx.Response
    ) -> tuple[str, dict[str, str]]:
        location = response.headers.get("location", "")
        if not location:
            raise AgentError(f"{url} answered {response.status_code} without a location to go to")
        try:
            target = check_url(urljoin(url, location))
        except ValueError as error:
            raise AgentError(f"{url} redirects to an address that {error}") from None
        if urlsplit(target)[:2] != urlsplit(url)[:2]:
            # The configured headers may be credentials; another origin does not get them.
            headers = {name: headers[name] for name in ("accept", "accept-encoding", "content-type")}
        return target, headers

    async def _read(self, response: httpx.Response) -> AgentReply:
        status = response.status_code
        if status in _RETRIED:
            raise _TryAgain(await self._problem(response), retry_after(response.headers))
        if not 200 <= status < 300:
            raise AgentError(await self._problem(response))
        try:
            return await self._read_body(response)
        except CONNECTION_ERRORS as error:
            raise AgentError(f"{response.url}: the answer was cut: {describe(error)}") from None

    async def _read_body(self, response: httpx.Response) -> AgentReply:
        pieces = _bounded(response)
        beginning = await _first_piece(pieces)
        content_type = response.headers.get("content-type", "")
        streamed = "event-stream" in content_type or (self._config.streaming and "json" not in content_type)
        # A JSON object is an answer, whatever the header calls it: not every server can stream.
        if streamed and not beginning.removeprefix(BOM_UTF8).lstrip().startswith(b"{"):
            return await read_stream(events(_again(beginning, pieces)))
        return read_completion(b"".join([piece async for piece in _again(beginning, pieces)]))

    async def _problem(self, response: httpx.Response) -> str:
        status = response.status_code
        if 300 <= status < 400:
            target = response.headers.get("location", "nowhere")
            AddressGuard().check_literal(urlsplit(urljoin(str(response.url), target)).hostname or "")
            return (
                f"{response.url} answered {status} and points to {target}: set the endpoint to that address"
            )
        shown = " ".join((await _beginning(response)).decode("utf-8", errors="replace").split())
        return f"{response.url} answered {status}: {shown or '(empty body)'}"


async def _bounded(response: httpx.Response) -> AsyncIterator[bytes]:
    """The decoded body, refused while reading once it is larger than 10 MB."""
    encoding = response.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in (*_ENCODINGS, "identity", ""):
        raise AgentError(
            f"{response.url}: the answer's content-encoding is {encoding!r}; the request allows "
            f"{' and '.join(_ENCODINGS)}"
        )
    size = 0
    async for piece in response.aiter_bytes():
        size += len(piece)
        if size > MAX_BODY_BYTES:
            raise AgentError(f"{response.url}: the answer is larger than {MAX_BODY_BYTES // 2**20} MB")
        yield piece


async def _first_piece(pieces: AsyncIterator[bytes]) -> bytes:
    """What comes first, up to something more than white space."""
    read: list[bytes] = []
    async for piece in pieces:
        read.append(piece)
        if piece.removeprefix(BOM_UTF8).strip():
            break
    return b"".join(read)


async def _again(beginning: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield beginning
    async for piece in rest:
        yield piece


async def _beginning(response: httpx.Response) -> bytes:
    """Enough of the body for a message, even if the rest never comes whole."""
    read = b""
    try:
        async for piece in _bounded(response):
            read += piece
            if len(read) >= _SHOWN_BODY_BYTES:
                break
    except (*CONNECTION_ERRORS, AgentError):
        pass  # what has come is enough: the status already says that this is an error
    return read[:_SHOWN_BODY_BYTES]
