"""The process whose CPU is measured: a model gateway and a bare proxy before a fake model.

`python -m benchmarks.gateway_server --upstream PORT --turns N`. Prints the ports of both as a line of JSON,
answers each command on standard input with a line, and ends when standard input does. The commands:

    ask CALLS   make calls of our own to the same fake model; answers with milliseconds of CPU per call
    cpu         answers with the seconds of CPU since the start
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from time import process_time

import aiohttp
from aiohttp import web

from agentest.agents.listener import CONNECTION_HEADERS, listen
from agentest.config.agents.companion_servers import ModelGateway
from agentest.mocks.resolver import MockResolver
from agentest.plugins.servers.model_gateway.gateway_conversations import GatewayTraffic
from agentest.plugins.servers.model_gateway.server import GatewayHandler
from agentest.plugins.servers.port import Identity, ModelAccess
from agentest.plugins.servers.server_calls import MockServerCalls
from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.client import open_client
from benchmarks.gateway_payloads import CONVERSATIONS, TOKEN, said
from benchmarks.model_client import cpu_ms


def main() -> None:
    """Entry point of the process."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--upstream", type=int, required=True, help="port of the fake model")
    parser.add_argument("--turns", type=int, required=True, help="messages of each user")
    given = parser.parse_args()
    gc.set_threshold(20_000, 20, 50)  # as a run does
    gc.freeze()
    asyncio.run(_serve(given.upstream, given.turns))


async def _serve(upstream: int, turns: int) -> None:
    base = f"http://127.0.0.1:{upstream}"
    settings = ModelGateway(upstream={"openai": f"{base}/v1", "anthropic": base, "google": base})
    traffic = GatewayTraffic(
        agent="salon", mocks=True, allows_real=True, on_note=_note, on_request=lambda: None
    )
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(open_client(AddressGuard()))
        app = GatewayHandler(settings, traffic, client, TOKEN).handle
        gateway = await listen(app, settings, "model_gateway", stack, _note)
        proxy = await stack.enter_async_context(_bare_proxy(base))
        for number in range(CONVERSATIONS):
            await stack.enter_async_context(_conversation(traffic, number, turns))
        _tell({"gateway": int(gateway.rpartition(":")[2]), "proxy": proxy})
        async for command, calls in _commands():
            if command == "ask":
                _tell(await cpu_ms("direct", upstream, calls, CONVERSATIONS))
            else:
                _tell(process_time())


@asynccontextmanager
async def _conversation(traffic: GatewayTraffic, number: int, turns: int) -> AsyncIterator[None]:
    """A conversation that waits for the agent's reply to the last of so many messages."""
    name = f"case {number}"
    who = Identity(key=name, session_id=None, conversation_id=name, scenario=name, agent="salon")
    resolver = MockResolver({}, scenario=name, conversation_id=name, unmocked_tools="passthrough")
    texts = [said(number, turn) for turn in range(turns)]
    access = ModelAccess(mocked=frozenset(), opening=texts[0], timeout_s=30)
    async with traffic.under_way(who, MockServerCalls(who, resolver), access) as known:
        for text in texts[:-1]:
            with known.said(text):
                pass
        with known.said(texts[-1]):
            yield


@asynccontextmanager
async def _bare_proxy(base: str) -> AsyncIterator[int]:
    """aiohttp's server and client, which pass everything on and look at nothing. Yields the port."""
    left_out = CONNECTION_HEADERS | {"content-type"}

    async def handle(request: web.Request) -> web.StreamResponse:
        sent = {name: value for name, value in request.headers.items() if name not in CONNECTION_HEADERS}
        data = await request.read()
        async with session.request("POST", f"{base}{request.path_qs}", data=data, headers=sent) as response:
            kept = {name: value for name, value in response.headers.items() if name.lower() not in left_out}
            kept["Content-Type"] = response.headers["Content-Type"]
            if response.content_length is not None:
                return web.Response(headers=kept, body=await response.read())
            reply = web.StreamResponse(headers=kept)
            await reply.prepare(request)
            async for piece in response.content.iter_any():
                await reply.write(piece)
            await reply.write_eof()
            return reply

    app = web.Application()
    app.router.add_post("/{path:.*}", handle)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        runner = web.AppRunner(app, access_log=None)
        await runner.setup()
        try:
            site = web.TCPSite(runner, "127.0.0.1", 0)
            await site.start()
            port: int = runner.addresses[0][1]
            yield port
        finally:
            await runner.cleanup()


async def _commands() -> AsyncIterator[tuple[str, int]]:
    lines = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    while line := await lines.readline():
        command, _, number = line.decode().strip().partition(" ")
        yield command, int(number or 0)


def _note(text: str) -> None:
    """End: a note says that a request was not what is to be measured."""
    sys.exit(f"the gateway noted: {text}")


def _tell(value: object) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    main()
