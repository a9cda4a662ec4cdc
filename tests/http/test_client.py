"""HTTP requests: what is sent, reuse of connections, and refusals."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import anyio
import pytest

from agentest.support.http.client import Client, Headers, open_client
from agentest.support.http.retries import describe

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"


class Served:
    """A server that answers each request on a connection with the next answer; None closes the connection."""

    def __init__(self, *answers: bytes | None) -> None:
        self.heads: list[str] = []
        self.connections = 0
        self.url = ""
        self._answers = list(answers)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        while head := (await reader.readuntil(b"\r\n\r\n")).decode():
            self.heads.append(head)
            answer = self._answers.pop(0)
            if answer is None:
                break
            writer.write(answer)
        writer.close()


@asynccontextmanager
async def served(*answers: bytes | None) -> AsyncIterator[Served]:
    server = Served(*answers)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await server.serve(reader, writer)
        except asyncio.IncompleteReadError:
            writer.close()

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    server.url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listening.close()


async def body_of(client: Client, url: str, method: str = "GET", headers: Headers = ()) -> bytes:
    response = await client.send_direct(method, url, headers, None)
    try:
        return await response.read()
    finally:
        await response.aclose()


def test_connections_are_used_again() -> None:
    async def test() -> int:
        async with served(OK, OK, OK) as server, open_client() as client:
            for _ in range(3):
                assert await body_of(client, server.url) == b"ok"
            return server.connections

    assert anyio.run(test) == 1


def test_a_connection_with_an_unread_body_is_not_used_again() -> None:
    unfinished = b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nok"

    async def test() -> int:
        async with served(unfinished, OK) as server, open_client() as client:
            await (await client.send_direct("GET", server.url, (), None)).aclose()
            assert await body_of(client, server.url) == b"ok"
            return server.connections

    assert anyio.run(test) == 2


def test_a_connection_that_is_to_be_closed_is_used_once() -> None:
    """A server need not repeat `connection: close`, and closes the connection a little later."""

    async def go() -> int:
        async with served(OK, OK) as server, open_client() as client:
            assert await body_of(client, server.url, "POST", [("connection", "close")]) == b"ok"
            assert await body_of(client, server.url) == b"ok"
            return server.connections

    assert anyio.run(go) == 2


def test_a_get_is_repeated_once_if_the_connection_was_closed() -> None:
    async def test(method: str, *answers: bytes | None) -> list[str]:
        async with served(*answers) as server, open_client() as client:
            await body_of(client, server.url, method)
            return server.heads

    assert len(anyio.run(test, "GET", None, OK)) == 2
    with pytest.raises(aiohttp.ServerDisconnectedError):
        anyio.run(test, "GET", None, None)
    with pytest.raises(aiohttp.ServerDisconnectedError):
        anyio.run(test, "POST", None, OK)


def test_heads_before_the_response_are_skipped() -> None:
    async def test() -> bytes:
        hints = b"HTTP/1.1 103 Early Hints\r\nlink: </style.css>\r\n\r\n"
        async with served(hints + OK) as server, open_client() as client:
            return await body_of(client, server.url)

    assert anyio.run(test) == b"ok"


def test_the_head_of_a_request() -> None:
    """Credentials of the URL become a header, a given header replaces ours, and the fragment is not sent."""

    async def test() -> list[str]:
        async with served(OK, OK) as server, open_client() as client:
            url = server.url.replace("http://", "http://user:p%40ss@") + "/a?b=ü#c"
            await body_of(client, url, "DELETE")
            await body_of(client, url, headers=[("authorization", "Bearer x"), ("host", "other")])
            return server.heads

    first, second = anyio.run(test)
    assert first.startswith("DELETE /a?b=%C3%BC HTTP/1.1\r\nHost: 127.0.0.1:")
    assert "Authorization: Basic dXNlcjpwQHNz\r\n" in first
    assert first.endswith("Content-Length: 0\r\n\r\n")
    assert second == "GET /a?b=%C3%BC HTTP/1.1\r\nauthorization: Bearer x\r\nhost: other\r\n\r\n"


@pytest.mark.parametrize("value", ["a\r\nx-other: b", "a\nb", "a\rb", "a\0b"])
def test_a_header_cannot_contain_another_one(value: str) -> None:
    async def test() -> None:
        async with served(OK) as server, open_client() as client:
            await body_of(client, server.url, headers=[("x-name", value)])

    with pytest.raises(aiohttp.InvalidURL, match="line break"):
        anyio.run(test)


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("ftp://127.0.0.1/", "expected one of these schemes: http, https, ws, wss"),
        ("http+unix://%2Ftmp%2Fx/", "expected one of these schemes:"),
        ("//127.0.0.1/", "expected one of these schemes:"),
        ("http:///x", "it has no host"),
        ("http://127.0.0.1:99999/", "Port out of range"),
        ("http://127.0.0.1/a\r\nX: y", r"it contains the invalid character '\\r'"),
        ("http://127.0.0.1/a\tb", r"it contains the invalid character '\\t'"),
        ("http://127.0.0.1/\udc80", r"it contains the invalid character '\\udc80'"),
    ],
)
def test_invalid_urls_are_refused(url: str, problem: str) -> None:
    async def test() -> None:
        async with open_client() as client:
            await body_of(client, url)

    with pytest.raises(aiohttp.InvalidURL, match=problem):
        anyio.run(test)


def test_a_space_in_a_url_is_encoded() -> None:
    async def test() -> list[str]:
        async with served(OK) as server, open_client() as client:
            await body_of(client, f"{server.url}/a b?c=d e+f")
            return server.heads

    assert anyio.run(test)[0].startswith("GET /a%20b?c=d%20e+f HTTP/1.1\r\n")


def test_a_malformed_chunk_after_the_head_ends_the_body() -> None:
    async def test() -> None:
        head_was_read = asyncio.Event()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n")
            await head_was_read.wait()
            writer.write(b"zz\r\nok\r\n")
            await reader.read()
            writer.close()

        async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, open_client() as client:
            url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
            response = await client.send_direct("GET", url, (), None)
            head_was_read.set()
            try:
                await response.read()
            finally:
                await response.aclose()

    with pytest.raises(aiohttp.ClientPayloadError) as raised:
        anyio.run(test)
    assert describe(raised.value).startswith("what came is not HTTP as it should be: 400, message:")


def test_a_proxy_receives_the_whole_url_and_its_own_credentials() -> None:
    async def test() -> str:
        async with served(OK) as proxy:
            address = proxy.url.replace("http://", "http://me:secret@")
            async with open_client(proxy=address) as client:
                assert await body_of(client, "http://agent.example/chat?x=1") == b"ok"
            return proxy.heads[0]

    head = anyio.run(test)
    assert head.startswith("GET http://agent.example/chat?x=1 HTTP/1.1\r\nHost: agent.example\r\n")
    assert "Proxy-Authorization: Basic bWU6c2VjcmV0\r\n" in head


def test_headers_that_are_not_utf_8_can_be_encoded_again() -> None:
    answer = b"HTTP/1.1 200 OK\r\nx-name: caf\xe9\r\nx-other: \xc3\xbc\r\ncontent-length: 2\r\n\r\nok"

    async def test() -> tuple[str, str]:
        async with served(answer) as server, open_client() as client:
            response = await client.send_direct("GET", server.url, (), None)
            await response.aclose()
            return response.headers["X-Name"], response.headers["x-other"]

    assert anyio.run(test) == ("café", "ü")
