"""Gemini's `generateContent` and `streamGenerateContent`."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import field
from itertools import groupby
from typing import Any

from agentest.config.agents.companion_servers import Override
from agentest.domain.transcript import ARGUMENTS_UNKNOWN, ToolCall
from agentest.plugins.protocols.model_messages import Json, count, entry, inner, objects, read_message
from agentest.plugins.servers.model_gateway import wire_form as wire
from agentest.support.http.sse import Event
from agentest.support.lazy_dataclasses import dataclass, replace

_MODEL = re.compile(r"(?<![^/])([^/]+):\w+(?:\?|$)")
_SIGNATURE = "thoughtSignature"
_DECLARED = ("functionDeclarations", "function_declarations")
_GROUNDS = (
    ("google_search", "web", "webSearchQueries"),
    ("google_search", "image", "imageSearchQueries"),
    ("file_search", "retrievedContext", "retrievalQueries"),
    ("google_maps", "maps", ""),
    ("url_context", "retrievedUrl", ""),
)
"""Tool of Google, and what an answer says of its use: the key of its sources, and that of its queries."""
_METADATA = ("groundingMetadata", "urlContextMetadata")
_SHOWING = {*_METADATA, "executableCode", "toolCall", "codeExecutionResult", "toolResponse"}
"""Keys of candidates and parts that show calls of Google's own tools."""
_HUMP = re.compile("(?<=[a-z])(?=[A-Z])")


class Gemini(wire.WireForm):
    """Requests and answers of Gemini."""

    name = "Gemini"
    history_key = "contents"
    identifies_calls = True
    token_keys = ("promptTokenCount", "candidatesTokenCount", "totalTokenCount")
    schema_keys = ("parametersJsonSchema", "parameters_json_schema", "parameters")

    def declared(self, body: Json) -> list[Json]:
        tools = objects(body.get("tools"))
        return [
            *(each for tool in tools for key in _DECLARED for each in objects(tool.get(key))),
            *(
                {"name": _HUMP.sub("_", key).lower()}
                for tool in tools
                for key in tool
                if key not in _DECLARED
            ),
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

    def grouped(self, messages: Sequence[Json], _: Sequence[wire.PassedAnswer]) -> list[list[Json]]:
        """Join neighbouring contents of the model: some clients keep each chunk of a stream as one."""
        runs = groupby(enumerate(messages), lambda each: -1 if each[1].get("role") == "model" else each[0])
        return [[content for _, content in run] for _, run in runs]

    def put_back(self, groups: Iterable[tuple[list[Json], wire.PassedAnswer | None]]) -> Iterator[Json]:
        owing: wire.PassedAnswer | None = None
        for group, answer in groups:
            if answer is not None and answer.hides:
                yield from (*answer.before, *answer.message)
                owing = answer if answer.owed else None
                continue
            yield from _with_owed(group, owing) if owing else group
            owing = None

    def in_messages(self, owed: list[Json], after: Sequence[Json] = ()) -> list[Json]:
        return [{"role": "user", "parts": owed}, *after]

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

    def made(self, body: Json) -> Sequence[ToolCall]:
        candidate, calls = _candidate(body), list[ToolCall]()
        parts = _parts(entry(candidate, "content"))
        if all(map(_SHOWING.isdisjoint, (candidate, *parts))):  # as for most answers
            return calls
        for part in parts:
            code, tool = entry(part, "executableCode"), entry(part, "toolCall")
            if code or tool:
                name = re.sub("_(WEB|IMAGE)$", "", str(tool.get("toolType", "code_execution"))).lower()
                calls.append(wire.provider_call(name, code or entry(tool, "args"), None))
            elif result := entry(part, "codeExecutionResult") or entry(part, "toolResponse"):
                # It follows its call, or all that were made at once.
                waiting = (place for place, call in enumerate(calls) if call.result is None)
                if (place := next(waiting, None)) is not None:
                    failed = result.get("outcome", "OUTCOME_OK") != "OUTCOME_OK"
                    error = str(result["outcome"]) if failed else None
                    calls[place] = replace(calls[place], result=result.get("response", result), error=error)
        # A search without a call is known by what the answer is based on.
        grounding, made = entry(candidate, "groundingMetadata"), {call.name for call in calls}
        sources = objects(grounding.get("groundingChunks"))
        sources += objects(entry(candidate, "urlContextMetadata").get("urlMetadata"))
        for name, kind, asked in _GROUNDS:
            found, queries = [each for each in sources if kind in each], grounding.get(asked)
            if (found or queries) and name not in made:
                args, problem = ({"queries": queries}, None) if queries else (None, ARGUMENTS_UNKNOWN)
                calls.append(wire.provider_call(name, args, found or None, invalid_arguments=problem))
        return calls

    def without(self, body: Json, places: Collection[int]) -> Json:
        content = {**_content(body), "parts": _without(_parts(_content(body)), places)}
        return {"candidates": [{**_candidate(body), "content": content}]}

    def stream(self, _: wire.WireRequest) -> _GeminiStream:
        return _GeminiStream(self)

    def error(self, status: int, message: str) -> Json:
        kind = "FAILED_PRECONDITION" if status < 500 else "UNAVAILABLE"
        return {"error": {"code": status, "message": message, "status": kind}}


@dataclass(slots=True)
class _GeminiRound:
    body: Json = field(default_factory=dict)
    grounds: Json = field(default_factory=dict)  # the candidate's metadata of all chunks
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
        found = _candidate(chunk)
        self._round.grounds |= {key: found[key] for key in _METADATA if found.get(key)}
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
            raise wire.CutStream(wire.CUT)
        self._last, self._round = now, _GeminiRound()
        self._note_passed()
        if not _candidate(now.body):
            return now.body
        body = _chunk(now.body, now.parts, last=True)
        body["candidates"][0] |= now.grounds
        return body

    def end(self, shown: Json, hidden: Sequence[wire.ModelCall]) -> bytes:
        if not _candidate(shown):
            return wire.sse(self._kept) if self._kept else b""
        shown = {**shown, "candidates": self._last.body["candidates"]}  # with its own metadata
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
    given = [part for part in _parts(first) if inner(part, "functionResponse")]
    rest = [part for part in _parts(first) if part not in given]
    hidden, owed = {call.place for call in answer.hidden_calls}, list(answer.owed)
    ordered: list[Json] = []
    for place, part in enumerate(_parts(answer.message[0])):
        name, source = inner(part, "functionCall").get("name"), owed if place in hidden else given
        places = (at for at, each in enumerate(source) if inner(each, "functionResponse").get("name") == name)
        if name is not None and (at := next(places, None)) is not None:
            ordered.append(source.pop(at))
    return [{**first, "parts": [*ordered, *owed, *given, *rest]}, *others]
