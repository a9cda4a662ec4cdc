"""Transports to a real MCP server: streamable HTTP and stdio."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import signal
from asyncio.subprocess import PIPE, Process
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio

from agentest.mock_servers.mcp.upstream import SessionLost, UpstreamError, reply_to
from agentest.support.deadlines import TimeLimit
from agentest.support.http.address_guard import RefusedAddress
from agentest.support.http.bodies import MAX_BODY_BYTES, BadBody
from agentest.support.http.client import Client, DirectResponse
from agentest.support.http.retries import CONNECTION_ERRORS, describe
from agentest.support.http.sse import events
from agentest.support.json_text import json_text
from agentest.support.process_groups import Reaper, search_path, signal_group
from agentest.support.redaction import without_credentials
from agentest.support.terminal import without_colours
from agentest.support.text import shortened

_SESSION = "mcp-session-id"
_SHOWN_ERROR_CHARS = 200
_LAST_WORDS_S = 2.0


class HttpTransport:
    """Streamable HTTP requests to one address, each with the configured headers, such as credentials."""

    def __init__(self, client: Client, url: str, headers: Mapping[str, str]) -> None:
        self._client = client
        self._url = url
        self._headers = {name.lower(): value for name, value in headers.items()}
        self._session: str | None = None
        self._version: str | None = None
        self.shown = f"the real MCP server at {without_credentials(url)}"

    def agreed(self, version: str | None) -> None:
        self._version = version
        if version is None:
            self._session = None

    async def ask(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        response = await self._send(message)
        try:
            self._check(response)
            self._session = response.headers.get(_SESSION, self._session)
            return await self._answer(response, message["id"])
        except BadBody as error:
            raise UpstreamError(f"{self.shown}: the answer {error}") from None
        except CONNECTION_ERRORS as error:
            raise UpstreamError(f"{self.shown}: its answer was cut off ({describe(error)})") from None
        finally:
            await response.aclose()

    async def tell(self, message: Mapping[str, Any]) -> None:
        response = await self._send(message)
        try:
            self._check(response)
        finally:
            await response.aclose()

    async def close(self) -> None:
        """End the session, which the server would otherwise retain."""
        if self._session is None:
            return
        with suppress(RefusedAddress, *CONNECTION_ERRORS), TimeLimit(_LAST_WORDS_S):
            headers = list(self._all_headers().items())
            await (await self._client.send_direct("DELETE", self._url, headers, None)).aclose()

    async def _send(self, message: Mapping[str, Any]) -> DirectResponse:
        try:
            return await self._client.send_direct(
                "POST", self._url, list(self._all_headers().items()), json_text(message).encode()
            )
        except RefusedAddress as error:
            raise UpstreamError(f"{self.shown}: {error}") from None
        except CONNECTION_ERRORS as error:
            raise UpstreamError(f"{self.shown} cannot be reached: {describe(error)}") from None

    def _all_headers(self) -> dict[str, str]:
        known = {_SESSION: self._session, "mcp-protocol-version": self._version}
        return {
            "content-type": "application/json",
            "accept": "application/json, text/event-stream",
            **{name: value for name, value in known.items() if value},
            **self._headers,
        }

    def _check(self, response: DirectResponse) -> None:
        """Raise an error for an unsuccessful status."""
        status = response.status_code
        if status == 404 and (self._session or not self._version):
            raise SessionLost
        if status in (401, 403):
            raise UpstreamError(
                f"{self.shown} answered {status}: it wants credentials. Write them into the agent's "
                "`mcp_mock`: upstream_headers: {Authorization: Bearer ${TOKEN}}"
            )
        if 300 <= status < 400:
            where = response.headers.get("location", "nowhere")
            raise UpstreamError(f"{self.shown} answered {status}: it is at {where}; write that URL")
        if status >= 400:
            raise UpstreamError(f"{self.shown} answered {status}: is it its streamable HTTP endpoint?")

    async def _answer(self, response: DirectResponse, request_id: Any) -> Mapping[str, Any]:
        if "text/event-stream" not in response.headers.get("content-type", ""):
            return self._message(b"".join([piece async for piece in response.pieces()]))
        async for event in events(response.pieces()):
            if not event.data:
                continue
            message = self._message(event.data.encode())
            if message.get("id") == request_id and "method" not in message:
                return message
            if reply := reply_to(message):
                await self.tell(reply)
        raise UpstreamError(f"{self.shown}: its stream ended without the answer")

    def _message(self, text: bytes) -> Mapping[str, Any]:
        try:
            message = json.loads(text)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict):
            shown = shortened(text[:1000].decode(errors="replace"), _SHOWN_ERROR_CHARS)
            raise UpstreamError(f"{self.shown} answered no MCP message: {shown!r}")
        return message


_LOG_CHARS = 1000
_PIECE_BYTES = 65536
_GRACE_S = 2.0


class StdioTransport:
    """A process that starts with the first message, in a process group of its own.

    It ends when our process does, for any reason: its standard input closes, and the reaper handles the rest.
    """

    def __init__(self, command: str | Sequence[str], root: Path) -> None:
        """Raises ValueError for a command with unbalanced quotes."""
        self._words = shlex.split(command) if isinstance(command, str) else list(command)
        self._root = root
        self._process: Process | None = None
        self._reaper: Reaper | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: dict[Any, asyncio.Future[Mapping[str, Any]]] = {}
        self._log = ""
        self.shown = f"the real MCP server (command {self._words[0]!r})"

    def agreed(self, version: str | None) -> None:
        """Do nothing, because only HTTP messages state the version."""

    async def ask(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        await self._start()
        answer: asyncio.Future[Mapping[str, Any]] = asyncio.get_running_loop().create_future()
        self._waiting[message["id"]] = answer
        try:
            await self.tell(message)
            return await answer
        finally:
            del self._waiting[message["id"]]

    async def tell(self, message: Mapping[str, Any]) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json_text(message).encode() + b"\n")
            await self._process.stdin.drain()
        except OSError:
            raise self._ended() from None

    async def close(self) -> None:
        """Close its input, which requests its end; terminate the process if it does not exit."""
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        with anyio.CancelScope(shield=True):
            process.stdin.close()
            for number in (signal.SIGTERM, signal.SIGKILL):
                with anyio.move_on_after(_GRACE_S):
                    await process.wait()
                signal_group(process.pid, number)
            for task in self._tasks:
                task.cancel()
            await asyncio.wait(self._tasks)
            if self._reaper:
                self._reaper.forget(process.pid)
                self._reaper.close()

    async def _start(self) -> None:
        if self._process is not None:
            if self._process.returncode is not None or self._tasks[0].done():
                raise self._ended()
            return
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._words,
                stdin=PIPE,
                stdout=PIPE,
                stderr=PIPE,
                cwd=self._root,
                env={**os.environ, "PATH": search_path()},
                limit=MAX_BODY_BYTES,
                start_new_session=True,
            )
        except (OSError, ValueError) as error:
            raise UpstreamError(f"{self.shown} cannot be started: {error}") from None
        self._reaper = Reaper()
        self._reaper.watch(self._process.pid)
        self._tasks = [asyncio.create_task(self._read()), asyncio.create_task(self._keep_log())]

    async def _read(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        with suppress(ValueError):  # an overlong line: the messages after it cannot be separated
            while line := await self._process.stdout.readline():
                await self._take(line)
        with anyio.move_on_after(_GRACE_S):
            await self._process.wait()
        for answer in self._waiting.values():
            if not answer.done():
                answer.set_exception(self._ended())

    async def _take(self, line: bytes) -> None:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            return  # many programs print other lines than messages
        if not isinstance(message, dict):
            return
        if reply := reply_to(message):
            with suppress(UpstreamError):
                await self.tell(reply)
            return
        answer = self._waiting.get(message.get("id")) if "method" not in message else None
        if answer is not None and not answer.done():
            answer.set_result(message)

    async def _keep_log(self) -> None:
        assert self._process is not None
        assert self._process.stderr is not None
        while piece := await self._process.stderr.read(_PIECE_BYTES):
            self._log = (self._log + piece.decode(errors="replace"))[-2 * _LOG_CHARS :]

    def _ended(self) -> UpstreamError:
        assert self._process is not None
        status = self._process.returncode
        how = "closed its output" if status is None else f"ended with status {status}"
        log = without_colours(self._log)[-_LOG_CHARS:].strip()
        return UpstreamError(f"{self.shown} {how}{f'; its log ends with: {log}' if log else ''}")
