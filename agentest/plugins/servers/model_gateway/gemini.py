"""Gemini's `generateContent` and `streamGenerateContent`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import field
from typing import Any

from agentest.config.agents.mock_servers import Override
from agentest.domain.transcript import Usage
from agentest.plugins.servers.model_gateway.wire_form import (
    ANY_TOOL,
    CallResult,
    CutStream,
    Json,
    ModelCall,
    PassedAnswer,
    SeenMessage,
    WireAnswer,
    WireRequest,
    count,
    entry,
    matched,
    object_of,
    objects,
    offered_tools,
    sse,
)
from agentest.support.http.sse import Event
from agentest.support.lazy_dataclasses import dataclass

_MODEL = re.compile(r"([^/]+):\w+(?:\?|$)")
_SIGNATURE = "thoughtSignature"


class Gemini:
    """Implements `WireForm`."""

    name = "Gemini"

    def request(self, body: Json, path: str) -> WireRequest:
        contents = objects(body.get("contents"))
        streams = "streamGenerateContent" in path
        config = _object(_object(body, "toolConfig"), "functionCallingConfig")
        names = _get(config, "allowedFunctionNames")
        allowed = [name for name in names if isinstance(name, str)] if isinstance(names, list) else []
        texts = [(content.get("role"), _text(content)) for content in contents]
        return WireRequest(
            body=body,
            streams=streams,
            model=named[1] if (named := _MODEL.search(path)) else None,
            user_texts=tuple(text for role, text in texts if role != "model" and text),
            instructions=_text(_object(body, "systemInstruction")),
            tools=offered_tools(
                (
                    each
                    for tool in objects(body.get("tools"))
                    for each in objects(_get(tool, "functionDeclarations"))
                ),
                *("parametersJsonSchema", "parameters_json_schema", "parameters"),
            ),
            ids=tuple(
                reversed([known for content in contents for part in _parts(content) for known in _ids(part)])
            ),
            results=tuple(_new_results(contents)),
            history_texts=tuple(
                _text_and_calls(_parts(content)) for content in contents if content.get("role") == "model"
            ),
            forced=(allowed[0] if len(allowed) == 1 else ANY_TOOL) if config.get("mode") == "ANY" else None,
            unmockable=(
                "its stream is not a stream of events (`alt=sse`)"
                if streams and "alt=sse" not in path
                else None
            ),
        )

    def answer(self, body: Json) -> WireAnswer:
        parts = _parts(_content(body))
        usage = entry(body, "usageMetadata")
        output = count(usage.get("candidatesTokenCount")) + count(usage.get("thoughtsTokenCount"))
        return WireAnswer(
            body=body,
            text=_text_and_calls(parts),
            calls=tuple(
                _call(call, place)
                for place, part in enumerate(parts)
                if (call := _object(part, "functionCall"))
            ),
            ids=tuple(known for part in parts for known in _ids(part)),
            usage=Usage(
                count(usage.get("promptTokenCount")), output, count(usage.get("cachedContentTokenCount"))
            ),
            incomplete=_candidate(body).get("finishReason") == "MAX_TOKENS",
        )

    def overridden(self, body: Json, override: Override) -> Json:
        settings = override.settings
        settings.pop("model", None)  # it stands in the address
        if effort := settings.pop("reasoning_effort", None):
            settings["thinkingConfig"] = {"thinkingLevel": effort}
        if not settings:
            return body
        key = "generation_config" if "generation_config" in body else "generationConfig"
        return {**body, key: {**entry(body, key), **settings}}

    def completed(self, request: WireRequest, answers: Sequence[PassedAnswer]) -> Json:
        if not any(answer.hides for answer in answers):
            return request.body
        groups = list(_grouped(objects(request.body.get("contents"))))
        contents: list[Json] = []
        owing: PassedAnswer | None = None
        for group, answer in zip(groups, matched(answers, _seen(groups)), strict=True):
            if answer is not None and answer.hides:
                contents += [*answer.before, *answer.message]
                owing = answer if answer.owed else None
                continue
            contents += _with_owed(group, owing) if owing else group
            owing = None
        return {**request.body, "contents": contents}

    def next_round(
        self, body: Json, answer: WireAnswer, results: Sequence[CallResult], *, lift: bool
    ) -> tuple[Json, list[Json]]:
        new = [*self.message(answer), {"role": "user", "parts": self.owed(results)}]
        changed: Json = {**body, "contents": [*objects(body.get("contents")), *new]}
        if lift:
            key = "toolConfig" if "toolConfig" in body else "tool_config"
            changed[key] = {**body[key], "functionCallingConfig": {"mode": "AUTO"}}
        return changed, new

    def owed(self, results: Sequence[CallResult]) -> list[Json]:
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

    def message(self, answer: WireAnswer) -> list[Json]:
        return [{"role": "model", "parts": _parts(_content(answer.body))}]

    def shown(
        self, request: WireRequest, answer: WireAnswer, hidden: Iterable[ModelCall], output_tokens: int
    ) -> Json:
        del request
        body, usage, places = answer.body, answer.body.get("usageMetadata"), {call.place for call in hidden}
        changed = dict(body)
        if places:
            content = {**_content(body), "parts": _without(_parts(_content(body)), places)}
            changed["candidates"] = [{**_candidate(body), "content": content}]
        if isinstance(usage, dict):
            output = output_tokens - count(usage.get("thoughtsTokenCount"))
            total = count(usage.get("promptTokenCount")) + output_tokens
            changed["usageMetadata"] = {**usage, "candidatesTokenCount": output, "totalTokenCount": total}
        return changed

    def stream(self, request: WireRequest) -> _GeminiStream:
        del request
        return _GeminiStream()

    def error(self, status: int, message: str) -> Json:
        kind = "FAILED_PRECONDITION" if status < 500 else "UNAVAILABLE"
        return {"error": {"code": status, "message": message, "status": kind}}


@dataclass(slots=True)
class _GeminiRound:
    """One streamed answer, collected."""

    body: Json = field(default_factory=dict)
    """The last chunk."""
    parts: list[Json] = field(default_factory=list)
    held: list[tuple[int, Json]] = field(default_factory=list)
    """Places and parts for the agent that wait for the end of the answer."""


class _GeminiStream:
    """Implements `AnswerStream`. The last chunk is kept back, because it carries the reason of the end."""

    def __init__(self) -> None:
        self._round, self._last = _GeminiRound(), _GeminiRound()
        self._kept: Json | None = None
        self._parts: list[Json] = []
        """What the agent has received."""
        self._told = False
        self.ids: list[str] = []

    @property
    def text(self) -> str:
        return _text_and_calls(self._parts)

    def feed(self, event: Event) -> bytes:
        chunk = object_of(event)
        if chunk is None:
            return sse(event.data)
        if "candidates" not in chunk and (_blocked(chunk) or "usageMetadata" not in chunk):
            self._round.body = {**self._round.body, **chunk} if _blocked(chunk) else self._round.body
            self._told = self._told or "error" in chunk
            return sse(event.data)
        parts = _parts(_content(chunk))
        before = len(self._round.parts)
        self._round.parts += parts
        self._round.body = {**self._round.body, **chunk}
        late = [part for _, part in self._last.held if not _object(part, "functionCall")]
        self._last.held = []
        shown = [*late, *(part for place, part in enumerate(parts, before) if not self._holds(place, part))]
        return self._keep(_chunk(chunk, shown)) if shown else b""

    def _holds(self, place: int, part: Json) -> bool:
        """Hold a part back if it is a call or follows one."""
        held = self._round.held
        if held or _object(part, "functionCall"):
            held.append((place, part))
        return bool(held)

    def _keep(self, chunk: Json) -> bytes:
        """Keep a chunk back. Returns the one before it."""
        kept, self._kept = self._kept, chunk
        parts = _parts(_content(chunk))
        self._parts += parts
        self.ids += [known for part in parts for known in _ids(part)]
        return sse(kept) if kept else b""

    def round(self) -> Json:
        now = self._round
        if not _candidate(now.body).get("finishReason") and not _blocked(now.body):
            raise CutStream(told=self._told)
        self._last, self._round = now, _GeminiRound()
        if not _candidate(now.body):
            return now.body
        return _chunk(now.body, now.parts, last=True)

    def end(self, shown: Json, hidden: Sequence[ModelCall]) -> bytes:
        if not _candidate(shown):
            return sse(self._kept) if self._kept else b""
        parts = [part for _, part in self._last.held]
        answered = {call.place for call in hidden}
        held = _without(parts, {i for i, (place, _) in enumerate(self._last.held) if place in answered})
        before = self._keep(_chunk(shown, held)) if held else b""
        kept = _parts(_content(self._kept)) if self._kept else [{"text": ""}]
        return before + sse(_chunk(shown, kept, last=True))

    def error(self, message: str) -> bytes:
        return sse(Gemini().error(500, message))


def _object(value: Json, key: str) -> Json:
    """Return the object under a key; {} if there is none."""
    found = _get(value, key)
    return found if isinstance(found, dict) else {}


def _get(value: Json, key: str) -> Any:
    """Return a value by its name in camel case or, as some clients write it, in snake case."""
    snake = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in key)
    return value.get(key, value.get(snake))


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
    """Return a chunk with other parts, and with the reason of the end only if it is the last."""
    candidate = {**_candidate(body), "content": {**_content(body), "role": "model", "parts": parts}}
    if not last:
        candidate.pop("finishReason", None)
    return {**body, "candidates": [candidate]}


def _text(content: Json) -> str:
    parts = (part for part in _parts(content) if not part.get("thought"))
    return "".join(text for part in parts if isinstance(text := part.get("text"), str))


def _text_and_calls(parts: Sequence[Json]) -> str:
    """Return what identifies an answer, because calls need not have ids."""
    calls = [call for part in parts if (call := _object(part, "functionCall"))]
    made = [f"{call.get('name')}({json.dumps(call.get('args') or {}, sort_keys=True)})" for call in calls]
    return " ".join([_text({"parts": list(parts)}), *made])


def _ids(part: Json) -> list[str]:
    call = _object(part, "functionCall")
    return [known for known in (call.get("id"), _get(part, _SIGNATURE)) if isinstance(known, str) and known]


def _call(call: Json, place: int) -> ModelCall:
    arguments = call.get("args")
    problem = None if isinstance(arguments, dict | None) else "the arguments are not a JSON object"
    return ModelCall(
        name=str(call.get("name") or ""),
        arguments={} if arguments is None else arguments,
        call_id=call.get("id"),
        problem=problem,
        place=place,
    )


def _new_results(contents: Sequence[Json]) -> Iterable[CallResult]:
    """Return the results after the model's last answer: earlier ones cannot be told apart without ids."""
    last = max((i for i, content in enumerate(contents) if content.get("role") == "model"), default=-1)
    for content in contents[last + 1 :]:
        for part in _parts(content):
            if response := _object(part, "functionResponse"):
                yield CallResult(
                    name=str(response.get("name") or ""),
                    result=response.get("response"),
                    call_id=response.get("id"),
                    failed=isinstance(response.get("response"), dict) and "error" in response["response"],
                )


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


