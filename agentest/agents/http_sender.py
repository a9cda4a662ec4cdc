"""Sending requests to an agent over HTTP: again where that is safe, within bounds of time and size."""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import urljoin, urlsplit

import anyio

from agentest.agents.asgi.exchange import AppFailed
from agentest.agents.hints import hint, readable
from agentest.agents.port import NoReply
from agentest.config.agents import HttpAgent
from agentest.config.fields import check_url
from agentest.errors import AgentError, AgentestError, HeldUp
from agentest.http.bodies import BadBody
from agentest.http.client import DirectResponse, Headers, Poster
from agentest.http.guard import AddressGuard, RefusedAddress
from agentest.http.retries import CONNECTION_ERRORS, describe, pause_before_retry, retry_after, was_refused
from agentest.http.sse import events
from agentest.http.unpacking import CODINGS
from agentest.support.deadlines import TimeLimit

MAX_REDIRECTS = 5
_RETRIED = {429, 502, 503, 504}
_SHOWN_BODY_BYTES = 10_000
_LONG_DELAY_S = 1.0
"""From which on a delay of our own may be why somebody has closed a connection."""
_OURS = ("accept", "accept-encoding", "content-type")

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HttpAnswer(Generic[T]):
    """What an agent answered, how long its last attempt took, and how many came before."""

    value: T
    latency_ms: float
    retries: int


class _TryAgain(Exception):
    """This attempt failed in a way that is not yet the agent's answer."""

    def __init__(self, problem: str, wait: float | None = None, *, lost: bool = False) -> None:
        super().__init__(problem)
        self.wait = wait
        self.lost = lost
        """Whether the connection was, so that there is no answer at all."""


class HttpSender:
    """Posts JSON to an agent, and gets JSON from it. Holds nothing of any conversation."""

    def __init__(self, config: HttpAgent, client: Poster, timeout_s: float, place: str) -> None:
        """`place` says, as a hint in errors, where such agents usually are."""
        self._place = place
        self._retries = config.retries
        self._client = client
        self._timeout_s = timeout_s
        headers = {
            "accept": "text/event-stream" if config.streaming else "application/json",
            "accept-encoding": ", ".join(CODINGS),
            "content-type": "application/json",
            **{name.lower(): value for name, value in config.headers.items()},
        }
        self._headers: Headers = list(headers.items())

    async def post(
        self,
        url: str,
        payload: Mapping[str, Any],
        read: Callable[[DirectResponse], Awaitable[T]],
        also: Container[int] = (),
    ) -> HttpAnswer[T]:
        """What `read` makes of the answer.

        Args:
            read: gets a response of status 2xx, or one of `also`, whose body has not been read yet.

        Raises:
            NoReply: for every other answer, and for none; each attempt has the whole time-out.
        """
        return await self._exchange(url, json.dumps(payload).encode(), read, also)

    async def get(self, url: str, read: Callable[[DirectResponse], Awaitable[T]]) -> HttpAnswer[T]:
        """What `read` makes of the answer to a GET, within the bounds of `post`. Raises NoReply."""
        return await self._exchange(url, None, read, ())

    async def _exchange(
        self,
        url: str,
        content: bytes | None,
        read: Callable[[DirectResponse], Awaitable[T]],
        also: Container[int],
    ) -> HttpAnswer[T]:
        """Post the content; without any, get."""
        for attempt in range(1, self._retries + 2):
            limit = TimeLimit(self._timeout_s)
            try:
                value, held_up = await self._attempt(url, content, read, also, limit)
            except _TryAgain as error:
                if attempt > self._retries:
                    tries = f" ({attempt} attempts)" if attempt > 1 else ""
                    problem = f"{error}{tries}"
                    if error.lost and self._was_held_up(limit):
                        raise HeldUp(problem, limit.delay) from None
                    raise NoReply(problem, attempt - 1) from None
                await anyio.sleep(pause_before_retry(attempt, error.wait))
                continue
            except AgentError as error:
                raise NoReply(str(error), attempt - 1) from None
            # What holds up the event loop is not the agent's doing, but for what it did in it itself.
            took = min(limit.elapsed + held_up, limit.elapsed_in_all)
            if held_up and took > self._timeout_s:
                raise NoReply(self._too_late(url), attempt - 1)
            return HttpAnswer(value, took * 1000, attempt - 1)
        raise AssertionError("unreachable: the last attempt either answers or raises")

    async def _attempt(
        self,
        url: str,
        content: bytes | None,
        read: Callable[[DirectResponse], Awaitable[T]],
        also: Container[int],
        limit: TimeLimit,
    ) -> tuple[T, float]:
        """What was read, and for how long who answered held up our event loop."""
        try:
            with limit:
                return await self._send(url, content, read, also, limit)
        except TimeoutError:
            raise AgentError(self._too_late(url)) from None
        except (RefusedAddress, AppFailed) as error:
            raise AgentError(str(error)) from None

    def _too_late(self, url: str) -> str:
        return f"{url}: no complete answer within {self._timeout_s:g} s (request_timeout_ms)"

    async def _send(
        self,
        url: str,
        content: bytes | None,
        read: Callable[[DirectResponse], Awaitable[T]],
        also: Container[int],
        limit: TimeLimit,
    ) -> tuple[T, float]:
        target, headers = url, self._headers
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._request(target, headers, content, limit)
            try:
                if response.status_code not in (307, 308):
                    return await self._read(response, read, also, limit), response.held_up
                target, headers = _redirected(target, headers, response)
            finally:
                await response.aclose()
        raise AgentError(f"{url}: more than {MAX_REDIRECTS} redirects")

    async def _request(
        self, url: str, headers: Headers, content: bytes | None, limit: TimeLimit
    ) -> DirectResponse:
        try:
            if content is None:
                return await self._client.get_direct(url, headers)
            return await self._client.post_direct(url, headers, content)
        except CONNECTION_ERRORS as error:
            problem = f"{url}: {describe(error)}"
            if was_refused(error):
                # Nothing of an answer has come: sending it again cannot make the agent answer twice.
                raise _TryAgain(problem, lost=True) from None
            raise self._cut(problem, limit) from None

    async def _read(
        self,
        response: DirectResponse,
        read: Callable[[DirectResponse], Awaitable[T]],
        also: Container[int],
        limit: TimeLimit,
    ) -> T:
        status = response.status_code
        if status in _RETRIED:
            raise _TryAgain(await self.problem(response), retry_after(response.headers))
        if not (200 <= status < 300 or status in also):
            raise AgentError(await self.problem(response))
        try:
            return await read(response)
        except BadBody as error:
            raise AgentError(f"{response.url}: {describe(error)}") from None
        except CONNECTION_ERRORS as error:
            raise self._cut(f"{response.url}: the answer was cut: {describe(error)}", limit) from None

    def _cut(self, problem: str, limit: TimeLimit) -> AgentestError:
        return HeldUp(problem, limit.delay) if self._was_held_up(limit) else AgentError(problem)

    def _was_held_up(self, limit: TimeLimit) -> bool:
        """Whether a connection may have been lost as we did not read for longer than others wait for that."""
        return limit.delay > min(_LONG_DELAY_S, self._timeout_s)

    async def problem(self, response: DirectResponse) -> str:
        """What is wrong with an answer by its status, and what to try. Reads the beginning of the body."""
        status = response.status_code
        if 300 <= status < 400:
            return _points_elsewhere(response)
        advice = hint(status, self._place)
        shown = readable(await _beginning(response)) or "(empty body)"
        return f"{response.url} answered {status}{f' ({advice})' if advice else ''}: {shown}"


