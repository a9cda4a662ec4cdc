"""Sending requests to an agent over HTTP: again where that is safe, within bounds of time and size."""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Generic, Literal, TypeVar
from urllib.parse import urljoin, urlsplit

import anyio

from agentest.agents.advice import Advisor
from agentest.agents.asgi import AppFailed
from agentest.agents.detection import Look, Seen, leads_to_login
from agentest.agents.error_hints import hint, readable
from agentest.agents.port import NoReply
from agentest.config.agents.over_http import HttpAgent
from agentest.config.fields import check_headers, check_url
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError, AgentestError, CannotSend, HeldUp
from agentest.support.http.address_guard import AddressGuard, RefusedAddress
from agentest.support.http.bodies import CODINGS, BadBody
from agentest.support.http.client import DirectResponse, Headers, Sender
from agentest.support.http.retries import (
    CONNECTION_ERRORS,
    describe,
    own_shortage,
    pause_before_retry,
    retry_after,
    shortage_told,
    was_refused,
)
from agentest.support.http.sse import Event, events
from agentest.support.templates import NO_VALUES, Template, Values, as_text
from agentest.support.trace_context import note_request, turn_of_requests

MAX_REDIRECTS = 5
_RETRIED = {429, 502, 503, 504}
_SHOWN_BODY_BYTES = 10_000
_LONG_DELAY_S = 1.0
"""From which on a delay of our own may be why somebody has closed a connection."""
_OURS = ("accept", "accept-encoding", "content-type")
NO_HEADERS: Mapping[str, str] = {}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HttpAnswer(Generic[T]):
    """What an agent answered, how long its last attempt took, and how many came before."""

    value: T
    latency_ms: float
    retries: int
    first_token_ms: float | None = None
    """When the first text came, counted as `latency_ms`; None: whoever read the answer did not note it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """A request to an agent."""

    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Beside those of the agent, over which they win. Names in any spelling."""
    content: bytes | None = None
    """None: a request without a body."""


class _TryAgain(Exception):
    """This attempt failed in a way that is not yet the agent's answer."""

    def __init__(
        self, problem: str, wait: float | None = None, *, lost: bool = False, ours: bool = False
    ) -> None:
        super().__init__(problem)
        self.wait = wait
        self.lost = lost
        """Whether the connection was, so that there is no answer at all."""
        self.ours = ours
        """Whether this machine could make no connection, which says nothing of the agent."""


class _Unfit(AgentError):
    """An answer that cannot be used, with what was seen of it."""

    def __init__(self, problem: str, seen: Seen) -> None:
        super().__init__(problem)
        self.seen = seen


