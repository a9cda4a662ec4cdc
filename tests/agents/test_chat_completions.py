"""Chat completions over real sockets: requests, retries, replies and every wrong answer."""

from __future__ import annotations

import gzip
import json
import re
import tracemalloc
import zlib
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from typing import Any

import anyio
import pytest
from wire import Answer, Connection, Wire, closed_port, completion, hang, http, reset, wire

from agentest.agents.chat_completions import ChatCompletionsClient, to_wire
from agentest.agents.port import AccessDenied, AgentReply, NoReply, TurnContext
from agentest.config.agents.chat_completions import ChatCompletionsAgent
from agentest.domain.messages import AgentMessage, Message, UserText
from agentest.support.errors import AgentError
from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.bodies import BodyTooLarge
from agentest.support.http.client import open_client
from agentest.support.http.retries import pause_before_retry, retry_after
from agentest.testing import Raw, ScriptedAgent, tool_call

GOOD = http(completion())
SAID = (UserText("Hi"),)
NOW = "retry-after: 0"


def _no_tools(*_: Any) -> Any:
    raise AssertionError("an agent behind HTTP resolves no tools itself")


async def ask(
    endpoint: str, timeout_s: float = 10.0, messages: Sequence[Message] = SAID, **config: Any
) -> AgentReply:
    """Make one request of the turn loop."""
    async with open_client(AddressGuard()) as client:
        agent = ChatCompletionsClient(ChatCompletionsAgent(endpoint=endpoint, **config), client, timeout_s)
        return await agent.reply(messages, TurnContext("c-1", "s", 0, _no_tools, session_id="x"))


def asked(*answers: Answer, **options: Any) -> tuple[AgentReply, Wire]:
    """Return the reply of an agent with these answers."""

    async def go() -> tuple[AgentReply, Wire]:
        async with wire(*answers) as opened:
            return await ask(opened.url, **options), opened

    return anyio.run(go)


def refused(*answers: Answer, **options: Any) -> tuple[str, Wire]:
    """Return the error about an agent with these answers."""

    async def go() -> tuple[str, Wire]:
        async with wire(*answers) as opened:
            with pytest.raises((AgentError, AccessDenied)) as caught:
                await ask(opened.url, **options)
            return str(caught.value), opened

    return anyio.run(go)


def test_the_request() -> None:
    """The request has the extra body fields, and the body's messages before the conversation's."""
    body = {"model": "m", "temperature": 0, "messages": [{"role": "system", "content": "Be brief."}]}
    headers = {
        "Authorization": "Bearer secret",
        "X-Team": "grün",
        "Content-Type": "application/json; charset=utf-8",
    }
    said = "Grüße, 😀 \ud800"
    _, opened = asked(GOOD, body=body, headers=headers, messages=[UserText(said)])
    (request,) = opened.requests
    assert request.line == "POST /v1/chat/completions HTTP/1.1"
    sent = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": said}]
    assert request.body == {**body, "messages": sent}
    assert request.headers["authorization"] == "Bearer secret"
    assert request.headers["x-team"].encode("latin-1").decode() == "grün"
    assert request.headers["content-type"] == "application/json; charset=utf-8"
    assert request.headers["accept"] == "application/json"
    assert "stream" not in request.body


def test_the_extra_body_is_not_changed() -> None:
    """Two requests each contain the messages of the body once."""

    async def go() -> list[Any]:
        config = {"body": {"messages": [{"role": "system", "content": "Be brief."}]}}
        async with wire(GOOD) as opened, open_client(AddressGuard()) as client:
            agent = ChatCompletionsClient(ChatCompletionsAgent(endpoint=opened.url, **config), client, 5)
            for _ in range(2):
                await agent.reply(SAID, TurnContext("c-1", "s", 0, _no_tools, session_id="x"))
            return [request.body["messages"] for request in opened.requests]

    first, second = anyio.run(go)
    assert first == second == [{"role": "system", "content": "Be brief."}, *to_wire(SAID)]


