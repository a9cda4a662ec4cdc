"""Call an agent in this process within its time limit, and convert what it returns to a reply."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, TypeVar

import anyio

from agentest.agents.chat_completions import from_wire, read_usage
from agentest.agents.port import AgentReply
from agentest.support.calling import blocked_at, end_tasks, ends_the_run, message_of_error
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import AgentError, AgentestError
from agentest.support.function_threads import BlockingTimer
from agentest.support.importing import raised_at

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
