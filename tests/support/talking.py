"""Conversations with an agent of any HTTP type, with scripted answers."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import hurrying
from pydantic import TypeAdapter
from wire import Answer, Request, http, wire

from agentest.agents.port import Resources
from agentest.agents.protocol_probe import EndpointProbe, probe_of
from agentest.config.agent_types import AgentConfig, agent_type
from agentest.conversation.in_process_calls import InProcessCalls
from agentest.conversation.turn_loop import ConversationSpec, TurnLoop
from agentest.conversation.user import ScriptedUser
from agentest.domain.transcript import Conversation, ToolCall
from agentest.mocks.resolver import MockResolver
from agentest.scenarios.definition import scenario
from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.client import open_client

_SSE = ("content-type: text/event-stream",)


@dataclass(frozen=True, slots=True)
class Held:
    """A conversation, the requests to the agent, and the final notes for the user."""

    conversation: Conversation
    requests: list[Request]
    notes: list[str]

    @property
    def replies(self) -> list[str]:
        return [turn.agent_message for turn in self.conversation.turns]

    @property
    def calls(self) -> list[tuple[Any, ...]]:
        """Name, arguments, result and source of each call."""
        return [_short(call) for call in self.conversation.tool_calls]

    @property
    def problem(self) -> str:
        """Why the conversation failed, and who is to blame."""
        failure = self.conversation.failure
        return f"{failure.blame.value}: {failure.message}" if failure else ""


def _short(call: ToolCall) -> tuple[Any, ...]:
    return call.name, call.args, call.result, call.seen_by.value


def as_json(value: Any, status: str = "200 OK") -> bytes:
    """An answer of JSON."""
    return http(json.dumps(value).encode(), status)


def as_events(*events: Any, names: bool = True) -> bytes:
    """An answer of server-sent events: JSON objects named by their `type`, or texts unchanged."""
    return http("".join(_event(event, names) for event in events).encode(), headers=_SSE)


def _event(event: Any, names: bool) -> str:
    if isinstance(event, str):
        return f"data: {event}\n\n"
    name = f"event: {event['type']}\n" if names and "type" in event else ""
    return f"{name}data: {json.dumps(event)}\n\n"


def held(
    config: Mapping[str, Any],
    lines: Sequence[Any],
    *answers: Answer,
    tools: Mapping[str, Any] | None = None,
    timeout_s: float = 10.0,
    path: str = "/",
    history: Sequence[Mapping[str, Any]] | None = None,
) -> Held:
    """A conversation of these user messages with an agent of these settings and answers."""

    async def go() -> Held:
        async with wire(*answers) as opened:
            endpoint = f"http://127.0.0.1:{opened.port}{path}"
            notes: list[str] = []
            conversation = await converse(
                {**config, "endpoint": endpoint},
                lines,
                notes,
                tools=tools,
                timeout_s=timeout_s,
                history=history,
            )
            return Held(conversation, opened.requests, notes)

    found: Held = hurrying.run(go)
    return found


async def converse(
    config: Mapping[str, Any],
    lines: Sequence[Any],
    notes: list[str],
    *,
    tools: Mapping[str, Any] | None = None,
    timeout_s: float = 10.0,
    history: Sequence[Mapping[str, Any]] | None = None,
) -> Conversation:
    """The same with an agent that already runs."""
    settings: Any = TypeAdapter(AgentConfig).validate_python(config)
    async with open_client(AddressGuard()) as client, AsyncExitStack() as closing:
        resources = Resources(
            client=client,
            timeout_s=timeout_s,
            threads=anyio.CapacityLimiter(1),
            root=Path(),
            closing=closing,
            on_note=notes.append,
        )
        agent = agent_type(settings.type).load()("agent", settings, resources)
        made = scenario("s", turns=["-"], tools=dict(tools or {}), history=history)
        mocks = MockResolver(made.tools, scenario="s", conversation_id="c-1")
        user = ScriptedUser(list(lines))
        spec = ConversationSpec("c-1", "s", 8, session_id="session-1", history=made.history)
        in_process = [InProcessCalls(mocks)] if settings.type == "custom" else []
        return await TurnLoop(spec, agent, user, mocks, in_process).run()


def looked(kind: str, path: str, *answers: Answer) -> Any:
    """The settings that a type's probe finds for these answers, with the endpoint as a path, or None."""

    async def go() -> Any:
        async with wire(*answers, for_looks=True) as opened, open_client(AddressGuard()) as client:
            server = f"http://127.0.0.1:{opened.port}"
            found = await probe_of(kind).find(EndpointProbe(f"{server}{path}", client))
            if found is None:
                return None
            return {key: str(value).removeprefix(server) for key, value in found.settings.items()}

    return anyio.run(go)


class Gathering:
    """An application in this process that answers only after all its clients have sent a request."""

    def __init__(self, guests: int, answer: Callable[[dict[str, Any]], Any], at_once: int = 0) -> None:
        """`answer` makes the JSON of an answer from that of a request.

        The first `at_once` requests do not wait for the guests.
        """
        self._at_once = at_once
        self._awaited = guests
        self._all_there = anyio.Event()
        self._answer = answer

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            return
        body = json.loads((await receive())["body"])
        self._at_once -= 1
        if self._at_once < 0:
            self._awaited -= 1
            if not self._awaited:
                self._all_there.set()
            await self._all_there.wait()
        answer = json.dumps(self._answer(body)).encode()
        headers = [(b"content-type", b"application/json")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": answer})
