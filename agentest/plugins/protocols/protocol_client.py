"""The common parts of clients of protocols with conversations.

The clients differ in how they write messages and read answers. How a conversation is opened, how the requests
of one reply are summed up, and how JSON arrives is the same for all.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from dataclasses import field, replace
from functools import partial
from typing import Any, TypeVar

from agentest.agents.bypassed_tools import BypassDetector
from agentest.agents.http_sender import EventStream, HttpAnswer, HttpSender, read_body
from agentest.agents.json_reader import (
    excerpt,
    is_list_of_objects,
    read_arguments,
    read_event,
    read_json,
    read_result,
    text_at,
)
from agentest.agents.placeholders import TurnValues
from agentest.agents.port import AgentNotes, AgentReply, IgnoredCounter, NoReply, Resources, TurnContext
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Remark, ToolCall, Usage
from agentest.support.http.client import DirectResponse
from agentest.support.json_text import json_or
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.templates import Template

T = TypeVar("T")


class ProtocolEndpoint:
    """Sends requests to one endpoint. Stores nothing about conversations, but shares these among them."""

    def __init__(
        self, config: Any, resources: Resources, place: str, timeout_hint: str = "", **bypass: str
    ) -> None:
        """Create the parts from the settings of the agent's type, which have a `body`.

        `place` and `timeout_hint` are hints of the `HttpSender`, and `bypass` instructions of the
        `BypassDetector`.
        """
        self.name: str = config.name
        self.body = Template(config.body)
        self.ignored = IgnoredCounter(config.name, resources)
        self.notes = AgentNotes(config.name, resources.on_note)
        self.own_tools = BypassDetector(config.name, **bypass)
        self.sender = HttpSender(config, resources.client, resources.timeout_s, place, timeout_hint)


@dataclass(slots=True)
class ReplyTotals:
    """The sums and lists over all requests of one reply."""

    latency_ms: float = 0.0
    first_token_ms: float | None = None
    retries: int = 0
    usage: Usage = field(default_factory=Usage)
    approvals: int = 0
    observed: tuple[ToolCall, ...] = ()
    remarks: tuple[Remark, ...] = ()

    def add(self, answer: HttpAnswer[T]) -> T:
        """Add the timing of one request and return its value."""
        if self.first_token_ms is None and answer.first_token_ms is not None:
            self.first_token_ms = self.latency_ms + answer.first_token_ms
        self.latency_ms += answer.latency_ms
        self.retries += answer.retries
        return answer.value

    def reply(self, text: str | None, **fields: Any) -> AgentReply:
        """Return the reply. `fields` are further fields of `AgentReply`."""
        return AgentReply(
            text=text or None,
            usage=self.usage,
            latency_ms=self.latency_ms,
            retries=self.retries,
            approvals=self.approvals,
            observed=self.observed,
            remarks=self.remarks,
            first_token_ms=self.first_token_ms,
            **fields,
        )

    def timed(self, reply: AgentReply) -> AgentReply:
        """Return a reply with the times and retries of its requests."""
        return replace(
            reply, latency_ms=self.latency_ms, retries=self.retries, first_token_ms=self.first_token_ms
        )

    def no_reply(self, problem: Exception | str, calls: Sequence[ToolCall] = ()) -> NoReply:
        """Return the error that ends the turn, after the observed calls and those in `calls`."""
        retries = self.retries + getattr(problem, "retries", 0)
        return NoReply(str(problem), retries, (*self.observed, *calls))


@dataclass(slots=True, kw_only=True)
class ProtocolTurn(ReplyTotals):
    """One turn of a conversation, with the totals of its requests."""

    ctx: TurnContext
    values: TurnValues


class ReportedResults:
    """The results that an agent has reported: by id and name of their calls, without ids in order."""

    def __init__(self, responses: Iterable[Mapping[str, Any]]) -> None:
        """Create the results; a response has a name, and maybe `id` and `response`."""
        self.by_id: dict[tuple[str, str], Any] = {}
        self._by_name: dict[str, list[Any]] = {}
        for each in responses:
            name, result = each["name"], each.get("response")
            if identifier := text_at(each, "id"):
                self.by_id[identifier, name] = result
            else:
                self._by_name.setdefault(name, []).append(result)

    def take(self, name: str, call_id: str | None) -> Any:
        """Return the result of a call, None if there is none. One without an id is for one call only."""
        if call_id:
            return self.by_id.get((call_id, name))
        waiting = self._by_name.get(name)
        return waiting.pop(0) if waiting else None


agent_call = partial(ToolCall, mocked=False, seen_by=SeenBy.AGENT)  # makes a call that the agent made itself


def read_tool_result(content: Any) -> Any:
    """Return the result that an agent has reported, whose text may be in parts."""
    if content and is_list_of_objects(content) and all(isinstance(each.get("text"), str) for each in content):
        content = "".join(each["text"] for each in content)
    return read_result(content)


async def json_events(
    stream: EventStream, *, ends_at_done: bool = False
) -> AsyncIterator[tuple[str, dict[str, Any]]]:
    """Yield the type and the JSON of each event. Raises AgentError for invalid events.

    Skips empty events and, unless the stream ends there, `[DONE]`: some servers keep the connection alive
    with them.
    """
    async for event in stream:
        data = event.data.strip()
        if data == "[DONE]" and ends_at_done:
            return
        if data not in ("", "[DONE]"):
            content = read_event(data)
            yield str(content.get("type") or event.name), content


async def read_json_body(response: DirectResponse, location: str, if_stream: str) -> Any:
    """Read the JSON of a response. Raises AgentError, and NoReply with `if_stream` for a stream."""

    async def refuse(_: EventStream) -> Any:
        raise NoReply(if_stream)

    return await read_body(response, False, lambda body: read_json(body, location), refuse)


TOOL_USE = "tool_use"
"""The type of Anthropic's calls for the caller. Those of the server end with it, as `mcp_tool_use` does."""


