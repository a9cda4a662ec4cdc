"""A message of the agent: how it ended, and what it says."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentest.agents.anthropic_messages.blocks import Block, check_blocks, is_use, read_made, with_ids
from agentest.agents.reading import read_count, read_object, shown
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