def test_a_scripted_agent() -> None:
    """The reply has text, tool calls, usage and latency."""
    with ScriptedAgent([tool_call("find", q="x"), "Found."]) as agent:
        first = anyio.run(ask, agent.endpoint)
        second = anyio.run(ask, agent.endpoint, 10.0, [*SAID, AgentMessage("?")])
    assert [(r.name, json.loads(r.arguments)) for r in first.tool_requests] == [("find", {"q": "x"})]
    assert (second.text, second.usage.prompt_tokens, second.retries) == ("Found.", 10, 0)
    assert second.latency_ms > 0


# Retries


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_retried_status(status: int) -> None:
    """A request is retried after 429, 502, 503 and 504, and the reply counts the retries."""
    busy = http(b"busy", f"{status} Busy", [NOW])
    reply, opened = asked(busy, busy, GOOD)
    assert (reply.text, reply.retries, len(opened.requests)) == ("Hello.", 2, 3)
    assert opened.requests[0].body == opened.requests[2].body


def test_a_429_with_retry_after_uses_up_no_retry() -> None:
    """An agent with a limit of requests loses no conversation, however often it says so."""
    reply, opened = asked(*[http(b"busy", "429 Busy", [NOW])] * 4, GOOD, retries=1)
    assert (reply.text, reply.retries, len(opened.requests)) == ("Hello.", 4, 5)


def test_retries_run_out() -> None:
    """After the retries, the error has the last answer and the number of attempts."""
    problem, opened = refused(http(b"still busy", "503 Busy", [NOW]), retries=1)
    assert "answered 503: still busy (2 attempts)" in problem
    assert len(opened.requests) == 2


def test_no_retries() -> None:
    """With retries off, a request is sent once."""
    problem, opened = refused(http(b"", "429 Busy", [NOW]), retries=0)
    assert problem.endswith("answered 429: (empty body)")
    assert len(opened.requests) == 1


async def _goodbye(_: Connection) -> None:
    """Close the connection cleanly without sending a byte."""


@pytest.mark.parametrize("hang_up", [reset, _goodbye])
def test_reset_before_the_first_byte(hang_up: Answer) -> None:
    """A connection that closes before the first byte is retried."""
    reply, opened = asked(hang_up, GOOD)
    assert (reply.text, reply.retries, len(opened.requests)) == ("Hello.", 1, 2)


@pytest.mark.parametrize("hang_up", [reset, _goodbye])
def test_a_request_that_may_have_been_handled_is_repeated_once(hang_up: Answer) -> None:
    """Further attempts are for failures of which the agent knows nothing, or that it reports itself."""
    problem, opened = refused(hang_up, hang_up, GOOD, retries=5)
    assert "closed before the answer was complete (2 attempts)" in problem
    assert len(opened.requests) == 2
    reply, opened = asked(
        http(b"busy", "503 Busy", [NOW]), hang_up, http(b"busy", "503 Busy", [NOW]), GOOD, retries=3
    )
    assert (reply.retries, len(opened.requests)) == (3, 4)


def test_refused_to_the_end() -> None:
    """If the server is never reachable, the error says so and counts the attempts."""
    with pytest.raises(NoReply, match=r"connection refused: nobody listens there \(3 attempts\)") as caught:
        anyio.run(lambda: ask(f"http://127.0.0.1:{closed_port()}/", retries=2))
    assert caught.value.retries == 2


SSE = ["content-type: text/event-stream"]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (http(b"boom", "500 Oops", [NOW]), "answered 500: boom"),
        (http(b"<b>no</b>", "404 Not Found"), "/v1/chat/completions): <b>no</b>"),
        (http(b"{}", "400 Bad Request"), "answered 400"),
        (http(b"", "204 No Content", []), "empty"),
        (http(b"nonsense"), "not JSON: 'nonsense'"),
        (http(b'{"choices": "\xe9"}'), "not UTF-8"),
        (http(b"{}"), "no `choices`"),
        (http(completion()[:20]), "not JSON"),
        (http(completion()[:20], length=500), "was cut: the connection was closed before"),
        (b"H", "closed before"),
        (b"HTTP/1.1 2", "closed before"),
        (b"HTTP/1.1 200 OK\r\ncontent-ty", "closed before"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n5\r\nabc", "was cut"),
        (b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\nabc", "not HTTP"),
        (b"SSH-2.0-OpenSSH_9.6\r\n\r\n", "not HTTP"),
        (b"\x00\x01\x02\x03", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"x: y\r\n" * 20_000 + b"\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\nx: " + b"y" * 100_000 + b"\r\n\r\n", "not HTTP"),
        (b"HTTP/1.1 200 OK\r\n" + b"y" * 100_000, "not HTTP"),
        (http(b"data: {", headers=SSE), "not JSON"),
        (http(b'data: {"choices": [{"delta": {"content": "Hel"}}]}\n\n', headers=SSE), "stream was cut"),
        (http(b"", headers=SSE), "without any data"),
    ],
)
def test_wrong_answers_are_not_retried(answer: bytes, problem: str) -> None:
    """A wrong or incomplete answer gets no retry, and the error describes it."""
    found, opened = refused(answer)
    assert problem in found
    assert len(opened.requests) == 1


