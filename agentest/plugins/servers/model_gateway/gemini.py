"""Gemini's `generateContent` and `streamGenerateContent`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import field
from typing import Any

from agentest.config.agents.companion_servers import Override
from agentest.plugins.protocols.model_messages import Json, count, entry, inner, objects, read_message
from agentest.plugins.servers.model_gateway import wire_form as wire
from agentest.support.http.sse import Event
from agentest.support.lazy_dataclasses import dataclass

_MODEL = re.compile(r"(?<![^/])([^/]+):\w+(?:\?|$)")
_SIGNATURE = "thoughtSignature"


class Gemini(wire.WireForm):
    """Requests and answers of Gemini."""

    name = "Gemini"
    history_key = "contents"
    identifies_calls = True
    schema_keys = ("parametersJsonSchema", "parameters_json_schema", "parameters")

    def declared(self, body: Json) -> list[Json]:
        return [
            each
            for tool in objects(body.get("tools"))
            for each in objects(tool.get("functionDeclarations", tool.get("function_declarations")))
        ]

    def facts(self, body: Json, path: str) -> Json:
        config = inner(inner(body, "toolConfig"), "functionCallingConfig")
        names = config.get("allowedFunctionNames", config.get("allowed_function_names"))
        allowed = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
        streams = "streamGenerateContent" in path
        forced = allowed[0] if len(allowed) == 1 else wire.ANY_TOOL
        named = _MODEL.search(path)
        unmockable = None
        if streams and "alt=sse" not in path:
            unmockable = "its stream is not a stream of events (`alt=sse`)"
        elif count(inner(body, "generationConfig").get("candidateCount")) > 1:
            unmockable = "it asks for several answers at once (`candidateCount`)"
        elif config.get("streamFunctionCallArguments", config.get("stream_function_call_arguments")):
            unmockable = "it asks for arguments in pieces (`streamFunctionCallArguments`)"
        return {
            "streams": streams,
            "model": named[1] if named else None,
            "forced": forced if config.get("mode") == "ANY" else None,
            "unmockable": unmockable,
        }

    def overridden(self, body: Json, override: Override) -> Json:
        settings = override.settings
        settings.pop("model", None)  # it stands in the address
        if effort := settings.pop("reasoning_effort", None):
            settings["thinkingConfig"] = {"thinkingLevel": effort}
        if not settings:
            return body
        key = "generation_config" if "generation_config" in body else "generationConfig"
        return {**body, key: {**entry(body, key), **settings}}

    def completed(self, request: wire.WireRequest, answers: Sequence[wire.PassedAnswer]) -> Json:
        if not any(answer.hides for answer in answers):
            return request.body
        groups = list(_grouped(objects(request.body.get("contents"))))
        contents: list[Json] = []
        owing: wire.PassedAnswer | None = None
        for group, answer in zip(groups, wire.matched(answers, self.seen(groups, answers)), strict=True):
            if answer is not None and answer.hides:
                contents += [*answer.before, *answer.message]
                owing = answer if answer.owed else None
                continue
            contents += _with_owed(group, owing) if owing else group
            owing = None
        return {**request.body, "contents": contents}

    def in_messages(self, owed: list[Json]) -> list[Json]:
        return [{"role": "user", "parts": owed}]

    def lifted(self, body: Json) -> Json:
        key = "toolConfig" if "toolConfig" in body else "tool_config"
        return {key: {**body[key], "functionCallingConfig": {"mode": "AUTO"}}}

    def owed(self, results: Sequence[wire.CallResult]) -> list[Json]:
        return [
            {
                "functionResponse": {
                    **({"id": each.call_id} if each.call_id else {}),
                    "name": each.name,
                    "response": each.result if isinstance(each.result, dict) else {"result": each.result},
                }
            }
            for each in results
        ]

    def message(self, body: Json) -> list[Json]:
        return [{"role": "model", "parts": _parts(_content(body))}]

    def without(self, body: Json, places: Collection[int]) -> Json:
        content = {**_content(body), "parts": _without(_parts(_content(body)), places)}
        return {"candidates": [{**_candidate(body), "content": content}]}

    def counted(self, usage: Json, output_tokens: int) -> Json:
        output = output_tokens - count(usage.get("thoughtsTokenCount"))
        total = count(usage.get("promptTokenCount")) + output_tokens
        return {"candidatesTokenCount": output, "totalTokenCount": total}

    def stream(self, request: wire.WireRequest) -> _GeminiStream:
        del request
        return _GeminiStream(self)

    def error(self, status: int, message: str) -> Json:
        kind = "FAILED_PRECONDITION" if status < 500 else "UNAVAILABLE"
        return {"error": {"code": status, "message": message, "status": kind}}


@dataclass(slots=True)
class _GeminiRound:
    body: Json = field(default_factory=dict)
    parts: list[Json] = field(default_factory=list)
    held: list[tuple[int, Json]] = field(default_factory=list)


class _GeminiStream(wire.AnswerStream):
    """A streamed answer. The last chunk is kept back, because it carries the reason of the end."""

    def __init__(self, form: Gemini) -> None:
        super().__init__()
        self._form = form
        self._round, self._last = _GeminiRound(), _GeminiRound()
        self._kept: Json | None = None
        self._kept_as = ""  # how it came, if nothing of it has changed
        self._id: Any = None
        self._parts: list[Json] = []

    def take(self, data: Json, event: Event) -> bytes:
        chunk = data
        if "responseId" in data:  # each round has its own, but clients expect one in a stream
            self._id = self._id or data["responseId"]
            chunk = {**data, "responseId": self._id}
        others = "candidates" in chunk and _candidate(chunk).get("index")
        if others or ("candidates" not in chunk and (_blocked(chunk) or "usageMetadata" not in chunk)):
            self._round.body = {**self._round.body, **chunk} if _blocked(chunk) else self._round.body
            self.told = self.told or "error" in chunk
            return wire.sse(event.data)
        parts = _parts(_content(chunk))
        before = len(self._round.parts)
        self._round.parts += parts
        self._round.body = {**self._round.body, **chunk}
        late = [part for _, part in self._last.held if not inner(part, "functionCall")]
        self._last.held = []
        shown = [*late, *(part for place, part in enumerate(parts, before) if not self._holds(place, part))]
        if not shown:
            return b""
        chunk = _chunk(chunk, shown)
        return self._keep(chunk, shown, event.data if chunk == data else "")

    def _holds(self, place: int, part: Json) -> bool:
        held = self._round.held
        if held or inner(part, "functionCall"):
            held.append((place, part))
        return bool(held)

    def _keep(self, chunk: Json, parts: Sequence[Json], given: str = "") -> bytes:
        kept = self._kept_as or self._kept
        self._kept, self._kept_as = chunk, given
        self._parts += parts
        return wire.sse(kept) if kept else b""

    def _note_passed(self) -> None:
        read = read_message({"parts": self._parts})
        self.text, self.ids = self._form.text_of(read.parts), list(read.ids)

    def round(self) -> Json:
        now = self._round
        if not _candidate(now.body).get("finishReason") and not _blocked(now.body):
            raise wire.CutStream(told=self.told)
        self._last, self._round = now, _GeminiRound()
        self._note_passed()
        if not _candidate(now.body):
            return now.body
        return _chunk(now.body, now.parts, last=True)

    def end(self, shown: Json, hidden: Sequence[wire.ModelCall]) -> bytes:
        if not _candidate(shown):
            return wire.sse(self._kept) if self._kept else b""
        parts = [part for _, part in self._last.held]
        answered = {call.place for call in hidden}
        held = _without(parts, {i for i, (place, _) in enumerate(self._last.held) if place in answered})
        before = b""
        if held:
            before = self._keep(_chunk(shown, held), held)
            self._note_passed()
        kept = _parts(_content(self._kept)) if self._kept else [{"text": ""}]
        return before + wire.sse(_chunk(shown, kept, last=True))

    def error(self, message: str) -> bytes:
        return wire.sse(Gemini().error(500, message))


def _candidate(body: Json) -> Json:
    return next(iter(objects(body.get("candidates"))), {})


def _content(body: Json) -> Json:
    return entry(_candidate(body), "content")


def _blocked(body: Json) -> bool:
    """Return True if the API refused the prompt, so that there is no answer."""
    return "blockReason" in entry(body, "promptFeedback")


def _parts(content: Json) -> list[Json]:
    return objects(content.get("parts"))


def _chunk(body: Json, parts: list[Json], *, last: bool = False) -> Json:
    candidate = {**_candidate(body), "content": {**_content(body), "role": "model", "parts": parts}}
    if not last:
        candidate.pop("finishReason", None)
    return {**body, "candidates": [candidate]}


def _grouped(contents: Sequence[Json]) -> Iterable[list[Json]]:
    """Join neighbouring contents of the model, because some clients keep each chunk of a stream as one."""
    group: list[Json] = []
    for content in contents:
        if group and (content.get("role") != "model" or group[-1].get("role") != "model"):
            yield group
            group = []
        group.append(content)
    if group:
        yield group


def _without(parts: Sequence[Json], places: Collection[int]) -> list[Json]:
    signature = next((parts[i].get(_SIGNATURE) for i in sorted(places) if parts[i].get(_SIGNATURE)), None)
    left: list[Json] = []
    for place, part in enumerate(parts):
        if place in places:
            continue
        if signature and inner(part, "functionCall") and _SIGNATURE not in part:
            part, signature = {**part, _SIGNATURE: signature}, None
        left.append(part)
    return left


def _with_owed(group: Sequence[Json], answer: wire.PassedAnswer) -> list[Json]:
    first, *others = group
    parts = _parts(first)
    given = [part for part in parts if inner(part, "functionResponse")]
    rest = [part for part in parts if part not in given]
    hidden, owed = {call.place for call in answer.hidden_calls}, list(answer.owed)
    ordered: list[Json] = []
    for place, part in enumerate(_parts(answer.message[0])):
        if call := inner(part, "functionCall"):
            source = owed if place in hidden else given
            named = next(
                (each for each in source if inner(each, "functionResponse").get("name") == call.get("name")),
                None,
            )
            if named is not None:
                source.remove(named)
                ordered.append(named)
    return [{**first, "parts": [*ordered, *owed, *given, *rest]}, *others]
