"""An agent in Python: a function from chat-completions messages to a message."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import anyio

from agentest.agents.chat_completions.wire import WireMessage, to_wire
from agentest.agents.handler_answers import read_answer
from agentest.agents.in_time import answer_in_time
from agentest.agents.port import AgentReply, Resources, TurnContext
from agentest.config.agents.custom import CustomAgent
from agentest.errors import AgentError, ConfigError
from agentest.messages import Message
from agentest.support.calling import Steps, from_anywhere, in_thread
from agentest.support.functions import is_async
from agentest.support.importing import import_object
from agentest.support.json_text import NotJson, copied, json_text


def open_agent(name: str, config: CustomAgent, resources: Resources) -> CustomAgentClient:
    """The client of a handler. Raises ConfigError for one that cannot be imported or called."""
    handler = config.handler
    if isinstance(handler, str):
        try:
            handler = import_object(handler, resources.root)
        except ValueError as error:
            raise ConfigError(f"agent {name!r}: handler: {error}") from None
    if not callable(handler):
        raise ConfigError(f"agent {name!r}: handler: {config.handler!r} is not a function")
    return CustomAgentClient(name, handler, resources.timeout_s, resources.threads)


class CustomAgentClient:
    """Calls a handler. A plain function runs in a thread, so that it may block."""

    takes_attachments = True

    def __init__(
        self, name: str, handler: Callable[..., Any], timeout_s: float, threads: anyio.CapacityLimiter
    ) -> None:
        self.name = name
        self._handler = handler
        self._timeout_s = timeout_s
        self._threads = threads
        self._is_async = is_async(handler)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """The handler's answer. Raises AgentError; other AgentestErrors pass through."""
        states: list[Any] = []
        ctx = replace(ctx, resolve_tool=from_anywhere(ctx.resolve_tool), record_state=states.append)
        before = copied(dict(ctx.session.state)) if ctx.session else {}
        call = partial(self._call, to_wire(messages), ctx)
        timed = await answer_in_time(call, self._timeout_s, "the handler", self.name)
        reply = replace(read_answer(timed.value), latency_ms=timed.latency_ms)
        if not states:
            return reply
        first = ctx.turn_index == 0
        return replace(reply, state=_state(states[-1]), state_before=before if first else None)

    async def _call(self, messages: list[WireMessage], ctx: TurnContext, steps: Steps) -> Any:
        if self._is_async:
            answer = self._handler(messages, ctx)
        else:
            async with self._threads:
                answer = await in_thread(self._handler, messages, ctx)
        return await steps.of(answer) if inspect.isawaitable(answer) else answer


def _state(recorded: Any) -> dict[str, Any]:
    """A state that a handler recorded, as it was when the turn ended. Raises AgentError for what is none."""
    if not isinstance(recorded, Mapping) or not all(isinstance(key, str) for key in recorded):
        raise AgentError(
            f"ctx.record_state: expected a dict with texts as keys, found a {type(recorded).__name__}"
        )
    try:
        state: dict[str, Any] = json.loads(json_text(dict(recorded)))
    except NotJson as error:
        raise AgentError(f"ctx.record_state: the state is no JSON: {error}") from None
    return state
