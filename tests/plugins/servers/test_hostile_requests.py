"""Requests of hostile pages and agents to an agent's servers, over real sockets."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from contextlib import AsyncExitStack
from functools import cache
from pathlib import Path

import anyio
import pytest
from aiohttp import web
from three_servers import Servers, three_servers

from agentest.agents.listener import listen
from agentest.config.agents.companion_servers import Traces
from agentest.plugins.servers.traces.server import InvalidSpans, spans_in_protobuf
from agentest.support.http.bodies import read_body

OURS = "Host: 127.0.0.1:PORT"
FORM = ("Content-Type: application/x-www-form-urlencoded", "Content-Length: 8")
PLACES = {"mcp": "POST /mcp", "rest": "POST /orders", "otlp": "POST /v1/traces"}
FOREIGN: dict[str, tuple[str, ...]] = {
    "a form of another site": (OURS, "Origin: https://evil.example", "Sec-Fetch-Site: cross-site"),
    "a form of another program here": (
        OURS,
        "Origin: http://localhost:9",
        "Sec-Fetch-Site: same-site",
        "Sec-Fetch-Mode: navigate",
    ),
    "an image": (OURS, "Sec-Fetch-Site: cross-site", "Sec-Fetch-Mode: no-cors"),
    "a hidden origin": (OURS, "Origin: null"),
    "an empty origin": (OURS, "Origin: "),
    "two origins": (OURS, "Origin: http://localhost", "Origin: https://evil.example"),
    "an origin that begins like ours": (OURS, "Origin: http://localhost.evil.example"),
    "an origin with a user": (OURS, "Origin: http://localhost@evil.example"),
    "a socket of another site": (
        OURS,
        "Origin: https://evil.example",
        "Connection: Upgrade",
        "Upgrade: websocket",
        "Content-Length: 0",
    ),
    "a name that leads here": ("Host: evil.example:PORT",),
    "a name that begins like ours": ("Host: 127.0.0.1.evil.example:PORT",),
    "a user before the host": ("Host: 127.0.0.1:PORT@evil.example",),
    "an address of all interfaces": ("Host: 0.0.0.0:PORT",),
    "a name with a dot": ("Host: localhost.:PORT",),
    "no host": ("Host: ",),
}


@pytest.mark.parametrize("what", FOREIGN)
def test_what_a_foreign_page_sends_is_refused(what: str, tmp_path: Path) -> None:
    """It gets 403 and a closed connection: no call is recorded, and nothing reaches the real API."""

    async def go() -> None:
        async with three_servers(tmp_path) as servers:
            headers = FOREIGN[what]
            form = () if "Content-Length: 0" in headers else FORM
            for server, place in PLACES.items():
                line = f"{place} HTTP/1.1"
                answer = await servers.send(server, line, *headers, *form, body=b"item=tea" if form else b"")
                assert answer == (403, True), server
            assert (servers.calls, servers.real, servers.group.reached) == ([], [], frozenset())
            assert len(servers.notes) == 3, "each server tells the user of it"

    anyio.run(go)


SMUGGLED: dict[str, tuple[str, tuple[str, ...]]] = {
    "two hosts": ("POST /orders HTTP/1.1", (OURS, "Host: evil.example")),
    "a whole URL": ("POST http://evil.example/orders HTTP/1.1", (OURS,)),
    "a tunnel": ("CONNECT evil.example:443 HTTP/1.1", ("Host: evil.example:443",)),
    "two lengths": ("POST /orders HTTP/1.1", (OURS, "Content-Length: 3")),
    "a length and chunks": ("POST /orders HTTP/1.1", (OURS, "Transfer-Encoding: chunked")),
    "old HTTP": ("POST /orders HTTP/1.0", ()),
    "a header without end": ("POST /orders HTTP/1.1", (OURS, "X: " + "a" * 100_000)),
}


@pytest.mark.parametrize("what", SMUGGLED)
def test_what_two_readers_would_read_differently_is_refused(
    what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Nothing of it is a call, and nothing is written on the terminal."""
    line, headers = SMUGGLED[what]

    async def go() -> None:
        async with three_servers(tmp_path) as servers:
            form = () if line.startswith("CONNECT") else FORM
            body = b"item=tea" if form else b""
            status, closed = await servers.send("rest", line, *headers, *form, body=body)
            assert (status in (400, 403), closed) == (True, True)
            assert (servers.calls, servers.real) == ([], [])

    anyio.run(go)
    assert capfd.readouterr() == ("", "")


