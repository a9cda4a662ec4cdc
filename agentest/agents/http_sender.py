"""Send HTTP requests to an agent, with retries where they are safe and limits on time and size.

`HttpSender` sends requests and `read_body` reads the responses. Errors say whether the agent or this machine
is at fault.
"""

from __future__ import annotations

import json
import re
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Awaitable, Callable, Container, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import field, replace
from itertools import count
from ssl import SSLCertVerificationError, SSLError
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar
from urllib.parse import urljoin, urlsplit

import anyio

from agentest.agents.port import AGENT_ANSWERED, SENT_REQUESTS, AccessDenied, AppFailed, NoReply
from agentest.config.agents.over_http import HttpAgent
from agentest.config.fields import check_headers, check_url
from agentest.domain.transcript import SentRequest
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError, AgentestError, CannotSend, ProgramDelayed, errors_as
from agentest.support.http.address_guard import AddressGuard, RefusedAddress
from agentest.support.http.bodies import CODINGS, BadBody
from agentest.support.http.client import Client, DirectResponse, Headers, Sender
from agentest.support.http.retries import (
    CONNECTION_ERRORS,
    Loss,
    describe,
    describe_shortage,
    find_shortage,
    has_cause,
    loss_before_response,
    pause_before_retry,
    retry_after,
)
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.templates import NO_VALUES, Template, Values, as_text
from agentest.support.text import shortened

if TYPE_CHECKING:
    from agentest.agents.configuration_advice import Advisor
    from agentest.agents.error_hints import ProbeResponse
    from agentest.agents.protocol_probe import EndpointProbe
    from agentest.support.http.sse import Event

