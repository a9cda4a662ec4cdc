"""The tool calls of one run: put together from pieces, and turned into calls made or asked for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from agentest.agents import approvals as graph_questions
from agentest.agents.ag_ui.thread import Wire
from agentest.agents.approvals import Decision
from agentest.agents.json_reader import read_any, read_arguments, shown
from agentest.domain.messages import ToolRequest
from agentest.domain.tool_visibility import Approval, SeenBy
from agentest.domain.transcript import ToolCall
from agentest.support.errors import AgentError

_CUT_SHORT = "the run ended before it was answered"


@dataclass(slots=True)
class Call:
    """One call as far as it has been told."""

    id: str
    name: str = ""
    pieces: list[str] = field(default_factory=list)
    """Of the arguments, as they were streamed."""
    in_snapshot: str | None = None
    """The arguments as the last list of all messages had them."""
    content: Any = None
    """What it was answered, as it was told."""
    answered: bool = False
    ended: bool = False
    """Whether the agent has written it to its end."""

    @property
    def arguments(self) -> str:
        """The text of the arguments. A snapshot wins: some servers lose the first piece of a stream."""
        streamed = "".join(self.pieces)
        told = [text for text in (self.in_snapshot, streamed) if text and text.strip()]
        return next((text for text in told if _is_object(text)), told[0] if told else "")

    def begin(self, name: str) -> None:
        """A call begins; one that has a name already is told anew, as when an interrupted run goes on."""
        if self.name:
            self.pieces.clear()
        self.name = name

    def list(self, function: Mapping[str, Any]) -> None:
        """Take what a list of all messages says of it."""
        arguments = function.get("arguments")
        self.name, self.in_snapshot = function["name"], arguments if isinstance(arguments, str) else None

    def answer(self, content: Any) -> None:
        self.content, self.answered = content, True

    def requested(self) -> ToolRequest:
        """The call as one that is ours to answer."""
        return ToolRequest(self.id, self.name, self.arguments)

    def made(self, turn_index: int, error: str | None = None) -> ToolCall:
        """The call as one that the agent has made itself; `error` says why it has no result."""
        args, problem = read_arguments(self.arguments)
        return ToolCall(
            name=self.name,
            args=args,
            result=_read_result(self.content),
            mocked=False,
            turn_index=turn_index,
            invalid_arguments=problem,
            error=error,
            seen_by=SeenBy.AGENT,
            call_id=self.id,
        )

    def made_or_begun(self, turn_index: int) -> ToolCall:
        """The call of a run that has failed, perhaps before anybody answered it."""
        return self.made(turn_index, None if self.answered else _CUT_SHORT)


def told_once(calls: Sequence[Call], listed: Sequence[str]) -> list[Call]:
    """The calls as they were made, each once. Raises AgentError for one that never had a name.

    Args:
        calls: in the order in which they were told; one that was told twice and answered once is one call.
        listed: ids in the order of a snapshot, which has what was not streamed in its place.
    """
    for call in calls:
        if not call.name:
            raise AgentError(
                f"the agent told of a tool call {call.id!r} without its name: expected a TOOL_CALL_START "
                "with `toolCallId` and `toolCallName`"
            )
    once = [call for at, call in enumerate(calls) if not _told_again(call, calls[at + 1 :])]
    if not listed:
        return once
    by_id: dict[str, list[Call]] = {}
    for call in once:
        by_id.setdefault(call.id, []).append(call)
    order = _in_order(list(by_id), list(dict.fromkeys(listed)))
    return [call for identifier in order for call in by_id.get(identifier, ())]


def _told_again(call: Call, later: Sequence[Call]) -> bool:
    return not call.answered and any(
        (call.id, call.name, call.arguments) == (other.id, other.name, other.arguments) for other in later
    )


def _in_order(told: Sequence[str], listed: Sequence[str]) -> list[str]:
    """Ids of calls in the order of a snapshot; one that it lacks comes behind its neighbour in the stream."""
    order, at = list(listed), 0
    for identifier in told:
        if identifier in order:
            at = order.index(identifier) + 1
        else:
            order.insert(at, identifier)
            at += 1
    return order


def _is_object(text: str) -> bool:
    return isinstance(read_any(text), Mapping)


def _read_result(content: Any) -> Any:
    """A result, read where it is a JSON object or list; parts of text are joined."""
    if isinstance(content, list) and all(map(_is_text, content)):
        content = "".join(part["text"] for part in content)
    if not isinstance(content, str) or not content.lstrip().startswith(("{", "[")):
        return content
    return read_any(content)


def _is_text(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str)


_REASONS = ("reason", "message", "feedback", "comment", "response", "answer", "text")
"""Names of text fields of an answer that take the user's words."""
_NO_QUESTION = "The agent asks for approval."