def test_a_name_that_does_not_resolve() -> None:
    """A nonexistent or invalid host name is an error at once."""
    for host, problem in (("agent.invalid", "cannot be resolved"), ("a" * 70 + ".example", "Error")):
        with pytest.raises(NoReply, match=problem) as caught:
            anyio.run(ask, f"http://{host}/")
        assert caught.value.retries == 0


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("0", 0), ("7", 7), ("1.5", 1.5), ("-3", -3), ("soon", None), ("nan", None), ("", None)],
)
def test_retry_after_seconds(value: str, seconds: float | None) -> None:
    """Retry-After is read as seconds; a value that is neither a number nor a date is ignored."""
    assert retry_after({"retry-after": value}) == seconds


def test_retry_after_date() -> None:
    """Retry-After is read as a date."""
    then = datetime.now(UTC) + timedelta(seconds=100)
    found = retry_after({"retry-after": format_datetime(then, usegmt=True)})
    assert found is not None
    assert 50 < found <= 100
    assert retry_after({}) is None


@pytest.mark.parametrize("ahead_s", [-7200, 1, 7200])
def test_retry_after_date_by_the_servers_clock(ahead_s: int) -> None:
    """The date is compared with that of the server, whose clock may be wrong."""
    now = datetime.now(UTC) + timedelta(seconds=ahead_s)
    dates = {"date": now, "retry-after": now + timedelta(seconds=10)}
    found = retry_after({name: format_datetime(date, usegmt=True) for name, date in dates.items()})
    assert found is not None
    assert 7 < found < 13


@pytest.mark.parametrize(("asked_for", "waited"), [(7, 7), (0, 0), (-5, 0), (3600, 30), (float("inf"), 30)])
def test_retry_after_is_bounded(asked_for: float, waited: float) -> None:
    """The requested pause is used, up to 30 seconds."""
    assert pause_before_retry(1, asked_for) == waited


def test_pauses_grow() -> None:
    """Without Retry-After the pauses grow and stay bounded."""
    longest = [max(pause_before_retry(attempt) for _ in range(50)) for attempt in range(1, 12)]
    assert longest[0] <= 0.5
    assert longest[0] < longest[1] < longest[2]
    assert max(longest) <= 8


PLACE = "is the path right? chat-completions endpoints usually end with /v1/chat/completions"


@pytest.mark.parametrize(
    ("status", "body", "told"),
    [
        ("404 Not Found", b'{"detail":"Not Found"}', f"answered 404 ({PLACE}): Not Found"),
        ("405 Method Not Allowed", b"", f"answered 405 (no POST is taken there; {PLACE}): (empty body)"),
        ("401 Unauthorized", b"no", "answered 401 (are the credentials right? In `agent`, write headers: {"),
        ("403 Forbidden", b"no", "answered 403 (are the credentials right?"),
        (
            "422 Unprocessable Content",
            json.dumps(
                {
                    "detail": [
                        {"type": "missing", "loc": ["body", "session"], "msg": "Field required", "input": {}},
                        {"loc": ["body", "messages", 0], "msg": "no"},
                        {"msg": "bare"},
                    ]
                }
            ).encode(),
            "needs): body.session: Field required; body.messages.0: no; bare",
        ),
        (
            "422 Unprocessable Content",
            b'{"detail":[{"loc":5,"msg":"x"}]}',
            '{"detail":[{"loc":5,"msg":"x"}]}',
        ),
        ("422 Unprocessable Content", b'{"detail":["x"]}', 'needs): {"detail":["x"]}'),
    ],
)
def test_refusals_name_the_likely_cause(status: str, body: bytes, told: str) -> None:
    """The error starts with a likely cause and advice, before the agent's message."""
    found, opened = refused(http(body, status))
    assert told in found
    assert len(opened.requests) == 1