MAX_REDIRECTS = 5
_REFUSED_BODY = 422
_SHOWN_REQUEST_CHARS = 300
_SHOWN_BODY_BYTES = 10_000
_REMEMBERED_BYTES = 65_536  # the part of a request that is remembered; attachments can have megabytes
_CUT = "…".encode()  # marks a cut, because a secret that it divides is redacted only beside this mark
_LONG_DELAY_S = 1.0
"""A delay of this process that is long enough for others to close a connection, in seconds."""
_DEFAULT_HEADERS = ("accept", "accept-encoding", "content-type")
NO_HEADERS: Mapping[str, str] = {}

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class HttpAnswer(Generic[T]):
    """A parsed response, the duration of its last attempt, and the number of attempts before it."""

    value: T
    latency_ms: float
    retries: int
    first_token_ms: float | None = None
    """Time until the first text, measured like `latency_ms`. None if the reader did not record it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingRequest:
    url: str
    method: str = "POST"
    headers: Mapping[str, str] = field(default_factory=dict)
    """Headers that override those of the agent. Names are case-insensitive."""
    content: bytes | None = None  # the body. None for a request without a body.


class _RetryableFailure(Exception):
    def __init__(
        self,
        problem: str,
        wait: float | None = None,
        *,
        lost: Loss = "",
        ours: bool = False,
        busy: bool = False,
    ) -> None:
        super().__init__(problem)
        self.wait = wait
        self.busy = busy  # True for a 429 that says when the agent takes more requests
        self.lost = lost  # how the connection was lost, if there is no response at all
        self.ours = ours  # True if this machine could not open a connection, so the agent is not at fault


class _UnusableResponse(AgentError):
    def __init__(self, problem: str, response: ProbeResponse) -> None:
        super().__init__(problem)
        self.seen = response


class ErrorAdvisor:
    """Advice about unusable answers of one agent. Its modules are imported at the first of them."""

    def __init__(self, config: HttpAgent, client: Sender) -> None:
        self.has_answered = False  # True once the agent has sent a valid response
        self.under_way = 0  # number of requests that the agent is answering now
        self._config = config
        self._client = client
        self._advisor: Advisor | None = None

    async def advised(self, problem: str, response: ProbeResponse, sent: bytes | None = None) -> str:
        """Return the problem, followed by the configuration that would fit if it can be determined.

        Args:
            sent: the body of the request, which is shown if the agent refused it and there is no advice.
        """
        if self._advisor is None:
            from agentest.agents.configuration_advice import Advisor

            body = getattr(self._config, "body", None)
            configured = body.keys() if isinstance(body, Mapping) else ()
            probe = endpoint_probe_of(self._config, self._client)
            self._advisor = Advisor(self._config.type, probe, configured)
        self._advisor.has_answered = self.has_answered
        advised = await self._advisor.advised(problem, response)
        if sent and response.status == _REFUSED_BODY and advised == problem:
            body_text = shortened(sent.decode("utf-8", errors="replace"), _SHOWN_REQUEST_CHARS)
            return f"{problem}. The request had this body: {body_text}"
        return advised


class HttpSender:
    """Sends requests to an agent. Stores no conversation state."""

    def __init__(
        self,
        config: HttpAgent,
        client: Sender,
        timeout_s: float,
        location: str,
        late: str = "",
        *,
        advisor: ErrorAdvisor | Literal["own"] | None = "own",
    ) -> None:
        """Create a sender.

        Args:
            location: a hint about the usual address of such agents, for errors.
            late: why such agents may respond slowly, for errors.
            advisor: shared if one agent has several senders. None if the requests do not go to the agent
                itself.
        """
        self._place_hint = location
        self._advisor = ErrorAdvisor(config, client) if advisor == "own" else advisor
        self._late_hint = late and f"; {late}"
        self._retries = config.retries
        self._client = client
        self._timeout_s = timeout_s
        self._headers = {
            "accept": "text/event-stream" if config.streaming else "application/json",
            "accept-encoding": ", ".join(CODINGS),
            "content-type": "application/json",
            **{name.lower(): value for name, value in config.sent_headers.items()},
        }
        self._templates = Template(self._headers)
        self.has_placeholders = bool(self._templates.names)  # True if values fill the agent's headers
        self._has_traced_turns = bool(config.call_sources)
        """True if requests may have to name their turn: only call sources look for these names."""

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
        """POST JSON and return what `read` makes of the response. Otherwise like `send`."""
        content = json.dumps(payload).encode()
        return await self.send(
            OutgoingRequest(url=url, headers=headers, content=content), read, also, values=values
        )

    async def send(
        self,
        request: OutgoingRequest,
        read: Callable[[DirectResponse], Awaitable[T]],
        also: Container[int] = (),
        *,
        values: Values = NO_VALUES,
    ) -> HttpAnswer[T]:
        """Send a request and return what `read` makes of the response. `values` fill the agent's headers.

        `read` receives a response with status 2xx, or one in `also`, before its body is read. It reports the
        first token with `note_first_token`.

        Raises NoReply for any other response, or none. Each attempt has the full time-out. Raises CannotSend
        for an invalid header, or if this machine cannot open a connection.
        """
        headers, retries, ends_at = self._headers_of(request, values), self._retries, 0.0
        was_reset = False  # True once the agent may have handled the request, which is then repeated once
        for attempt in count(1):
            limit = TimeLimit(self._timeout_s)
            try:
                value, response = await self._attempt(request, headers, read, also, limit)
            except _RetryableFailure as error:
                pause = pause_before_retry(attempt, error.wait)
                if error.busy and retries:
                    pause += pause_before_retry(attempt)  # so that requests that were refused together spread
                    ends_at = ends_at or anyio.current_time() + self._timeout_s
                    retries += anyio.current_time() + pause < ends_at
                retries -= 1
                if retries < 0 or (was_reset and error.lost == "reset"):
                    tries = f" ({attempt} attempts)" if attempt > 1 else ""
                    problem = f"{error}{tries}"
                    if error.ours:
                        raise CannotSend(problem) from None
                    if error.lost and self._was_held_up(limit):
                        raise ProgramDelayed(problem, limit.delay) from None
                    raise NoReply(problem, attempt - 1) from None
                was_reset = was_reset or error.lost == "reset"
                await anyio.sleep(pause)
                continue
            except _UnusableResponse as error:
                problem = await self.advised(str(error), error.seen, request.content)
                if _denies_access(error.seen) and self.is_unproven:
                    raise AccessDenied(problem) from None
                raise NoReply(problem, attempt - 1) from None
            except NoReply as error:
                error.retries += attempt - 1
                raise
            except AgentError as error:
                raise NoReply(str(error), attempt - 1) from None
            # Do not charge the agent for a blocked event loop, unless it blocked the loop itself.
            took = limit.elapsed
            if response.held_up:
                took = min(took + response.held_up, limit.elapsed_in_all)
                if took > self._timeout_s:
                    raise NoReply(self._timeout_message(request.url), attempt - 1)
            # A GET proves nothing: many servers answer every path.
            if self._advisor and request.content is not None and response.is_success:
                self._advisor.has_answered = True
                AGENT_ANSWERED.set(True)
            return HttpAnswer(value, took * 1000, attempt - 1, response.first_token_ms)
        raise AssertionError("unreachable: the last attempt either answers or raises")

    async def advised(self, problem: str, response: ProbeResponse, sent: bytes | None = None) -> str:
        """Return the problem with a response, followed by the configuration that would fit if it is known."""
        return await self._advisor.advised(problem, response, sent) if self._advisor else problem

    def _headers_of(self, request: OutgoingRequest, values: Values) -> Headers:
        turn = None
        if self._has_traced_turns:
            from agentest.support.trace_context import turn_of_requests

            turn = turn_of_requests()
        if not (request.headers or self._templates.names or turn) and request.content is not None:
            return list(self._headers.items())
        by_name = {name.lower(): value for name, value in request.headers.items()}
        filled = {name: as_text(value) for name, value in self._templates.filled(values).items()}
        if turn:
            filled |= turn.headers(filled)
        if request.content is None:
            filled.pop("content-type", None)  # some servers expect a body if there is a content-type
        with errors_as(CannotSend, f"{request.url}: a header "):
            return list(check_headers({**filled, **by_name}).items())

    async def _attempt(
        self,
        request: OutgoingRequest,
        headers: Headers,
        read: Callable[[DirectResponse], Awaitable[T]],
        also: Container[int],
        limit: TimeLimit,
    ) -> tuple[T, DirectResponse]:
        configured_url, response, advisor = request.url, None, self._advisor
        if advisor:
            advisor.under_way += 1
        try:
            with limit:
                for _ in range(MAX_REDIRECTS + 1):
                    response = None
                    response = await self._request(request, headers, limit)
                    response.waited = lambda: limit.elapsed
                    try:
                        if response.status_code not in (307, 308):
                            return await self._read(response, read, also, limit), response
                        url, headers = _redirected(request.url, headers, response)
                        request = replace(request, url=url)
                    finally:
                        await response.aclose()
        except TimeoutError:
            raise AgentError(self._timeout_message(configured_url)) from None
        except (RefusedAddress, AppFailed) as error:
            raise AgentError(str(error)) from None
        finally:
            if advisor:
                advisor.under_way -= 1
            if (sent := SENT_REQUESTS.get()) is not None:
                status, body = (response.status_code, response.beginning) if response else (None, b"")
                if response and response.is_cut:
                    body += _CUT
                if (content := request.content) and len(content) > _REMEMBERED_BYTES:
                    content = content[: _REMEMBERED_BYTES // 2] + _CUT + content[-_REMEMBERED_BYTES // 2 :]
                sent.append(SentRequest(request.method, request.url, content, status, body))
        raise AgentError(f"{request.url}: more than {MAX_REDIRECTS} redirects")

    def _timeout_message(self, url: str) -> str:
        limit = f"no complete answer within {self._timeout_s:g} s"
        if self._advisor and self._advisor.under_way > 1 and not self._late_hint:
            limit += " while others were under way. If it answers few at once, lower `concurrency`"
        return f"{url}: {limit}{self._late_hint}. If the agent may take longer, raise request_timeout_ms"

    async def _request(self, request: OutgoingRequest, headers: Headers, limit: TimeLimit) -> DirectResponse:
        try:
            response = await self._client.send_direct(request.method, request.url, headers, request.content)
            if self._has_traced_turns:
                from agentest.support.trace_context import note_request

                note_request()
            return response
        except CONNECTION_ERRORS as error:
            if shortage := find_shortage(error):
                raise _RetryableFailure(describe_shortage(request.url, shortage), ours=True) from None
            problem = f"{request.url}: {describe(error)}"
            if self.is_unproven and (advice := await self._tls_advice(request.url, error)):
                raise AccessDenied(f"{problem}{advice}") from None
            if lost := loss_before_response(error):
                raise _RetryableFailure(problem, lost=lost) from None
            raise self._connection_lost(problem, limit) from None

    async def _read(
        self,
        response: DirectResponse,
        read: Callable[[DirectResponse], Awaitable[T]],
        also: Container[int],
        limit: TimeLimit,
    ) -> T:
        status = response.status_code
        if status in {429, 502, 503, 504}:
            wait = retry_after(response.headers)
            is_busy = status == 429 and wait is not None
            raise _RetryableFailure(await self.problem(response), wait, busy=is_busy)
        if not (200 <= status < 300 or status in also):
            raise _UnusableResponse(await self.problem(response), probe_response_of(response))
        try:
            return await read(response)
        except AgentError as error:
            if type(error) is not AgentError:
                raise
            raise _UnusableResponse(str(error), probe_response_of(response)) from None
        except BadBody as error:
            raise AgentError(f"{response.url}: {describe(error)}") from None
        except CONNECTION_ERRORS as error:
            raise self._connection_lost(
                f"{response.url}: the answer was cut: {describe(error)}", limit
            ) from None

    @property
    def is_unproven(self) -> bool:
        """True if the agent has not accepted any request of this conversation so far."""
        return self._advisor is not None and not AGENT_ANSWERED.get()

    async def _tls_advice(self, url: str, error: BaseException) -> str:
        is_plain_http = (
            self._advisor is not None and self._advisor.has_answered and not has_cause(error, SSLError)
        )
        return "" if is_plain_http else await tls_advice(url, error, self._client)

    def _connection_lost(self, problem: str, limit: TimeLimit) -> AgentestError:
        return ProgramDelayed(problem, limit.delay) if self._was_held_up(limit) else AgentError(problem)

    def _was_held_up(self, limit: TimeLimit) -> bool:
        """Return True if the connection may be lost because this process did not read for too long."""
        return limit.delay > min(_LONG_DELAY_S, self._timeout_s)

    async def problem(self, response: DirectResponse) -> str:
        """Describe a response with an error status and what to try. Reads the start of the body."""
        status = response.status_code
        if 300 <= status < 400:
            return _redirect_hint(response)

        from agentest.agents.error_hints import hint, readable

        advice = hint(status, self._place_hint)
        excerpt = readable(await beginning_of(response)) or "(empty body)"
        return f"{response.url} answered {status}{f' ({advice})' if advice else ''}: {excerpt}"


DENIED = (401, 403, 404)


def _denies_access(response: ProbeResponse) -> bool:
    from agentest.agents.error_hints import is_page, leads_to_login, wants_tls

    is_web_page = response.status < 400 and is_page(response.body)  # an error page is the agent's error
    is_denied = response.status in DENIED or leads_to_login(response)
    return is_denied or is_web_page or wants_tls(response.body)


async def tls_advice(url: str, error: BaseException, client: Sender) -> str:
    """Return what to write if a connection failed because of TLS; "" if TLS is not the cause.

    A server that closed a plain connection is asked once whether it speaks TLS.
    """
    if has_cause(error, SSLError):
        return "."  # the error says what to do
    is_secure = isinstance(client, Client) and await speaks_tls(url, client)
    return ". That server speaks TLS: write https:// in the endpoint" if is_secure else ""


async def speaks_tls(url: str, client: Client) -> bool:
    """Return True if the server at an http URL expects TLS."""
    if not url.startswith("http://"):
        return False
    try:
        with TimeLimit(2.0):
            response = await client.send_direct("GET", f"https{url.removeprefix('http')}", (), None)
            await response.aclose()
    except CONNECTION_ERRORS as failure:
        return has_cause(failure, SSLCertVerificationError)
    except (TimeoutError, RefusedAddress):
        return False
    return True


def endpoint_probe_of(config: HttpAgent, client: Sender) -> EndpointProbe:
    """Return probe requests to the agent's endpoint, with its headers."""
    from agentest.agents.protocol_probe import EndpointProbe

    headers = [(name.lower(), value) for name, value in config.sent_headers.items() if "{{" not in value]
    url = re.sub("^ws", "http", config.endpoint.partition("{{")[0])
    return EndpointProbe(url=url, client=client, headers=headers)


