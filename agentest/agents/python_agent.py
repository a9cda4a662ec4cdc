"""Client for agents written in Python: a handler function, or an agent object of a framework.

It calls them in this process within their time limit, and converts what they return to a reply.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import anyio

from agentest.agents.chat_completions import WireMessage, from_wire, read_usage, to_wire
from agentest.agents.port import Agent, AgentReply, Resources, TurnContext
from agentest.config.agents.in_process import CustomAgent, accepted_handlers, agent_object_of, check_handler
from agentest.config.fields import AgentObject
from agentest.domain.messages import Message
from agentest.support.calling import (
    NonWaitingExecutor,
    blocked_at,
    end_tasks,
    ends_the_run,
    is_async,
    message_of_error,
    result_of,
)
from agentest.support.deadlines import FUNCTION_S, TimeLimit
from agentest.support.errors import AgentError, AgentestError, ConfigError, EventLoopBlocked, errors_as
from agentest.support.function_threads import BlockingTimer, in_thread
from agentest.support.importing import import_object, raised_at
from agentest.support.json_text import NotJson, copied, json_text, safe_repr
from agentest.support.lazy_dataclasses import replace

T = TypeVar("T")
_ACCEPTED = (
    "a text, or a chat-completions message or completion: a mapping, a pydantic model, or an object of "
    "openai, litellm or LangChain, with `content` or `tool_calls`"
)
_MESSAGE_FIELDS = ("content", "tool_calls", "refusal", "invalid_tool_calls")
_TOOL_CALL_FIELDS = ("id", "function", "name", "args", "arguments")
_PART_FIELDS = ("type", "text", "id", "name", "input")
_USAGE_FIELDS = ("prompt_tokens", "completion_tokens", "input_tokens", "output_tokens")
_ANSWER_FIELDS = (*_MESSAGE_FIELDS, "choices", "message", "usage", "usage_metadata")
Fields = Mapping[str, Any]


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


async def call_with_timeout(
    call: Callable[[BlockingTimer], Awaitable[T]], timeout_s: float, who: str, name: str
) -> tuple[T, float]:
    """Run `call`. Returns its result and the milliseconds taken. Raises AgentError.

    Other AgentestErrors pass through.

    The call runs in its own task. If it swallows its cancellation, it is left running and the run continues.

    Args:
        call: receives a counter. It awaits the agent's own code through the counter's `of`.
        who: the callee, for messages, such as "the handler".
        name: the agent's name.
    """
    limit, steps = TimeLimit(timeout_s), BlockingTimer()
    too_late = f"{who} of agent {name!r} did not answer within {timeout_s:g} s"
    task = asyncio.ensure_future(_outcome(call(steps)))
    try:
        with limit:
            await asyncio.wait((task,))
    except TimeoutError:
        left = await end_tasks((task,))
        if task.cancelled() and (at := blocked_at(_cancellation_of(task))):
            too_late += f" ({at})"
        if left:
            too_late += "; it swallowed its cancellation and continues unobserved. "
            too_late += "Where it catches asyncio.CancelledError, it must raise it again"
        raise AgentError(too_late) from None
    except BaseException:  # the run ends
        with anyio.CancelScope(shield=True):
            await end_tasks((task,))
        raise
    value = _result(task, who)
    # Do not charge the agent for a blocked event loop, unless it blocked the loop itself.
    took = min(limit.elapsed + steps.blocked, limit.elapsed_in_all)
    if took > timeout_s:
        raise AgentError(too_late)
    return value, took * 1000


def _cancellation_of(task: asyncio.Task[Any]) -> BaseException | None:
    try:
        task.result()
    except asyncio.CancelledError as error:
        return error
    return None


async def _outcome(call: Awaitable[T]) -> tuple[T | None, BaseException | None]:
    try:
        return await call, None
    except BaseException as error:
        if ends_the_run(error):
            raise
        return None, error


def _result(task: asyncio.Task[tuple[T | None, BaseException | None]], who: str) -> Any:
    if task.cancelled():
        raise AgentError(f"{who} cancelled the task that it runs in")
    value, error = task.result()
    if error is None:
        return value
    if isinstance(error, AgentestError):
        raise error
    place = f" ({at})" if (at := raised_at(error)) else ""
    raise AgentError(f"{who} raised {type(error).__name__}: {message_of_error(error)}{place}") from error


def read_answer(answer: Any) -> AgentReply:
    """Convert a handler's return value to a reply. Raises AgentError that lists the accepted types."""
    if isinstance(answer, str):
        return AgentReply(answer)
    if inspect.iscoroutine(answer):
        answer.close()
        code, name = answer.cr_code, answer.__name__
        place = f"{code.co_filename}:{code.co_firstlineno}"
        raise AgentError(
            f"the handler returned the coroutine of {name} ({place}), which did not run: write "
            f"`return await {name}(…)`"
        )
    fields = _fields(answer, _ANSWER_FIELDS)
    kind = "None" if answer is None else f"a value of type {type(answer).__name__}"
    if fields is None:
        raise AgentError(f"the handler returned {kind}; it may return {_ACCEPTED}")
    message = fields
    if choices := fields.get("choices"):
        first = choices[0] if isinstance(choices, list | tuple) else None
        choice = _fields(first, ("message",)) or {}
        message = _fields(choice.get("message"), _ANSWER_FIELDS) or {}
    if not any(key in message for key in _MESSAGE_FIELDS):
        keys = ", ".join(map(repr, list(fields)[:10])) or "no keys"
        raise AgentError(f"the handler returned {kind} with {keys}; it may return {_ACCEPTED}")
    read = from_wire(_as_chat_message(message))
    # The tokens as chat completions, LangChain or Anthropic report them.
    reported = _fields(fields.get("usage") or fields.get("usage_metadata"), _USAGE_FIELDS) or {}
    prompt, completion = reported.get("input_tokens"), reported.get("output_tokens")
    usage = read_usage({"prompt_tokens": prompt, "completion_tokens": completion, **reported})
    return AgentReply(text=read.text, tool_requests=read.tool_requests, usage=usage)