@pytest.mark.parametrize("streaming", [False, True])
@pytest.mark.parametrize("content_type", ["text/html", "application/json", "text/event-stream"])
def test_a_web_page(content_type: str, streaming: bool) -> None:
    """A web page instead of an answer is reported as one, with advice, streamed or not."""
    page = b"<!DOCTYPE html><html><body>Welcome!" + b"x" * 5_000
    found, _ = refused(http(page, headers=[f"content-type: {content_type}"]), streaming=streaming)
    assert found.startswith(f"the agent's answer is a web page, not JSON ({PLACE}): '<!DOCTYPE html>")


# Time and size


async def _drip(writer: Connection) -> None:
    writer.write(http(b"", length=1000))
    while True:
        writer.write(b" ")
        await writer.drain()
        await anyio.sleep(0.01)


async def _drip_head(writer: Connection) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\n")
    while True:
        writer.write(b"x: y\r\n")
        await writer.drain()
        await anyio.sleep(0.02)


async def _drip_events(writer: Connection) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n")
    while True:
        writer.write(b": still here\n\n")
        await writer.drain()
        await anyio.sleep(0.01)


@pytest.mark.parametrize("slow", [hang, _drip, _drip_head, _drip_events])
def test_the_time_out_is_total(slow: Answer) -> None:
    """The timeout covers the request from connect to the last byte, and is not retried."""
    found, opened = refused(slow, timeout_s=0.3)
    assert "no complete answer within 0.3 s. If the agent may take longer, raise request_timeout_ms" in found
    assert len(opened.requests) == 1


async def _endless(writer: Connection) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n\r\n")
    while True:
        writer.write(b" " * 100_000)
        await writer.drain()


