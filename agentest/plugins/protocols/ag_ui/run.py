"""One run of an AG-UI agent, assembled from its events in any order: messages, calls and interrupts.

Interrupts are the agent's questions to the user and their answers.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import field
from typing import Any

from agentest.agents.json_reader import (
    excerpt,
    is_list_of_objects,
    mapping_at,
    objects_at,
    read_any,
    read_arguments,
    reported_usage,
    text_at,
)
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import ToolCall, Usage
from agentest.plugins.protocols import approvals as graph_questions
from agentest.plugins.protocols.ag_ui.thread import (
    AgUiState,
    Thread,
    Wire,
    call_wire,
    calls_of,
    late_call_ids,
    new_id,
)
from agentest.plugins.protocols.approvals import Decision
from agentest.plugins.protocols.protocol_client import agent_call, read_tool_result
from agentest.support.errors import AgentError
from agentest.support.lazy_dataclasses import dataclass

_REASON_FIELDS = ("reason", "message", "feedback", "comment", "response", "answer", "text")
_IGNORED = re.compile("(STEP|REASONING|THINKING|ACTIVITY|SUBAGENT)_|RAW|RUN_STARTED|TEXT_MESSAGE_END")
"""Beginnings of event types that do not change reply, calls or state."""
REPORTED_ERROR_PREFIX = "the agent reports an error"  # the beginning of errors that the agent reports
_MAX_ENTRIES = 2000
"""The limit for messages and calls in one run. Real agents have tens; more would only use up time."""
_ROLES = ("assistant", "user", "system", "developer")


@dataclass(slots=True)
class StreamedCall:
    """One tool call, as far as events have reported it."""

    id: str
    name: str = ""
    pieces: list[str] = field(default_factory=list)  # the streamed pieces of the arguments
    in_snapshot: str | None = None  # the arguments in the last snapshot of all messages
    content: Any = None  # the reported result, before it is parsed
    answered: bool = False
    ended: bool = False  # True if a TOOL_CALL_END has arrived

    @property
    def arguments(self) -> str:
        """The text of the arguments. A snapshot wins: some servers lose the first piece of a stream."""
        texts = [text for text in (self.in_snapshot, "".join(self.pieces)) if text and text.strip()]
        return next(
            (text for text in texts if isinstance(read_any(text), Mapping)), texts[0] if texts else ""
        )

    def begin(self, name: str) -> None:
        """Start the call. A call that already has a name starts again, as after an interrupted run."""
        if self.name:
            self.pieces.clear()
        self.name = name

    def answer(self, content: Any) -> None:
        """Store the call's reported result."""
        self.content, self.answered = content, True

    def made(self, turn_index: int, error: str | None = None) -> ToolCall:
        """Return the call as one that the agent made; `error` explains a missing result."""
        args, problem = read_arguments(self.arguments)
        return agent_call(
            name=self.name,
            args=args,
            turn_index=turn_index,
            result=read_tool_result(self.content),
            invalid_arguments=problem,
            error=error,
            call_id=self.id,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """One question of the agent."""

    id: str | None
    question: str
    value: Any = None  # the value that a LangGraph graph attached to its question, if any
    schema: Mapping[str, Any] | None = None  # the JSON Schema of the answer, if the agent sent one
    call_id: str | None = None  # the tool call that waits for approval
    old: bool = False  # True if the question came as LangGraph's older event `on_interrupt`

    @property
    def of_graph(self) -> Mapping[str, Any]:
        """The interrupt as LangGraph sends it."""
        return {"id": self.id, "value": self.value}


def interrupts_of(outcome: Mapping[str, Any]) -> list[Interrupt]:
    """Return the questions with which a run has ended. Raises AgentError if there are none."""
    listed = outcome.get("interrupts")
    if not listed or not is_list_of_objects(listed) or not all(isinstance(i.get("id"), str) for i in listed):
        raise AgentError(
            "the outcome `interrupt` of the agent's run has no list of `interrupts` with an `id` each: "
            f"{excerpt(outcome)}"
        )
    return [_interrupt(item) for item in listed]


def _interrupt(item: Mapping[str, Any]) -> Interrupt:
    value = mapping_at(mapping_at(item, "metadata"), "langgraph").get("raw")
    schema = item.get("responseSchema")
    return Interrupt(
        id=item["id"],
        question=_question(item.get("message") or value or item.get("reason")),
        value=value,
        schema=schema if isinstance(schema, Mapping) else None,
        call_id=text_at(item, "toolCallId") or None,
    )


def _question(value: Any) -> str:
    if value in (None, ""):
        return "The agent asks for approval."
    return graph_questions.question_text([{"value": value}])


def asked_tools(interrupts: Sequence[Interrupt], waiting: Sequence[StreamedCall]) -> list[str | None]:
    """Return the tools that the questions are about, with None for a question about something else."""
    return [tool for one in interrupts for tool in _tools_of(one, waiting)]


def _tools_of(interrupt: Interrupt, waiting: Sequence[StreamedCall]) -> list[str | None]:
    if interrupt.value is not None:
        return graph_questions.asked_tools([interrupt.of_graph])
    return [call.name for call in waiting if call.id == interrupt.call_id] or [None]


def answers(interrupts: Sequence[Interrupt], waiting: Sequence[StreamedCall], decision: Decision) -> Wire:
    """Return the request fields that answer the questions: `resume`, or `command` of `forwardedProps`."""
    if interrupts[0].old:
        return {"command": {"resume": graph_questions.resume([one.of_graph for one in interrupts], decision)}}
    return {
        "resume": [
            {
                "interruptId": one.id,
                "status": "resolved",
                "payload": _payload(one, decision.about(_tools_of(one, waiting)[0])),
            }
            for one in interrupts
        ]
    }


def approvals(
    interrupts: Sequence[Interrupt], waiting: Sequence[StreamedCall], decision: Decision
) -> dict[str, Approval]:
    """Return the decision about each waiting call, by the call's id."""
    by_name = graph_questions.approvals_of([interrupt.of_graph for interrupt in interrupts], decision)
    calls_to_approve = {call.id: by_name[call.name] for call in waiting if call.name in by_name}
    approval_ids = {interrupt.call_id for interrupt in interrupts if interrupt.value is None}
    of_calls = {
        call.id: Approval.GRANTED if decision.about(call.name).approved else Approval.DENIED
        for call in waiting
        if call.id in approval_ids
    }
    return {**calls_to_approve, **of_calls}


def _payload(interrupt: Interrupt, decision: Decision) -> Any:
    if interrupt.schema is not None:
        properties = interrupt.schema.get("properties")
        if not isinstance(properties, Mapping):
            is_boolean = interrupt.schema.get("type") == "boolean" or decision.words is None
            return decision.approved if is_boolean else decision.words
        required = interrupt.schema.get("required") or []
        answer: Wire = {}
        for name, definition in properties.items():
            kind = definition.get("type") if isinstance(definition, Mapping) else None
            is_reason = name in _REASON_FIELDS and not decision.approved
            if kind == "boolean" and (name in required or not required):
                answer[name] = decision.approved
            elif kind == "string" and decision.words and (name in required or is_reason):
                answer[name] = decision.words
        return answer
    if interrupt.value is not None or interrupt.call_id is None:
        return graph_questions.resume([interrupt.of_graph], decision)
    reason = {"reason": decision.words} if decision.words and not decision.approved else {}
    return {"approved": decision.approved, **reason}


class AgUiRun:
    """Takes the events of one run and applies them to the thread and the state."""

    def __init__(
        self,
        thread: Thread,
        state: AgUiState,
        waiting: Sequence[StreamedCall] = (),
        settled: AbstractSet[str] = frozenset(),
    ) -> None:
        """Start a run that adds to the thread and the state.

        Calls in `waiting` have no result yet; calls with ids in `settled` need no further handling.
        """
        thread.begin_run()
        self.thread = thread
        self.finished = False
        self.spoke = False  # True once some text of a reply has arrived
        self.interrupts: list[Interrupt] = []
        self.usage = Usage()
        self.result: Any = None
        self.pending: frozenset[str] = frozenset()
        """Ids of calls that the agent reports as waiting for Agentest; empty if it reports none."""
        self.subagents: dict[str, str] = {}
        self.late: set[str] = set()
        """Ids of calls of earlier runs that first appear in a snapshot of this run."""
        self._settled = settled
        self._calls: list[StreamedCall] = list(waiting)
        self._latest: dict[str, StreamedCall] = {call.id: call for call in waiting}
        self._listed: list[str] = []  # ids of the calls in the last snapshot
        self._roles: dict[str, str] = {}
        self._texts: dict[tuple[str, str], list[str]] = {}
        self._dropped: list[Wire] = []  # streamed messages that are missing from a later snapshot
        self._chunk: str | None = None
        self._chunk_call: str | None = None
        self._handlers: Mapping[str, Callable[[Wire], None]] = {
            "TEXT_MESSAGE_START": self._start_text,
            "TEXT_MESSAGE_CONTENT": self._add_text,
            "TEXT_MESSAGE_CHUNK": self._text_chunk,
            "REASONING_MESSAGE_CONTENT": lambda event: self._add_text(event, "reasoning"),
            "REASONING_ENCRYPTED_VALUE": self._store_encrypted,
            "TOOL_CALL_START": self._start_call,
            "TOOL_CALL_ARGS": self._add_arguments,
            "TOOL_CALL_END": self._end_call,
            "TOOL_CALL_CHUNK": self._call_chunk,
            "TOOL_CALL_RESULT": self._add_result,
            "MESSAGES_SNAPSHOT": self._take_snapshot,
            "STATE_SNAPSHOT": lambda event: state.take_snapshot(event.get("snapshot")),
            "STATE_DELTA": lambda event: state.take_delta(event.get("delta")),
            "SUBAGENT_STARTED": self._name_subagent,
            "CUSTOM": self._take_interrupt,
            "RUN_FINISHED": self._finish,
            "RUN_ERROR": self._fail,
        }

    def take(self, event: Wire) -> bool:
        """Apply one event and return whether its type is known. Raises AgentError for invalid events."""
        kind = str(event.get("type", ""))
        handler = self._handlers.get(kind)
        if handler is not None:
            handler(event)
            if len(self._calls) + max(len(self._texts), len(self.thread.new)) > _MAX_ENTRIES:
                raise AgentError(f"the agent's run has more than {_MAX_ENTRIES:,} messages and tool calls")
        return handler is not None or _IGNORED.match(kind) is not None

    @property
    def begun(self) -> bool:
        """True once the agent has sent a message or a call."""
        return bool(self._calls or self._texts)

    @property
    def messages(self) -> list[Wire]:
        """The messages of the run, and those that were streamed if a snapshot dropped all texts."""
        self._settle()
        new = self.thread.new
        return new if any(map(_has_text, new)) else [*self._dropped, *new]

    @property
    def calls(self) -> list[StreamedCall]:
        """The calls in the order in which they were made. Raises AgentError for a call without a name.

        A call reported twice but answered once is one call.
        """
        self._settle()
        for call in self._calls:
            if not call.name:
                raise AgentError(
                    f"the agent reported a tool call {call.id!r} without its name: expected a "
                    "TOOL_CALL_START with `toolCallId` and `toolCallName`"
                )
        keys = [(call.id, call.name, call.arguments) for call in self._calls]
        distinct_calls = [
            call for at, call in enumerate(self._calls) if call.answered or keys[at] not in keys[at + 1 :]
        ]
        if not self._listed:  # the call ids of the last snapshot, also of calls that were not streamed
            return distinct_calls
        by_id: dict[str, list[StreamedCall]] = {}
        for call in distinct_calls:
            by_id.setdefault(call.id, []).append(call)
        # Calls missing in the snapshot follow their predecessor in the stream.
        order, at = list(dict.fromkeys(self._listed)), 0
        for identifier in by_id:
            if identifier in order:
                at = order.index(identifier) + 1
            else:
                order.insert(at, identifier)
                at += 1
        return [call for identifier in order for call in by_id.get(identifier, ())]

    def went_on_after(self, call: StreamedCall) -> bool:
        """Return whether the agent continued after a call without waiting for a result."""
        if call.id in self.late:
            return True
        after = False
        for message in self.messages:
            if after and _has_text(message):
                return True
            after = after or call.id in {listed_call["id"] for listed_call in calls_of(message)}
        return False

    @property
    def seen(self) -> list[StreamedCall]:
        """The calls with a known name, for a run that has failed."""
        return [call for call in self._calls if call.name]

    # Texts

    def _start_text(self, event: Wire) -> None:
        role, identifier = event.get("role") or "assistant", _text(event, "messageId")
        if role not in _ROLES:
            raise AgentError(f"a message of the agent has an unknown `role`: {excerpt(event)}")
        self._roles[identifier] = role
        message = self.thread.message(identifier, role)
        message.update({key: event[key] for key in ("name", "subagentRunId") if event.get(key)})

    def _add_text(self, event: Wire, role: str | None = None) -> None:
        identifier, delta = _text(event, "messageId"), _text(event, "delta")
        role = role or self._roles.get(identifier, "assistant")
        self._pieces(identifier, role).append(delta)
        self.spoke = self.spoke or (role == "assistant" and bool(delta))

    def _text_chunk(self, event: Wire) -> None:
        # Only the first chunk of a message needs an id, and only that of a call an id and a name.
        full_event = {**event, "messageId": event.get("messageId") or self._chunk}
        if _text(full_event, "messageId") != self._chunk:
            self._start_text(full_event)
        self._chunk = full_event["messageId"]
        if event.get("delta"):
            self._add_text(full_event)

    def _store_encrypted(self, event: Wire) -> None:
        for message in self.thread.messages:
            for entry in (message, *calls_of(message)):
                if entry["id"] == event.get("entityId"):
                    entry["encryptedValue"] = event.get("encryptedValue")

    def _pieces(self, identifier: str, role: str) -> list[str]:
        """Return the pieces of a message's text. They are joined on demand, because there may be many."""
        key = (identifier, role)
        if key not in self._texts:
            content = self.thread.message(identifier, role).get("content")
            self._texts[key] = [content] if isinstance(content, str) else []
        return self._texts[key]

    def _settle(self) -> None:
        for (identifier, role), pieces in self._texts.items():
            self.thread.message(identifier, role)["content"] = "".join(pieces)
        for message in self.thread.new:
            for listed_call in calls_of(message):
                known = self._latest.get(listed_call["id"])
                if known is not None and known.name:
                    listed_call["function"] = {"name": known.name, "arguments": known.arguments or "{}"}

    # Calls

    def _call(self, identifier: str) -> StreamedCall:
        return self._latest[identifier] if identifier in self._latest else self._new_call(identifier)

    def _new_call(self, identifier: str) -> StreamedCall:
        self._calls.append(StreamedCall(identifier))
        self._latest[identifier] = self._calls[-1]
        return self._calls[-1]

    def _start_call(self, event: Wire) -> None:
        identifier, name = _text(event, "toolCallId"), _text(event, "toolCallName")
        begun = self._call(identifier)
        if begun.name and (begun.ended or begun.answered):  # some servers reuse ids in every step
            begun = self._new_call(identifier)
        begun.begin(name)
        if not any(one["id"] == identifier for message in self.thread.new for one in calls_of(message)):
            message = self.thread.message(event.get("parentMessageId") or identifier, "assistant")
            message["toolCalls"] = [*calls_of(message), call_wire(identifier, name, "")]
            if event.get("subagentRunId"):
                message.setdefault("subagentRunId", event["subagentRunId"])

    def _add_arguments(self, event: Wire) -> None:
        self._call(_text(event, "toolCallId")).pieces.append(_text(event, "delta"))

    def _end_call(self, event: Wire) -> None:
        self._call(_text(event, "toolCallId")).ended = True

    def _call_chunk(self, event: Wire) -> None:
        full_event = {**event, "toolCallId": event.get("toolCallId") or self._chunk_call}
        self._chunk_call = _text(full_event, "toolCallId")
        if event.get("toolCallName") and event["toolCallName"] != self._call(self._chunk_call).name:
            self._start_call(full_event)
        if event.get("delta"):
            self._add_arguments(full_event)

    def _add_result(self, event: Wire) -> None:
        identifier, content = _text(event, "toolCallId"), event.get("content")
        if identifier in self._settled and identifier not in self._latest:
            return  # the agent repeats a result that Agentest sent
        answered_call = self._call(identifier)
        if not answered_call.answered:
            message = {"id": event.get("messageId") or new_id(), "role": "tool", "toolCallId": identifier}
            self.thread.add({**message, "content": content})
        answered_call.answer(content)

    # Snapshots, interrupts and the end

    def _take_snapshot(self, event: Wire) -> None:
        self._settle()
        known = [call for message in self.thread.messages for call in calls_of(message)]
        before = [message for message in (*self._dropped, *self.thread.new) if _has_text(message)]
        self.thread.replace(event.get("messages"))
        self._texts.clear()
        remaining = {message["id"] for message in self.thread.messages}
        self._dropped = [message for message in before if message["id"] not in remaining]
        self.spoke = self.spoke or any(map(_has_text, self.thread.new))
        self._listed = []
        late = late_call_ids(known, self.thread.earlier)
        for message in self.thread.earlier:
            calls = [call for call in calls_of(message) if call["id"] in late or call["id"] in self.late]
            self.late |= {call["id"] for call in calls}
            if calls or message.get("toolCallId") in self.late:
                self._take_listed({**message, "toolCalls": calls})
        for message in self.thread.new:
            self._take_listed(message)

    def _take_listed(self, message: Wire) -> None:
        for listed_call in calls_of(message):
            if listed_call["id"] in self._latest or listed_call["id"] not in self._settled:
                self._listed.append(listed_call["id"])
                call, function = self._call(listed_call["id"]), listed_call["function"]
                call.name, call.in_snapshot = function["name"], text_at(function, "arguments") or None
        identifier = message.get("toolCallId") if message["role"] == "tool" else None
        if isinstance(identifier, str) and (identifier in self._latest or identifier not in self._settled):
            self._call(identifier).answer(message.get("content"))

    def _name_subagent(self, event: Wire) -> None:
        self.subagents[str(event.get("subagentRunId"))] = str(event.get("name") or "subagent")

    def _take_interrupt(self, event: Wire) -> None:
        if event.get("name") == "on_interrupt":
            # JSON text or a plain question.
            value = event.get("value")
            if isinstance(value, str):
                value = read_any(value)
            identifier = text_at(mapping_at(event, "rawEvent"), "id") or None
            self.interrupts.append(Interrupt(id=identifier, question=_question(value), value=value, old=True))

    def _finish(self, event: Wire) -> None:
        self.finished, self.result = True, event.get("result")
        counts = (reported_usage(model) or Usage() for model in objects_at(event, "usage"))
        self.usage = sum(counts, Usage())
        outcome = event.get("outcome")
        if not isinstance(outcome, Mapping):
            return
        match outcome.get("type"):
            case "cancelled":
                raise AgentError("the agent's run was cancelled (RUN_FINISHED with the outcome `cancelled`)")
            case "interrupt":
                self.interrupts = interrupts_of(outcome)
            case "success":
                listed = outcome.get("pendingToolCallIds")
                self.pending = frozenset(map(str, listed if isinstance(listed, list) else ()))
            case unknown if unknown is not None:
                raise AgentError(
                    "the agent's run ended with an unknown outcome (expected success, interrupt or "
                    f"cancelled): {excerpt(outcome)}"
                )

    def _fail(self, event: Wire) -> None:
        code = f" ({event['code']})" if event.get("code") else ""
        raise AgentError(f"{REPORTED_ERROR_PREFIX}: {excerpt(event.get('message') or event)}{code}")


def _text(event: Wire, key: str) -> str:
    value = event.get(key)
    if not isinstance(value, str) or (not value and key != "delta"):
        raise AgentError(f"a {event.get('type')} of the agent has no `{key}`: {excerpt(event)}")
    return value


def _has_text(message: Wire) -> bool:
    return message["role"] == "assistant" and bool(message.get("content"))