def _fields(value: Any, names: Iterable[str]) -> Fields | None:
    if isinstance(value, Mapping):
        return value
    if value is None or isinstance(value, str | bytes | int | float | list | tuple | type):
        return None
    if callable(dump := getattr(value, "model_dump", None)):
        try:
            dumped = dump(warnings=False)  # litellm's objects warn about each other
        except Exception as error:
            raise AgentError(
                f"the handler returned a value of type {type(value).__name__} that cannot be read: "
                f"{type(error).__name__}: {error}"
            ) from error
        return dumped if isinstance(dumped, Mapping) else {"content": dumped}
    return {name: getattr(value, name) for name in names if hasattr(value, name)} or None


def _as_chat_message(message: Fields) -> Fields:
    content, calls = message.get("content"), message.get("tool_calls")
    if isinstance(content, list | tuple):
        content = [part if isinstance(part, str) else _fields(part, _PART_FIELDS) or part for part in content]
    # LangChain lists calls with invalid arguments separately. They were made all the same.
    calls, invalid = (
        [*map(_tool_call, each)] if isinstance(each, list | tuple) else each
        for each in (calls, message.get("invalid_tool_calls"))
    )
    if isinstance(calls or [], list) and isinstance(invalid, list):
        calls = [*(calls or []), *invalid]
    if not calls and isinstance(content, list):
        calls = [
            {"id": part.get("id"), "function": {"name": part.get("name"), "arguments": part.get("input")}}
            for part in content
            if isinstance(part, Mapping) and part.get("type") == "tool_use"
        ]
    return {"content": content, "tool_calls": calls or None, "refusal": message.get("refusal")}


def _tool_call(item: Any) -> Any:
    fields = _fields(item, _TOOL_CALL_FIELDS)
    if fields is None:
        return item
    function = _fields(fields.get("function"), _TOOL_CALL_FIELDS)
    if function is None:  # LangChain puts the name and the arguments next to the id
        function = {"name": fields.get("name"), "arguments": fields.get("args")}
    return {"id": fields.get("id"), "function": function}
