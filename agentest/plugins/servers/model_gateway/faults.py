"""The faults of one conversation's model: which request meets which, and what the provider never received."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from agentest.domain.changes import DueFaults, Fault, InjectedFault
from agentest.plugins.servers.model_gateway.wire_form import Json, WireRequest, objects
from agentest.plugins.servers.port import ModelFaults


class ConversationFaults:
    """The faults of one conversation, and what the provider does not know because of them."""

    def __init__(self, settings: ModelFaults) -> None:
        self.hang_s = settings.hang_s
        self._due = DueFaults(settings.faults)
        self._requests = 0
        self._injected: list[InjectedFault] = []
        self._ids: set[str] = set()
        self._unknown: dict[str, tuple[str | None, list[Json]]] = {}
        """Id of an invented response, or of a stored conversation → the response before it, and the items
        that the provider never received."""

    def end_turn(self) -> tuple[InjectedFault, ...]:
        """Return the faults that were injected since the turn before."""
        injected, self._injected = tuple(self._injected), []
        return injected

    def take(self, request: WireRequest) -> tuple[int, Fault | None]:
        """Count a request. Returns its number and its fault."""
        self._requests += 1
        fault = self._due.take(self._requests, frozenset(request.tools))
        if fault is not None:
            self._injected.append(InjectedFault(fault.kind, self._requests))
        return self._requests, fault

    def invent(self, body: Json, answer: Json, ids: Collection[str]) -> None:
        """Remember a request that was answered in the provider's place. `ids`: those of the answer."""
        self._ids.update(ids)
        if "output" not in answer:
            return  # only responses have a history that the provider stores
        items = _items(body)
        items += [{key: value for key, value in item.items() if key != "id"} for item in answer["output"]]
        conversation = _conversation_id(body)
        self._unknown[conversation or str(answer["id"])] = body.get("previous_response_id"), items

    def known_to_provider(self, body: Json) -> Json:
        """Return a request that refers only to what the provider has received, without invented calls.

        Some providers refuse a history in which arguments are broken, or thoughts are missing before a call.
        """
        body = self._resolved(body)
        key = "input" if isinstance(body.get("input"), list) else "messages"
        if not self._ids or not isinstance(body.get(key), list):
            return body
        kept = (self._without_calls(each) for each in objects(body[key]))
        return {**body, key: [each for each in kept if each is not None]}

    def _without_calls(self, message: Json) -> Json | None:
        """Return a message without invented calls and their results; None if nothing else is in it."""
        if not self._ids.isdisjoint((message.get("call_id"), message.get("tool_call_id"))):
            return None
        if message.get("id") in self._ids:
            message = {key: value for key, value in message.items() if key != "id"}
        for key in ("tool_calls", "content"):
            parts = objects(message.get(key))
            left = [part for part in parts if self._ids.isdisjoint((part.get("id"), part.get("tool_use_id")))]
            if len(left) == len(parts):
                continue
            message = {name: value for name, value in message.items() if name != key}
            if left:
                message[key] = left
            elif not message.get("content"):
                return None
        return message

    def _resolved(self, body: Json) -> Json:
        conversation = _conversation_id(body)
        if conversation in self._unknown:
            _, items = self._unknown.pop(conversation)
            return {**body, "input": [*items, *_items(body)]}
        while (before := body.get("previous_response_id")) in self._unknown:
            earlier, items = self._unknown[str(before)]
            body = {**body, "previous_response_id": earlier, "input": [*items, *_items(body)]}
            if earlier is None:
                del body["previous_response_id"]
        return body


def _items(body: Json) -> list[Any]:
    given = body.get("input")
    return [{"role": "user", "content": given}] if isinstance(given, str) else objects(given)


def _conversation_id(body: Json) -> str | None:
    conversation = body.get("conversation")
    known = conversation.get("id") if isinstance(conversation, dict) else conversation
    return known if isinstance(known, str) else None
