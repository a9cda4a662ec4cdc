"""A message of the agent: its end, its texts, its tool calls and its token usage."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from agentest.agents.json_reader import (
    arguments_text,
    excerpt,
    read_arguments,
    read_count,
    read_object,
    read_result,
)
from agentest.agents.port import IgnoredCounter
from agentest.domain.messages import ToolRequest
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall, Usage
from agentest.support.errors import AgentError
from agentest.support.lazy_dataclasses import dataclass

MESSAGES_PLACE = "is the path right? Anthropic's Messages endpoints usually end with /v1/messages"
PAUSED = "pause_turn"
"""The `stop_reason` of a message that a further request continues."""
_CUT_HINTS = {
    "max_tokens": "raise body.max_tokens",
    "model_context_window_exceeded": "the conversation is longer than its model can read",
}
"""The `stop_reason` of messages that were cut → a hint for the user."""

ReceivedMessage = Mapping[str, Any]
"""A message as received. If it is incomplete, any field may be missing."""
Block = Mapping[str, Any]
"""A block of a message's `content`, as received."""
_REQUEST_TYPE = "tool_use"
_CALL_SUFFIX = "tool_use"
"""The suffix of types of calls: `tool_use`, `server_tool_use`, `mcp_tool_use`."""
_RESULT_SUFFIX = "tool_result"
"""The suffix of types of results: `tool_result`, `web_search_tool_result`."""
_SILENT_BLOCKS = ("thinking", "redacted_thinking", "container_upload", "compaction")


def read_message(body: bytes) -> ReceivedMessage:
    """Read the message in a body. Raises AgentError."""
    message = read_object(body, MESSAGES_PLACE)
    _check_form(message)
    return message


def made_so_far(message: ReceivedMessage, turn_index: int) -> tuple[ToolCall, ...]:
    """Return the calls that already have results, in a message of any state. Never raises."""
    content = message.get("content")
    blocks = [b for b in content if isinstance(b, Mapping)] if isinstance(content, list) else []
    return read_made(blocks, turn_index)


def blocks_of(message: ReceivedMessage) -> tuple[Block, ...]:
    """Return the content in the form for further requests. Raises AgentError for an invalid message."""
    _check_form(message)
    blocks = with_ids(check_blocks(message["content"]), f"toolu_{message.get('id') or 'of_agent'}")
    if problem := _problem(message, blocks):
        raise AgentError(problem)
    return blocks


def _check_form(message: ReceivedMessage) -> None:
    if message.get("type") == "error" or message.get("error"):
        raise AgentError(f"the agent answered with an error: {error_text(message.get('error'))}")
    if "content" not in message:
        raise AgentError(f"the agent's answer is no message: it has no `content`: {excerpt(message)}")
    if message.get("role", "assistant") != "assistant":
        raise AgentError(
            f"the agent's answer is a message of the role {message['role']!r}: {excerpt(message)}"
        )


def cut_reason(message: ReceivedMessage) -> str | None:
    """Return why a message was cut, and a hint; None if it is complete."""
    reason = message.get("stop_reason")
    if isinstance(reason, str) and reason in _CUT_HINTS:
        return f"(stop_reason: {reason}): {_CUT_HINTS[reason]}"
    return None


def usage_of(message: ReceivedMessage) -> Usage:
    """Return the tokens. Tokens read from or written to a cache are part of the prompt."""
    reported = message.get("usage")
    cached = read_count(reported, "cache_read_input_tokens")
    written = read_count(reported, "cache_creation_input_tokens")
    prompt = read_count(reported, "input_tokens") + written + cached
    return Usage(prompt, read_count(reported, "output_tokens"), cached)


def error_text(error: Any) -> str:
    """Return the message of an error, and its type."""
    if not isinstance(error, Mapping) or not isinstance(error.get("message"), str):
        return excerpt(error) if error else "no reason is given"
    kind = error.get("type")
    return f"{error['message']} ({kind})" if isinstance(kind, str) and kind else str(error["message"])


def _problem(message: ReceivedMessage, blocks: tuple[Block, ...]) -> str | None:
    reason = message.get("stop_reason")
    has_text = any(str(block.get("text") or "").strip() for block in blocks)
    if (cut := cut_reason(message)) and (not has_text or is_use(blocks[-1])):
        what = "in the middle of a call" if blocks and is_use(blocks[-1]) else "before it said anything"
        return f"the agent's answer was cut {what} {cut}"
    if reason == "refusal" and not has_text:
        details = message.get("stop_details")
        why = details.get("explanation") if isinstance(details, Mapping) else None
        return (
            f"the agent refused to answer, without a text (stop_reason: refusal){f': {why}' if why else ''}"
        )
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageContent:
    """The texts and calls in the blocks of a message."""

    reply: str | None
    """The last text. Adjacent text blocks form one text, because citations split texts."""
    remarks: tuple[str, ...]
    """The texts before the last."""
    requests: tuple[ToolRequest, ...]
    made: tuple[ToolCall, ...]
    """The calls that the agent or its server made."""


def check_blocks(content: Any) -> tuple[Block, ...]:
    """Return the blocks of a `content`; a text is one block. Raises AgentError for other values."""
    if isinstance(content, str):
        return ({"type": "text", "text": content},) if content else ()
    if not isinstance(content, list) or not all(isinstance(block, Mapping) for block in content):
        raise AgentError(f"the `content` of the agent's message is not a list of blocks: {excerpt(content)}")
    return tuple(content)


