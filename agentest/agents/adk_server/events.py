"""Reading the events of one run of an ADK agent: the reply, and what happened on the way to it.

Which text is the reply follows google-adk's `Event.is_final_response`: the text of the last event that is
final and has text. All other texts are remarks, and all function calls are the trajectory.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentest.agents.error_hints import ADK_PLACE
from agentest.agents.http_sender import EventStream
from agentest.agents.json_reader import cut_stream, read_json, read_text, shown
from agentest.agents.port import AgentReply, NoReply
from agentest.domain.messages import Attachment, UserText
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Remark, ToolCall, Usage
from agentest.support.errors import AgentError

_USER = "user"
_UNNAMED = "agent"
"""Who has said what an event without author says."""

Part = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Run:
    """What the events contain. `problem` says why there is no reply. `text` may be None without one, too."""

    text: str | None
    calls: tuple[ToolCall, ...]
    remarks: tuple[Remark, ...]
    usage: Usage
    problem: str | None = None
    author: str = _UNNAMED
    """Who gave the reply."""
    model_calls: int | None = None
    """How many events are a model's answer; None where none says that it is one."""


@dataclass(frozen=True, slots=True)
class _Event:
    """One whole event of the agent."""

    author: str
    parts: tuple[Part, ...]
    final: bool
    usage: Usage
    error: str | None
    of_a_model: bool
    """Whether a model has answered: it says which, or what that took."""

    @property
    def text(self) -> str:
        """Its texts but for thoughts, joined as ADK's metrics join them."""
        return "\n".join(part["text"] for part in self.parts if part.get("text") and not part.get("thought"))


def read_event_list(body: bytes) -> list[Any]:
    """The events of an answer of `/run`. Raises AgentError."""
    data = read_json(body, ADK_PLACE)
    if isinstance(data, Mapping) and data.get("error"):
        raise AgentError(f"the agent answered with an error: {shown(data['error'])}")
    if not isinstance(data, list):
        raise AgentError(f"the agent's answer is not a list of ADK's events: {shown(data)}")
    return data


async def read_event_stream(stream: EventStream) -> list[Any]:
    """The events of an answer of `/run_sse`. Raises AgentError, also for a stream that was cut."""
    events: list[Any] = []
    async for event in stream:
        if event.data.strip():  # some servers keep the connection alive with empty events
            events.append(read_text(event.data))
            if _has_text(events[-1]):
                stream.note_first_token()
    if not events:
        raise cut_stream("any event")
    if isinstance(events[-1], Mapping) and events[-1].get("partial") is True:
        raise AgentError("the agent's stream was cut: it ended within an event that came in pieces")
    return events


def _has_text(event: Any) -> bool:
    content = event.get("content") if isinstance(event, Mapping) else None
    parts = content.get("parts") if isinstance(content, Mapping) else None
    return isinstance(parts, list) and any(isinstance(part, Mapping) and part.get("text") for part in parts)


def read_run(items: Sequence[Any], turn_index: int, streamed: bool = False) -> Run:
    """What the events of one run contain. Raises AgentError for what are no events of ADK's.

    A run without text is a reply where the agent called a tool. Where the events were `streamed` its end
    must not be a call without a response: a stream may be cut between two events.
    """
    events = [event for item in items if (event := _event(item)) is not None]
    calls = _calls(events, turn_index)
    last = _final(events)
    problem, text = None, None
    if last:
        problem, text = last.error, None if last.error else last.text or _in_place_of_text(last.parts)
    elif not calls or (streamed and _calls_at_its_end(events)):
        problem = f"no final response among the {len(items)} events of the agent"
    if not problem and not text and not calls:
        problem = "the final response of the agent is empty"
    return Run(
        text=text or None,
        calls=calls,
        remarks=tuple(_remarks(events, last)),
        usage=sum((event.usage for event in events), Usage()),
        problem=problem,
        author=last.author if last else events[-1].author if events else _UNNAMED,
        model_calls=sum(event.of_a_model for event in events) or None,
    )


def _remarks(events: Sequence[_Event], reply: _Event | None) -> Iterator[Remark]:
    """What was said on the way to the reply, each with how many calls came in events before it."""
    calls = 0
    for event in events:
        if event is not reply and event.text:
            yield Remark(event.author, event.text, calls)
        calls += sum(part.get("functionCall") is not None for part in event.parts)


def _calls_at_its_end(events: Sequence[_Event]) -> bool:
    return any(part.get("functionCall") is not None for part in events[-1].parts)


def _final(events: Sequence[_Event]) -> _Event | None:
    """The event with the reply: of the final ones the last, but one with text before one without."""
    chosen: _Event | None = None
    for event in events:
        if event.final and (event.error or event.text or chosen is None or not chosen.text):
            chosen = event
    return chosen


