"""An agent without a framework behind FastAPI: a loop over the MCP project's own client, or over requests.

`--hook` says how it forwards what a request says of its conversation: not at all, or by the `url` in it.
`--session long`: one session for all; otherwise one for each message.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import rest_tools
from errands import ASKED, add_chat, mcp_url, next_round
from fastapi import FastAPI
from mcp import Client
from serving import options, serve
from shop import Call

REST = {tool.__name__: tool for tool in rest_tools.TOOLS}


async def talk(message: str, use: Any) -> str:
    results: list[Any] = []
    while not isinstance(step := next_round(message, results), str):
        results += await asyncio.gather(*(use(call) for call in step))
    return step


async def use_rest(call: Call) -> Any:
    return await asyncio.to_thread(REST[call.name], **call.args)


def use_mcp(client: Client) -> Any:
    async def use(call: Call) -> str:
        result = await client.call_tool(call.name, call.args)
        return "".join(block.text for block in result.content)

    return use


def make_app(kind: str, hook: str, long: bool) -> FastAPI:
    clients: list[Client] = []

    @asynccontextmanager
    async def opened(_: FastAPI) -> AsyncIterator[None]:
        if kind == "mcp" and long:
            async with Client(mcp_url()) as client:
                clients.append(client)
                yield
        else:
            yield

    async def answer(message: str) -> str:
        if kind == "rest":
            return await talk(message, use_rest)
        if clients:
            return await talk(message, use_mcp(clients[0]))
        async with Client(ASKED.get().mcp_url if hook == "url" else mcp_url()) as client:
            return await talk(message, use_mcp(client))

    app = FastAPI(lifespan=opened)
    add_chat(app, answer)
    return app


if __name__ == "__main__":
    chosen = options(tools="mcp", hook="none", session="short")
    serve(make_app(chosen.tools, chosen.hook, chosen.session == "long"), chosen.port)