@dataclass(frozen=True, slots=True, kw_only=True)
class Interrupt:
    """One question of the agent."""

    id: str | None
    question: str
    value: Any = None
    """What a graph has handed over with its question; None: the agent is none, or handed nothing over."""
    schema: Mapping[str, Any] | None = None
    """The JSON Schema of the answer, where the agent tells one."""
    call_id: str | None = None
    """The tool call that waits for approval."""
    old: bool = False
    """Whether it was told in LangGraph's older way."""


def interrupts_of(outcome: Mapping[str, Any]) -> list[Interrupt]:
    """The questions with which a run has ended. Raises AgentError where there are none."""
    listed = outcome.get("interrupts")
    if not isinstance(listed, list) or not listed or not all(map(_is_interrupt, listed)):
        raise AgentError(
            "the outcome `interrupt` of the agent's run has no list of `interrupts` with an `id` each: "
            f"{shown(outcome)}"
        )
    return [_interrupt(item) for item in listed]


def _is_interrupt(item: Any) -> bool:
    return isinstance(item, Mapping) and isinstance(item.get("id"), str)


def _interrupt(item: Mapping[str, Any]) -> Interrupt:
    value, schema, call_id = _graph_value(item), item.get("responseSchema"), item.get("toolCallId")
    return Interrupt(
        id=item["id"],
        question=_question(item.get("message") or value or item.get("reason")),
        value=value,
        schema=schema if isinstance(schema, Mapping) else None,
        call_id=call_id if isinstance(call_id, str) else None,
    )


def _graph_value(item: Mapping[str, Any]) -> Any:
    for key in ("metadata", "langgraph"):
        found = item.get(key)
        item = found if isinstance(found, Mapping) else {}
    return item.get("raw")


def old_interrupt(event: Wire) -> Interrupt:
    """The question in an event `on_interrupt`, whose value is mostly JSON text."""
    value, raw = event.get("value"), event.get("rawEvent")
    if isinstance(value, str):
        value = read_any(value)  # else it is a question in plain words
    identifier = raw.get("id") if isinstance(raw, Mapping) else None
    return Interrupt(
        id=identifier if isinstance(identifier, str) else None,
        question=_question(value),
        value=value,
        old=True,
    )


def _question(value: Any) -> str:
    return graph_questions.question([{"value": value}]) if value not in (None, "") else _NO_QUESTION


def answers(interrupts: Sequence[Interrupt], decision: Decision) -> Wire:
    """What of a run's request answers the questions: `resume`, or `command` of `forwardedProps`."""
    if interrupts[0].old:
        return {"command": {"resume": _resume(interrupts, decision)}}
    return {"resume": [_entry(one, decision) for one in interrupts]}


def approvals(
    interrupts: Sequence[Interrupt], waiting: Sequence[Call], decision: Decision
) -> dict[str, Approval]:
    """Id of a waiting call → what the answer to the questions decides about it."""
    by_name = graph_questions.approvals_of([one.value for one in interrupts], decision)
    found = {call.id: by_name[call.name] for call in waiting if call.name in by_name}
    asked_for = {one.call_id for one in interrupts if one.value is None}
    word = Approval.GRANTED if decision.approved else Approval.DENIED
    return {**found, **{call.id: word for call in waiting if call.id in asked_for}}


def _resume(asked: Sequence[Interrupt], decision: Decision) -> Any:
    return graph_questions.resume([{"value": one.value, "id": one.id} for one in asked], decision)


def _entry(interrupt: Interrupt, decision: Decision) -> Wire:
    return {"interruptId": interrupt.id, "status": "resolved", "payload": _payload(interrupt, decision)}


def _payload(interrupt: Interrupt, decision: Decision) -> Any:
    if interrupt.schema is not None:
        return _by_schema(interrupt.schema, decision)
    if interrupt.value is not None or interrupt.call_id is None:
        return _resume([interrupt], decision)
    reason = {"reason": decision.words} if decision.words and not decision.approved else {}
    return {"approved": decision.approved, **reason}


def _by_schema(schema: Mapping[str, Any], decision: Decision) -> Any:
    """An answer of the form that the agent asks for: booleans say yes or no, texts are the user's words."""
    properties = schema.get("properties")
    if not isinstance(properties, Mapping):
        says_yes = schema.get("type") == "boolean" or decision.words is None
        return decision.approved if says_yes else decision.words
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
    return name in _REASONS and not decision.approved