class HttpSender:
    """Sends requests to an agent. Holds nothing of any conversation."""

    def __init__(
        self,
        config: HttpAgent,
        client: Sender,
        timeout_s: float,
        place: str,
        late: str = "",
        *,
        advisor: Advisor | Literal["own"] | None = "own",
    ) -> None:
        """Hints in errors: `place` says where such agents usually are, `late` why they may take long.

        `advisor`: given where one agent has several senders; None: whoever is asked, it is not the agent.
        """
        self._place = place
        self._advisor = advisor_of(config, client) if advisor == "own" else advisor
        self._late = late and f"; {late}"
        self._retries = config.retries
        self._client = client
        self._timeout_s = timeout_s
        headers = {
            "accept": "text/event-stream" if config.streaming else "application/json",
            "accept-encoding": ", ".join(CODINGS),
            "content-type": "application/json",
            **{name.lower(): value for name, value in config.headers.items()},
        }
        self._headers = headers
        self._templates = Template(headers)

    async def post(
        self,
        url: str,
        payload: Any,
        read: Callable[[DirectResponse], Awaitable[T]],
        also: Container[int] = (),
        *,
        values: Values = NO_VALUES,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> HttpAnswer[T]:
        """What `read` makes of the answer to a POST of JSON; otherwise as `send`."""
        content = json.dumps(payload).encode()
        return await self.send(Outgoing(url=url, headers=headers, content=content), read, also, values=values)

    async def get(
        self,
        url: str,
        read: Callable[[DirectResponse], Awaitable[T]],
        also: Container[int] = (),
        *,
        values: Values = NO_VALUES,
        headers: Mapping[str, str] = NO_HEADERS,
    ) -> HttpAnswer[T]:
        """What `read` makes of the answer to a GET; otherwise as `send`."""
        return await self.send(Outgoing(url=url, method="GET", headers=headers), read, also, values=values)

    async def send(
        self,
        request: Outgoing,
        read: Callable[[DirectResponse], Awaitable[T]],
        also: Container[int] = (),
        *,
        values: Values = NO_VALUES,
    ) -> HttpAnswer[T]:
        """What `read` makes of the answer.

        Args:
            read: gets a response of status 2xx, or one of `also`, whose body has not been read yet; it notes
                the first token there (`note_first_token`).
            values: what stands for placeholders in the agent's headers.

        Raises:
            NoReply: for every other answer, and for none; each attempt has the whole time-out.
            CannotSend: for a header that HTTP does not allow, and where this machine can make no connection.
        """
        headers = self._headers_of(request, values)
        for attempt in range(1, self._retries + 2):
            limit = TimeLimit(self._timeout_s)
            try:
                value, response = await self._attempt(request, headers, read, also, limit)
            except _TryAgain as error:
                if attempt > self._retries:
                    tries = f" ({attempt} attempts)" if attempt > 1 else ""
                    problem = f"{error}{tries}"
                    if error.ours:
                        raise CannotSend(problem) from None
                    if error.lost and self._was_held_up(limit):
                        raise HeldUp(problem, limit.delay) from None
                    raise NoReply(problem, attempt - 1) from None
                await anyio.sleep(pause_before_retry(attempt, error.wait))
                continue
            except _Unfit as error:
                raise NoReply(await self.advised(str(error), error.seen), attempt - 1) from None
            except NoReply as error:
                raise NoReply(str(error), attempt - 1 + error.retries, error.observed) from None
            except AgentError as error:
                raise NoReply(str(error), attempt - 1) from None
            # What holds up the event loop is not the agent's doing, but for what it did in it itself.
            took = min(limit.elapsed + response.held_up, limit.elapsed_in_all)
            if response.held_up and took > self._timeout_s:
                raise NoReply(self._too_late(request.url), attempt - 1)
            self._note_answer(request, response)
            return HttpAnswer(value, took * 1000, attempt - 1, response.first_token_ms)
        raise AssertionError("unreachable: the last attempt either answers or raises")

    def _note_answer(self, request: Outgoing, response: DirectResponse) -> None:
        """Note that it speaks its protocol. That a GET is answered says nothing: many have a page for all."""
        if self._advisor and request.content is not None and response.is_success:
            self._advisor.has_answered = True

    async def advised(self, problem: str, seen: Seen) -> str:
        """What is wrong with an answer, with the configuration that would fit, where it can be told."""
        return await self._advisor.advised(problem, seen) if self._advisor else problem

    def _headers_of(self, request: Outgoing, values: Values) -> Headers:
        turn = turn_of_requests()
        if not (request.headers or self._templates.names or turn) and request.content is not None:
            return list(self._headers.items())
        own = {name.lower(): value for name, value in request.headers.items()}
        filled = {name: as_text(value) for name, value in self._templates.filled(values).items()}
        if turn:
            filled |= turn.headers(filled)
        if request.content is None:
            filled.pop("content-type", None)  # there are servers that look for a body where there is a type
        try:
            return list(check_headers({**filled, **own}).items())
        except ValueError as error:
            raise CannotSend(f"{request.url}: a header {error}") from None

    async def _attempt(
        self,
        request: Outgoing,
        headers: Headers,
        read: Callable[[DirectResponse], Awaitable[T]],
        also: Container[int],
        limit: TimeLimit,
    ) -> tuple[T, DirectResponse]:
        """What was read, and the response, which is closed."""
        try:
            with limit:
                return await self._follow(request, headers, read, also, limit)
        except TimeoutError:
            raise AgentError(self._too_late(request.url)) from None
        except (RefusedAddress, AppFailed) as error:
            raise AgentError(str(error)) from None

    def _too_late(self, url: str) -> str:
        return f"{url}: no complete answer within {self._timeout_s:g} s (request_timeout_ms){self._late}"

    async def _follow(
        self,
        request: Outgoing,
        headers: Headers,
        read: Callable[[DirectResponse], Awaitable[T]],
        also: Container[int],
        limit: TimeLimit,
    ) -> tuple[T, DirectResponse]:
        for _ in range(MAX_REDIRECTS + 1):
            response = await self._request(request, headers, limit)
            response.waited = lambda: limit.elapsed
            try:
                if response.status_code not in (307, 308):
                    return await self._read(response, read, also, limit), response
                url, headers = _redirected(request.url, headers, response)
                request = replace(request, url=url)
            finally:
                await response.aclose()
        raise AgentError(f"{request.url}: more than {MAX_REDIRECTS} redirects")

    async def _request(self, request: Outgoing, headers: Headers, limit: TimeLimit) -> DirectResponse:
        try:
            response = await self._client.send_direct(request.method, request.url, headers, request.content)
            note_request()
            return response
        except CONNECTION_ERRORS as error:
            if shortage := own_shortage(error):
                raise _TryAgain(shortage_told(request.url, shortage), ours=True) from None
            problem = f"{request.url}: {describe(error)}"
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
            raise _Unfit(await self.problem(response), seen_of(response))
        try:
            return await read(response)
        except AgentError as error:
            if type(error) is not AgentError:
                raise
            raise _Unfit(str(error), seen_of(response)) from None
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
        shown = readable(await beginning_of(response)) or "(empty body)"
        return f"{response.url} answered {status}{f' ({advice})' if advice else ''}: {shown}"


def advisor_of(config: HttpAgent, client: Sender) -> Advisor:
    """Who knows what to try when the agent's answers cannot be used."""
    return Advisor(config.type, look_of(config, client))


def look_of(config: HttpAgent, client: Sender) -> Look:
    """Requests that look at the agent's endpoint, with its headers."""
    headers = [(name.lower(), value) for name, value in config.headers.items() if "{{" not in value]
    url = re.sub("^ws", "http", config.endpoint.partition("{{")[0])
    return Look(url=url, client=client, headers=headers)


def seen_of(response: DirectResponse) -> Seen:
    """What has been read of an answer, to be advised on."""
    return Seen(status=response.status_code, headers=response.headers, body=response.beginning)


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


def _points_elsewhere(response: DirectResponse) -> str:
    status, target = response.status_code, response.headers.get("location", "nowhere")
    try:
        host = urlsplit(_joined(str(response.url), target)).hostname or ""
    except ValueError as error:
        return f"{response.url} answered {status} and points to an address that {error}"
    AddressGuard().check_literal(host)
    advice = "" if leads_to_login(seen_of(response)) else ": set the endpoint to that address"
    return f"{response.url} answered {status} and points to {target}{advice}"


async def beginning_of(response: DirectResponse) -> bytes:
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


class EventStream:
    """The server-sent events of an answer, in order."""

    def __init__(
        self, events: AsyncIterator[Event], on_first_token: Callable[[], None] = lambda: None
    ) -> None:
        self._events = events
        self.note_first_token = on_first_token
        """To be called with every piece of the reply's text: the first one is timed."""

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events


async def read_body(
    response: DirectResponse,
    streaming: bool,
    whole: Callable[[bytes], T],
    stream: Callable[[EventStream], Awaitable[T]],
) -> T:
    """The body read by `whole`, or by `stream` where it is server-sent events.

    Args:
        streaming: whether events were asked for: a body of unknown type is taken for them then.
    """
    pieces = response.pieces()
    beginning = await first_piece(pieces)
    content_type = response.headers.get("content-type", "")
    streamed = "event-stream" in content_type or (streaming and "json" not in content_type)
    # JSON is an answer, whatever the header calls it: not every server can stream. And a web page is none.
    if streamed and not beginning.removeprefix(BOM_UTF8).lstrip().startswith((b"{", b"[", b"<")):
        return await stream(EventStream(events(again(beginning, pieces)), response.note_first_token))
    return whole(b"".join([piece async for piece in again(beginning, pieces)]))


async def first_piece(pieces: AsyncIterator[bytes]) -> bytes:
    """What comes first, up to something more than white space."""
    read: list[bytes] = []
    async for piece in pieces:
        read.append(piece)
        if piece.removeprefix(BOM_UTF8).strip():
            break
    return b"".join(read)


async def again(beginning: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield beginning
    async for piece in rest:
        yield piece


_LIMIT_S = 2.0


@asynccontextmanager
async def cancelled_on_server(cancel: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Call `cancel` if the block raises or is cancelled: by a time-out, or a stopped run."""
    try:
        yield
    except BaseException:
        # Where the work has ended meanwhile, or the server cannot cancel it, the first error counts.
        with anyio.move_on_after(_LIMIT_S, shield=True), suppress(AgentestError):
            await cancel()
        raise