def _seen(groups: Sequence[Sequence[Json]]) -> list[SeenMessage | None]:
    seen: list[SeenMessage | None] = []
    user_text = ""
    for group in groups:
        parts = [part for content in group for part in _parts(content)]
        if group[0].get("role") == "model":
            ids = tuple(known for part in parts for known in _ids(part))
            seen.append(SeenMessage(ids, _text_and_calls(parts), user_text))
        else:
            user_text = "".join(map(_text, group)) or user_text
            seen.append(None)
    return seen


def _without(parts: Sequence[Json], places: set[int]) -> list[Json]:
    """Leave calls out. The signature of a hidden first call moves to the first one that is left."""
    signature = next((parts[i].get(_SIGNATURE) for i in sorted(places) if parts[i].get(_SIGNATURE)), None)
    left: list[Json] = []
    for place, part in enumerate(parts):
        if place in places:
            continue
        if signature and _object(part, "functionCall") and _SIGNATURE not in part:
            part, signature = {**part, _SIGNATURE: signature}, None
        left.append(part)
    return left


def _with_owed(group: Sequence[Json], answer: PassedAnswer) -> list[Json]:
    """Add the results of hidden calls: one result for each call, in the order of the calls."""
    first, *others = group
    parts = _parts(first)
    given = [part for part in parts if _object(part, "functionResponse")]
    rest = [part for part in parts if part not in given]
    hidden, owed = {call.place for call in answer.hidden_calls}, list(answer.owed)
    ordered: list[Json] = []
    for place, part in enumerate(_parts(answer.message[0])):
        if call := _object(part, "functionCall"):
            source = owed if place in hidden else given
            named = next(
                (
                    each
                    for each in source
                    if _object(each, "functionResponse").get("name") == call.get("name")
                ),
                None,
            )
            if named is not None:
                source.remove(named)
                ordered.append(named)
    return [{**first, "parts": [*ordered, *owed, *given, *rest]}, *others]
