"""LangChain's messages as a LangGraph server writes them: texts, tool calls and their results, tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentest.agents.reading import read_result, shown
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall, Usage
from agentest.support.errors import AgentError

Wire = Mapping[str, Any]

AI, TOOL, HUMAN = "ai", "tool", "human"
_KINDS = {
    "ai": AI,
    "AIMessage": AI,
    "AIMessageChunk": AI,
    "assistant": AI,
    "tool": TOOL,
    "ToolMessage": TOOL,
    "human": HUMAN,
    "HumanMessage": HUMAN,
    "user": HUMAN,
}
_TEXTS = ("text", "output_text", "refusal")
_PROVIDERS_CALLS = ("server_tool_call", "server_tool_use")
"""Blocks that tell of a call which the model's provider has made, like a search of the web."""
_NOT_SAID = (
    "thinking",
    "redacted_thinking",
    "reasoning",
    "reasoning_content",
    "tool_use",
    "tool_call",
    "tool_call_chunk",
    "invalid_tool_call",
    "function_call",
    "input_json_delta",
    "server_tool_call_chunk",
    "server_tool_result",
    "web_search_tool_result",
    "image",
    "image_url",
    "audio",
    "video",
    "file",
    "non_standard",
    *_PROVIDERS_CALLS,
)
OnUnknown = Callable[[str, object], None]
"""Receives what is ignored, in a word, and its type."""


def is_message(value: Any) -> bool:
    return isinstance(value, Mapping) and kind_of(value) is not None


def kind_of(message: Wire) -> str | None:
    """AI, TOOL or HUMAN; None for every other message, and for what is none."""
    kind = message.get("type", message.get("role"))
    return _KINDS.get(kind) if isinstance(kind, str) else None


def text_of(message: Wire, on_unknown: OnUnknown = lambda *_: None) -> str:
    """What a message says. Raises AgentError for a `content` that is none."""
    content = message.get("content")
    if content is None or isinstance(content, str):
        return content or ""
    if not isinstance(content, list):
        raise AgentError(
            f"the `content` of a message of the graph is neither text nor a list of blocks: {shown(content)}"
        )
    return "".join(_block(block, on_unknown) for block in content)


def _block(block: Any, on_unknown: OnUnknown) -> str:
    if isinstance(block, str):
        return block
    kind = block.get("type") if isinstance(block, Mapping) else type(block).__name__
    if kind in _TEXTS:
        text = block.get("text", block.get("refusal"))
        if isinstance(text, str):
            return text
    elif kind not in _NOT_SAID:
        on_unknown("content block", kind)
    return ""


def calls_of(messages: Sequence[Wire], turn_index: int, waiting: Mapping[str, ToolCall]) -> list[ToolCall]:
    """The calls in messages, in order, with their results as far as there are any.

    A call that two messages tell of is one. Some models use ids again: with other arguments it is another.

    Args:
        waiting: calls of earlier turns that had to wait, by id: they belong to this turn.
    """
    results: dict[str, list[Wire]] = {}
    for message in messages:
        if kind_of(message) == TOOL:
            results.setdefault(str(message.get("tool_call_id")), []).append(message)
    calls = [_answered(call, _nth(results, key, 0), turn_index) for key, call in waiting.items()]
    by_id: dict[str, list[ToolCall]] = {}
    for call in calls:
        by_id.setdefault(call.call_id or "", []).append(call)
    asking = [requests for each in messages if kind_of(each) == AI and (requests := list(_requests(each)))]
    for round, requests in enumerate(asking):
        for request in requests:
            same_id = by_id.setdefault(request["id"], []) if request["id"] else []
            if not any((call.name, call.args) == (request["name"], request["args"]) for call in same_id):
                answer = _nth(results, request["id"], len(same_id))
                calls.append(_call(request, answer, turn_index, round))
                same_id.append(calls[-1])
    told = {call.call_id for call in calls}
    late = [_orphan(answers[0], turn_index) for key, answers in results.items() if key not in told]
    return [*late, *calls]


