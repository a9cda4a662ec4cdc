"""An agent that runs its own tools over MCP: a handler with concurrent conversations."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

import aiohttp

from agentest.agents.port import TurnContext
from agentest.support.trace_context import turn_of_requests

NO_HEADERS: Mapping[str, str] = {}
Handler = Callable[[list[dict[str, Any]], TurnContext], Awaitable[str]]


async def call_tool(
    url: str, name: str, args: Any, headers: Mapping[str, str] = NO_HEADERS, meta: Any = None
) -> dict[str, Any]:
    """The result of `tools/call` at an MCP server."""
    params = {"name": name, "arguments": args, **({"_meta": meta} if meta else {})}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    async with (
        aiohttp.ClientSession() as session,
        session.post(url, json=message, headers=dict(headers)) as answer,
    ):
        result: dict[str, Any] = (await answer.json())["result"]
        return result


def names_by(how: str, ctx: TurnContext) -> dict[str, Any]:
    """The url, headers and `_meta` with which a call names its conversation."""
    turn = turn_of_requests()
    assert ctx.mcp_url
    assert turn
    base = ctx.mcp_url.removesuffix(f"/{turn.conversation}")
    carried = {"traceparent": turn.traceparent, "baggage": turn.baggage}
    return {
        "path": {"url": ctx.mcp_url},
        "header": {"url": base, "headers": {"X-Agentest-Conversation": turn.conversation}},
        "session": {"url": base, "headers": {"X-Agentest-Conversation": ctx.session_id}},
        "_meta": {"url": base, "meta": {"agentest/conversation": turn.conversation}},
        "_meta trace": {"url": base, "meta": {"traceparent": turn.traceparent}},
        "baggage": {"url": base, "headers": {"baggage": f"a=b,{turn.baggage};p=1"}},
        "traceparent": {"url": base, "headers": {"traceparent": turn.traceparent}},
        "_meta first": {
            "url": base,
            "meta": carried,
            "headers": {"traceparent": f"00-{'ab' * 16}-{'cd' * 8}-01", "baggage": "x=y"},
        },
        "nothing": {"url": base},
    }[how]


def tool_agent(how: str = "path") -> Handler:
    """A handler that makes the calls in the user's message (`stock tea; cancel tea`)."""

    async def handler(messages: list[dict[str, Any]], ctx: TurnContext) -> str:
        said = [part.split() for part in messages[-1]["content"].split(";")]
        told = [
            (await call_tool(name=name, args={"item": item}, **names_by(how, ctx)))["content"][0]["text"]
            for name, item in said
        ]
        return " ".join(told)

    return handler
