"""What the items of a response say: the reply, remarks, and calls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentest.agents.ignored import Ignored
from agentest.agents.reading import shown
from agentest.agents.responses.calls import Item, is_call
from agentest.domain.transcript import Remark
from agentest.support.errors import AgentError

_NOT_SAID = (
    "reasoning",
    "compaction",
    "mcp_list_tools",
    "mcp_approval_request",
    "mcp_approval_response",
    "additional_tools",
    "program",
    "program_output",
    "tool_search_output",
)
"""Items that neither say nor call anything. They are resent with the others."""
_NO_TEXT_PARTS = ("reasoning_text", "summary_text")


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """The texts of a response."""

    reply: str | None
    remarks: tuple[str, ...]

    def remarks_of(self, author: str) -> tuple[Remark, ...]:
        return tuple(Remark(author, text) for text in self.remarks)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Message:
    place: int
    text: str
    final: bool
    """Whether it is no mere commentary."""


def check_items(output: Any) -> list[Item]:
    """The items of an `output`. Raises AgentError for what is no list of objects."""
    if not isinstance(output, list) or not all(isinstance(item, Mapping) for item in output):
        raise AgentError(f"the `output` of the agent's response is not a list of items: {shown(output)}")
    return output


def read_said(items: Sequence[Item], ignored: Ignored) -> Said:
    """The reply is what follows the last call, or else the last that was said. Raises AgentError."""
    messages = [m for place, item in enumerate(items) if (m := _message(place, item, ignored)) is not None]
    last_call = max((place for place, item in enumerate(items) if is_call(item)), default=-1)
    final = [m for m in messages if m.place > last_call and m.final] or messages[-1:]
    return Said(
        reply="\n\n".join(m.text for m in final) or None,
        remarks=tuple(m.text for m in messages if m not in final),
    )


def approval_asked(items: Sequence[Item]) -> str | None:
    """What is wrong where the server asks for leave to call a tool of an MCP server."""
    for item in items:
        if item.get("type") == "mcp_approval_request":
            return (
                f"the agent asks for approval to call the MCP tool {item.get('name')!r}, which nobody here "
                "gives; set require_approval: never for its server, in body.tools or where the agent is made"
            )
    return None


def _message(place: int, item: Item, ignored: Ignored) -> _Message | None:
    kind = item.get("type", "message" if "content" in item else None)
    if kind != "message":
        if not is_call(item) and kind not in _NOT_SAID:
            ignored.note("item", kind)
        return None
    if item.get("role", "assistant") != "assistant":
        ignored.note("message", f"role {item['role']}")
        return None
    text = _content(item.get("content"), ignored)
    return _Message(place=place, text=text, final=item.get("phase") != "commentary") if text.strip() else None


def _content(content: Any, ignored: Ignored) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    if isinstance(content, list):
        return "".join(_part(part, ignored) for part in content)
    raise AgentError(f"the `content` of a message of the agent is no list of parts: {shown(content)}")


def _part(part: Any, ignored: Ignored) -> str:
    if isinstance(part, str):
        return part
    if not isinstance(part, Mapping):
        raise AgentError(f"a part of the agent's message is not an object: {shown(part)}")
    kind = part.get("type")
    if kind in _NO_TEXT_PARTS:
        return ""
    text = part.get("refusal" if kind == "refusal" else "text")
    if isinstance(text, str):
        return text
    if kind in ("output_text", "refusal"):
        raise AgentError(f"a part of the agent's message has no text: {shown(part)}")
    ignored.note("part", kind)
    return ""