async def _endless_event(writer: Connection) -> None:
    writer.write(b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\ndata: ")
    while True:
        writer.write(b"x" * 100_000)
        await writer.drain()


@pytest.mark.parametrize("body", [_endless, _endless_event])
def test_endless_bodies(body: Answer) -> None:
    """Reading an endless body stops at 10 MB with an error."""
    found, opened = refused(body)
    assert "larger than 10 MB" in found
    assert len(opened.requests) == 1


@pytest.mark.parametrize("status", ["500 Oops", "503 Busy"])
def test_endless_errors(status: str) -> None:
    """Only the beginning of an error's endless body is read."""

    async def endless(writer: Connection) -> None:
        writer.write(f"HTTP/1.1 {status}\r\n\r\n".encode())
        while True:
            writer.write(b"no " * 100_000)
            await writer.drain()

    found, _ = refused(endless, retries=0)
    assert f"answered {status[:3]}: no no no" in found


def test_the_largest_body() -> None:
    """A body of exactly 10 MB is read, one byte more is refused."""
    body = completion("x" * (10 * 2**20 - len(completion(""))))
    assert len(body) == 10 * 2**20
    assert len(asked(http(body))[0].text or "") > 10_000_000
    assert "larger than 10 MB" in refused(http(body + b" "))[0]


GZIP = ["content-type: application/json", "content-encoding: gzip"]


def test_compressed_bodies() -> None:
    """gzip and deflate bodies are decoded, streamed or not."""
    assert asked(http(gzip.compress(completion()), headers=GZIP))[0].text == "Hello."
    assert asked(http(zlib.compress(completion()), headers=["content-encoding: deflate"]))[0].text == "Hello."
    events = b'data: {"choices": [{"delta": {"content": "Hi"}}]}\n\ndata: [DONE]\n\n'
    reply, opened = asked(
        http(gzip.compress(events), headers=[*SSE, "content-encoding: gzip"]), streaming=True
    )
    assert reply.text == "Hi"
    assert opened.requests[0].headers["accept-encoding"] == "gzip, deflate"


def test_compressed_bombs() -> None:
    """A small body that decompresses to over 10 MB is refused at the limit."""
    bomb = gzip.compress(b" " * 2**20) * 2_000
    assert len(bomb) < 3_000_000
    tracemalloc.start()
    try:
        assert "larger than 10 MB" in refused(http(bomb, headers=GZIP))[0]
        assert "answered 500" in refused(http(bomb, "500 Oops", GZIP))[0]
        assert tracemalloc.get_traced_memory()[1] < 40_000_000
    finally:
        tracemalloc.stop()


def test_bodies_that_unpack_to_nothing() -> None:
    """A compressed body that never yields data is refused after 10 MB."""

    async def nothing(writer: Connection) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n" + gzip.compress(b"{}"))
        while True:
            writer.write(bytes(100_000))
            await writer.drain()

    assert "larger than 10 MB" in refused(nothing)[0]


@pytest.mark.parametrize("encoding", ["br", "zstd", "gzip, gzip", "deflate, gzip", "compress"])
def test_encodings_not_asked_for(encoding: str) -> None:
    """A content coding that the request does not allow is refused, as it could hide gigabytes."""
    bomb = gzip.compress(gzip.compress(b" " * 10_000_000))
    found, _ = refused(http(bomb, headers=[f"content-encoding: {encoding}"]))
    assert f"has the content-encoding '{encoding}'; the request allows gzip or deflate" in found


def test_a_broken_compressed_body() -> None:
    """A body that is not valid gzip or ends early is a wrong answer."""
    assert "the answer is not gzip" in refused(http(completion(), headers=GZIP))[0]
    assert (
        "the answer was cut: its gzip data ended"
        in refused(http(gzip.compress(completion())[:-4], headers=GZIP))[0]
    )


def test_a_body_read_as_a_whole_is_decompressed_and_limited() -> None:
    async def go(body: bytes) -> bytes:
        async with wire(http(body, headers=GZIP)) as opened, open_client(AddressGuard()) as client:
            response = await client.send_direct("GET", opened.url, (), None)
            try:
                return await response.read()
            finally:
                await response.aclose()

    assert anyio.run(go, gzip.compress(b"Hello")) == b"Hello"
    with pytest.raises(BodyTooLarge, match="larger than 10 MB"):
        anyio.run(go, gzip.compress(b" " * 2**20) * 20)


# Streaming


def _events(*texts: str, ending: str = "\n", done: bool = True) -> bytes:
    events = [json.dumps({"choices": [{"delta": {"content": text}}]}) for text in texts]
    return "".join(f"data: {e}{ending}{ending}" for e in [*events, *(["[DONE]"] if done else [])]).encode()


@pytest.mark.parametrize("ending", ["\n", "\r\n", "\r"])
def test_streaming(ending: str) -> None:
    """With `streaming` the request asks for a stream, and the reply joins its chunks."""
    reply, opened = asked(http(_events("Hel", "lo", ending=ending), headers=SSE), streaming=True)
    assert reply.text == "Hello"
    assert opened.requests[0].body["stream"] is True
    assert opened.requests[0].headers["accept"] == "text/event-stream"


COUNTED = _events("Hi", done=False) + (
    b'data: {"choices": [{"delta": {}, "finish_reason": "stop"}]}\n\n'
    b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}\n\ndata: [DONE]\n\n'
)


def test_a_stream_requests_usage() -> None:
    """A streaming request includes usage, unless the body sets `stream_options`."""
    reply, opened = asked(http(COUNTED, headers=SSE), streaming=True)
    assert (reply.usage.total_tokens, reply.retries) == (7, 0)
    assert opened.requests[0].body["stream_options"] == {"include_usage": True}
    _, opened = asked(http(COUNTED, headers=SSE), streaming=True, body={"stream_options": {"x": 1}})
    assert opened.requests[0].body["stream_options"] == {"x": 1}
    assert "stream_options" not in asked(GOOD)[1].requests[0].body


