"""OpenAI's responses, with the history in the request or stored by the provider."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

from agentest.domain.messages import ToolResult
from agentest.domain.transcript import ToolCall
from agentest.plugins.protocols.model_messages import (
    CLIENT_TOOLS,
    Json,
    count,
    entry,
    objects,
    read_message,
    texts_of,
)
from agentest.plugins.protocols.response_items import made_so_far, output_item
from agentest.plugins.servers.model_gateway import wire_form as wire
from agentest.support.http.sse import Event
from agentest.support.lazy_dataclasses import dataclass

_ENCRYPTED = "reasoning.encrypted_content"
_CONTENT = "encrypted_content"
_BEGIN = ("response.created", "response.in_progress", "response.queued")
_CALLS = ("function_call", "custom_tool_call", *CLIENT_TOOLS)
_OUTPUTS = tuple(f"{kind}_output" for kind in _CALLS)
_CALL_EVENTS = tuple(f"response.{kind}_" for kind in _CALLS)
_END = ("response.completed", "response.incomplete")
_MODELS_OWN = ("message", "reasoning", "compaction", "function_call", "custom_tool_call")
"""Types of items of which no tool of the provider is a part."""


class Responses(wire.WireForm):
    """Requests and answers of Responses."""

    name = "responses"
    history_key = "input"
    previous_at = ("previous_response_id",)
    effort_key = "reasoning"
    token_keys = ("input_tokens", "output_tokens", "total_tokens")

    def facts(self, body: Json, _: str) -> Json:
        choice = body.get("tool_choice")
        stored = (*filter(None, (body.get("previous_response_id"), conversation_id(body))),)
        return {
            "named": stored,
            "forced": wire.ANY_TOOL if choice == "required" else entry(body, "tool_choice").get("name"),
            "chained": bool(stored),
            "stored_tools": bool(body.get("prompt")),
            "unmockable": "it runs in the background" if body.get("background") else None,
        }

    def ids_of(self, body: Json) -> Iterable[str]:
        return filter(None, (body.get("id"), conversation_id(body)))

    def made(self, body: Json) -> Sequence[ToolCall]:
        items = objects(body.get("output"))
        if all(item.get("type") in _MODELS_OWN for item in items):
            return ()
        named = [{**item, "name": item.get("name") or "mcp"} for item in items]
        return made_so_far({**body, "output": named}, 0)

    def is_of_model(self, message: Json) -> bool:
        if message.get("role") is not None:
            return bool(message["role"] == "assistant")
        return not str(message.get("type")).endswith("_output")

    def completed(self, request: wire.WireRequest, answers: Sequence[wire.PassedAnswer]) -> Json:
        body = request.body
        if request.chained or isinstance(body.get("input"), list):
            body = super().completed(request, answers)
        included = body.get("include") or []
        if body.get("store") is False and _ENCRYPTED not in included:
            # Without it, the provider cannot read its own reasoning in the next round.
            body = {**body, "include": [*included, _ENCRYPTED]}
        return body

    def following(self, body: Json, answer_id: Any) -> Json | None:
        return super().following(body, answer_id) or (body if conversation_id(body) else None)

    def owed(self, results: Sequence[wire.CallResult]) -> list[Json]:
        texts = [ToolResult(each.call_id or "", each.name, wire.result_text(each)) for each in results]
        return [output_item(text, {"type": each.kind}) for text, each in zip(texts, results, strict=True)]

    def put_back(self, groups: Iterable[tuple[list[Json], wire.PassedAnswer | None]]) -> Iterator[Json]:
        for group, answer in groups:
            if answer is not None and answer.hides:
                others = (item for item in group if not self.is_of_model(item))
                yield from (*answer.before, *answer.message, *answer.owed, *others)
            else:
                # Reasoning may not stand without the calls that followed it.
                forgotten = {item.get("id") for item in (answer.before if answer else ())}
                yield from (item for item in group if item.get("id", "") not in forgotten)

    def grouped(self, messages: Sequence[Json], answers: Sequence[wire.PassedAnswer]) -> list[list[Json]]:
        groups: list[list[Json]] = []
        current = None
        for item in messages:
            owner = _owner(item, answers) if self.is_of_model(item) else None
            if owner is None and current and item.get("role") == "assistant":  # it may have lost its id
                owner = current if read_message(item).text == current.shown.text else None
            if groups and current is not None and (owner is current or _is_result(item)):
                groups[-1].append(item)
                continue
            current = owner
            groups.append([item])
        return groups

    def message(self, body: Json) -> list[Json]:
        if body.get("status") in ("queued", "in_progress") and not body.get("output"):
            raise ValueError("the answer is not finished, so its calls could not be seen")
        return objects(body.get("output"))

    def shown(
        self,
        request: wire.WireRequest,
        answer: wire.WireAnswer,
        hidden: Iterable[wire.ModelCall],
        output_tokens: int,
    ) -> Json:
        shown = super().shown(request, answer, hidden, output_tokens)
        asked = _asks_for_encrypted(request.body)
        if "output" in shown:
            shown["output"] = [_without_encrypted(item, asked=asked) for item in objects(shown["output"])]
        return shown

    def without(self, body: Json, places: Collection[int]) -> Json:
        items = objects(body.get("output"))
        return {"output": [item for place, item in enumerate(items) if place not in places]}

    def stream(self, request: wire.WireRequest) -> _ResponseStream:
        return _ResponseStream(asks_for_encrypted=_asks_for_encrypted(request.body))


@dataclass(slots=True)
class _ResponseRound:
    items: dict[int, Json] = field(default_factory=dict)
    final: Json | None = None
    places: dict[tuple[int, Any], int] = field(default_factory=dict)
    """Index and id of an item → its place. The last item with an index is there without its id, too."""
    passed: dict[int, int] = field(default_factory=dict)
    """Places of items that the agent received as they came → their index for the agent."""
    held: list[tuple[int, Json]] = field(default_factory=list)
    """Places of items, from the first call on, with events that wait for the end of the answer."""

    def place(self, data: Json) -> int:
        """Return the place of an event's item. Some servers send one index for all items, or none."""
        index, item = count(data.get("output_index")), entry(data, "item")
        known = str(item.get("id") or data.get("item_id"))
        place = self.places.get((index, known), self.places.get((index, None)))
        done = self.items.get(-1 if place is None else place, {})
        follows = bool(done) and (item != done if item else known != str(done.get("id")))
        if place is None or follows or data.get("type") == "response.output_item.added":
            taken = {*self.places.values(), *self.items}
            place = index if index not in taken else max(taken) + 1
            self.places[index, known] = self.places[index, None] = place
        return place


