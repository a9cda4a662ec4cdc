"""Reading a chat completion, whole or in streamed pieces, from an agent that may send anything."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentest.agents.answers import EventStream
from agentest.agents.chat_completions.wire import from_wire, read_text, read_tool_requests
from agentest.agents.hints import CHAT_PLACE
from agentest.agents.port import AgentReply
from agentest.agents.reading import arguments_text, cut_stream, read_any, read_event, read_object, shown
from agentest.domain.transcript import Usage
from agentest.support.errors import AgentError


def read_completion(body: bytes) -> AgentReply:
    """The reply in the body of a chat completion. Raises AgentError that says what is wrong with it."""
    data = read_object(body, CHAT_PLACE)
    choices = data.get("choices")
    if not isinstance(choices, list) or not choices or not isinstance(choices[0], Mapping):
        error = data.get("error")
        problem = f"an error: {shown(error)}" if error else f"no `choices`: {shown(data)}"
        raise AgentError(f"the agent answered with {problem}")
    message = from_wire(choices[0].get("message"))
    return AgentReply(
        text=message.text,
        tool_requests=message.tool_requests,
        usage=read_usage(data.get("usage")),
    )


def read_usage(reported: Any) -> Usage:
    """Tokens that the agent reports; whatever is missing or no number counts as 0."""
    if not isinstance(reported, Mapping):
        return Usage()

    def count(key: str) -> int:
        value = reported.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

    return Usage(count("prompt_tokens"), count("completion_tokens"))


async def read_stream(events: EventStream) -> AgentReply:
    """The reply put together from streamed deltas.

    The stream's end is `[DONE]` or a `finish_reason`; one that stops before either was cut. Raises
    AgentError.
    """
    parts = _Deltas()
    async for event in events:
        for piece in _pieces(event.data):
            if piece == "[DONE]":
                return parts.reply()
            if piece and parts.add(_event(piece)):  # some keep the connection alive with empty events
                events.note_first_token()
    if parts.finished:
        return parts.reply()
    raise cut_stream("[DONE] and without a finish_reason", parts.received)


def _pieces(data: str) -> list[str]:
    """The event; its lines one by one where careless servers leave out the empty line between events."""
    lines = [line.strip() for line in data.split("\n")]
    careless = len(lines) > 1 and all(_is_whole(line) for line in lines if line)
    return lines if careless else [data.strip()]


def _is_whole(line: str) -> bool:
    return line == "[DONE]" or isinstance(read_any(line), Mapping)


def _event(data: str) -> Mapping[str, Any]:
    event = read_event(data)
    if event.get("error"):
        raise AgentError(f"the agent's stream reports an error: {shown(event['error'])}")
    return event


class _Deltas:
    """The message so far."""

    def __init__(self) -> None:
        self._text: list[str] = []
        self._calls: dict[int, dict[str, Any]] = {}
        self._last = -1
        """The greatest index of a call so far."""
        self._usage = Usage()
        self.finished = False
        self.received = False

    def add(self, event: Mapping[str, Any]) -> bool:
        """Add an event; whether it had text."""
        self.received = True
        if event.get("usage"):
            self._usage = read_usage(event["usage"])
        choices = event.get("choices")
        if not choices:
            return False  # the usage comes in an event without choices
        if not isinstance(choices, list) or not isinstance(choices[0], Mapping):
            raise AgentError(f"`choices` in the agent's stream is not a list of objects: {shown(choices)}")
        choice = choices[0]
        self.finished = self.finished or bool(choice.get("finish_reason"))
        delta = choice.get("delta", choice.get("message")) or {}
        if not isinstance(delta, Mapping):
            raise AgentError(f"a `delta` in the agent's stream is not an object: {shown(delta)}")
        if text := read_text(delta):
            self._text.append(text)
        for position, piece in enumerate(_list_of_calls(delta.get("tool_calls"))):
            self._add_call(piece, position)
        return bool(text)

    def _add_call(self, piece: Mapping[str, Any], position: int) -> None:
        index = piece.get("index")
        if not isinstance(index, int):
            # Without an index, a piece with an id begins a call and one without continues the last.
            index = self._last + 1 if piece.get("id") else max(self._last, position)
        elif self._begins_another(index, piece):
            index = self._last + 1
        self._last = max(self._last, index)
        call = self._calls.setdefault(index, {"id": None, "name": "", "arguments": []})
        function = piece.get("function") or {}
        if not isinstance(function, Mapping):
            raise AgentError(f"a tool call in the agent's stream has no function: {shown(piece)}")
        call["id"] = call["id"] or piece.get("id")
        if isinstance(function.get("name"), str) and function["name"] != call["name"]:
            call["name"] += function["name"]  # most send it whole, some in pieces, some with every piece
        arguments = function.get("arguments")
        if arguments is not None:
            call["arguments"].append(arguments_text(arguments))

    def _begins_another(self, index: int, piece: Mapping[str, Any]) -> bool:
        """Whether another call begins under an index that is taken: some give all calls the index 0."""
        known, function = self._calls.get(index), piece.get("function")
        named = isinstance(function, Mapping) and function.get("name")
        identifier = piece.get("id")
        return bool(known and named and known["id"] and identifier and identifier != known["id"])

    def reply(self) -> AgentReply:
        calls = [
            {"id": c["id"], "function": {"name": c["name"], "arguments": "".join(c["arguments"])}}
            for _, c in sorted(self._calls.items())
        ]
        return AgentReply(
            text="".join(self._text) or None,
            tool_requests=read_tool_requests(calls),
            usage=self._usage,
        )


def _list_of_calls(calls: Any) -> list[Mapping[str, Any]]:
    if calls is None:
        return []
    if not isinstance(calls, list) or not all(isinstance(piece, Mapping) for piece in calls):
        raise AgentError(f"`tool_calls` in the agent's stream is not a list of objects: {shown(calls)}")
    return calls
