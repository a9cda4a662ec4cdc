"""AG-UI events as agents send them, and conversations with an agent that sends given ones."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import anyio
from wire import Answer, Wire, http, wire

from agentest import scenario
from agentest.agents.port import Resources
from agentest.conversation.turn_loop import ConversationSpec, TurnLoop
from agentest.conversation.user import ScriptedUser
from agentest.domain.messages import Session, UserText
from agentest.domain.transcript import Conversation
from agentest.mocks.resolver import MockResolver
from agentest.plugins.protocols.ag_ui.client import open_agent
from agentest.plugins.protocols.ag_ui.settings import AgUiAgent
from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.client import open_client

Event = dict[str, Any]

STARTED: Event = {"type": "RUN_STARTED", "threadId": "t", "runId": "r"}
FINISHED: Event = {"type": "RUN_FINISHED", "threadId": "t", "runId": "r", "outcome": {"type": "success"}}


def text(said: str, identifier: str = "a-1", **start: Any) -> list[Event]:
    """A message in pieces of four characters."""
    pieces = [said[at : at + 4] for at in range(0, len(said), 4)]
    return [
        {"type": "TEXT_MESSAGE_START", "messageId": identifier, "role": "assistant", **start},
        *({"type": "TEXT_MESSAGE_CONTENT", "messageId": identifier, "delta": piece} for piece in pieces),
        {"type": "TEXT_MESSAGE_END", "messageId": identifier},
    ]


def call(identifier: str, name: str, result: Any = None, **args: Any) -> list[Event]:
    """A tool call with arguments in two pieces, and its result, if any."""
    written = json.dumps(args)
    return [
        {"type": "TOOL_CALL_START", "toolCallId": identifier, "toolCallName": name},
        {"type": "TOOL_CALL_ARGS", "toolCallId": identifier, "delta": written[:3]},
        {"type": "TOOL_CALL_ARGS", "toolCallId": identifier, "delta": written[3:]},
        {"type": "TOOL_CALL_END", "toolCallId": identifier},
        *([] if result is None else [answer(identifier, result)]),
    ]


def answer(identifier: str, result: Any) -> Event:
    content = result if isinstance(result, str) else json.dumps(result)
    return {
        "type": "TOOL_CALL_RESULT",
        "messageId": f"of-{identifier}",
        "toolCallId": identifier,
        "content": content,
        "role": "tool",
    }


def listed(identifier: str, name: str, arguments: str) -> Event:
    """A tool call in a message."""
    return {"id": identifier, "type": "function", "function": {"name": name, "arguments": arguments}}


def snapshot(*messages: Event) -> Event:
    return {"type": "MESSAGES_SNAPSHOT", "messages": list(messages)}


def stream(*events: Event, between: str = "\n\n") -> bytes:
    """An answer with these events, unchanged."""
    body = "".join(f"data: {json.dumps(event)}{between}" for event in events)
    return http(body.encode(), headers=("content-type: text/event-stream",))


def run(*events: Event) -> bytes:
    """A whole run."""
    return stream(STARTED, *events, FINISHED)


def held(
    lines: Sequence[str | UserText],
    *answers: Answer,
    tools: dict[str, Any] | None = None,
    session: Session | None = None,
    agent_tools: Sequence[Any] | None = None,
    notes: Callable[[str], None] = lambda _: None,
    **config: Any,
) -> tuple[Conversation, Wire]:
    """A conversation with an agent that gives these answers in order, the last one repeated."""

    async def go() -> tuple[Conversation, Wire]:
        async with wire(*answers) as opened, AsyncExitStack() as stack:
            client = await stack.enter_async_context(open_client(AddressGuard()))
            resources = Resources(
                client=client,
                timeout_s=10,
                threads=anyio.CapacityLimiter(2),
                root=Path(),
                closing=stack,
                on_note=notes,
            )
            agent = {"type": "ag_ui", "name": "shop", "endpoint": opened.url, "tools": agent_tools}
            settings = AgUiAgent.model_validate({**agent, "retries": 0, **config})
            mocks = MockResolver(
                scenario("s", goal="g", tools=tools or {}).tools,
                scenario="s",
                conversation_id="c-1",
            )
            client_of = open_agent("shop", settings, resources)
            loop = TurnLoop(ConversationSpec("c-1", "s", 9, session), client_of, ScriptedUser(lines), mocks)
            return await loop.run(), opened

    return anyio.run(go)
