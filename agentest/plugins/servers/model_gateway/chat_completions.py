"""OpenAI's chat completions, which most providers and gateways speak, and Azure's deployments of them."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import field
from typing import Any

from agentest.agents.stream_assembly import StreamedCalls
from agentest.domain.transcript import ARGUMENTS_UNKNOWN, ToolCall
from agentest.plugins.protocols.model_messages import Json, count, entry, objects, texts_of
from agentest.plugins.protocols.response_items import made_so_far
from agentest.plugins.servers.model_gateway import wire_form as wire
from agentest.support.http.sse import Event
from agentest.support.json_text import json_or
from agentest.support.lazy_dataclasses import dataclass

_DONE = "[DONE]"
_EXECUTED = {"search": "web_search", "python": "code_interpreter", "visit": "visit_website"}
"""How Groq names tools that it has run → how it names them in requests."""


class ChatCompletions(wire.WireForm):
    """Requests and answers of chat completions."""

    name = "chat completions"
    finds_calls_in_text = True

    def declared(self, body: Json) -> list[Json]:
        tools = [_function(tool) or tool for tool in objects(body.get("tools"))]
        return [*tools, *objects(body.get("functions"))]

    def facts(self, body: Json, _: str) -> Json:
        choice = body.get("tool_choice")
        unmockable = "it asks for several answers at once (`n`)" if count(body.get("n")) > 1 else None
        if body.get("functions"):
            unmockable = "it offers `functions`, which APIs have replaced by `tools`"
        forced = wire.ANY_TOOL if choice == "required" else _function(choice).get("name")
        return {"forced": forced, "unmockable": unmockable, "written": _written}

    def put_back(self, groups: Iterable[tuple[list[Json], wire.PassedAnswer | None]]) -> Iterator[Json]:
        for [message], answer in groups:
            if answer is None or not answer.hides:
                yield message
                continue
            yield from answer.before
            if _calls_in(message) or not answer.shown.ids:
                yield from (*answer.message, *answer.owed)
                continue
            if answer.owed:  # the framework wrote its calls as text
                calls = _calls_in(answer.message[0])
                hidden = [calls[call.place] for call in answer.hidden_calls]
                yield from ({**answer.message[0], "tool_calls": hidden}, *answer.owed)
            yield message

    def owed(self, results: Sequence[wire.CallResult]) -> list[Json]:
        return [
            {"role": "tool", "tool_call_id": each.call_id, "content": wire.result_text(each)}
            for each in results
        ]

    def message(self, body: Json) -> list[Json]:
        message = {"role": "assistant", "content": None, **entry(_choice(body), "message")}
        # Providers send these with an answer and refuse them in a history.
        return [{key: value for key, value in message.items() if value is not None or key == "content"}]

    def made(self, body: Json) -> Sequence[ToolCall]:
        message, executed = entry(_choice(body), "message"), dict[Any, Json]()
        if not (message.get("executed_tools") or message.get("annotations")):
            return ()
        for place, each in enumerate(objects(message.get("executed_tools"))):  # as of Groq
            kind = str(each.get("type"))
            # A stream shows a call again with its output.
            executed[each.get("index", place)] = {**each, "type": f"{_EXECUTED.get(kind, kind)}_call"}
        calls = [*made_so_far({"output": [*executed.values()]}, 0)]
        noted = objects(message.get("annotations"))  # shows a search only by what it cites
        cited = [each for each in noted if "file" not in each]  # files are those of the request
        if cited and not calls:
            call = wire.provider_call("web_search", None, cited, invalid_arguments=ARGUMENTS_UNKNOWN)
            calls.append(call)
        return calls

    def without(self, body: Json, places: Collection[int]) -> Json:
        choice = _choice(body)
        message = entry(choice, "message")
        calls = [call for place, call in enumerate(_calls_in(message)) if place not in places]
        return {"choices": [{**choice, "message": {**message, "tool_calls": calls}}]}

    def stream(self, request: wire.WireRequest) -> _ChatStream:
        # A client that expects JSON cannot read text that the model wrote before a hidden call.
        structured = entry(request.body, "response_format").get("type", "text") != "text"
        return _ChatStream(request.tools, holds_text=structured)


def _written(body: Json) -> tuple[wire.CallResult, ...]:
    made, seen = (texts_of(each.get("content")) for each in [{}, {}, *objects(body.get("messages"))][-2:])
    if "Calling tools:\n" not in made:  # as smolagents writes them
        return ()
    ids = re.findall(r"'id': '([^']+)'", made.rpartition("Calling tools:\n")[2])
    error = re.search(r"(?:^|\n)Call id: \S+\nError:\n(.*?)(?:\nNow let's retry|$)", seen, re.DOTALL)
    if not (error or "Observation:\n" in seen):
        return ()
    text = seen.partition("Observation:\n")[2].partition("\nNew task:\n")[0].strip()
    text = error[1] if error else text
    lines = text.splitlines()
    results = lines if len(lines) == len(ids) else [text] * len(ids)  # which part is whose, nobody knows
    return tuple(
        wire.CallResult(name="", result=json_or(each, each), call_id=known, failed=error is not None)
        for known, each in zip(ids, results, strict=True)
    )


@dataclass(slots=True)
class _ChatRound:
    calls: StreamedCalls
    head: Json = field(default_factory=dict)
    message: Json = field(default_factory=dict)
    finish: Json | None = None
    usage: Json | None = None
    held: list[Json] = field(default_factory=list)


class _ChatStream(wire.AnswerStream):
    def __init__(self, names: Collection[str], *, holds_text: bool) -> None:
        super().__init__()
        self._names = names
        self._holds_text = holds_text
        self._round = _ChatRound(StreamedCalls(names))
        self._id: str | None = None
        self._has_role = False
        self._last = self._round

    def feed(self, event: Event) -> bytes:
        return b"" if event.data.strip() == _DONE else super().feed(event)

    def take(self, data: Json, event: Event) -> bytes:
        if choices := objects(data.get("choices")):
            # The others of several answers pass as they are, without calls.
            return (
                wire.sse(event.data)
                if choices[0].get("index")
                else self._choice(data, choices[0], event.data)
            )
        if isinstance(data.get("usage"), dict):
            self._round.usage = data
            return b""
        self.told = self.told or "error" in data
        return wire.sse(event.data)

    def _choice(self, chunk: Json, choice: Json, data: str) -> bytes:
        now = self._round
        now.head = now.head or chunk
        delta = entry(choice, "delta")
        self._id = self._id or chunk.get("id")
        _collect(now, delta)
        shown = {key: value for key, value in delta.items() if key != "tool_calls"}
        if self._has_role:
            shown.pop("role", None)
        if self._holds_text and shown.get("content"):
            now.held.append(_chunk(chunk, choice, {"content": shown.pop("content")}, self._id))
        if choice.get("finish_reason"):
            now.finish = chunk
            if chunk.get("usage"):
                now.usage = now.usage or {**chunk, "choices": []}
        self.text += texts_of(shown.get("content"))
        if not shown:  # a filter of Azure has no delta at all
            return b"" if "delta" in choice or choice.get("finish_reason") else wire.sse(data)
        self._has_role = self._has_role or "role" in shown
        if shown == delta and chunk.get("id") == self._id and not choice.get("finish_reason"):
            return wire.sse(data)
        return wire.sse(_chunk(chunk, choice, shown, self._id))

    def round(self) -> Json:
        now = self._round
        if now.finish is None:
            raise wire.CutStream(wire.CUT)
        if now.calls.has_doubtful_name:
            raise ValueError("a name of a call without an id came in pieces, which may be two calls")
        message = {"role": "assistant", "content": None, **now.message}
        if calls := now.calls.calls:
            message["tool_calls"] = calls
        head = {key: value for key, value in now.head.items() if key not in ("choices", "usage")}
        choice = objects(now.finish["choices"])[0]
        body = {
            **head,
            "object": "chat.completion",
            "choices": [{"index": 0, "message": message, "finish_reason": choice.get("finish_reason")}],
        }
        if now.usage:
            body["usage"] = now.usage["usage"]
        self._last, self._round = now, _ChatRound(StreamedCalls(self._names))
        return body

    def end(self, shown: Json, _: Sequence[wire.ModelCall]) -> bytes:
        finish, choice = self._last.finish or {}, objects(shown.get("choices"))[0]
        events = [wire.sse(chunk) for chunk in self._last.held]
        if calls := _calls_in(choice["message"]):
            delta = {"tool_calls": [{"index": index, **call} for index, call in enumerate(calls)]}
            events.append(
                wire.sse(_chunk(self._last.head, {"index": 0, "finish_reason": None}, delta, self._id))
            )
        if self._holds_text:
            self.text = texts_of(choice["message"].get("content"))
        last = {**objects(finish.get("choices"))[0], "finish_reason": choice["finish_reason"]}
        events.append(
            wire.sse(
                _chunk({**finish, "usage": finish.get("usage") and shown.get("usage")}, last, {}, self._id)
            )
        )
        if self._last.usage and not finish.get("usage"):
            events.append(wire.sse({**self._last.usage, "id": self._id, "usage": shown["usage"]}))
        return b"".join([*events, wire.sse(_DONE)])

    def error(self, message: str) -> bytes:
        return wire.sse(ChatCompletions().error(500, message)) + wire.sse(_DONE)


def _chunk(chunk: Json, choice: Json, delta: Json, answer_id: str | None) -> Json:
    changed = {**chunk, "id": answer_id, "choices": [{**choice, "delta": delta}]}
    if changed.get("usage", 0) is None:
        del changed["usage"]
    return changed


def _collect(now: _ChatRound, delta: Json) -> None:
    for key, value in delta.items():
        if key == "tool_calls":
            now.calls.add(objects(value))
        elif isinstance(value, (str, list)) and key != "role" and type(now.message.get(key)) is type(value):
            now.message[key] += value
        elif value is not None:
            now.message[key] = value


def _calls_in(message: Json) -> list[Json]:
    return objects(message.get("tool_calls"))


def _choice(body: Json) -> Json:
    return next(iter(objects(body.get("choices"))), {})


def _function(value: Any) -> Json:
    return entry(value, "function") or entry(value, "custom")