def _event(item: Any) -> _Event | None:
    """The event; None for a piece of a later one, and for what the user has said."""
    if not isinstance(item, Mapping):
        raise AgentError(f"an event of the agent is not a JSON object: {shown(item)}")
    author = item.get("author") or _UNNAMED
    if not isinstance(author, str):
        raise AgentError(f"the `author` of an event of the agent is not a text: {shown(author)}")
    error = _error(item)
    if author.lower() == _USER or (item.get("partial") is True and not error):
        return None
    parts = _parts(item)
    final = error is not None or _is_final(item, parts)
    of_a_model = isinstance(item.get("usageMetadata"), Mapping) or isinstance(item.get("modelVersion"), str)
    return _Event(author, parts, final, _usage(item), error, of_a_model)


def _error(event: Mapping[str, Any]) -> str | None:
    values = [event.get(key) for key in ("errorCode", "errorMessage", "error")]
    problems = [shown(value) for value in values if value]
    return f"the agent reports an error: {': '.join(problems)}" if problems else None


def _is_final(event: Mapping[str, Any], parts: Sequence[Part]) -> bool:
    if not parts:
        return False
    actions = event.get("actions")
    if event.get("longRunningToolIds") or (isinstance(actions, Mapping) and actions.get("skipSummarization")):
        return True
    if any(part.get(kind) is not None for part in parts for kind in ("functionCall", "functionResponse")):
        return False
    return parts[-1].get("codeExecutionResult") is None


def _parts(event: Mapping[str, Any]) -> tuple[Part, ...]:
    content = event.get("content") or {}
    parts = content.get("parts") if isinstance(content, Mapping) else content
    if parts is None:
        return ()
    if not isinstance(parts, list) or not all(isinstance(part, Mapping) for part in parts):
        raise AgentError(f"the `content` of an event of the agent has no list of parts: {shown(content)}")
    for part in parts:
        if not isinstance(part.get("text") or "", str):
            raise AgentError(f"the `text` of an event of the agent is not a text: {shown(part)}")
    return tuple(parts)


def _in_place_of_text(parts: Iterable[Part]) -> str:
    """A reply without text, shown: a tool's answer that no model sums up, or what kind of thing it is."""
    return "\n".join(
        shown(part["functionResponse"].get("response"))
        if part.get("functionResponse") is not None
        else f"[{next(iter(part), 'nothing')}]"
        for part in parts
        if not part.get("thought") and "text" not in part
    )


def _calls(events: Sequence[_Event], turn_index: int) -> tuple[ToolCall, ...]:
    """The calls in order, each with its response: by id, or the next of that name where ids are missing.

    The calls of one event are of one message.
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

    asked = [calls for event in events if (calls := _functions(event.parts, "functionCall"))]
    return tuple(
        ToolCall(
            name=call["name"],
            args=call.get("args"),
            result=result(call),
            mocked=False,
            turn_index=turn_index,
            seen_by=SeenBy.AGENT,
            call_id=call.get("id") or None,
            round=round,
        )
        for round, calls in enumerate(asked)
        for call in calls
    )


def _functions(parts: Sequence[Part], kind: str) -> list[Mapping[str, Any]]:
    functions = [part[kind] for part in parts if part.get(kind) is not None]
    for function in functions:
        name = function.get("name") if isinstance(function, Mapping) else None
        if not isinstance(name, str) or not name:
            raise AgentError(f"a `{kind}` of the agent has no name: {shown(function)}")
        if not isinstance(function.get("id") or "", str):
            raise AgentError(f"the `id` of a `{kind}` of the agent is not a text: {shown(function)}")
    return functions


def _usage(event: Mapping[str, Any]) -> Usage:
    """Tokens that the event reports; whatever is missing or no number counts as 0."""
    reported = event.get("usageMetadata")
    if not isinstance(reported, Mapping):
        return Usage()

    def count(key: str) -> int:
        value = reported.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else 0

    return Usage(count("promptTokenCount"), count("candidatesTokenCount"), count("cachedContentTokenCount"))


def read_reply(
    items: Sequence[Any], turn_index: int, *, latency_ms: float, retries: int = 0, streamed: bool = False
) -> AgentReply:
    """The reply, without the session's state. Raises NoReply, with the calls that were made."""
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
    """The message as a `Content`, in camelCase, which ADK for Python and for TypeScript both read."""
    text = [{"text": message.text}] if message.text or not message.attachments else []
    return {"role": "user", "parts": [*text, *map(_part, message.attachments)]}


def _part(file: Attachment) -> dict[str, Any]:
    name = {"displayName": file.name} if file.name else {}
    if file.uri:
        return {"fileData": {"mimeType": file.mime_type, "fileUri": file.uri, **name}}
    return {"inlineData": {"mimeType": file.mime_type, "data": file.base64, **name}}