def is_call(block: Mapping[str, Any]) -> bool:
    """Return whether a block of Anthropic's API is a call."""
    return text_at(block, "type").endswith(TOOL_USE)


def is_result(block: Mapping[str, Any]) -> bool:
    """Return whether a block of Anthropic's API is a result, such as `web_search_tool_result`."""
    return text_at(block, "type").endswith("tool_result")


def made_calls(blocks: Sequence[Mapping[str, Any]], turn_index: int) -> tuple[ToolCall, ...]:
    """Return the calls in blocks of Anthropic's API that have a result, or that the server makes itself."""
    results, made = results_by_id(blocks), list[ToolCall]()
    for block in filter(is_call, blocks):
        name, identifier = block.get("name"), block.get("id")
        result = results.get(excerpt(identifier))
        if not isinstance(name, str) or (result is None and block["type"] == TOOL_USE):
            continue
        args, problem = read_arguments(block.get("input"))
        content = result.get("content") if result else None
        kind = content.get("type") if isinstance(content, Mapping) else None
        failed = result and (result.get("is_error") or str(kind).endswith("_error"))
        made.append(
            agent_call(
                name,
                args,
                read_tool_result(content),
                turn_index=turn_index,
                invalid_arguments=problem,
                error=excerpt(content) if failed else None,
                call_id=identifier if isinstance(identifier, str) else None,
            )
        )
    return tuple(made)


def results_by_id(blocks: Iterable[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the results in blocks of Anthropic's API by the ids of their calls."""
    return {excerpt(block.get("tool_use_id")): block for block in blocks if is_result(block)}


_GROWING = {"text_delta": "text", "thinking_delta": "thinking", "signature_delta": "signature"}
"""Types of deltas → the key that the delta extends, in the delta and in its block."""


class StreamedBlocks:
    """Assembles the `content` of one streamed message of Anthropic's API, in the order of arrival."""

    def __init__(self) -> None:
        self._blocks: list[dict[str, Any]] = []
        self._inputs: dict[int, str] = {}  # places of blocks → the JSON texts of their `input`
        self._places: dict[int, int] = {}
        """Indexes → places. A later block may reuse the index of an earlier one."""

    @property
    def blocks(self) -> list[dict[str, Any]]:
        """The blocks with parsed `input`; text that is not JSON stays text."""
        return [
            {**block, "input": json_or(text, text)} if text.strip() else block
            for place, block in enumerate(self._blocks)
            for text in (self._inputs.get(place, ""),)
        ]

    def place(self, index: int) -> int:
        """Return the place of the last block with an index; that of the next block if there is none."""
        return self._places.get(index, len(self._blocks))

    def is_content(self, place: int) -> bool:
        """Return True if the block at a place has begun and is not a call."""
        return place < len(self._blocks) and self._blocks[place].get("type") != "tool_use"

    def start(self, index: int, block: dict[str, Any]) -> None:
        """Add a block."""
        self._places[index] = len(self._blocks)
        self._blocks.append(block)

    def grow(self, index: int, delta: Mapping[str, Any]) -> bool:
        """Extend a block. Returns False if the type of the delta is unknown."""
        kind = str(delta.get("type"))
        key = _GROWING.get(kind)
        if not key and kind not in ("input_json_delta", "citations_delta"):
            return False
        if index not in self._places:
            missing = {"input_json_delta": "tool_use", "citations_delta": "text"}
            self.start(index, {"type": key or missing[kind]})
        block = self._blocks[place := self._places[index]]
        if key:
            block[key] = text_at(block, key) + text_at(delta, key)
        elif kind == "input_json_delta":
            piece = delta.get("partial_json") or ""
            text = piece if isinstance(piece, str) else json.dumps(piece)  # some servers send the object
            self._inputs[place] = self._inputs.get(place, "") + text
        else:
            block["citations"] = [*(block.get("citations") or []), delta.get("citation")]
        return True
