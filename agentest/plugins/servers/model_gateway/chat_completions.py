"""OpenAI's chat completions, which most providers and gateways speak, and Azure's deployments of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
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
    model_of,
    object_of,
    objects,
    offered_tools,
    parsed_arguments,
    parsed_result,
    result_text,
    sse,
    texts_of,
)
from agentest.support.http.sse import Event
from agentest.support.lazy_dataclasses import dataclass
from agentest.wire.stream_assembly import StreamedCalls

_DONE = "[DONE]"
_CUSTOM = "custom"
"""The kind of tools that take a text."""
_INSTRUCTIONS = ("system", "developer")


class ChatCompletions:
    """Implements `WireForm`."""

    name = "chat completions"

    def request(self, body: Json, path: str) -> WireRequest:
        del path
        messages = objects(body.get("messages"))
        texts = [(message.get("role"), texts_of(message.get("content"))) for message in messages]
        calls = [call for message in messages if "tool_calls" in message for call in _calls_in(message)]
        names = {call.get("id"): _function(call).get("name") for call in calls}
        results = [
            CallResult(
                name=str(names.get(message.get("tool_call_id")) or ""),
                result=parsed_result(text),
                call_id=message.get("tool_call_id"),
            )
            for message, (role, text) in zip(messages, texts, strict=True)
            if role == "tool"
        ]
        unmockable = "it asks for several answers at once (`n`)" if count(body.get("n")) > 1 else None
        if body.get("functions"):
            unmockable = "it offers `functions`, which APIs have replaced by `tools`"
        offered = [*map(_function, objects(body.get("tools"))), *objects(body.get("functions"))]
        return WireRequest(
            body=body,
            streams=body.get("stream") is True,
            model=model_of(body),
            user_texts=tuple([text for role, text in texts if role == "user"]),
            instructions="\n\n".join([text for role, text in texts if role in _INSTRUCTIONS]),
            tools=offered_tools(offered, "parameters"),
            ids=tuple([call_id for call in reversed(calls) if (call_id := call.get("id"))]),
            results=tuple(results),
            history_texts=tuple([text for role, text in texts if role == "assistant"]),
            forced=_forced(body.get("tool_choice")),
            unmockable=unmockable,
        )

    def answer(self, body: Json) -> WireAnswer:
        choice = next(iter(objects(body.get("choices"))), {})
        message = entry(choice, "message")
        calls = tuple(_call(call, place) for place, call in enumerate(_calls_in(message)))
        return WireAnswer(
            body=body,
            text=texts_of(message.get("content")),
            calls=calls,
            ids=tuple(call.call_id for call in calls if call.call_id),
            usage=_usage(body.get("usage")),
            incomplete=choice.get("finish_reason") == "length",
        )

    def overridden(self, body: Json, override: Override) -> Json:
        return {**body, **override.settings}

    def completed(self, request: WireRequest, answers: Sequence[PassedAnswer]) -> Json:
        if not any(answer.hides for answer in answers):
            return request.body
        given = objects(request.body.get("messages"))
        messages: list[Json] = []
        for message, answer in zip(given, matched(answers, _seen(given, answers)), strict=True):
            if answer is None or not answer.hides:
                messages.append(message)
                continue
            messages += answer.before
            if _calls_in(message) or not answer.shown.ids:
                messages += [*answer.message, *answer.owed]
            elif answer.owed:  # the framework wrote its calls as text
                messages += [_only_hidden(answer), *answer.owed, message]
            else:
                messages.append(message)
        return {**request.body, "messages": messages}

    def next_round(
        self, body: Json, answer: WireAnswer, results: Sequence[CallResult], *, lift: bool
    ) -> tuple[Json, list[Json]]:
        new = [*self.message(answer), *self.owed(results)]
        changed: Json = {**body, "messages": [*objects(body.get("messages")), *new]}
        if lift:
            changed["tool_choice"] = "auto"
        return changed, new

    def owed(self, results: Sequence[CallResult]) -> list[Json]:
        return [
            {"role": "tool", "tool_call_id": each.call_id, "content": result_text(each)} for each in results
        ]

    def message(self, answer: WireAnswer) -> list[Json]:
        choice = next(iter(objects(answer.body.get("choices"))), {})
        message = {"role": "assistant", "content": None, **(entry(choice, "message"))}
        # Providers send these with an answer and refuse them in a history.
        return [{key: value for key, value in message.items() if value is not None or key == "content"}]

    def shown(
        self, request: WireRequest, answer: WireAnswer, hidden: Iterable[ModelCall], output_tokens: int
    ) -> Json:
        del request
        shown, left_out = dict(answer.body), {call.place for call in hidden}
        if left_out:
            choice = next(iter(objects(answer.body.get("choices"))), {})
            message = entry(choice, "message")
            calls = [call for place, call in enumerate(_calls_in(message)) if place not in left_out]
            shown["choices"] = [{**choice, "message": {**message, "tool_calls": calls}}]
        if isinstance(usage := answer.body.get("usage"), dict):
            shown["usage"] = _with_output(usage, output_tokens)
        return shown

    def stream(self, request: WireRequest) -> _ChatStream:
        # A client that expects JSON cannot read text that the model wrote before a hidden call.
        structured = entry(request.body, "response_format").get("type", "text") != "text"
        return _ChatStream(request.tools, holds_text=structured)

    def error(self, status: int, message: str) -> Json:
        return openai_error(status, message)


def openai_error(status: int, message: str) -> Json:
    """Return the body of an error response of OpenAI's APIs."""
    kind = "invalid_request_error" if status < 500 else "server_error"
    return {"error": {"message": message, "type": kind, "param": None, "code": "agentest_gateway"}}


