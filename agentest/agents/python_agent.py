"""Client for agents written in Python: a handler function, or an agent object of a framework."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import anyio

from agentest.agents.chat_completions import WireMessage, to_wire
from agentest.agents.port import Agent, AgentReply, Resources, TurnContext
from agentest.agents.python_calls import call_with_timeout, read_answer
from agentest.config.agents.in_process import CustomAgent, accepted_handlers, agent_object_of, check_handler
from agentest.config.fields import AgentObject
from agentest.domain.messages import Message
from agentest.support.calling import NonWaitingExecutor, is_async, message_of_error, result_of
from agentest.support.deadlines import FUNCTION_S, TimeLimit
from agentest.support.errors import AgentError, ConfigError, EventLoopBlocked, errors_as
from agentest.support.function_threads import BlockingTimer, in_thread
from agentest.support.importing import import_object
from agentest.support.json_text import NotJson, copied, json_text, safe_repr
from agentest.support.lazy_dataclasses import replace


class OpenObject(Protocol):
    """Opens an agent object of a framework."""

    async def __call__(
        self,
        name: str,
        agent: Any,
        resources: Resources,
        make_context: Callable[..., Any] | None,
        make_agent: Callable[[], Any] | None,
    ) -> Agent:
        """Return the client of an agent object. Raises ConfigError if it cannot be run.

        Args:
            make_context: the user's function that creates the context of a conversation; it may take the
                scenario's session.
            make_agent: the function that has made the agent, if there is one, for further ones.
        """


async def open_agent(name: str, config: CustomAgent, resources: Resources) -> Agent:
    """Return the client of a handler or of an agent object.

    Raises ConfigError if it cannot be imported or called.
    """
    asyncio.get_running_loop().set_default_executor(NonWaitingExecutor())
    handler = config.handler.value if isinstance(config.handler, AgentObject) else config.handler
    given = _import_value(name, "handler", handler, resources.root)
    handler = await _agent_from_factory(name, given)
    framework = agent_object_of(handler)
    if framework is not None:
        context = _import_value(name, "context", config.context, resources.root)
        if context is not None and not callable(context):
            raise ConfigError(f"agent {name!r}: context: {config.context!r} is not a function")
        open_object: OpenObject = framework.load()
        return await open_object(name, handler, resources, context, None if handler is given else given)
    with errors_as(ConfigError, f"agent {name!r}: handler: {config.handler!r}: "):
        check_handler(handler)
    if config.context is not None:
        raise ConfigError(
            f"agent {name!r}: context: is only for agent objects of frameworks, but {config.handler!r} is a "
            "function; leave the key out"
        )
    return CustomAgentClient(name, handler, resources.timeout_s, resources.threads)


async def _agent_from_factory(name: str, handler: Any) -> Any:
    try:
        if not inspect.isroutine(handler) or inspect.signature(handler).parameters:
            return handler
    except (TypeError, ValueError):
        return handler

    async def make() -> Any:
        made = handler()
        return await made if inspect.isawaitable(made) else made

    try:
        made = await result_of(make, limit=TimeLimit(FUNCTION_S))
    except (Exception, EventLoopBlocked) as error:
        problem = f"{type(error).__name__}: {message_of_error(error)}"
        raise ConfigError(f"agent {name!r}: handler: {handler.__name__}() raised {problem}") from error
    if agent_object_of(made) is None:
        raise ConfigError(
            f"agent {name!r}: handler: {handler.__name__}() takes no parameters, so it should make an agent "
            f"object, and made {safe_repr(made):.200}; expected {accepted_handlers()}"
        )
    return made


def _import_value(name: str, key: str, value: Any, root: Path) -> Any:
    if not isinstance(value, str):
        return value
    with errors_as(ConfigError, f"agent {name!r}: {key}: "):
        return import_object(value, root)


class CustomAgentClient:
    """Calls a handler. A sync function runs in a thread, so it may block."""

    takes_attachments = takes_history = True

    def __init__(
        self, name: str, handler: Callable[..., Any], timeout_s: float, threads: anyio.CapacityLimiter
    ) -> None:
        self.name = name
        self._handler = handler
        self._timeout_s = timeout_s
        self._threads = threads
        self._is_async = is_async(handler)

    async def reply(self, messages: Sequence[Message], ctx: TurnContext) -> AgentReply:
        """Return the handler's reply. Raises AgentError; other AgentestErrors pass through."""
        states: list[Any] = []
        ctx = replace(ctx, record_state=states.append)
        before = copied(dict(ctx.session.state)) if ctx.session else {}
        call = partial(self._call, to_wire(messages), ctx)
        answer, latency_ms = await call_with_timeout(call, self._timeout_s, "the handler", self.name)
        reply = replace(read_answer(answer), latency_ms=latency_ms)
        if not states:
            return reply
        first = ctx.turn_index == 0
        recorded = states[-1]
        if not isinstance(recorded, Mapping) or not all(isinstance(key, str) for key in recorded):
            raise AgentError(
                f"ctx.record_state: expected a dict with texts as keys, found a {type(recorded).__name__}"
            )
        with errors_as(AgentError, "ctx.record_state: the state is not JSON: ", NotJson):
            state: dict[str, Any] = json.loads(json_text(dict(recorded)))
        return replace(reply, state=state, state_before=before if first else None)

    async def _call(self, messages: list[WireMessage], ctx: TurnContext, steps: BlockingTimer) -> Any:
        if self._is_async:
            answer = self._handler(messages, ctx)
        else:
            async with self._threads:
                answer = await in_thread(self._handler, messages, ctx)
        return await steps.of(answer) if inspect.isawaitable(answer) else answer