NO_OPTIONS = [
    http(b'{"error": {"message": "unknown field stream_options"}}', "400 Bad Request"),
    http(b'{"detail": [{"loc": ["body"], "msg": "Extra inputs"}]}', "422 Unprocessable Content"),
]


def told_apart(*answers: Answer, times: int = 2) -> tuple[list[AgentReply | str], list[bool]]:
    """Replies or errors of several requests to one agent, and which requests included usage."""

    async def go() -> tuple[list[AgentReply | str], list[bool]]:
        found: list[AgentReply | str] = []
        async with wire(*answers) as opened, open_client(AddressGuard()) as client:
            config = ChatCompletionsAgent(endpoint=opened.url, streaming=True, retries=0)
            agent = ChatCompletionsClient(config, client, 5)
            for _ in range(times):
                try:
                    found.append(
                        await agent.reply(SAID, TurnContext("c-1", "s", 0, _no_tools, session_id="x"))
                    )
                except NoReply as error:
                    found.append(f"{error.retries}: {error}")
            return found, ["stream_options" in request.body for request in opened.requests]

    return anyio.run(go)


@pytest.mark.parametrize("refusal", NO_OPTIONS)
def test_an_agent_that_refuses_usage(refusal: bytes) -> None:
    """The request is repeated without usage, and later ones leave it out."""
    (first, second), asking = told_apart(refusal, http(_events("Hi"), headers=SSE))
    assert isinstance(first, AgentReply)
    assert isinstance(second, AgentReply)
    assert (first.text, first.retries, second.text, second.retries) == ("Hi", 1, "Hi", 0)
    assert asking == [True, False, False]


def test_a_refusal_for_another_reason() -> None:
    """If the request fails without usage too, the refusal is the agent's answer, and usage stays on."""
    refusal = http(b"too long", "400 Bad Request")
    (first, second), asking = told_apart(refusal, refusal, http(COUNTED, headers=SSE))
    assert "answered 400: too long" in str(first)
    assert str(first).startswith("1: ")
    assert isinstance(second, AgentReply)
    assert asking == [True, False, True]


def test_a_refusal_after_usage_was_reported() -> None:
    """An agent that has reported usage gets no repeated request when it refuses one."""
    refusal = http(b"too long", "400 Bad Request")
    (_, second), asking = told_apart(http(COUNTED, headers=SSE), refusal)
    assert "answered 400: too long" in str(second)
    assert asking == [True, True]


def test_streaming_that_never_closes() -> None:
    """A streamed answer ends at [DONE], even if the connection stays open."""

    async def open_for_ever(writer: Connection) -> None:
        writer.write(http(_events("Hello"), headers=SSE, length=10_000))
        await hang(writer)

    assert asked(open_for_ever, streaming=True)[0].text == "Hello"


@pytest.mark.parametrize("content_type", ["application/json", "text/plain", "text/event-stream", "x"])
def test_a_server_that_cannot_stream(content_type: str) -> None:
    """A whole completion is a valid answer to a streaming request, with any content type."""
    reply, _ = asked(http(b"\n " + completion(), headers=[f"content-type: {content_type}"]), streaming=True)
    assert reply.text == "Hello."


def test_a_stream_that_was_not_asked_for() -> None:
    """An unrequested stream is read, and so is a requested one with a wrong content type."""
    assert asked(http(_events("Hello"), headers=SSE))[0].text == "Hello"
    assert (
        asked(http(_events("Hello"), headers=["content-type: text/plain"]), streaming=True)[0].text == "Hello"
    )


def test_a_stream_cut_in_transport() -> None:
    """A stream with a broken connection is an error, even after a finish_reason."""
    finished = b'data: {"choices": [{"delta": {"content": "x"}, "finish_reason": "stop"}]}\n\n'
    found, opened = refused(http(finished, headers=SSE, length=500), streaming=True)
    assert "was cut" in found
    assert len(opened.requests) == 1


# Redirects


def to(target: str, status: str = "307 Temporary Redirect") -> bytes:
    return http(b"", status, [f"location: {target}"])


