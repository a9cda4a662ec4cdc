"""A message of the agent: how it ended, and what it says."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentest.agents.json_reader import (
    arguments_text,
    read_arguments,
    read_count,
    read_object,
    read_result,
    shown,
)
from agentest.agents.port import Ignored
from agentest.domain.messages import ToolRequest
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import ToolCall, Usage
from agentest.support.errors import AgentError

MESSAGES_PLACE = "is the path right? Anthropic's Messages endpoints usually end with /v1/messages"
PAUSED = "pause_turn"
"""The `stop_reason` of a message that a further request goes on with."""
_CUT = {
    "max_tokens": "raise body.max_tokens",
    "model_context_window_exceeded": "the conversation is longer than its model can read",
}
"""The `stop_reason` of a message that has no end → what to say of it."""

Received = Mapping[str, Any]
"""A message as it came. What has been received of one may lack anything."""


def read_message(body: bytes) -> Received:
    """The message in a body. Raises AgentError."""
    message = read_object(body, MESSAGES_PLACE)
    _check_form(message)
    return message


def made_so_far(message: Received, turn_index: int) -> tuple[ToolCall, ...]:
    """The calls that were answered already, in a message of any state. Raises nothing."""
    content = message.get("content")
    blocks = [b for b in content if isinstance(b, Mapping)] if isinstance(content, list) else []
    return read_made(blocks, turn_index)


def blocks_of(message: Received) -> tuple[Block, ...]:
    """The content, as further requests bring it. Raises AgentError for what is no answer."""
    _check_form(message)
    blocks = with_ids(check_blocks(message["content"]), f"toolu_{message.get('id') or 'of_agent'}")
    if problem := _problem(message, blocks):
        raise AgentError(problem)
    return blocks


def _check_form(message: Received) -> None:
    if message.get("type") == "error" or message.get("error"):
        raise AgentError(f"the agent answered with an error: {error_text(message.get('error'))}")
    if "content" not in message:
        raise AgentError(f"the agent's answer is no message: it has no `content`: {shown(message)}")
    if message.get("role", "assistant") != "assistant":
        raise AgentError(f"the agent's answer is a message of the role {message['role']!r}: {shown(message)}")


def how_cut(message: Received) -> str | None:
    """Why a message has no end, and what to do; None for one that has."""
    reason = message.get("stop_reason")
    if isinstance(reason, str) and reason in _CUT:
        return f"(stop_reason: {reason}): {_CUT[reason]}"
    return None


def usage_of(message: Received) -> Usage:
    """The tokens; those read from a cache or written to one are part of the prompt."""
    reported = message.get("usage")
    cached = read_count(reported, "cache_read_input_tokens")
    written = read_count(reported, "cache_creation_input_tokens")
    prompt = read_count(reported, "input_tokens") + written + cached
    return Usage(prompt, read_count(reported, "output_tokens"), cached)


def error_text(error: Any) -> str:
    """What an error says, and its type."""
    if not isinstance(error, Mapping) or not isinstance(error.get("message"), str):
        return shown(error) if error else "no reason is given"
    kind = error.get("type")
    return f"{error['message']} ({kind})" if isinstance(kind, str) and kind else str(error["message"])


def _problem(message: Received, blocks: tuple[Block, ...]) -> str | None:
    reason = message.get("stop_reason")
    has_text = any(str(block.get("text") or "").strip() for block in blocks)
    if (cut := how_cut(message)) and (not has_text or is_use(blocks[-1])):
        what = "in the middle of a call" if blocks and is_use(blocks[-1]) else "before it said anything"
        return f"the agent's answer was cut {what} {cut}"
    if reason == "refusal" and not has_text:
        details = message.get("stop_details")
        why = details.get("explanation") if isinstance(details, Mapping) else None
        return (
            f"the agent refused to answer, without a text (stop_reason: refusal){f': {why}' if why else ''}"
        )
    return None


Block = Mapping[str, Any]
"""A block of a message's `content`, as it came."""

_FOR_THE_CALLER = "tool_use"
_USE = "tool_use"
"""The end of the type of a block that is a call: `tool_use`, `server_tool_use`, `mcp_tool_use`."""
_RESULT = "tool_result"
"""The end of the type of a block that answers one: `tool_result`, `web_search_tool_result`."""
_NOT_SAID = ("thinking", "redacted_thinking", "container_upload", "compaction")


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """What the blocks of a message say."""

    reply: str | None
    """The last text: what citations cut into blocks is one, and calls are between two."""
    remarks: tuple[str, ...]
    """The texts before it."""
    requests: tuple[ToolRequest, ...]
    made: tuple[ToolCall, ...]
    """By the agent, or by its server."""


