"""`agentest mcp`: an MCP server on standard input and output, for coding agents."""

from __future__ import annotations

import asyncio
import json
import math
import os
import sys
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, BinaryIO

import anyio
import click
from anyio.abc import TaskGroup

from agentest.cli.location import Location
from agentest.cli.main import whose_mistake
from agentest.cli.options import exits, where
from agentest.plugins.authoring.commands.mcp_tools import AnsweredCall, ProjectTools
from agentest.plugins.page.server.jobs import Jobs
from agentest.plugins.page.server.json_routes import WebProject
from agentest.plugins.servers.mcp import methods
from agentest.support.errors import ExitCode, described
from agentest.support.interrupts import exit_immediately, handled_signals, run_event_loop
from agentest.support.json_text import parse_untrusted_json, well_formed_value
from agentest.support.terminal import tell

_MOST_BYTES = 8_000_000
_GRACE_S = 10.0  # requests get this many seconds to end after the client has closed the input
_CANCELLED = "notifications/cancelled"
_INSTRUCTIONS = (
    "Agentest tests AI agents with scripted or simulated users and mocked tools. Call explain_config first, "
    "then list_scenarios. Check a scenario file with validate_scenario before you save it. run is offline, "
    "so user and judge models cost nothing, unless `spend` is true. Read failures with results, and a "
    "transcript with conversation. Never weaken a check, change a threshold, delete a scenario or mock what "
    "is being tested to make it pass: repair the agent, or report what you found."
)


@click.command()
@where
@exits
def mcp(location: Location) -> ExitCode:
    """Serve Agentest's tools to coding agents over MCP, on standard input and output.

    Runs call no user or judge model unless a call says so. Closing the input stops the server.
    """
    place = location.enter()
    project = WebProject(root=place.root, config=place.named_config, output_dir=place.output_dir)
    out = _protocol_output()

    async def serve() -> bool:
        jobs = Jobs(project.root, project.config, project.output_dir)
        tools = ProjectTools(place, jobs, project)
        try:
            return await serve_stdio(tools, sys.stdin.buffer, out)
        finally:
            tools.close()
            with anyio.CancelScope(shield=True):
                await jobs.close()

    if not run_event_loop(serve):
        exit_immediately()  # a thread still waits for input
    return ExitCode.PASSED


async def serve_stdio(tools: ProjectTools, lines: BinaryIO, out: BinaryIO) -> bool:
    """Answer messages, one a line. Returns True when the input ends, False after a signal."""
    queue: asyncio.Queue[bytes | None] = asyncio.Queue()
    loop, signals = asyncio.get_running_loop(), list[bool]()
    server = _StdioServer(tools, out, lambda: queue.put_nowait(None))

    def put(line: bytes | None) -> None:
        with suppress(RuntimeError):  # the loop has ended
            loop.call_soon_threadsafe(queue.put_nowait, line)

    def stop() -> None:
        signals.append(True)
        queue.put_nowait(None)

    threading.Thread(target=_read_lines, args=(lines, put), daemon=True).start()
    with handled_signals(stop, str), anyio.CancelScope(deadline=math.inf) as scope:
        async with anyio.create_task_group() as tasks:
            while (line := await queue.get()) is not None:
                server.accept(line, tasks)
            scope.deadline = anyio.current_time() + (0 if signals or server.lost else _GRACE_S)
    return not signals and not server.lost


class _StdioServer:
    """Answers each request in a task of its own.

    Args:
        on_lost: called when the client no longer reads.
    """

    def __init__(self, tools: ProjectTools, out: BinaryIO, on_lost: Callable[[], object]) -> None:
        self.lost = False
        self._tools = tools
        self._out = out
        self._on_lost = on_lost
        self._requests: dict[
            methods.RequestId, anyio.CancelScope
        ] = {}  # the requests that are being answered
        self._writing = anyio.Lock()

    def accept(self, line: bytes, tasks: TaskGroup) -> None:
        message: Any = None
        try:
            if len(line) > _MOST_BYTES:
                raise methods.RpcError(methods.TOO_LARGE, f"the message has more than {_MOST_BYTES:,} bytes")
            try:
                message = parse_untrusted_json(line)
            except (ValueError, RecursionError) as error:
                raise methods.RpcError(methods.PARSE_ERROR, f"the line is not JSON: {error}") from None
            request = methods.request_in(message)
            if request is not None and request.id in self._requests:
                raise methods.RpcError(
                    methods.INVALID_REQUEST, f"a request with the id {request.id!r} is being answered"
                )
        except methods.RpcError as error:
            id = message.get("id") if isinstance(message, dict) else None
            tasks.start_soon(self._send, error.body(id if methods.is_id(id) else None))
            return
        if request is not None:
            self._requests[request.id] = scope = anyio.CancelScope()
            tasks.start_soon(self._answer, request, scope)
        elif message.get("method") == _CANCELLED and isinstance(message.get("params"), dict):
            id = message["params"].get("requestId")
            if methods.is_id(id) and id in self._requests:
                self._requests[id].cancel()

    async def _answer(self, request: methods.RpcRequest, scope: anyio.CancelScope) -> None:
        answer: dict[str, Any] | None = None
        with scope:
            try:
                result = await methods.result_of(request, self._listing, self._call, _INSTRUCTIONS)
                answer = {"jsonrpc": "2.0", "id": request.id, "result": result}
            except methods.RpcError as error:
                answer = error.body(request.id)
        del self._requests[request.id]
        if answer is not None:  # a cancelled request gets no answer
            await self._send(answer)

    def _listing(self) -> list[Mapping[str, Any]]:
        return [tool.entry(name) for name, tool in self._tools.tools.items()]

    async def _call(self, params: Mapping[str, Any]) -> dict[str, Any]:
        token = methods.meta_of(params).get("progressToken")

        async def report(done: float, total: float | None, text: str) -> None:
            if isinstance(token, str | int):
                progress = {"progressToken": token, "progress": done, "message": text}
                progress |= {} if total is None else {"total": total}
                await self._send({"jsonrpc": "2.0", "method": "notifications/progress", "params": progress})

        arguments = params.get("arguments")
        try:
            answer = await self._tools.call(
                str(params.get("name")), {} if arguments is None else arguments, report
            )
        except LookupError as error:
            raise methods.RpcError(methods.INVALID_PARAMS, str(error)) from None
        except Exception as error:  # noqa: BLE001 - one call must not end the server
            text = f"an unexpected error: {described(error)}. {whose_mistake(error)}: please report it"
            tell(f"agentest mcp: {text}")
            answer = AnsweredCall(text, {"error": text}, failed=True)
        content = [{"type": "text", "text": answer.text}]
        return {"content": content, "structuredContent": answer.content, "isError": answer.failed}

    async def _send(self, message: dict[str, Any]) -> None:
        line = json.dumps(well_formed_value(message)).encode() + b"\n"
        async with self._writing:
            if not self.lost:
                await anyio.to_thread.run_sync(self._write, line)
            if self.lost:
                self._on_lost()

    def _write(self, line: bytes) -> None:
        try:
            self._out.write(line)
            self._out.flush()
        except OSError:  # the client has gone
            self.lost = True


def _read_lines(lines: BinaryIO, put: Callable[[bytes | None], object]) -> None:
    with suppress(OSError, ValueError):
        while line := lines.readline(_MOST_BYTES + 1):
            rest = line
            while not rest.endswith(b"\n") and (rest := lines.readline(_MOST_BYTES)):
                pass
            if line.strip():
                put(line)
    put(None)


def _protocol_output() -> BinaryIO:
    sys.stdout.flush()
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    sys.stdout = sys.stderr
    return out
