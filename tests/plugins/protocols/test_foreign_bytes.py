"""Every place that waits for a byte of a peer is known, and no agent's client waits forever for one."""

from __future__ import annotations

import ast
import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

import agentest
from agentest import scenario
from agentest.domain.verdict import Status
from agentest.plugin import PLUGINS
from agentest.testing import run_scenarios

PACKAGE = Path(agentest.__file__).parent
READS = {"read", "readany", "readline", "readuntil", "readexactly", "iter_any", "iter_chunked", "receive"}
BY_CALLER = "`TimeLimit` of its caller, and `most` bytes"
BY_BODIES = "bytes and seconds of agentest/support/http/bodies.py"
OF_TURN = "request_timeout_ms of the turn"
OWN = "a process that we started, and that we end"
BOUNDED = {
    "agents/http_sender.py read_body": OF_TURN,
    "agents/http/client.py read": OF_TURN,
    "agents/server_process.py read": OWN,
    "models/openai_adapter.py complete": "timeout_ms of the model",
    "plugins/authoring/api_inference.py read": OF_TURN,
    "plugins/page/commands/chat.py _answer": "16 MiB and 30 s, before the conversation is held up",
    "plugins/page/server/guard.py _read_body": "body_s of the guard",
    "plugins/page/server/json_routes.py read_values": "read by the guard before",
    "plugins/protocols/adk_server/client.py _existing": OF_TURN,
    "plugins/protocols/adk_server/client.py reply": OF_TURN,
    "plugins/protocols/command/client.py _read_into": OWN,
    "plugins/protocols/command/client.py line": OF_TURN,
    "plugins/protocols/grpc/client.py ask": "the timeout of the call",
    "plugins/servers/mcp/upstream.py _read": OWN,
    "plugins/servers/model_gateway/exchange.py _round": "the agent's own request, which a turn waits for",
    "plugins/servers/model_gateway/recording.py read": "the agent's own request, which a turn waits for",
    "support/http/bodies.py _unpacked": BY_BODIES,
    "support/http/client.py _unpacked": BY_CALLER,
    "support/http/client.py pieces": BY_CALLER,
    "support/http/client.py read": BY_CALLER,
    "support/http/client.py send_direct": BY_CALLER,
    "support/http/websockets.py _read": BY_CALLER,
}


def places_that_wait() -> Iterator[str]:
    for path in sorted(PACKAGE.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        inside = {
            id(node): function.name  # outer functions come first, and inner ones replace them
            for function in ast.walk(tree)
            if isinstance(function, ast.AsyncFunctionDef)
            for node in ast.walk(function)
        }
        waits = [node.value for node in ast.walk(tree) if isinstance(node, ast.Await)]
        waits += [node.iter for node in ast.walk(tree) if isinstance(node, ast.AsyncFor)]
        for node in (each for wait in waits for each in ast.walk(wait)):
            called = node.func if isinstance(node, ast.Call) else None
            if isinstance(called, ast.Attribute) and called.attr in READS:
                yield f"{path.relative_to(PACKAGE).as_posix()} {inside[id(node)]}"


def test_every_wait_for_a_peer_has_a_limit() -> None:
    """Give a new one a limit of bytes and of seconds, and write here which."""
    assert set(places_that_wait()) == BOUNDED.keys()


AGENTS: dict[str, dict[str, Any]] = {
    "a2a": {},
    "adk": {"app_name": "shop"},
    "ag_ui": {},
    "ai_sdk": {},
    "anthropic_messages": {},
    "chat_completions": {},
    "http": {"body": {"message": "{{message}}"}, "reply": "reply"},
    "langgraph": {"assistant_id": "shop"},
    "realtime": {},
    "responses": {},
    "websocket": {},
}
OTHERS = {"adk_module", "asgi", "command", "custom", "grpc"}
"""Types without HTTP, whose own tests have agents that never answer."""
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"
PEERS = {
    "is silent": (b"", b""),
    "never ends its head": (HEAD, b"X: a\r\n"),
    "never ends its body": (HEAD + b"Content-Length: 100000\r\n\r\n", b""),
    "drips a stream": (HEAD + b"Transfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n"),
}


@contextmanager
def peer(first: bytes, again: bytes) -> Iterator[str]:
    """A server that answers every request with `first`, and with `again` for ever."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(first)
            while True:
                await asyncio.sleep(0.01)
                writer.write(again)
                await writer.drain()
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    async def serve() -> None:
        stop = asyncio.Event()
        async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
            opened.put((server.sockets[0].getsockname()[1], asyncio.get_running_loop(), stop))
            await stop.wait()

    opened = SimpleQueue[tuple[int, asyncio.AbstractEventLoop, asyncio.Event]]()
    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    port, loop, stop = opened.get()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        loop.call_soon_threadsafe(stop.set)
        thread.join()


def test_all_types_of_agents_are_tested() -> None:
    assert AGENTS.keys() | OTHERS == PLUGINS.all("agent type").keys()


@pytest.mark.slow
@pytest.mark.parametrize("kind", AGENTS)
@pytest.mark.parametrize("how", PEERS)
def test_no_client_waits_forever(kind: str, how: str) -> None:
    """A conversation with a peer that never ends its answer ends by its own limit, and does not pass."""
    with peer(*PEERS[how]) as url:
        endpoint = url.replace("http", "ws") if kind in ("realtime", "websocket") else url
        agent = {"type": kind, "endpoint": endpoint, **AGENTS[kind], "retries": 0}
        result = run_scenarios(
            [scenario("s", turns=["hello"])], config={"agent": agent, "request_timeout_ms": 300}
        )
    assert result.scenarios[0].verdict.status in (Status.FAILED, Status.ERRORED)
