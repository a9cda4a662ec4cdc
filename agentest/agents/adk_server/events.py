"""The events of one run of an ADK agent: its reply, remarks, tool calls and usage.

The reply follows google-adk's `Event.is_final_response`: it is the text of the last event that is final and
has text. All other texts are remarks, and all function calls form the trajectory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from agentest.agents.error_hints import ADK_PLACE
from agentest.agents.http_sender import EventStream
from agentest.agents.json_reader import (
    excerpt,
    is_list_of_objects,
    mapping_at,
    objects_at,
    read_count,
    read_json,
    read_text,
    truncated_stream_error,
)
from agentest.agents.port import AgentReply, NoReply
from agentest.agents.protocol_client import agent_call
from agentest.domain.messages import Attachment, UserText
from agentest.domain.transcript import Remark, ToolCall, Usage
from agentest.support.errors import AgentError
from agentest.support.lazy_dataclasses import dataclass

_USER = "user"
_DEFAULT_AUTHOR = "agent"

Part = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class AdkRun:
    """The content of a run's events. `problem` is the reason for a missing reply."""

    text: str | None
    calls: tuple[ToolCall, ...]
    remarks: tuple[Remark, ...]
    usage: Usage
    problem: str | None = None
    author: str = _DEFAULT_AUTHOR
    """The reply's author."""
    model_calls: int | None = None
    """The number of events that are model responses; None if no event is marked as one."""


@dataclass(frozen=True, slots=True)
class _Event:
    author: str
    parts: tuple[Part, ...]
    final: bool
    usage: Usage
    error: str | None
    is_model_response: bool
    """True if the event reports a model's version or token usage."""

    @property
    def text(self) -> str:
        """The texts without thoughts, joined as in ADK's metrics."""
        return "\n".join(part["text"] for part in self.parts if part.get("text") and not part.get("thought"))


def read_event_list(body: bytes) -> list[Any]:
    """Read the events in a response of `/run`. Raises AgentError."""
    data = read_json(body, ADK_PLACE)
    if isinstance(data, Mapping) and data.get("error"):
        raise AgentError(f"the agent answered with an error: {excerpt(data['error'])}")
    if not isinstance(data, list):
        raise AgentError(f"the agent's answer is not a list of ADK's events: {excerpt(data)}")
    return data


async def read_event_stream(stream: EventStream) -> list[Any]:
    """Read the events in a response of `/run_sse`. Raises AgentError, also if the stream was cut."""
    events: list[Any] = []
    async for event in stream:
        if event.data.strip():  # some servers keep the connection alive with empty events
            events.append(read_text(event.data))
            if any(part.get("text") for part in objects_at(mapping_at(events[-1], "content"), "parts")):
                stream.note_first_token()
    if not events:
        raise truncated_stream_error("any event")
    if isinstance(events[-1], Mapping) and events[-1].get("partial") is True:
        raise AgentError("the agent's stream was cut: it ended within an event that came in pieces")
    return events


def read_run(items: Sequence[Any], turn_index: int, streamed: bool = False) -> AdkRun:
    """Read the events of one run. Raises AgentError for values that are not events of ADK.

    A run without text is a reply if the agent called a tool. If the events were streamed, it must not end
    with a call, because a stream may be cut between two events.
    """
    events = [event for item in items if (event := _event(item)) is not None]
    calls = _calls(events, turn_index)
    last = _final_event(events)
    problem, text = None, None
    if last:
        problem, text = last.error, None if last.error else last.text or _fallback_text(last.parts)
    elif not calls or (streamed and any(part.get("functionCall") is not None for part in events[-1].parts)):
        problem = f"no final response among the {len(items)} events of the agent"
    if not problem and not text and not calls:
        problem = "the final response of the agent is empty"
    return AdkRun(
        text=text or None,
        calls=calls,
        remarks=tuple(_remarks(events, last)),
        usage=sum((event.usage for event in events), Usage()),
        problem=problem,
        author=last.author if last else events[-1].author if events else _DEFAULT_AUTHOR,
        model_calls=sum(event.is_model_response for event in events) or None,
    )


def _remarks(events: Sequence[_Event], reply: _Event | None) -> Iterator[Remark]:
    """Yield the texts that are not the reply, each with the number of calls in earlier events."""
    calls = 0
    for event in events:
        if event is not reply and event.text:
            yield Remark(event.author, event.text, calls)
        calls += sum(part.get("functionCall") is not None for part in event.parts)


def _final_event(events: Sequence[_Event]) -> _Event | None:
    """Return the event with the reply: the last final event, preferably one with text."""
    chosen: _Event | None = None
    for event in events:
        if event.final and (event.error or event.text or chosen is None or not chosen.text):
            chosen = event
    return chosen