OWN: dict[str, tuple[str, ...]] = {
    "the address": (OURS,),
    "localhost": ("Host: localhost:PORT",),
    "capitals": ("Host: LOCALHOST:PORT",),
    "IPv6": ("Host: [::1]:PORT",),
    "another port, as of a tunnel": ("Host: localhost:1",),
    "a script of a page of this machine": (
        OURS,
        "Origin: http://localhost:3000",
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Mode: cors",
    ),
    "Node": (OURS, "Sec-Fetch-Mode: cors"),
    "a container": ("Host: host.docker.internal:PORT",),
    "a page of a container": (OURS, "Origin: http://shop:3000"),
}


def test_programs_and_pages_of_this_machine_may_call(tmp_path: Path) -> None:
    """Loopback in each spelling, and what `allowed_hosts` names."""

    async def go() -> None:
        async with three_servers(tmp_path, allowed_hosts=["Host.Docker.internal", "shop"]) as servers:
            for what, headers in OWN.items():
                assert (await servers.send("rest", "GET /orders/1 HTTP/1.1", *headers))[0] == 200, what
            assert len(servers.calls) == len(servers.real) == len(OWN)

    anyio.run(go)


def test_a_refused_host_is_noted_with_its_key(tmp_path: Path) -> None:
    """Agents in containers get an answer, and the user a note, with what to write."""

    async def go() -> list[str]:
        async with three_servers(tmp_path) as servers:
            for _ in range(2):
                await servers.send("rest", "GET /orders/1 HTTP/1.1", "Host: host.docker.internal:PORT")
            return list(servers.notes)

    (note,) = anyio.run(go)
    assert "does not answer to the host 'host.docker.internal:" in note
    assert "`allowed_hosts` of rest_mock of agent 'shop'" in note


BOMBS = [
    ("rest", "/orders"),
    ("mcp", "/mcp"),
    ("otlp", "/v1/traces"),
    ("otlp", "/v1/logs"),
    ("otlp", "/v1/metrics"),
]


@cache
def bomb(coding: str) -> bytes:
    return {"gzip": gzip.compress, "deflate": zlib.compress}[coding](b" " * 70_000_000, 1)


async def post(servers: Servers, server: str, path: str, coding: str, body: bytes) -> tuple[int, bool]:
    headers = (
        "Content-Type: application/json",
        f"Content-Encoding: {coding}",
        f"Content-Length: {len(body)}",
    )
    return await servers.send(server, f"POST {path} HTTP/1.1", OURS, *headers, body=body)


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
@pytest.mark.parametrize(("server", "path"), BOMBS)
def test_a_body_that_unpacks_without_end_is_given_up(
    server: str, path: str, coding: str, tmp_path: Path
) -> None:
    """413, and the connection is closed. At an API it is a call that does not fit."""

    async def go() -> None:
        async with three_servers(tmp_path) as servers:
            assert await post(servers, server, path, coding, bomb(coding)) == (413, True)
            told = [call.invalid_arguments for call in servers.calls]
            assert told == (["body: is larger than 10 MB"] if server == "rest" else [])
            assert servers.real == []

    anyio.run(go)


@pytest.mark.parametrize("coding", ["br", "zstd", "gzip, gzip", "compress"])
def test_other_compressions_are_refused(coding: str, tmp_path: Path) -> None:
    """The client gets the accepted ones."""

    async def go() -> None:
        async with three_servers(tmp_path) as servers:
            for server, path in (("rest", "/orders"), ("otlp", "/v1/traces"), ("otlp", "/v1/logs")):
                assert (await post(servers, server, path, coding, b"abc"))[0] == 415
            (call,) = servers.calls
            assert "gzip and deflate are unpacked" in str(call.invalid_arguments)

    anyio.run(go)


@pytest.mark.parametrize(("server", "path"), [("rest", "/orders"), ("mcp", "/mcp"), ("otlp", "/v1/traces")])
def test_a_million_values_are_not_made(server: str, path: str, tmp_path: Path) -> None:
    """A few megabytes of `{}` would take hundreds, and hold up every conversation."""
    body = b"[" + b"{}," * 1_100_000 + b"{}]"

    async def go() -> None:
        async with three_servers(tmp_path) as servers:
            assert (await post(servers, server, path, "identity", body))[0] == 400

    anyio.run(go)


def field(number: int, content: bytes) -> bytes:
    size, rest = b"", len(content)
    while rest >= 0x80:
        size, rest = size + bytes([rest & 0x7F | 0x80]), rest >> 7
    return bytes([number << 3 | 2]) + size + bytes([rest]) + content


