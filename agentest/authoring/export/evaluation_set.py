"""Conversations as an evaluation set of ADK."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import TypeAdapter

from agentest.adk.formats.model import EvalCase, EvalSet, Invocation
from agentest.authoring.export.selection import Held
from agentest.store.invocations import turn_invocation

_INVOCATION: TypeAdapter[Invocation] = TypeAdapter(Invocation)


def evaluation_set(held: Sequence[Held], eval_set_id: str, created: float) -> EvalSet:
    """A case for every conversation, known by its id, with an invocation for every turn.

    Cases have no `session_input`: where an agent keeps its sessions is not known from what it said.
    """
    return EvalSet(eval_set_id, tuple(_case(each, created) for each in held), creation_timestamp=created)


def _case(held: Held, created: float) -> EvalCase:
    conversation = held.conversation
    invocations = [
        turn_invocation(turn, f"{conversation.conversation_id}-{turn.turn_index}")
        for turn in conversation.turns
    ]
    return EvalCase(
        conversation.conversation_id,
        tuple(_invocation(each, created) for each in invocations),
        creation_timestamp=created,
        agentest=held.own,
    )


def _invocation(data: dict[str, Any], created: float) -> Invocation:
    return _INVOCATION.validate_python({**data, "creationTimestamp": created})