def _event(item: Any) -> _Event | None:
    """Read an event; None for a partial event and for events of the user."""
    if not isinstance(item, Mapping):
        raise AgentError(f"an event of the agent is not a JSON object: {excerpt(item)}")
    author = item.get("author") or _DEFAULT_AUTHOR
    if not isinstance(author, str):
        raise AgentError(f"the `author` of an event of the agent is not a text: {excerpt(author)}")
    values = [item.get(key) for key in ("errorCode", "errorMessage", "error")]
    reported = ": ".join(excerpt(value) for value in values if value)
    error = f"the agent reports an error: {reported}" if reported else None
    if author.lower() == _USER or (item.get("partial") is True and not error):
        return None
    parts = _parts(item)
    final = error is not None or _is_final(item, parts)
    tokens = item.get("usageMetadata")
    keys = ("promptTokenCount", "candidatesTokenCount", "cachedContentTokenCount")
    usage = Usage(*(read_count(tokens, key) for key in keys))
    is_model_response = isinstance(tokens, Mapping) or isinstance(item.get("modelVersion"), str)
    return _Event(author, parts, final, usage, error, is_model_response)


def _is_final(event: Mapping[str, Any], parts: Sequence[Part]) -> bool:
    if not parts:
        return False
    if event.get("longRunningToolIds") or mapping_at(event, "actions").get("skipSummarization"):
        return True
    if any(part.get(kind) is not None for part in parts for kind in ("functionCall", "functionResponse")):
        return False
    return parts[-1].get("codeExecutionResult") is None


def _parts(event: Mapping[str, Any]) -> tuple[Part, ...]:
    content = event.get("content") or {}
    parts = content.get("parts") if isinstance(content, Mapping) else content
    if parts is None:
        return ()
    if not is_list_of_objects(parts):
        raise AgentError(f"the `content` of an event of the agent has no list of parts: {excerpt(content)}")
    for part in parts:
        if not isinstance(part.get("text") or "", str):
            raise AgentError(f"the `text` of an event of the agent is not a text: {excerpt(part)}")
    return tuple(parts)


def _fallback_text(parts: Iterable[Part]) -> str:
    """Return the text for a reply without texts: tools' responses as JSON, or the kinds of other parts."""
    return "\n".join(
        excerpt(part["functionResponse"].get("response"))
        if part.get("functionResponse") is not None
        else f"[{next(iter(part), 'nothing')}]"
        for part in parts
        if not part.get("thought") and "text" not in part
    )


def _calls(events: Sequence[_Event], turn_index: int) -> tuple[ToolCall, ...]:
    """Return the calls in order, with the calls of one event in one round.

    Responses are matched by id, or with the next call of that name if ids are missing.
    """
    parts = [part for event in events for part in event.parts]
    by_id: dict[str, Any] = {}
    by_name: dict[str, list[Any]] = {}
    for response in _functions(parts, "functionResponse"):
        if response.get("id"):
            by_id[response["id"]] = response.get("response")
        else:
            by_name.setdefault(response["name"], []).append(response.get("response"))

    def result(call: Mapping[str, Any]) -> Any:
        if call.get("id"):
            return by_id.get(call["id"])
        waiting = by_name.get(call["name"])
        return waiting.pop(0) if waiting else None

    rounds = [calls for event in events if (calls := _functions(event.parts, "functionCall"))]
    return tuple(
        agent_call(
            call["name"],
            call.get("args"),
            turn_index,
            result=result(call),
            call_id=call.get("id") or None,
            round=round,
        )
        for round, calls in enumerate(rounds)
        for call in calls
    )


def _functions(parts: Sequence[Part], kind: str) -> list[Mapping[str, Any]]:
    functions = [part[kind] for part in parts if part.get(kind) is not None]
    for function in functions:
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise AgentError(f"a `{kind}` of the agent has no name: {excerpt(function)}")
        if not isinstance(function.get("id") or "", str):
            raise AgentError(f"the `id` of a `{kind}` of the agent is not a text: {excerpt(function)}")
    return functions


def read_reply(
    items: Sequence[Any], turn_index: int, *, latency_ms: float, retries: int = 0, streamed: bool = False
) -> AgentReply:
    """Return the reply in a run's events, without the session's state.

    Raises NoReply with the agent's calls.
    """
    try:
        run = read_run(items, turn_index, streamed)
    except AgentError as error:
        raise NoReply(str(error), retries) from None
    if run.problem is not None:
        raise NoReply(run.problem, retries, run.calls)
    return AgentReply(
        run.text,
        usage=run.usage,
        model_calls=run.model_calls,
        latency_ms=latency_ms,
        retries=retries,
        observed=run.calls,
        remarks=run.remarks,
        author=run.author,
    )


def user_content(message: UserText) -> dict[str, Any]:
    """Return the message as a `Content`, in camelCase, which ADK for Python and TypeScript accept."""
    text = [{"text": message.text}] if message.text or not message.attachments else []
    return {"role": "user", "parts": [*text, *map(_part, message.attachments)]}


def _part(file: Attachment) -> dict[str, Any]:
    name = {"displayName": file.name} if file.name else {}
    if file.uri:
        return {"fileData": {"mimeType": file.mime_type, "fileUri": file.uri, **name}}
    return {"inlineData": {"mimeType": file.mime_type, "data": file.base64, **name}}
