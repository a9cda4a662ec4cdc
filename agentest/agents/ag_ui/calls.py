"""The tool calls and interrupts of one run.

Calls are assembled from stream events and snapshots. Interrupts are the agent's questions to the user and
their answers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Any

from agentest.agents import approvals as graph_questions
from agentest.agents.ag_ui.thread import Wire
from agentest.agents.approvals import Decision
from agentest.agents.json_reader import (
    excerpt,
    is_list_of_objects,
    mapping_at,
    read_any,
    read_arguments,
    read_result,
    text_at,
)
from agentest.agents.protocol_client import agent_call
from agentest.domain.tool_visibility import Approval
from agentest.domain.transcript import ToolCall
from agentest.support.errors import AgentError
from agentest.support.lazy_dataclasses import dataclass

_REASON_FIELDS = ("reason", "message", "feedback", "comment", "response", "answer", "text")
"""Text fields of an answer that take the user's words after a refusal."""


@dataclass(slots=True)
class StreamedCall:
    """One tool call, as far as events have reported it."""

    id: str
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    """The streamed pieces of the arguments."""
    in_snapshot: str | None = None
    """The arguments in the last snapshot of all messages."""
    content: Any = None
    """The reported result, before it is parsed."""
    answered: bool = False
    ended: bool = False
    """True if a TOOL_CALL_END has arrived."""

    @property
    def arguments(self) -> str:
        """The text of the arguments. A snapshot wins: some servers lose the first piece of a stream."""
        streamed = "".join(self.pieces)
        texts = [text for text in (self.in_snapshot, streamed) if text and text.strip()]
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
        result = _read_result(self.content)
        return agent_call(
            self.name, args, turn_index, result=result, problem=problem, error=error, call_id=self.id
        )


def ordered_calls(calls: Sequence[StreamedCall], listed: Sequence[str]) -> list[StreamedCall]:
    """Return the calls in the order in which they were made. Raises AgentError for a call without a name.

    A call reported twice but answered once is one call. `listed` has the call ids of the last snapshot in
    order, also of calls that were not streamed.
    """
    for call in calls:
        if not call.name:
            raise AgentError(
                f"the agent told of a tool call {call.id!r} without its name: expected a TOOL_CALL_START "
                "with `toolCallId` and `toolCallName`"
            )
    keys = [(call.id, call.name, call.arguments) for call in calls]
    distinct_calls = [
        call for at, call in enumerate(calls) if call.answered or keys[at] not in keys[at + 1 :]
    ]
    if not listed:
        return distinct_calls
    by_id: dict[str, list[StreamedCall]] = {}
    for call in distinct_calls:
        by_id.setdefault(call.id, []).append(call)
    # Calls missing in the snapshot follow their predecessor in the stream.
    order, at = list(dict.fromkeys(listed)), 0
    for identifier in by_id:
        if identifier in order:
            at = order.index(identifier) + 1
        else:
            order.insert(at, identifier)
            at += 1
    return [call for identifier in order for call in by_id.get(identifier, ())]


def _read_result(content: Any) -> Any:
    """Parse a result that is a JSON object or list, and join text parts."""
    is_parts = is_list_of_objects(content) and all(isinstance(part.get("text"), str) for part in content)
    return read_result("".join(part["text"] for part in content) if is_parts else content)


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """One question of the agent."""

    id: str | None
    question: str
    value: Any = None
    """The value that a LangGraph graph attached to its question, if any."""
    schema: Mapping[str, Any] | None = None
    """The JSON Schema of the answer, if the agent sent one."""
    call_id: str | None = None
    """The tool call that waits for approval."""
    old: bool = False
    """True if the question came as LangGraph's older event `on_interrupt`."""


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


def old_interrupt(event: Wire) -> Interrupt:
    """Return the question in an event `on_interrupt`. Its value is JSON text or a plain question."""
    value = event.get("value")
    if isinstance(value, str):
        value = read_any(value)
    identifier = text_at(mapping_at(event, "rawEvent"), "id") or None
    return Interrupt(id=identifier, question=_question(value), value=value, old=True)


def _question(value: Any) -> str:
    if value in (None, ""):
        return "The agent asks for approval."
    return graph_questions.question_text([{"value": value}])


def answers(interrupts: Sequence[Interrupt], decision: Decision) -> Wire:
    """Return the request fields that answer the questions: `resume`, or `command` of `forwardedProps`."""
    if interrupts[0].old:
        return {"command": {"resume": _resume(interrupts, decision)}}
    return {
        "resume": [
            {"interruptId": one.id, "status": "resolved", "payload": _payload(one, decision)}
            for one in interrupts
        ]
    }


def approvals(
    interrupts: Sequence[Interrupt], waiting: Sequence[StreamedCall], decision: Decision
) -> dict[str, Approval]:
    """Return the decision about each waiting call, by the call's id."""
    by_name = graph_questions.approvals_of([interrupt.value for interrupt in interrupts], decision)
    calls_to_approve = {call.id: by_name[call.name] for call in waiting if call.name in by_name}
    approval_ids = {interrupt.call_id for interrupt in interrupts if interrupt.value is None}
    approval = Approval.GRANTED if decision.approved else Approval.DENIED
    return {**calls_to_approve, **{call.id: approval for call in waiting if call.id in approval_ids}}


def _resume(interrupts: Sequence[Interrupt], decision: Decision) -> Any:
    return graph_questions.resume(
        [{"value": interrupt.value, "id": interrupt.id} for interrupt in interrupts], decision
    )


def _payload(interrupt: Interrupt, decision: Decision) -> Any:
    if interrupt.schema is not None:
        return _by_schema(interrupt.schema, decision)
    if interrupt.value is not None or interrupt.call_id is None:
        return _resume([interrupt], decision)
    reason = {"reason": decision.words} if decision.words and not decision.approved else {}
    return {"approved": decision.approved, **reason}


def _by_schema(schema: Mapping[str, Any], decision: Decision) -> Any:
    """Return an answer that fits the schema: booleans for the decision, texts for the user's words."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        is_boolean = schema.get("type") == "boolean" or decision.words is None
        return decision.approved if is_boolean else decision.words
    required = schema.get("required") or []
    answer: Wire = {}
    for name, definition in properties.items():
        kind = definition.get("type") if isinstance(definition, Mapping) else None
        if kind == "boolean" and (name in required or not required):
            answer[name] = decision.approved
        elif kind == "string" and decision.words and (name in required or _is_reason(name, decision)):
            answer[name] = decision.words
    return answer


def _is_reason(name: str, decision: Decision) -> bool:
    return name in _REASON_FIELDS and not decision.approved
