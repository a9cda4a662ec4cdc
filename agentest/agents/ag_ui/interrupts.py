"""Interrupts: what the agent asks before it goes on, in two dialects, and how it is answered.

AG-UI 1.0 tells them in the outcome of RUN_FINISHED and is answered by `resume`; LangGraph's older way is an
event CUSTOM `on_interrupt`, answered by `forwardedProps.command.resume`. What a graph asks and is answered is
the same as behind its own server (`agents/graph_questions`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentest.agents import graph_questions
from agentest.agents.ag_ui.calls import Call
from agentest.agents.ag_ui.wire import Wire
from agentest.agents.approvals import Decision
from agentest.agents.reading import read_any, shown
from agentest.domain.tool_visibility import Approval
from agentest.support.errors import AgentError

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
    for name, field in properties.items():
        kind = field.get("type") if isinstance(field, Mapping) else None
        if kind == "boolean" and (name in required or not required):
            answer[name] = decision.approved
        elif kind == "string" and decision.words and (name in required or _is_reason(name, decision)):
            answer[name] = decision.words
    return answer


def _is_reason(name: str, decision: Decision) -> bool:
    return name in _REASONS and not decision.approved