class _ResponseStream(wire.AnswerStream):
    def __init__(self, *, asks_for_encrypted: bool) -> None:
        super().__init__()
        self._asked = asks_for_encrypted
        self._round, self._last = _ResponseRound(), _ResponseRound()
        self._id: str | None = None  # the id that the agent knows the answer by
        self._items: list[Json] = []
        self._calls: Collection[int] = ()  # the places of calls among them that the provider has not answered
        self._shown: list[Json] = []
        """The items that the agent has received of the rounds before it, whose calls were all hidden."""
        self._indices = 0
        self._number = 0

    def take(self, data: Json, event: Event) -> bytes:
        kind = data.get("type")
        if kind in _BEGIN:
            response_id = entry(data, "response").get("id")
            if self._id is None and response_id:
                self._id = response_id
                self.ids.append(response_id)
            held = self._released(self._calls)
            return held + (self._sent(data, event.data) if response_id == self._id else b"")
        if kind in _END:
            self._round.final = data
            return b""
        if not {"output_index", "item_id", "item"}.isdisjoint(data):
            return self._of_item(str(kind), data, event.data)
        self.told = self.told or kind in ("error", "response.failed")
        return self._sent(data, event.data)

    def _of_item(self, kind: str, data: Json, given: str) -> bytes:
        now, item = self._round, entry(data, "item")
        place = now.place(data)
        if kind == "response.output_item.done":
            now.items[place] = item
        if kind == "response.output_text.delta":
            self.text += texts_of(data.get("delta"))
        if item and not self._asked:
            data, given = {**data, "item": _without_encrypted(item, asked=False)}, ""
        if place not in now.passed:
            if now.held or _is_call(item) or kind.startswith(_CALL_EVENTS):
                now.held.append((place, data))
                return b""
            now.passed[place] = self._indices
            self._indices += 1
        if data.get("output_index") != now.passed[place]:
            data, given = {**data, "output_index": now.passed[place]}, ""
        return self._sent(data, given)

    def _released(self, hidden: Collection[int]) -> bytes:
        held, self._last.held = self._last.held, []
        events, self._indices = wire.released(held, hidden, self._indices, "output_index")
        return b"".join(map(self._sent, events))

    def _sent(self, data: Json, given: str = "") -> bytes:
        if "sequence_number" in data:
            if data["sequence_number"] != self._number:
                data, given = {**data, "sequence_number": self._number}, ""
            self._number += 1
        return wire.sse(given or data, data.get("type"))

    def round(self) -> Json:
        now = self._round
        if now.final is None:
            raise wire.CutStream(wire.CUT)
        response = entry(now.final, "response")
        self._shown += [item for place, item in enumerate(self._items) if place not in self._calls]
        items, given = [item for _, item in sorted(now.items.items())], objects(response.get("output"))
        # Some servers leave items out at the end, which changes the places of the others.
        whole = sum(map(_is_call, items)) >= max(1, sum(map(_is_call, given)))
        self._items = items if whole or not given else given
        calls = {place for place, item in enumerate(self._items) if _is_call(item)}
        if any(
            str(data.get("type")).startswith(_CALL_EVENTS[:2]) and at not in calls for at, data in now.held
        ):
            raise ValueError("events of a call came, but not the call")
        answered = {item.get("call_id") for item in self._items if _is_result(item)}
        self._calls = {place for place in calls if self._items[place].get("call_id") not in answered}
        others = (item for place, item in enumerate(self._items) if place not in self._calls)
        self.ids += [known for item in others for known in read_message(item).ids]
        self._last, self._round = now, _ResponseRound()
        return {**response, "output": self._items}

    def end(self, shown: Json, hidden: Sequence[wire.ModelCall]) -> bytes:
        held = self._released({call.place for call in hidden})
        items = [*self._shown, *objects(shown.get("output"))]
        output = [_without_encrypted(item, asked=self._asked) for item in items]
        response = {**shown, "id": self._id or shown.get("id"), "output": output}
        return held + self._sent({**(self._last.final or {}), "response": response})

    def error(self, message: str) -> bytes:
        error = {"type": "error", "code": "agentest_gateway", "message": message, "param": None}
        return self._sent({**error, "sequence_number": 0})


def conversation_id(body: Json) -> str | None:
    """Return the id of the conversation that a request or a response names."""
    conversation = body.get("conversation")
    known = conversation.get("id") if isinstance(conversation, dict) else conversation
    return known if isinstance(known, str) else None


def _is_call(item: Json) -> bool:
    return item.get("type") in _CALLS


def _is_result(item: Json) -> bool:
    return item.get("type") in _OUTPUTS


def _asks_for_encrypted(body: Mapping[str, Any]) -> bool:
    return body.get("store") is not False or _ENCRYPTED in (body.get("include") or [])


def _without_encrypted(item: Json, *, asked: bool) -> Json:
    return item if asked else {key: value for key, value in item.items() if key != _CONTENT}


def _owner(item: Json, answers: Sequence[wire.PassedAnswer]) -> wire.PassedAnswer | None:
    ids = set(read_message(item).ids)
    return next((each for each in answers if not ids.isdisjoint(each.shown.ids)), None)