@pytest.mark.parametrize("status", ["307 Temporary Redirect", "308 Permanent Redirect"])
def test_redirects_at_the_same_origin(status: str) -> None:
    """307 and 308 repeat the request; at the same origin it keeps its credentials."""
    reply, opened = asked(to("/v2", status), GOOD, headers={"Authorization": "Bearer secret"})
    first, second = opened.requests
    assert reply.text == "Hello."
    assert second.line == "POST /v2 HTTP/1.1"
    assert second.body == first.body
    assert second.headers["authorization"] == "Bearer secret"


def test_redirects_to_another_origin() -> None:
    """Configured headers are not sent to another origin, or after a redirect through one."""

    async def go() -> tuple[Wire, Wire]:
        async with wire(GOOD) as first, wire(GOOD) as second:
            first.requests.clear()
            async with wire(to(first.url)) as last, wire(to(last.url)) as start:
                headers = {"Authorization": "Bearer secret", "X-Api-Key": "secret", "Cookie": "a=secret"}
                await ask(start.url, headers=headers)
                assert start.requests[0].headers["x-api-key"] == "secret"
                assert not second.requests
                return last, first

    for opened in anyio.run(go):
        (request,) = opened.requests
        assert "secret" not in str(request.headers)
        assert request.headers["content-type"] == "application/json"
        assert request.body["messages"] == to_wire(SAID)


@pytest.mark.parametrize("status", ["301 Moved Permanently", "302 Found", "303 See Other"])
def test_other_redirects(status: str) -> None:
    """Redirects that would change the request are refused, with the address to configure."""
    found, opened = refused(to("https://agent.example/v1", status))
    assert f"answered {status[:3]} and points to https://agent.example/v1: set the endpoint" in found
    assert len(opened.requests) == 1


@pytest.mark.parametrize(
    ("target", "problem"),
    [
        ("http://169.254.169.254/latest", "link-local or cloud-metadata"),
        ("http://0xA9FEA9FE/latest", "link-local or cloud-metadata"),
        ("http://[::ffff:a9fe:a9fe]/", "link-local or cloud-metadata"),
        ("file:///etc/passwd", "http:// or https://"),
        ("ftp://127.0.0.1/", "http:// or https://"),
        ("http://[::1", "is not a URL"),
        ("http://127.0.0.1:99999/", "Invalid URL|not a URL"),
        ("", "without a location"),
    ],
)
def test_redirects_that_are_refused(target: str, problem: str) -> None:
    """A redirect to a metadata address or an invalid URL is refused without a retry."""
    found, opened = refused(to(target))
    assert re.search(problem, found)
    assert len(opened.requests) == 1


def test_redirect_loops() -> None:
    """A redirect loop ends after five redirects."""
    found, opened = refused(to("/v1/chat/completions"))
    assert "more than 5 redirects" in found
    assert len(opened.requests) == 6


# Through the scripted agent


def test_raw_answers() -> None:
    """A scripted agent can send raw bytes and cut its answer short."""
    half = Raw(completion()[:30], content_length=len(completion()), close=True)
    with ScriptedAgent([half]) as agent, pytest.raises(AgentError, match="was cut"):
        anyio.run(ask, agent.endpoint)
    busy = Raw(b"busy", status=503, headers={"retry-after": "0"})
    answers = iter([busy, "Hello."])
    with ScriptedAgent(lambda _: next(answers)) as agent:
        reply = anyio.run(ask, agent.endpoint)
    assert (reply.text, reply.retries) == ("Hello.", 1)


def test_many_at_once() -> None:
    """Two hundred concurrent requests through one client each get their own answer."""

    async def go(endpoint: str) -> list[str | None]:
        answers: list[str | None] = [None] * 200
        async with open_client(AddressGuard()) as client:
            agent = ChatCompletionsClient(ChatCompletionsAgent(endpoint=endpoint), client, 20)

            async def one(i: int) -> None:
                said = [UserText(str(i))]
                answers[i] = (
                    await agent.reply(said, TurnContext("c", "s", 0, _no_tools, session_id="x"))
                ).text

            async with anyio.create_task_group() as tasks:
                for i in range(200):
                    tasks.start_soon(one, i)
        return answers

    with ScriptedAgent(lambda body: body["messages"][-1]["content"]) as agent:
        assert anyio.run(go, agent.endpoint) == [str(i) for i in range(200)]