def probe_response_of(response: DirectResponse) -> ProbeResponse:
    """Return the part of a response that was read, for an advisor."""
    from agentest.agents.error_hints import ProbeResponse

    return ProbeResponse(status=response.status_code, headers=response.headers, body=response.beginning)


def _redirected(url: str, headers: Headers, response: DirectResponse) -> tuple[str, Headers]:
    location = response.headers.get("location", "")
    if not location:
        raise AgentError(f"{url} answered {response.status_code} without a location to go to")
    with errors_as(AgentError, f"{url} redirects to an address that "):
        target = check_url(_joined(url, location))
    if urlsplit(target)[:2] != urlsplit(url)[:2]:
        # The configured headers may be credentials, so do not send them to another origin.
        headers = [header for header in headers if header[0] in _DEFAULT_HEADERS]
    return target, headers


def _joined(url: str, location: str) -> str:
    with errors_as(ValueError, "is not a URL: "):
        return urljoin(url, location)


def _redirect_hint(response: DirectResponse) -> str:
    status, target = response.status_code, response.headers.get("location", "nowhere")
    try:
        host = urlsplit(_joined(str(response.url), target)).hostname or ""
    except ValueError as error:
        return f"{response.url} answered {status} and points to an address that {error}"
    from agentest.agents.error_hints import leads_to_login

    AddressGuard().check_literal(host)
    advice = "" if leads_to_login(probe_response_of(response)) else ": set the endpoint to that address"
    return f"{response.url} answered {status} and points to {target}{advice}"


