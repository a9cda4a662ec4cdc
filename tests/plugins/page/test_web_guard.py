"""Access to the server of the page."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from page_at import serve_at_port
from ui_server import Client, with_server

from agentest.plugins.page.server.json_routes import WebProject
from agentest.support.errors import UsageError

REFUSED: dict[str, dict[str, str]] = {
    "no-token": {"Authorization": ""},
    "old-token": {"Authorization": "Bearer x"},
    "host-evil": {"Host": "evil.example"},
    "host-rebound": {"Host": "evil.example:{port}"},
    "host-other-port": {"Host": "127.0.0.1:1"},
    "host-empty": {"Host": ""},
    "origin-null": {"Origin": "null"},
    "origin-foreign": {"Origin": "https://evil.example"},
    "origin-other-port": {"Origin": "http://127.0.0.1:1"},
    "cross-site": {"Sec-Fetch-Site": "cross-site"},
    "same-site": {"Sec-Fetch-Site": "same-site"},
    "websocket": {"Authorization": "", "Upgrade": "websocket", "Connection": "Upgrade"},
}


def test_other_clients_are_refused(tmp_path: Path) -> None:
    """Without token, or with another host or origin, nothing is read and no token is shown."""

    async def work(client: Client) -> None:
        right = {"Authorization": f"Bearer {client.token}"}
        for name, headers in REFUSED.items():
            given = {key: value.format(port=client.port) for key, value in headers.items()}
            status, text = await client.raw("GET", "/api/runs", headers={**right, **given})
            assert status == 403, name
            assert client.token not in text
        assert (await client.raw("GET", "/api/runs", headers=right))[0] == 200

    with_server(tmp_path, work)


def test_only_json_starts_anything(tmp_path: Path) -> None:
    """A form's body, an unknown method and a body that is too large change nothing."""

    async def work(client: Client) -> None:
        right = {"Authorization": f"Bearer {client.token}", "Content-Type": "text/plain"}
        status, _ = await client.raw("POST", "/api/jobs", headers=right, data=b'{"kind": "run"}')
        assert status == 415
        for method in ("OPTIONS", "TRACE", "CONNECT"):
            assert (await client.raw(method, "/api/jobs", headers=right))[0] in (400, 405)
        assert (await client.ask("GET", "/api/jobs"))[1]["jobs"] == []

    with_server(tmp_path, work)


def test_the_page_opens_with_the_token_and_then_with_its_cookie(tmp_path: Path) -> None:
    """The page has no data, no token and no frame around it; its cookie opens nothing else."""

    async def work(client: Client) -> None:
        assert (await client.raw("GET", "/"))[0] == 403
        async with client.session.get(f"{client.origin}/?token={client.token}") as got:
            assert got.status == 200
            assert client.token not in await got.text()
            assert "frame-ancestors 'none'" in got.headers["Content-Security-Policy"]
            assert got.headers["Referrer-Policy"] == "no-referrer"
            (cookie,) = got.cookies.values()
            assert (cookie["httponly"], cookie["samesite"]) == (True, "Strict")
        kept = {"Cookie": f"{cookie.key}={cookie.value}"}
        assert (await client.raw("GET", "/", headers=kept))[0] == 200
        assert (await client.raw("GET", "/api/runs", headers=kept))[0] == 403
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        assert (await client.raw("GET", f"/?token={client.token}", headers=link))[0] == 200
        assert (await client.raw("GET", "/", headers={**kept, **link}))[0] == 403
        frame = {**link, "Sec-Fetch-Dest": "iframe"}
        assert (await client.raw("GET", f"/?token={client.token}", headers=frame))[0] == 403

    with_server(tmp_path, work)


def test_a_taken_port_is_an_error(tmp_path: Path) -> None:
    """The message says how to choose another port."""

    async def work(client: Client) -> None:
        project = WebProject(root=tmp_path, config=None, output_dir=tmp_path)
        with pytest.raises(UsageError, match=rf"--port {client.port}: cannot listen there .*choose another"):
            async with serve_at_port(project, client.port):
                pass

    with_server(tmp_path, work)


def test_requests_without_a_host_are_refused(tmp_path: Path) -> None:
    """Old HTTP names no host."""

    async def work(client: Client) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(f"GET /api/runs HTTP/1.0\r\nAuthorization: Bearer {client.token}\r\n\r\n".encode())
        assert b" 403 " in await reader.readline()
        writer.close()

    with_server(tmp_path, work)


async def answer_to(port: int, sent: bytes) -> bytes:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(sent)
    try:
        return await reader.read(100)
    finally:
        writer.close()


def test_strangers_neither_fill_the_server_nor_write_on_its_terminal(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """Many silent or refused connections do not block others, and invalid HTTP is not printed."""
    not_http = (b"\x1b[31mGET\r\n\r\n", b"GET / HTTP/1.1\r\nA: " + b"a" * 20_000 + b"\r\n\r\n")

    async def work(client: Client) -> None:
        refused = f"POST /api/jobs HTTP/1.1\r\nHost: 127.0.0.1:{client.port}\r\nContent-Length: 9\r\n\r\n"
        for sent in not_http:
            assert b" 400 " in await answer_to(client.port, sent)
        held = []
        for number in range(250):
            held.append((await asyncio.open_connection("127.0.0.1", client.port))[1])
            if number % 2:
                held[-1].write(refused.encode())
        assert (await client.ask("GET", "/api/jobs"))[0] == 200
        for each in held:
            each.close()

    with_server(tmp_path, work)
    assert capfd.readouterr() == ("", "")
