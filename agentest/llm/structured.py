"""Answers of a given shape from models that may not know how to give one: levels, repairs, retries."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from functools import cache
from typing import Any

import anyio
from pydantic import BaseModel
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from agentest.errors import InvalidAnswer, ModelUnavailable
from agentest.http import pause_before_retry
from agentest.llm.port import (
    Answer,
    CallKey,
    ChatModel,
    ChatReply,
    ChatRequest,
    Ledger,
    Level,
    Message,
    RequestRefused,
    TransientError,
)
from agentest.llm.reader import Unreadable, read
from agentest.results import ModelUsage
from agentest.transcript import Usage

MAX_REPAIRS = 2
_SHOWN_ANSWER_CHARS = 200


class StructuredModel:
    """A chat model that is asked for an answer of a given shape.

    First with the JSON Schema as the answer's format; where the model refuses that, in JSON mode, then with
    the schema in the prompt alone. The level that worked is remembered. An answer of another shape is asked
    for again with what was wrong, at most twice. Every attempt is counted in the ledger.
    """

    def __init__(
        self,
        chat: ChatModel,
        ledger: Ledger,
        limiter: anyio.CapacityLimiter,
        *,
        timeout_s: float = 120.0,
        retries: int = 4,
        sleep: Callable[[float], Awaitable[None]] = anyio.sleep,
    ) -> None:
        self.name = chat.name
        self._chat = chat
        self._ledger = ledger
        self._limiter = limiter
        self._timeout_s = timeout_s
        self._retries = retries
        self._sleep = sleep
        self._level = Level.SCHEMA

    async def ask(self, messages: Sequence[Message], answer: type[Answer], key: CallKey) -> Answer:
        """An answer of the given shape. Raises ModelUnavailable or InvalidAnswer."""
        asked = list(messages)
        for repair in range(MAX_REPAIRS + 1):
            reply = await self._at_best_level(asked, answer, key, repair=repair > 0)
            if reply.refusal:
                raise InvalidAnswer(f"model {self.name} refused to answer: {reply.refusal}")
            try:
                return read(reply.text, answer)
            except Unreadable as error:
                if repair == MAX_REPAIRS:
                    raise InvalidAnswer(_invalid(self.name, reply.text, error)) from None
                asked = [*messages, *_repair(reply.text, error)]
        raise AssertionError("unreachable: the last repair either answers or raises")

    async def _at_best_level(
        self, messages: Sequence[Message], answer: type[BaseModel], key: CallKey, *, repair: bool
    ) -> ChatReply:
        name, schema = answer.__name__, answer_schema(answer)
        level = self._level
        while True:
            # Who answered in another form may never have seen the schema: not every server passes it on.
            told = repair or level is not Level.SCHEMA
            shown = _with_schema(messages, schema) if told else messages
            try:
                reply = await self._with_retries(ChatRequest(shown, name, schema, level, key))
            except RequestRefused as error:
                if error.mended:
                    continue
                if level is Level.PROMPT:
                    raise ModelUnavailable(f"model {self.name}: {error}") from None
                level = Level(level + 1)
                continue
            # Others may have learnt meanwhile; what one of them found to work is not forgotten.
            self._level = max(self._level, level)
            return reply

    async def _with_retries(self, request: ChatRequest) -> ChatReply:
        attempts = AsyncRetrying(
            retry=retry_if_exception_type(TransientError),
            stop=stop_after_attempt(self._retries + 1),
            wait=_pause,
            sleep=self._sleep,
            reraise=True,
        )
        try:
            async for attempt in attempts:
                with attempt:
                    return await self._once(request, retry=attempt.retry_state.attempt_number > 1)
        except TransientError as error:
            tries = "" if self._retries == 0 else f" (tried {self._retries + 1} times)"
            raise ModelUnavailable(f"model {self.name}: {error}{tries}") from None
        except ModelUnavailable as error:
            raise ModelUnavailable(f"model {self.name}: {error}") from None
        raise AssertionError("unreachable: tenacity either returns or raises")

    async def _once(self, request: ChatRequest, *, retry: bool) -> ChatReply:
        # The place in the limiter is held for one attempt, never while waiting to try again.
        async with self._limiter:
            used = Usage()
            try:
                with anyio.fail_after(self._timeout_s):
                    reply = await self._chat.complete(request)
                used = reply.usage
                return reply
            except TimeoutError:
                raise TransientError(f"no answer within {self._timeout_s:g} s") from None
            finally:  # whatever becomes of it, even when the run is stopped meanwhile: it may have to be paid
                self._ledger.add(request.key, ModelUsage(1, used, int(retry)))


def _pause(state: RetryCallState) -> float:
    error = state.outcome.exception() if state.outcome else None
    asked_for = error.retry_after if isinstance(error, TransientError) else None
    return pause_before_retry(state.attempt_number, asked_for)


def _with_schema(messages: Sequence[Message], schema: Any) -> list[Message]:
    last = messages[-1]
    form = (
        "\n\nAnswer with one JSON object and nothing else. It must validate against this JSON Schema:\n"
        + json.dumps(schema, ensure_ascii=False)
    )
    return [*messages[:-1], {**last, "content": last["content"] + form}]


def _repair(text: str, error: Unreadable) -> list[Message]:
    return [
        {"role": "assistant", "content": text or "(empty)"},
        {
            "role": "user",
            "content": f"That answer cannot be used: {error}. "
            "Answer again, with one JSON object of the required form and nothing else.",
        },
    ]


def _invalid(model: str, text: str, error: Unreadable) -> str:
    shown = text if len(text) <= _SHOWN_ANSWER_CHARS else text[:_SHOWN_ANSWER_CHARS] + "…"
    return f"model {model} gave no usable answer, asked {MAX_REPAIRS + 1} times: {error}; it wrote: {shown!r}"


@cache
def answer_schema(answer: type[BaseModel]) -> dict[str, Any]:
    """The JSON Schema of an answer in the subset that strict structured output takes."""
    schema = answer.model_json_schema()
    _tighten(schema)
    return schema


def _tighten(schema: Any) -> None:
    if not isinstance(schema, dict):
        return
    schema.pop("title", None)
    schema.pop("default", None)
    # What these hold are names of the answer's own, not keywords: a field may be called `default`.
    for named in ("properties", "$defs"):
        for inner in schema.get(named, {}).values():
            _tighten(inner)
    for keyword in ("items", "prefixItems", "additionalProperties", "anyOf", "oneOf", "allOf"):
        value = schema.get(keyword)
        for inner in value if isinstance(value, list) else [value]:
            _tighten(inner)
    if "properties" in schema:
        schema["additionalProperties"] = False
        schema["required"] = list(schema["properties"])