def _redirected(url: str, headers: Headers, response: DirectResponse) -> tuple[str, Headers]:
    location = response.headers.get("location", "")
    if not location:
        raise AgentError(f"{url} answered {response.status_code} without a location to go to")
    try:
        target = check_url(_joined(url, location))
    except ValueError as error:
        raise AgentError(f"{url} redirects to an address that {error}") from None
    if urlsplit(target)[:2] != urlsplit(url)[:2]:
        # The configured headers may be credentials; another origin does not get them.
        headers = [header for header in headers if header[0] in _OURS]
    return target, headers


def _joined(url: str, location: str) -> str:
    try:
        return urljoin(url, location)
    except ValueError as error:
        raise ValueError(f"is not a URL: {error}") from None


async def read_body(
    response: DirectResponse,
    streaming: bool,
    whole: Callable[[bytes], T],
    stream: Callable[[AsyncIterator[str]], Awaitable[T]],
) -> T:
    """The body read by `whole`, or by `stream` where it is server-sent events.

    Args:
        streaming: whether events were asked for: a body of unknown type is taken for them then.
    """
    pieces = response.pieces()
    beginning = await _first_piece(pieces)
    content_type = response.headers.get("content-type", "")
    streamed = "event-stream" in content_type or (streaming and "json" not in content_type)
    # JSON is an answer, whatever the header calls it: not every server can stream. And a web page is none.
    if streamed and not beginning.removeprefix(BOM_UTF8).lstrip().startswith((b"{", b"[", b"<")):
        return await stream(events(_again(beginning, pieces)))
    return whole(b"".join([piece async for piece in _again(beginning, pieces)]))


def _points_elsewhere(response: DirectResponse) -> str:
    status, target = response.status_code, response.headers.get("location", "nowhere")
    try:
        host = urlsplit(_joined(str(response.url), target)).hostname or ""
    except ValueError as error:
        return f"{response.url} answered {status} and points to an address that {error}"
    AddressGuard().check_literal(host)
    return f"{response.url} answered {status} and points to {target}: set the endpoint to that address"


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


async def _beginning(response: DirectResponse) -> bytes:
    """Enough of the body for a message, even if the rest never comes whole."""
    read = b""
    try:
        async for piece in response.pieces():
            read += piece
            if len(read) >= _SHOWN_BODY_BYTES:
                break
    except CONNECTION_ERRORS:
        pass  # what has come is enough: the status already says that this is an error
    return read[:_SHOWN_BODY_BYTES]
