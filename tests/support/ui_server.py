"""The server of `agentest ui` in this process, used over loopback."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
from page_at import serve_at_port

from agentest.plugins.page.server.json_routes import WebProject


@dataclass(frozen=True)
class Client:
    """Sends requests as the page does."""

    session: aiohttp.ClientSession
    origin: str
    token: str

    @property
    def port(self) -> int:
        return int(self.origin.rpartition(":")[2])

    async def raw(self, method: str, path: str, **more: Any) -> tuple[int, str]:
        """Send a request without the token, unless the headers have it."""
        async with self.session.request(method, self.origin + path, **more) as got:
            return got.status, await got.text()

    async def ask(self, method: str, path: str, /, **body: Any) -> tuple[int, Any]:
        headers = {"Authorization": f"Bearer {self.token}"}
        more = {"params": body} if method == "GET" else {"json": body}
        async with self.session.request(method, self.origin + path, headers=headers, **more) as got:
            return got.status, await got.json()


def with_server(root: Path, work: Callable[[Client], Awaitable[None]], chosen: Path | None = None) -> None:
    """Do some work with a server for the project in a folder."""

    async def served() -> None:
        project = WebProject(root=root, config=None, output_dir=root / ".agentest", chosen=chosen)
        async with serve_at_port(project, 0) as server, aiohttp.ClientSession() as session:
            origin, _, token = server.partition("/?token=")
            await work(Client(session, origin, token.partition("#")[0]))

    asyncio.run(served())
