"""Answers from a model, whatever it takes: levels of form, retries, limits, accounting."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import anyio
from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from agentest.errors import ModelUnavailable
from agentest.http import pause_before_retry
from agentest.llm.port import (
    Answered,
    ChatModel,
    ChatReply,
    ChatRequest,
    Ledger,
    Level,
    Message,
    Question,
    RequestRefused,
    TransientError,
)
from agentest.llm.schema import answer_schema
from agentest.results import ModelUsage
from agentest.transcript import Usage


class LiveAnswers:
    """A chat model that is asked over and over until it answers, within bounds.

    First with the JSON Schema as the answer's format; where the model refuses that, in JSON mode, then with
    the schema in the prompt alone. The level that worked is remembered. Every attempt is counted in the
    ledger.
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
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = chat.name
        self.parameters: Mapping[str, Any] = dict(parameters or {})
        self._chat = chat
        self._ledger = ledger
        self._limiter = limiter
        self._timeout_s = timeout_s
        self._retries = retries
        self._sleep = sleep
        self._level = Level.SCHEMA

    async def answer(self, question: Question) -> Answered:
        """The answer at the strictest level that the model takes. Raises ModelUnavailable."""
        name, schema = question.answer.__name__, answer_schema(question.answer)
        level = self._level
        while True:
            # Who answered in another form may never have seen the schema: not every server passes it on.
            told = question.repair or level is not Level.SCHEMA
            shown = _with_schema(question.messages, schema) if told else question.messages
            try:
                reply = await self._with_retries(ChatRequest(shown, name, schema, level, question.key))
            except RequestRefused as error:
                if error.mended:
                    continue
                if level is Level.PROMPT:
                    raise ModelUnavailable(f"model {self.name}: {error}") from None
                level = Level(level + 1)
                continue
            # Others may have learnt meanwhile; what one of them found to work is not forgotten.
            self._level = max(self._level, level)
            return Answered(reply.text, reply.refusal, reply.model)

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