@pytest.mark.parametrize(
    ("spans", "problem"),
    [
        (b"\x1a\x00" * 300_000, "too many parts"),
        (b"\x12\x00" * 10, "not an id of 16 bytes"),
        (field(2, b"\x4a\x00" * 4_500_000), "more than 8 MB"),
        (b"\x12\x7f", "it was cut"),
        (b"\x13\x00", "wire type 3"),
        (b"\xff" * 20, "does not end"),
    ],
    ids=["parts", "spans", "attributes", "cut", "group", "number"],
)
def test_spans_are_read_one_by_one(spans: bytes, problem: str) -> None:
    """Two bytes of a message are a hundred in memory: what is too much is refused before it is made."""
    with pytest.raises(InvalidSpans, match=problem):
        spans_in_protobuf(field(1, field(2, spans)))


PARTS: dict[str, bytes] = {
    "comments in a name": b"Content-Disposition: form-data; name=" + b"(" * 480,
    "comments in a kind": b'Content-Disposition: form-data; name="a"\r\nContent-Type: ' + b"(" * 460,
    "a head without end": b"X: " + b"a" * 10_000,
    "no name": b"Content-Disposition: form-data",
}


@pytest.mark.parametrize("what", PARTS)
def test_a_form_that_cannot_be_read_is_a_call_that_does_not_fit(
    what: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """It is answered with 400 and recorded; nothing is written on the terminal."""
    body = b"--cut\r\n" + PARTS[what] + b"\r\n\r\nx\r\n--cut--\r\n"
    head = ("Content-Type: multipart/form-data; boundary=cut", f"Content-Length: {len(body)}")

    async def go() -> None:
        async with three_servers(tmp_path) as servers:
            status, _ = await servers.send("rest", "POST /uploads HTTP/1.1", OURS, *head, body=body)
            (call,) = servers.calls
            assert (status, str(call.invalid_arguments)[:9]) == (400, "body: is "), call

    anyio.run(go)
    assert capfd.readouterr() == ("", "")


HEAD = b"POST / HTTP/1.1\r\nHost: 127.0.0.1\r\n"


@pytest.mark.parametrize("routed", [False, True], ids=["handler", "application"])
def test_a_client_that_waits_before_it_sends_its_body(routed: bool) -> None:
    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=await read_body(request, 100))

    async def go() -> bytes:
        async with AsyncExitStack() as stack:
            app = web.Application()
            app.router.add_post("/", answer)
            origin = await listen(app if routed else answer, Traces(), "traces", stack, lambda _: None)
            reader, writer = await asyncio.open_connection("127.0.0.1", int(origin.rpartition(":")[2]))
            writer.write(HEAD + b"Expect: 100-continue\r\nContent-Length: 4\r\n\r\n")
            assert await reader.readuntil(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
            writer.write(b"wait")
            head = await reader.readuntil(b"\r\n\r\n")
            writer.close()
            return head

    assert b" 200 " in asyncio.run(go())


IDLE = {
    "silent": b"",
    "in the head": HEAD,
    "in the body": HEAD + b"Content-Length: 9\r\n\r\n{",
    "in a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n9\r\n{",
    "answered": HEAD + b"Content-Length: 0\r\n\r\n",
}


@pytest.mark.parametrize("what", IDLE)
def test_idle_connections_do_not_block_agents(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection is closed to make room unless its request is complete and being answered."""
    monkeypatch.setattr("agentest.agents.listener._MOST_CONNECTIONS", 5)

    async def answer(request: web.Request) -> web.Response:
        if await read_body(request, 100) == b"wait":
            await waits.wait()
        return web.Response()

    async def connected(port: int, sent: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        opened.append(writer)
        writer.write(sent)
        return reader, writer

    async def go() -> None:
        async with AsyncExitStack() as stack:
            origin = await listen(answer, Traces(), "traces", stack, lambda _: None)
            port = int(origin.rpartition(":")[2])
            busy, _ = await connected(port, HEAD + b"Content-Length: 4\r\n\r\nwait")
            held = []
            for _ in range(20):
                held.append((await connected(port, IDLE[what]))[0])
                if what == "answered":
                    await held[-1].readuntil(b"\r\n\r\n")
            reader, _ = await connected(port, HEAD + b"Content-Length: 0\r\n\r\n")
            assert b" 200 " in await reader.readline()
            assert await held[0].read() == b"", "it was hung up on"
            waits.set()
            assert b" 200 " in await busy.readline(), "it was being answered"
            for each in opened:
                each.close()

    waits, opened = asyncio.Event(), list[asyncio.StreamWriter]()
    anyio.run(go)