async def beginning_of(response: DirectResponse) -> bytes:
    """Return enough of the body for a message, even if the rest never arrives."""
    read = b""
    try:
        async for piece in response.pieces():
            read += piece
            if len(read) >= _SHOWN_BODY_BYTES:
                break
    except CONNECTION_ERRORS:
        pass  # the status already shows an error, so a partial body is enough
    return read[:_SHOWN_BODY_BYTES]


@dataclass(frozen=True, slots=True)
class EventStream:
    """The server-sent events of a response, in order."""

    _events: AsyncIterator[Event]
    note_first_token: Callable[[], None] = lambda: None
    """Call this with every piece of the reply's text. The first call records the time."""

    def __aiter__(self) -> AsyncIterator[Event]:
        return self._events


async def read_body(
    response: DirectResponse,
    streaming: bool,
    convert: Callable[[bytes], T],
    stream: Callable[[EventStream], Awaitable[T]],
) -> T:
    """Parse the body with `convert`, or with `stream` if it consists of server-sent events.

    If events were requested (`streaming`), a body of unknown type is read as events.
    """
    content_type = response.headers.get("content-type", "")
    if not ("event-stream" in content_type or (streaming and "json" not in content_type)):
        return convert(await response.read())
    pieces = response.pieces()
    beginning = await first_piece(pieces)
    # Some servers answer a streaming request with JSON and a wrong content type. A web page is never events.
    if not beginning.removeprefix(BOM_UTF8).lstrip().startswith((b"{", b"[", b"<")):
        from agentest.support.http.sse import events

        return await stream(EventStream(events(again(beginning, pieces)), response.note_first_token))
    return convert(b"".join([piece async for piece in again(beginning, pieces)]))


async def first_piece(pieces: AsyncIterator[bytes]) -> bytes:
    """Return the first pieces, until they contain more than white space."""
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


@asynccontextmanager
async def cancelled_on_server(cancel: Callable[[], Awaitable[object]]) -> AsyncIterator[None]:
    """Call `cancel` if the block raises or is cancelled by a time-out or the end of the run."""
    try:
        yield
    except BaseException:
        # The work may have ended, or the server may not support this: the original error matters.
        with anyio.move_on_after(2.0, shield=True), suppress(AgentestError):
            await cancel()
        raise