def with_ids(blocks: Sequence[Block], prefix: str) -> tuple[Block, ...]:
    """Return the blocks and add an id to requested calls that lack one."""
    return tuple(
        {**block, "id": f"{prefix}_{index}"} if _lacks_id(block) else block
        for index, block in enumerate(blocks)
    )


def read_blocks(
    blocks: Sequence[Block], turn_index: int, ignored: IgnoredCounter, called: Collection[str] = ()
) -> MessageContent:
    """Read the texts and calls in blocks.

    Args:
        blocks: the blocks of the agent's message.
        turn_index: the turn of the calls.
        ignored: notes blocks of unknown types.
        called: ids of earlier calls of the conversation, whose results may come in a later message.

    Raises AgentError for a call without a name, a result of an unknown call, and a text block without text.
    """
    texts = [""]
    for block in blocks:
        if is_use(block) or _is_result(block):
            texts.append("")
        else:
            texts[-1] += _text(block, ignored)
    nonblank = tuple(text for text in texts if text.strip())
    _check_calls(blocks, called)
    return MessageContent(
        reply=nonblank[-1] if nonblank else None,
        remarks=nonblank[:-1],
        requests=read_requests(blocks),
        made=read_made(blocks, turn_index),
    )


def ids_of_calls(blocks: Sequence[Block]) -> set[str]:
    """Return the ids of all calls, in the form that results are compared with."""
    return {excerpt(block.get("id")) for block in blocks if is_use(block)}


def _check_calls(blocks: Sequence[Block], called: Collection[str]) -> None:
    """Raise AgentError for unidentified calls, because checks of forbidden calls would miss them."""
    for block in blocks:
        if is_use(block):
            _name(block)
    known = {*called, *ids_of_calls(blocks)}
    for block in blocks:
        if _is_result(block) and excerpt(block.get("tool_use_id")) not in known:
            raise AgentError(
                f"a {_kind(block)} of the agent belongs to no call: {excerpt(block)} (expected a block "
                "with its `tool_use_id` as `id`, and the tool's name)"
            )


def is_use(block: Block) -> bool:
    """Return whether a block is a call, answered by the caller or the server."""
    return _kind(block).endswith(_CALL_SUFFIX)


def read_requests(blocks: Sequence[Block]) -> tuple[ToolRequest, ...]:
    """Return the calls that the caller answers. Raises AgentError for a call without a name."""
    answered = {excerpt(block.get("tool_use_id")) for block in blocks if _is_result(block)}
    return tuple(
        ToolRequest(block["id"], _name(block), arguments_text(block.get("input")))
        for block in blocks
        if _kind(block) == _REQUEST_TYPE and excerpt(block.get("id")) not in answered
    )


def read_made(blocks: Sequence[Block], turn_index: int) -> tuple[ToolCall, ...]:
    """Return the calls that the agent or its server answered, without calls that lack a name."""
    results = {excerpt(block.get("tool_use_id")): block for block in blocks if _is_result(block)}
    return tuple(
        _made(block, results.get(excerpt(block.get("id"))), turn_index)
        for block in blocks
        if is_use(block)
        and isinstance(block.get("name"), str)
        and (_kind(block) != _REQUEST_TYPE or excerpt(block.get("id")) in results)
    )


def _kind(block: Block) -> str:
    kind = block.get("type")
    return kind if isinstance(kind, str) else ""


def _is_result(block: Block) -> bool:
    return _kind(block).endswith(_RESULT_SUFFIX)


def _lacks_id(block: Block) -> bool:
    identifier = block.get("id")
    return _kind(block) == _REQUEST_TYPE and not (isinstance(identifier, str) and identifier)


def _text(block: Block, ignored: IgnoredCounter) -> str:
    if _kind(block) == "text":
        if not isinstance(block.get("text"), str):
            raise AgentError(f"a text block of the agent has no text: {excerpt(block)}")
        return str(block["text"])
    if _kind(block) not in _SILENT_BLOCKS:
        ignored.note("content block", block.get("type"))
    return ""


def _name(block: Block) -> str:
    name = block.get("name")
    if not isinstance(name, str) or not name:
        raise AgentError(f"a {_kind(block)} of the agent has no name: {excerpt(block)}")
    return name


def _made(block: Block, result: Block | None, turn_index: int) -> ToolCall:
    args, problem = read_arguments(block.get("input"))
    content = result.get("content") if result else None
    error = excerpt(content) if result and _failed(result) else None
    identifier = block.get("id")
    return ToolCall(
        name=block["name"],
        args=args,
        result=_result(content),
        mocked=False,
        turn_index=turn_index,
        invalid_arguments=problem,
        error=error,
        seen_by=SeenBy.AGENT,
        call_id=identifier if isinstance(identifier, str) else None,
    )


def _result(content: Any) -> Any:
    """Parse a tool's result. The texts of a list of text blocks are joined first."""
    if isinstance(content, list) and content and all(_is_text(block) for block in content):
        return read_result("".join(block["text"] for block in content))
    return read_result(content)


def _is_text(block: Any) -> bool:
    return isinstance(block, Mapping) and block.get("type") == "text" and isinstance(block.get("text"), str)


def _failed(result: Block) -> bool:
    content = result.get("content")
    return bool(result.get("is_error")) or (
        isinstance(content, Mapping) and _kind(content).endswith("_error")
    )
