"""Responses and Messages: whatever JSON an agent sends is a reply or an AgentError, whole and in streams."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import anyio
import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st
from talking import as_json, held
from wire import http

from agentest.agents.http_sender import EventStream
from agentest.agents.port import IgnoredCounter, Resources
from agentest.domain.messages import ToolResult
from agentest.plugins.protocols.anthropic_messages.client import (
    MessageAssembly,
    as_received,
    blocks_of,
    made_so_far,
    read_blocks,
)
from agentest.plugins.protocols.model_messages import usage_of
from agentest.plugins.protocols.response_items import (
    ResponseAssembly,
    items_of,
    output_item,
    reply_of,
    requested_by_id,
)
from agentest.plugins.protocols.response_items import made_so_far as made_in_response
from agentest.support.errors import AgentError
from agentest.support.http.sse import Event

KEYS = st.sampled_from(
    [
        "type",
        "id",
        "call_id",
        "name",
        "arguments",
        "input",
        "output",
        "content",
        "text",
        "status",
        "error",
        "role",
        "phase",
        "delta",
        "index",
        "output_index",
        "item",
        "item_id",
        "usage",
        "response",
        "action",
        "content_block",
        "message",
        "partial_json",
        "tool_use_id",
        "stop_reason",
    ]
)
KINDS = st.sampled_from(
    [
        "message",
        "function_call",
        "function_call_output",
        "mcp_call",
        "shell_call",
        "reasoning",
        "output_text",
        "tool_use",
        "tool_result",
        "server_tool_use",
        "text",
        "thinking",
        "failed",
        "incomplete",
        "text_delta",
        "input_json_delta",
        "citations_delta",
        "refusal",
    ]
)
EVENTS = st.sampled_from(
    [
        "response.created",
        "response.output_item.added",
        "response.output_item.done",
        "response.output_text.delta",
        "response.function_call_arguments.delta",
        "response.refusal.done",
        "response.completed",
        "message_start",
        "content_block_start",
        "content_block_delta",
        "message_delta",
        "message_stop",
        "error",
    ]
)
SCALARS = st.none() | st.booleans() | st.integers(-1, 3) | KINDS | st.sampled_from(["", "{}", "\ud800", 0.5])
JSON = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=8,
)
OBJECTS = st.dictionaries(KEYS, JSON, max_size=4)
LISTS = st.lists(OBJECTS, max_size=4) | JSON
IGNORED = IgnoredCounter(
    "agent",
    Resources(
        client=httpx.AsyncClient(),  # type: ignore[arg-type] # nothing is sent
        timeout_s=1,
        threads=None,  # type: ignore[arg-type]
        root=Path(),
        closing=AsyncExitStack(),
        on_note=lambda _: None,
    ),
)


def read_response(response: dict[str, Any]) -> None:
    made_in_response(response, 0)
    reply = reply_of(response, 0, "agent", IGNORED)
    known = requested_by_id(items_of(response))
    results = [
        output_item(ToolResult(asked.id, asked.name, "{}"), known[asked.id]) for asked in reply.tool_requests
    ]
    json.dumps([*items_of(response), *results])


def read_message(message: dict[str, Any]) -> None:
    made_so_far(message, 0)
    usage_of(message)
    blocks = blocks_of(message)
    read_blocks(blocks, 0, "agent", IGNORED)
    json.dumps(as_received(blocks))


@given(OBJECTS, LISTS)
def test_any_response(response: dict[str, Any], items: Any) -> None:
    """A response of any JSON is read, or refused in words."""
    with suppress(AgentError):
        read_response({**response, "output": items, "status": "completed", "error": None})
    with suppress(AgentError):
        read_response(response)


@given(OBJECTS, LISTS)
def test_any_message(message: dict[str, Any], blocks: Any) -> None:
    """A message of any JSON is read, or refused in words."""
    with suppress(AgentError):
        read_message({**message, "content": blocks, "error": None, "type": "message"})
    with suppress(AgentError):
        read_message(message)


@pytest.mark.parametrize(
    ("assembly", "whole", "read"),
    [
        (ResponseAssembly, ResponseAssembly.response, read_response),
        (MessageAssembly, MessageAssembly.message, read_message),
    ],
    ids=["responses", "messages"],
)
@given(events=st.lists(st.tuples(EVENTS, OBJECTS), max_size=4))
def test_any_stream(
    assembly: type[Any], whole: Callable[[Any], Any], read: Callable[[Any], None], events: list[Any]
) -> None:
    """A stream of any events is read, or refused in words; what had come can be looked at either way."""

    async def written() -> AsyncIterator[Event]:
        for kind, event in events:
            yield Event(json.dumps({**event, "type": kind}))

    assembled = assembly(IGNORED)

    async def go() -> None:
        await assembled.read(EventStream(written()))

    with suppress(AgentError):
        anyio.run(go)
    with suppress(AgentError):
        read(whole(assembled))


@pytest.mark.parametrize("depth", [200, 900, 1_000, 100_000])
@pytest.mark.parametrize(
    ("kind", "place"),
    [
        (
            "responses",
            '{"output": [{"type": "function_call", "call_id": "c", "name": "f", "arguments": %s}]}',
        ),
        ("responses", '{"output": [{"type": "reasoning", "x": %s}, {"content": "Hi."}]}'),
        ("anthropic_messages", '{"content": [{"type": "tool_use", "id": "t", "name": "f", "input": %s}]}'),
        ("anthropic_messages", '{"content": [{"type": "text", "text": "Hi.", "x": %s}]}'),
    ],
    ids=["call", "item", "use", "block"],
)
def test_deep_nesting(kind: str, place: str, depth: int) -> None:
    """Nesting of any depth, even if it has to be sent back, is read or the agent's error."""
    answer = http((place % ('{"a":' * depth + "1" + "}" * depth)).encode())
    last = {"output": [{"content": "Bye."}], "content": "Bye."}
    done = held({"type": kind}, "ab", answer, as_json(last), tools={"f": "ok"})
    assert done.problem.startswith("agent: ") or done.replies[-1] == "Bye."