def _nth(results: Mapping[str, Sequence[Wire]], call_id: str | None, number: int) -> Wire | None:
    """The result for the call that is the `number`-th of its id."""
    answers = results.get(call_id or "", ())
    return answers[min(number, len(answers) - 1)] if answers else None


def _requests(message: Wire) -> Iterable[Wire]:
    """The calls of one message: `{id, name, args, error, output}`."""
    for call in _list(message, "tool_calls"):
        yield {"id": _id(call), "name": _name(call), "args": _args(call), "error": None}
    for call in _list(message, "invalid_tool_calls"):
        error = call.get("error") or "the arguments are not valid JSON"
        yield {"id": _id(call), "name": _name(call), "args": call.get("args"), "error": str(error)}
    content = message.get("content")
    for block in content if isinstance(content, list) else ():
        if isinstance(block, Mapping) and block.get("type") in _PROVIDERS_CALLS:
            args = block.get("args", block.get("input", {}))
            yield {"id": _id(block), "name": _name(block), "args": args, "error": None}


def _list(message: Wire, key: str) -> list[Wire]:
    found = message.get(key) or []
    if not isinstance(found, list) or not all(isinstance(call, Mapping) for call in found):
        raise AgentError(f"`{key}` of a message of the graph is not a list of objects: {shown(found)}")
    return found


def _id(call: Wire) -> str | None:
    identifier = call.get("id")
    return identifier if isinstance(identifier, str) and identifier else None


def _args(call: Wire) -> Any:
    """The arguments of a call, also of one in OpenAI's form, as a node may return it."""
    function = call.get("function")
    if "args" in call or not isinstance(function, Mapping):
        return call.get("args", {})
    given = function.get("arguments") or "{}"
    return read_result(given)


def _name(call: Wire) -> str:
    function = call.get("function")
    name = call.get("name") or (function.get("name") if isinstance(function, Mapping) else None)
    if not isinstance(name, str) or not name:
        raise AgentError(f"a tool call of the graph has no name: {shown(call)}")
    return name


def _call(call: Wire, answer: Wire | None, turn_index: int, round: int) -> ToolCall:
    result, error = _result(answer)
    return ToolCall(
        name=call["name"],
        args=call["args"],
        result=result,
        mocked=False,
        turn_index=turn_index,
        invalid_arguments=call["error"],
        error=error,
        seen_by=SeenBy.AGENT,
        call_id=call["id"],
        round=round,
    )


def _answered(call: ToolCall, answer: Wire | None, turn_index: int) -> ToolCall:
    result, error = _result(answer)
    return replace(call, turn_index=turn_index, result=result, error=error)


def _orphan(answer: Wire, turn_index: int) -> ToolCall:
    """A call of which only the result has come."""
    result, error = _result(answer)
    name = answer.get("name")
    return ToolCall(
        name=name if isinstance(name, str) and name else "(unnamed tool)",
        args=None,
        result=result,
        mocked=False,
        turn_index=turn_index,
        invalid_arguments="the graph's messages tell its result alone",
        error=error,
        seen_by=SeenBy.AGENT,
        call_id=answer.get("tool_call_id"),
    )


def _result(answer: Wire | None) -> tuple[Any, str | None]:
    """What a tool has answered, and the error that it reports."""
    if answer is None:
        return None, None
    text = text_of(answer)
    return read_result(text), text if answer.get("status") == "error" else None


def usage_of(messages: Iterable[Wire]) -> Usage:
    """The tokens that messages report, added up."""
    return sum((_usage(m.get("usage_metadata")) for m in messages), Usage())


def _usage(reported: Any) -> Usage:
    if not isinstance(reported, Mapping):
        return Usage()
    details = reported.get("input_token_details")
    cached = details.get("cache_read") if isinstance(details, Mapping) else 0
    return Usage(
        _tokens(reported.get("input_tokens")), _tokens(reported.get("output_tokens")), _tokens(cached)
    )


def _tokens(count: Any) -> int:
    return count if isinstance(count, int) and not isinstance(count, bool) and count > 0 else 0
