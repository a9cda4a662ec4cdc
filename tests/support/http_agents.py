"""Small HTTP agents with different formats, and conversations with them in this process."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import hurrying
from aiohttp import web
from stopping import stop

from agentest.agents.factory import make_agents
from agentest.agents.port import Agent, Resources
from agentest.config.config import Config
from agentest.conversation.turn_loop import ConversationSpec, TurnLoop
from agentest.conversation.user import ScriptedUser
from agentest.domain.messages import Session
from agentest.domain.transcript import Conversation
from agentest.mocks.resolver import MockResolver
from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.client import open_client

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]
Routes = dict[str, Handler]
"""`POST /chat` → what answers there."""


@asynccontextmanager
async def served(routes: Routes) -> AsyncIterator[str]:
    """The address of a server with these routes."""
    app = web.Application()
    for place, handler in routes.items():
        method, path = place.split()
        app.router.add_route(method, path, handler)
    runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
    await runner.setup()
    try:
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        host, port = runner.addresses[0][:2]
        yield f"http://{host}:{port}"
    finally:
        await stop(runner)


def settings(url: str, agent: dict[str, Any]) -> Any:
    """The checked configuration of an agent; its `endpoint` is the path (default: /chat)."""
    endpoint = f"{url}{agent.get('endpoint', '/chat')}"
    return Config.model_validate({"agent": {"type": "http", **agent, "endpoint": endpoint}}).agent


@asynccontextmanager
async def opened(
    agent: Any, timeout_s: float = 5.0, notes: list[str] | None = None, secrets: list[str] | None = None
) -> AsyncIterator[Agent]:
    """The client of an agent."""
    async with AsyncExitStack() as stack:
        client = await stack.enter_async_context(open_client(AddressGuard()))
        closing = await stack.enter_async_context(AsyncExitStack())
        resources = Resources(
            client=client,
            timeout_s=timeout_s,
            threads=anyio.CapacityLimiter(4),
            root=Path(),
            closing=closing,
            on_note=(notes if notes is not None else []).append,
            on_secret=(secrets if secrets is not None else []).extend,
        )
        agents = await make_agents({"agent": agent}, resources)
        yield agents["agent"]


async def held(
    agent: Agent, *lines: str, number: int = 1, state: dict[str, Any] | None = None
) -> Conversation:
    """Run a conversation with these user messages."""
    name = f"c-{number}"
    mocks = MockResolver({}, scenario="s", conversation_id=name)
    session = None if state is None else Session(state=state)
    loop = TurnLoop(ConversationSpec(name, "s", 20, session), agent, ScriptedUser(lines), mocks)
    return await loop.run()


def talked(routes: Routes, agent: dict[str, Any], *lines: str, **options: Any) -> Conversation:
    """A conversation with an agent of these routes."""

    async def talk() -> Conversation:
        async with served(routes) as url, opened(settings(url, agent), **options) as client:
            return await held(client, *lines)

    found: Conversation = hurrying.run(talk)
    return found


def replies(conversation: Conversation) -> list[str]:
    """Return the agent's replies. Raises AssertionError if the conversation failed."""
    assert conversation.failure is None, conversation.failure.message
    return [turn.agent_message for turn in conversation.turns]


def calls(conversation: Conversation) -> list[tuple[str, Any, Any]]:
    """The tool calls of all turns: name, arguments, result."""
    return [(call.name, call.args, call.result) for call in conversation.tool_calls]


async def stream(
    request: web.Request, pieces: Sequence[str | bytes], content_type: str = "text/event-stream"
) -> web.StreamResponse:
    """An answer in these pieces."""
    response = web.StreamResponse(headers={"content-type": content_type})
    await response.prepare(request)
    for piece in pieces:
        await response.write(piece.encode() if isinstance(piece, str) else piece)
        await asyncio.sleep(0)
    return response
