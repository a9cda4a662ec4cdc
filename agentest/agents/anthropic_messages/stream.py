"""The assembly of a message from the events of a stream."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentest.agents.anthropic_messages.message import ReceivedMessage
from agentest.agents.http_sender import EventStream
from agentest.agents.json_reader import read_any, read_event, shown, truncated_stream_error
from agentest.agents.port import IgnoredCounter
from agentest.support.errors import AgentError

_DELTA_KEYS = {
    "text_delta": "text",
    "thinking_delta": "thinking",
    "signature_delta": "signature",
}
"""Types of deltas → the key that the delta extends, in the delta and in its block."""


class MessageAssembly:
    """Assembles the message of one response. The received part is available at any time."""

    def __init__(self, ignored: IgnoredCounter) -> None:
        self._ignored = ignored
        self._head: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._replaced: list[dict[str, Any]] = []
        """Blocks whose index a later block reused."""
        self._inputs: dict[int, str] = {}
        """Indexes of blocks → the JSON texts of their `input`."""

    async def read(self, stream: EventStream) -> ReceivedMessage:
        """Read the complete message. Raises AgentError if the stream ends before it."""
        received = False
        async for event in stream:
            data = event.data.strip()
            if data and data != "[DONE]":
                received = True
                content = read_event(data)
                if self._add(content, str(content.get("type") or event.name), stream):
                    return self.message()
        raise truncated_stream_error("message_stop", received)

    def message(self) -> ReceivedMessage:
        """Return the message as received so far."""
        last = [self._block(index) for index in sorted(self._blocks)]
        return {**self._head, "content": [*self._replaced, *last]}

    def _add(self, event: Mapping[str, Any], kind: str, stream: EventStream) -> bool:
        """Add an event and return whether it was the last."""
        match kind:
            case "message_start":
                self._head = _object(event, "message")
            case "message_delta":
                self._add_end(event)
            case "content_block_start":
                self._start_block(_index(event), _object(event, "content_block"))
            case "content_block_delta":
                if self._add_delta(_index(event), _object(event, "delta")):
                    stream.note_first_token()
            case "message_stop":
                return True
            case "error":
                self._head = {**self._head, "error": event.get("error") or dict(event)}
                return True
            case "content_block_stop" | "ping":
                pass
            case _:
                return self._add_unknown(event, kind)
        return False

    def _start_block(self, index: int, block: dict[str, Any]) -> None:
        if index in self._blocks:
            self._replaced.append(self._block(index))
            self._inputs.pop(index, None)
        self._blocks[index] = block

    def _add_unknown(self, event: Mapping[str, Any], kind: str) -> bool:
        if event.get("error") and "type" not in event:
            self._head = {**self._head, "error": event["error"]}
            return True
        self._ignored.note("event", kind)
        return False

    def _add_end(self, event: Mapping[str, Any]) -> None:
        """Store the message's end and its final token counts, which replace earlier ones."""
        usage = {**_without_nulls(self._head.get("usage")), **_without_nulls(event.get("usage"))}
        self._head = {**self._head, **_without_nulls(event.get("delta")), "usage": usage}

    def _add_delta(self, index: int, delta: Mapping[str, Any]) -> bool:
        """Extend a block and return whether the delta was text."""
        kind = delta.get("type")
        if kind == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + _text(delta.get("partial_json"))
        elif isinstance(kind, str) and kind in _DELTA_KEYS:
            key = _DELTA_KEYS[kind]
            block = self._blocks.setdefault(index, {"type": key})
            block[key] = _text(block.get(key)) + _text(delta.get(key))
        elif kind == "citations_delta":
            block = self._blocks.setdefault(index, {"type": "text", "text": ""})
            block["citations"] = [*(block.get("citations") or []), delta.get("citation")]
        else:
            self._ignored.note("delta", kind)
        return kind == "text_delta" and bool(delta.get("text"))

    def _block(self, index: int) -> dict[str, Any]:
        """Return a block with its parsed `input`, or the input's text if it is not JSON."""
        block = self._blocks[index]
        if not self._inputs.get(index, "").strip():
            return block
        return {**block, "input": read_any(self._inputs[index])}


def _index(event: Mapping[str, Any]) -> int:
    index = event.get("index")
    if not isinstance(index, int):
        raise AgentError(f"an event of the agent's stream has no `index`: {shown(event)}")
    return index


def _object(event: Mapping[str, Any], key: str) -> dict[str, Any]:
    value = event.get(key)
    if not isinstance(value, Mapping):
        raise AgentError(f"an event of the agent's stream has no `{key}`: {shown(event)}")
    return dict(value)


def _without_nulls(value: Any) -> dict[str, Any]:
    return {k: v for k, v in value.items() if v is not None} if isinstance(value, Mapping) else {}


def _text(value: Any) -> str:
    return value if isinstance(value, str) else ""