@dataclass(slots=True)
class _ChatRound:
    """One streamed answer, collected."""

    calls: StreamedCalls
    head: Json = field(default_factory=dict)
    message: Json = field(default_factory=dict)
    finish: Json | None = None
    """The chunk with the reason why the answer ended."""
    usage: Json | None = None
    """The chunk with the usage."""
    done: bool = False
    held: list[Json] = field(default_factory=list)
    """Chunks with text for the agent that wait for the end of the answer."""


class _ChatStream:
    """Implements `AnswerStream`."""

    def __init__(self, names: Collection[str], *, holds_text: bool) -> None:
        self._names = names
        self._holds_text = holds_text
        self._round = _ChatRound(StreamedCalls(names))
        self._id: str | None = None
        self._has_role = False
        self._last = self._round
        self.text = ""
        self.ids: list[str] = []
        self._told = False

    def feed(self, event: Event) -> bytes:
        if event.data.strip() == _DONE:
            self._round.done = True
            return b""
        chunk = object_of(event)
        if chunk is None:
            return sse(event.data)
        choices = objects(chunk.get("choices"))
        if not choices:
            if isinstance(chunk.get("usage"), dict):
                self._round.usage = chunk
                return b""
            self._told = self._told or "error" in chunk
            return sse(event.data)
        return self._choice(chunk, choices[0], event.data)

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
        self.text += shown.get("content") or ""
        if not shown:
            return b""
        self._has_role = self._has_role or "role" in shown
        if shown == delta and chunk.get("id") == self._id and not choice.get("finish_reason"):
            return sse(data)
        return sse(_chunk(chunk, choice, shown, self._id))

    def round(self) -> Json:
        now = self._round
        if now.finish is None:
            raise CutStream(told=self._told)
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

    def end(self, shown: Json, hidden: Sequence[ModelCall]) -> bytes:
        del hidden
        finish, choice = self._last.finish or {}, objects(shown.get("choices"))[0]
        events = [sse(chunk) for chunk in self._last.held]
        if calls := _calls_in(choice["message"]):
            delta = {"tool_calls": [{"index": index, **call} for index, call in enumerate(calls)]}
            events.append(sse(_chunk(self._last.head, {"index": 0, "finish_reason": None}, delta, self._id)))
        if self._holds_text:
            self.text = texts_of(choice["message"].get("content"))
        last = {**objects(finish.get("choices"))[0], "finish_reason": choice["finish_reason"]}
        events.append(
            sse(_chunk({**finish, "usage": finish.get("usage") and shown.get("usage")}, last, {}, self._id))
        )
        if self._last.usage and not finish.get("usage"):
            events.append(sse({**self._last.usage, "id": self._id, "usage": shown["usage"]}))
        return b"".join([*events, sse(_DONE)])

    def error(self, message: str) -> bytes:
        return sse(ChatCompletions().error(500, message)) + sse(_DONE)


def _chunk(chunk: Json, choice: Json, delta: Json, answer_id: str | None) -> Json:
    """Return a chunk with another delta, under the id of the answer's first chunk."""
    changed = {**chunk, "id": answer_id, "choices": [{**choice, "delta": delta}]}
    if changed.get("usage", 0) is None:
        del changed["usage"]
    return changed


def _collect(now: _ChatRound, delta: Json) -> None:
    """Add a delta to the answer: texts grow, everything else is replaced."""
    for key, value in delta.items():
        if key == "tool_calls":
            for position, call in enumerate(objects(value)):
                now.calls.add(call, position)
        elif isinstance(value, str) and key != "role" and isinstance(before := now.message.get(key), str):
            now.message[key] = before + value
        elif value is not None:
            now.message[key] = value


def _seen(messages: Sequence[Json], answers: Sequence[PassedAnswer]) -> list[SeenMessage | None]:
    seen: list[SeenMessage | None] = []
    user_text = ""
    for message in messages:
        text = texts_of(message.get("content"))
        if message.get("role") == "user":
            user_text = text
        if message.get("role") != "assistant":
            seen.append(None)
            continue
        ids = [str(call.get("id")) for call in _calls_in(message)]
        # Some frameworks write calls with their ids as text.
        written = [] if ids else [known for each in answers for known in each.shown.ids if known in text]
        seen.append(SeenMessage((*ids, *written), text, user_text, calls=bool(ids)))
    return seen


def _only_hidden(answer: PassedAnswer) -> Json:
    """Return the model's last message with its hidden calls alone."""
    message = answer.message[0]
    calls = _calls_in(message)
    return {**message, "tool_calls": [calls[call.place] for call in answer.hidden_calls]}


def _calls_in(message: Json) -> list[Json]:
    return objects(message.get("tool_calls"))


def _function(call: Json) -> Json:
    return entry(call, "function") or entry(call, _CUSTOM)


def _call(call: Json, place: int) -> ModelCall:
    function = _function(call)
    custom = {"input": function.get("input")} if call.get("type") == _CUSTOM else None
    arguments, problem = parsed_arguments(custom or function.get("arguments"))
    name = str(function.get("name") or "")
    return ModelCall(name=name, arguments=arguments, call_id=call.get("id"), problem=problem, place=place)


def _usage(usage: Any) -> Usage:
    usage = usage if isinstance(usage, dict) else {}
    cached = entry(usage, "prompt_tokens_details").get("cached_tokens")
    return Usage(count(usage.get("prompt_tokens")), count(usage.get("completion_tokens")), count(cached))


def _with_output(usage: Json, output_tokens: int) -> Json:
    return {
        **usage,
        "completion_tokens": output_tokens,
        "total_tokens": count(usage.get("prompt_tokens")) + output_tokens,
    }


def _forced(choice: Any) -> str | None:
    if choice == "required":
        return ANY_TOOL
    return _function(choice).get("name") if isinstance(choice, dict) else None
