"""Answers from a model, whatever it takes: levels of form, retries, limits, accounting."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import anyio

from agentest.errors import ModelError, ModelUnavailable
from agentest.http.retries import pause_before_retry
from agentest.llm.gate import Call, Gate, LocalGate
from agentest.llm.limits import estimate_tokens
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
from agentest.llm.prices import Price
from agentest.llm.schema import answer_schema
from agentest.results import ModelUsage
from agentest.support.deadlines import TimeLimit
from agentest.transcript import Usage


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a model is waited for, and how often it is asked again."""

    timeout_s: float = 120.0
    """One attempt, from connect to the last byte."""
    deadline_s: float = 600.0
    """One answer with all its attempts and pauses. Standing in line for a place does not count."""
    retries: int = 4
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep


@dataclass(frozen=True, slots=True)
class _Failed:
    """An attempt that was not answered. `excused`: no call gets an answer, so it says nothing of this one."""

    error: TransientError
    excused: bool


class LiveAnswers:
    """A chat model that is asked over and over until it answers, within bounds.

    First with the JSON Schema as the answer's format; where the model refuses that, in JSON mode, then with
    the schema in the prompt alone. The level that worked is remembered. Every attempt is counted in the
    ledger and the budget. A model that is down is waited for by all calls together, or not asked any more.
    """

    def __init__(
        self,
        chat: ChatModel,
        ledger: Ledger,
        gate: Gate | None = None,
        *,
        patience: Patience = Patience(),
        price: Price | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self.name = chat.name
        self.parameters: Mapping[str, Any] = dict(parameters or {})
        self._chat = chat
        self._ledger = ledger
        self._gate = gate or LocalGate(chat.name)
        self._patience = patience
        self._price = price
        self._level = Level.SCHEMA

    @property
    def level(self) -> Level:
        """How the form of an answer is asked for: the strictest that the model has taken so far."""
        return self._level

    async def answer(self, question: Question) -> Answered:
        """The answer at the strictest level that the model takes. Raises ModelUnavailable."""
        try:
            with TimeLimit(self._patience.deadline_s) as limit:
                asker = question.key.scope, question.key.conversation
                return await self._at_best_level(question, Call(limit, asker=asker))
        except TimeoutError:
            problem = f"no answer within {self._patience.deadline_s:g} s, all attempts together"
            if self._gate.is_down:
                problem = f"{problem}: {self._gate.problem}"
            # Most of it may have been spent on pauses between attempts: that says nothing of the model.
            raise self._given_up(problem, down=False) from None

    async def _at_best_level(self, question: Question, call: Call) -> Answered:
        name, schema = question.answer.__name__, answer_schema(question.answer)
        level = self._level
        while True:
            # Who answered in another form may never have seen the schema: not every server passes it on.
            needs_schema = question.repair or level is not Level.SCHEMA
            shown = _with_schema(question.messages, schema) if needs_schema else question.messages
            try:
                request = ChatRequest(shown, name, schema, level, question.key)
                reply = await self._with_retries(request, call, repair=question.repair > 0)
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

    async def _with_retries(self, request: ChatRequest, call: Call, *, repair: bool) -> ChatReply:
        attempt = counted = 0
        while True:
            attempt += 1
            try:
                reply = await self._once(request, call, retry=repair or attempt > 1)
            except ModelUnavailable as error:
                if not error.permanent:
                    raise
                raise self._given_up(str(error), permanent=True) from None
            if isinstance(reply, ChatReply):
                return reply
            # A failure that all calls share uses up no retry: it is not about this request.
            counted += not reply.excused
            if counted > self._patience.retries:
                raise self._given_up(f"{reply.error}{_tries(attempt)}", down=not reply.error.throttled)
            # No place is held meanwhile.
            await self._patience.sleep(self._pause(reply.error, attempt, call))

    def _pause(self, error: TransientError, attempt: int, call: Call) -> float:
        """Seconds until the next attempt. Raises ModelUnavailable where the call has not got so many."""
        if error.retry_after is None:
            return 0.0 if self._gate.is_down else pause_before_retry(attempt)
        asked_for = max(0.0, error.retry_after)
        if asked_for > call.limit.ends_at - anyio.current_time():
            problem = f"{error}; it asks to wait {asked_for:.0f} s, longer than `deadline_ms` leaves"
            raise self._given_up(f"{problem}{_tries(attempt)}", down=False)
        return asked_for

    def _given_up(self, problem: str, *, permanent: bool = False, down: bool = True) -> ModelUnavailable:
        if down:
            self._gate.call_failed(problem, permanent=permanent)
        return ModelUnavailable(f"model {self.name}: {problem}", permanent=permanent)

    async def _once(self, request: ChatRequest, call: Call, *, retry: bool) -> ChatReply | _Failed:
        """One attempt, as soon as it may be made."""
        tokens = estimate_tokens(request.messages) if self._gate.counts_tokens else 0
        async with self._gate.attempt(call, tokens) as attempt:
            reply: ChatReply | None = None
            try:
                with TimeLimit(self._patience.timeout_s):
                    reply = await self._chat.complete(request)
            except TimeoutError:
                late = TransientError(f"no answer within {self._patience.timeout_s:g} s")
                return _Failed(late, await attempt.failed(late))
            except TransientError as error:
                return _Failed(error, await attempt.failed(error))
            except ModelError as error:
                await attempt.failed(error)
                raise
            finally:  # whatever the outcome, even when the run is stopped meanwhile: it may have to be paid
                attempt.spent(self._count(request, reply, retry))
            attempt.succeeded(reply.usage.total_tokens, reply.hold_s or 0.0)
            return reply

    def _count(self, request: ChatRequest, reply: ChatReply | None, retry: bool) -> float | None:
        cost = None if self._price is None else 0.0
        if reply is not None and self._price is not None:
            # A server that reports no tokens leaves the cost unknown, not 0.
            cost = self._price.cost(reply.usage) if reply.usage.total_tokens else None
        used = ModelUsage(1, reply.usage if reply else Usage(), int(retry), cost)
        self._ledger.add(request.key, used)
        return cost


def _tries(attempts: int) -> str:
    return f" (tried {attempts} times)" if attempts > 1 else ""


def _with_schema(messages: Sequence[Message], schema: Any) -> list[Message]:
    last = messages[-1]
    form = (
        "\n\nAnswer with one JSON object and nothing else. It must validate against this JSON Schema:\n"
        + json.dumps(schema, ensure_ascii=False)
    )
    return [*messages[:-1], {**last, "content": last["content"] + form}]
