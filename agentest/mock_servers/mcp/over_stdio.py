"""A real MCP server that is a program of ours: a message is a line on its standard input or output."""

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

from agentest.mock_servers.mcp.upstream import UpstreamError, reply_to
from agentest.support.http.bodies import MAX_BODY_BYTES
from agentest.support.json_text import json_text
from agentest.support.processes.groups import Reaper, search_path, signal_group
from agentest.support.terminal import without_colours

_LOG_CHARS = 1000
_PIECE_BYTES = 65536
_GRACE_S = 2.0


class StdioTransport:
    """The program, started with the first message, in a process group of its own.

    It ends when we do, however we end: its standard input does, and the reaper sees to the rest.
    """

    def __init__(self, command: str | Sequence[str], root: Path) -> None:
        """Raises ValueError for a command whose quotes do not match."""
        self._words = shlex.split(command) if isinstance(command, str) else list(command)
        self._root = root
        self._process: Process | None = None
        self._reaper: Reaper | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self._waiting: dict[Any, asyncio.Future[Mapping[str, Any]]] = {}
        self._log = ""
        self.shown = f"the real MCP server (command {self._words[0]!r})"

    def agreed(self, version: str | None) -> None:
        """Nothing: only over HTTP does each message name it."""

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
        """Close its input, which asks it to end; what does not is ended."""
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
        with suppress(ValueError):  # a line without end: nothing that follows can be told apart
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
            return  # many a program prints more than messages
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