def check_blocks(content: Any) -> tuple[Block, ...]:
    """The blocks of a `content`; a text is one block. Raises AgentError for what is no content."""
    if isinstance(content, str):
        return ({"type": "text", "text": content},) if content else ()
    if not isinstance(content, list) or not all(isinstance(block, Mapping) for block in content):
        raise AgentError(f"the `content` of the agent's message is not a list of blocks: {shown(content)}")
    return tuple(content)


def with_ids(blocks: Sequence[Block], prefix: str) -> tuple[Block, ...]:
    """The blocks; calls without an id, by which results are told apart, get one."""
    return tuple(
        {**block, "id": f"{prefix}_{place}"} if _lacks_id(block) else block
        for place, block in enumerate(blocks)
    )


def read_blocks(
    blocks: Sequence[Block], turn_index: int, ignored: Ignored, called: Collection[str] = ()
) -> Heard:
    """What they say. Raises AgentError for what tells of a call and not which, and for a text without text.

    Args:
        called: ids of earlier calls of the conversation: a result may come in a later message.
    """
    texts = [""]
    for block in blocks:
        if is_use(block) or _is_result(block):
            texts.append("")
        else:
            texts[-1] += _text(block, ignored)
    said = tuple(text for text in texts if text.strip())
    _check_calls(blocks, called)
    return Heard(
        reply=said[-1] if said else None,
        remarks=said[:-1],
        requests=read_requests(blocks),
        made=read_made(blocks, turn_index),
    )


def ids_of_calls(blocks: Sequence[Block]) -> set[str]:
    """The ids by which results tell which calls they answer."""
    return {shown(block.get("id")) for block in blocks if is_use(block)}


def _check_calls(blocks: Sequence[Block], called: Collection[str]) -> None:
    """Refuse what tells of a call and not which: bans would miss it. Raises AgentError."""
    for block in blocks:
        if is_use(block):
            _name(block)
    known = {*called, *ids_of_calls(blocks)}
    for block in blocks:
        if _is_result(block) and shown(block.get("tool_use_id")) not in known:
            raise AgentError(
                f"a {_kind(block)} of the agent belongs to no call: {shown(block)} (expected a block "
                "with its `tool_use_id` as `id`, and the tool's name)"
            )


def is_use(block: Block) -> bool:
    """Whether a block is a call, whoever answers it."""
    return _kind(block).endswith(_USE)


def read_requests(blocks: Sequence[Block]) -> tuple[ToolRequest, ...]:
    """The calls that the caller answers. Raises AgentError for one without a name."""
    answered = {shown(block.get("tool_use_id")) for block in blocks if _is_result(block)}
    return tuple(
        ToolRequest(block["id"], _name(block), arguments_text(block.get("input")))
        for block in blocks
        if _kind(block) == _FOR_THE_CALLER and shown(block.get("id")) not in answered
    )


def read_made(blocks: Sequence[Block], turn_index: int) -> tuple[ToolCall, ...]:
    """The calls that were answered before they came to us. Blocks without a name are left out."""
    results = {shown(block.get("tool_use_id")): block for block in blocks if _is_result(block)}
    return tuple(
        _made(block, results.get(shown(block.get("id"))), turn_index)
        for block in blocks
        if is_use(block)
        and isinstance(block.get("name"), str)
        and (_kind(block) != _FOR_THE_CALLER or shown(block.get("id")) in results)
    )


def _kind(block: Block) -> str:
    kind = block.get("type")
    return kind if isinstance(kind, str) else ""


def _is_result(block: Block) -> bool:
    return _kind(block).endswith(_RESULT)


def _lacks_id(block: Block) -> bool:
    identifier = block.get("id")
    return _kind(block) == _FOR_THE_CALLER and not (isinstance(identifier, str) and identifier)


def _text(block: Block, ignored: Ignored) -> str:
    if _kind(block) == "text":
        if not isinstance(block.get("text"), str):
            raise AgentError(f"a text block of the agent has no text: {shown(block)}")
        return str(block["text"])
    if _kind(block) not in _NOT_SAID:
        ignored.note("content block", block.get("type"))
    return ""


def _name(block: Block) -> str:
    name = block.get("name")
    if not isinstance(name, str) or not name:
        raise AgentError(f"a {_kind(block)} of the agent has no name: {shown(block)}")
    return name


def _made(block: Block, result: Block | None, turn_index: int) -> ToolCall:
    args, problem = read_arguments(block.get("input"))
    content = result.get("content") if result else None
    error = shown(content) if result and _failed(result) else None
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
    """What a tool answered: of a list of text blocks their text."""
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
