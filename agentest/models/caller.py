"""Get an answer from a model: response formats, retries, limits and accounting."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Awaitable, Callable, Sequence
from contextlib import nullcontext, suppress
from typing import Any

import anyio

from agentest.domain.results import ModelUsage
from agentest.domain.transcript import Usage
from agentest.models.admission import Attempt, LocalGate, ModelGate
from agentest.models.budget import Call, Price
from agentest.models.circuit import RAISE_TIMEOUT
from agentest.models.limits import estimate_tokens
from agentest.models.port import (
    CallKey,
    ChatModel,
    ChatReply,
    ChatRequest,
    Ledger,
    Level,
    Message,
    ModelAnswer,
    Question,
    RequestRefused,
    TransientError,
)
from agentest.models.structured_output import Unreadable, answer_schema, read
from agentest.support.deadlines import TimeLimit
from agentest.support.errors import ModelError, ModelUnavailable
from agentest.support.http.retries import MAX_RETRY_AFTER_S, pause_before_retry
from agentest.support.lazy_dataclasses import dataclass

_OK = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
_SIMPLE_REQUEST = ChatRequest(
    [{"role": "user", "content": 'Answer with the JSON object {"ok": true} and nothing else.'}],
    "Ok",
    {**_OK, "additionalProperties": False},
    Level.SCHEMA,
    CallKey("judge", ""),
)


_OWN_FROM = 3
"""429s between which other requests were answered, after which more of them say nothing about the quota.

Some servers refuse a prompt that is too long with a 429. So many while no request is answered need a check.
"""
_OWN_PAUSE_S, _LONGEST_OWN_PAUSE_S = 8.0, 60.0
"""Pause after so many 429s. It doubles with each further one."""
_RECENT = 50
_FIRST_ANSWER_TOKENS = 300
_RAISE, _LEAST_RAISED = 4, 2048
"""A cut answer is requested once more with so many times its tokens, and at least so many."""


@dataclass(frozen=True, slots=True)
class RetryPolicy:
    """Time limits and retries for a model."""

    timeout_s: float = 120.0  # limit in seconds for one attempt, from connecting to the last byte
    deadline_s: float = 600.0
    """Limit in seconds for one answer with all attempts and pauses, without the time waiting for a slot."""
    retries: int = 4
    sleep: Callable[[float], Awaitable[None]] = anyio.sleep


@dataclass(slots=True)
class _Tries:
    """The attempts at one request, and whether the request itself is the cause of failures.

    Args:
        retries: how many times it may fail again while other requests are answered.
        seen: number of answers at its gate when it failed last.
    """

    retries: int
    seen: int
    made: int = 0
    own: int = 0  # 429s between which other requests were answered; from `_OWN_FROM` on, all 429s
    blocked: int = 0  # 429s while no request was answered
    certain: int = 0  # failures while other requests were answered, or that a short `timeout_ms` explains
    unclear: int = 0  # failures while no request was answered
    was_check: bool = False  # True if the last attempt checked whether the model answers at all
    was_slow: bool = False
    """True if the last attempt timed out at a model that has not answered in time in this run."""

    def failed(self, error: TransientError, gate: ModelGate) -> bool:
        """Count a failed attempt. Return True if the request is to be given up."""
        # A model that never answers within `timeout_ms` would be as late for the request that checks it.
        self.was_slow = error.late and not gate.state.answers and not gate.state.is_open
        is_certain = gate.state.answers > self.seen or not gate.state.waits or self.was_slow
        self.seen = gate.state.answers
        self.was_check = False
        self.made += 1
        if error.throttled and gate.state.waits:  # only `deadline_ms` ends it
            self.own += is_certain or self.own >= _OWN_FROM
            self.blocked += not is_certain
            return False
        self.certain += is_certain
        self.unclear += not is_certain
        return is_certain and self.certain > self.retries

    def need_check(self, gate: ModelGate) -> bool:
        """Return True if nothing was answered since the last failure, so the model must be checked first."""
        if not self.made or not gate.state.waits or self.was_slow:
            return False
        is_last = self.certain + self.unclear >= max(1, self.retries) or self.blocked >= _OWN_FROM
        nobody = gate.state.is_open or (is_last and gate.state.answers == self.seen)
        # A check that was never answered may itself be the problem, so it alternates with the request.
        may_tell = gate.capabilities.known_good is not None or not self.was_check
        return nobody and may_tell

    def checked(self, *, is_up: bool) -> None:
        """Record whether the model answered the other request."""
        self.certain += self.unclear if is_up else 0
        self.unclear = self.blocked = 0
        self.was_check = True


class LiveModel:
    """A live chat model that is called until it answers, within limits.

    The first request uses the JSON Schema as response format. If the model refuses that, JSON mode follows,
    then the schema in the prompt alone. What the endpoint accepts is remembered. Every attempt is counted in
    the ledger and the budget. If a model answers no request, all calls wait for it together. One that fails
    while others are answered is given up after its retries. If no other request is in progress, one that was
    answered before is repeated to distinguish the two cases.
    """

    def __init__(
        self,
        chat: ChatModel,
        ledger: Ledger,
        gate: ModelGate | None = None,
        *,
        patience: RetryPolicy = RetryPolicy(),
        price: Price | None = None,
    ) -> None:
        self.name = chat.name
        self._chat = chat
        self._ledger = ledger
        self._gate = gate or LocalGate(chat.name)
        self._patience = patience
        self._price = price
        self._sizes: defaultdict[tuple[str, str], deque[int]] = defaultdict(lambda: deque(maxlen=_RECENT))
        """Role and schema → tokens of the latest answers."""
        self._schema_chars: dict[str, int] = {}

    @property
    def level(self) -> Level:
        """The strictest response format with which the model has answered."""
        return next((each for each in Level if each.name in self._gate.capabilities.accepted), Level.PROMPT)

    async def answer(self, question: Question) -> ModelAnswer:
        """Return the answer in the strictest form that the model accepts. Raises ModelUnavailable."""
        key, limit = question.key, TimeLimit(self._patience.deadline_s)
        call = Call(limit, asker=(key.scope, key.conversation), is_user=key.role == "user")
        try:
            with limit:
                able, name = self._gate.capabilities, question.answer.__name__
                async with able.examined(name, limit) if able.is_unclear(name) else nullcontext():
                    return await self._at_best_level(question, call)
        except TimeoutError:
            problem = f"no answer within {self._patience.deadline_s:g} s, all attempts together"
            if reason := self._gate.state.problem if self._gate.state.is_open else call.problem:
                problem = f"{problem}: {reason}"
            failed = self._given_up(f"{problem}; raise `deadline_ms` to wait longer")
        except ModelUnavailable as error:
            failed = error
        raise ModelUnavailable(f"{_describe_question(key)}: {failed}", permanent=failed.permanent) from None

    async def _at_best_level(self, question: Question, call: Call) -> ModelAnswer:
        able, name, schema = self._gate.capabilities, question.answer.__name__, answer_schema(question.answer)
        level, more_tokens = able.level(name), None
        refused, renamed = dict[str, str](), dict(able.renamed)
        while True:
            # A model that answered in another form may never have seen the schema, because not every server
            # passes it on.
            needs_schema = question.repair or level is not Level.SCHEMA
            messages = _with_schema(question.messages, schema) if needs_schema else question.messages
            try:
                request = ChatRequest(messages, name, schema, level, question.key, renamed, more_tokens)
                reply = await self._with_retries(request, call, repair=question.repair > 0)
            except RequestRefused as error:
                able.is_doubted = True
                if any(parameter not in renamed for parameter in error.renamed):
                    renamed |= error.renamed
                    refused |= error.renamed
                    continue
                if level is Level.PROMPT:
                    raise self._given_up(str(error)) from None
                refused |= {level.name: "", f"{level.name} {name}": ""}
                level = Level(level + 1)
                continue
            able.answered(name, level, reply, refused)
            if not reply.is_cut or _is_complete(reply, question):
                return ModelAnswer(reply.text, reply.refusal, reply.model)
            used = reply.usage.completion_tokens
            if more_tokens:
                raise self._given_up(
                    f"its answer was cut after {used} tokens (finish_reason: length), and the limit had "
                    "already been raised; raise `max_tokens`, or let the model reason less"
                )
            more_tokens = max(_LEAST_RAISED, _RAISE * used)

    async def _with_retries(self, request: ChatRequest, call: Call, *, repair: bool) -> ChatReply:
        gate = self._gate
        tries = _Tries(self._patience.retries, gate.state.answers)
        while True:
            async with gate.attempt(call, lambda: self._estimate(request).total_tokens) as attempt:
                entered = gate.state.answers
                check = tries.need_check(gate)
                sent = self._answerable if check else request
                try:
                    retry = repair or tries.made > 0
                    reply = await self._make_attempt(sent, request.key, attempt, retry)
                    if not check:
                        gate.capabilities.known_good = request
                        return reply
                    tries.checked(is_up=True)
                    continue
                except RequestRefused:
                    if not check:
                        raise
                    tries.checked(is_up=True)  # it accepts other requests, so it is up
                    continue
                except TransientError as error:
                    failed: TransientError | ModelUnavailable = error
                    call.was_throttled |= error.throttled
                    call.problem = str(error)
                    call.is_odd = tries.own >= _OWN_FROM
                    if check:
                        tries.checked(is_up=False)
                    elif tries.failed(error, gate):
                        raise self._given_up(f"{error}{self._attempts_text(tries, error)}") from None
                except ModelUnavailable as error:
                    failed = error
            if isinstance(failed, ModelUnavailable):
                raise await self._unavailable(failed, request, call, entered)
            if (failed.retry_after or 0.0) > MAX_RETRY_AFTER_S and not tries.was_check:
                await self._check_others(str(failed), request, call, entered)
            # The call occupies no slot during the pause.
            await self._patience.sleep(self._pause(failed, tries, call))

    async def _unavailable(
        self, refused: ModelUnavailable, request: ChatRequest, call: Call, before: int
    ) -> ModelUnavailable:
        if not refused.permanent:
            return self._given_up(str(refused))
        await self._check_others(str(refused), request, call, before)
        advice = "check the model's name, its key and the account"
        if self._gate.state.answers > before:
            advice = "other requests are answered, so the server refuses only this one"
        return self._given_up(f"{refused}; {advice}", permanent=True)

    async def _check_others(self, problem: str, request: ChatRequest, call: Call, before: int) -> None:
        async with self._gate.capabilities.checking:
            if self._gate.state.answers > before or self._gate.state.is_open or not self._gate.state.waits:
                return
            with suppress(TransientError, RequestRefused):
                try:
                    first = Call(call.limit, 0, is_user=True)  # before all that wait
                    tokens = self._estimate(request).total_tokens
                    async with self._gate.attempt(first, lambda: tokens) as attempt:
                        await self._make_attempt(self._answerable, request.key, attempt, retry=True)
                except ModelUnavailable as error:
                    if error.permanent:
                        self._gate.refuse_all(problem)

    @property
    def _answerable(self) -> ChatRequest:
        return self._gate.capabilities.known_good or _SIMPLE_REQUEST

    async def _make_attempt(
        self, request: ChatRequest, key: CallKey, attempt: Attempt, retry: bool
    ) -> ChatReply:
        usage = Usage()
        cost = bound = None if self._price is None else 0.0
        try:
            with TimeLimit(self._patience.timeout_s):
                reply = await self._chat.complete(request)
            usage = reply.usage
            if usage.total_tokens:
                self._sizes[key.role, request.schema_name].append(usage.completion_tokens)
            if self._price is not None:
                # If a server reports no tokens, the cost is unknown, not 0. The budget takes its bound.
                bound = self._price.cost(usage if usage.total_tokens else self._estimate(request))
                cost = bound if usage.total_tokens else None
        except TimeoutError:
            late = TransientError(f"no answer within {self._patience.timeout_s:g} s", late=True)
            attempt.failed(late, alone=False)
            raise late from None
        except ModelError as error:
            known = self._gate.capabilities.known_good
            attempt.failed(error, alone=known is not None and request is not known)
            raise
        finally:  # whatever the outcome, even if the run is being stopped: the attempt may have a cost
            self._ledger.add(key, ModelUsage(1, usage, int(retry), cost))
        attempt.succeeded(usage.total_tokens, reply.room, bound)
        return reply

    def _estimate(self, request: ChatRequest) -> Usage:
        """Return the tokens of the request, and those that nine of ten answers of this kind do not exceed."""
        chars = self._schema_chars.get(request.schema_name)
        if chars is None:
            chars = self._schema_chars[request.schema_name] = len(json.dumps(request.schema))
        sizes = sorted(self._sizes[request.key.role, request.schema_name])
        expected = sizes[len(sizes) * 9 // 10] if sizes else _FIRST_ANSWER_TOKENS
        return Usage(estimate_tokens(request.messages, chars), expected)

    def _pause(self, error: TransientError, tries: _Tries, call: Call) -> float:
        pause, why = pause_before_retry(tries.made), ""
        if call.is_odd:
            pause = min(_OWN_PAUSE_S * 2 ** (tries.own - _OWN_FROM), _LONGEST_OWN_PAUSE_S)
            why = f" (tried {tries.made} times); other requests were answered, so its quota is not the cause"
        elif error.retry_after is None:
            return 0.0 if self._gate.state.is_open else pause
        # Some servers ask for 0 s with every 429, or name a date that has passed.
        pause = max(pause, error.retry_after or 0.0)
        if pause > call.limit.ends_at - anyio.current_time():
            why = why or f"; it asks to wait {pause:.0f} s, longer than `deadline_ms` leaves"
            raise self._given_up(f"{error}{why}")
        return pause

    def _attempts_text(self, tries: _Tries, error: TransientError) -> str:
        times = f" (tried {tries.made} times)" if tries.made > 1 else ""
        if error.late:
            return f"{times}{RAISE_TIMEOUT}"
        advice = "; other requests were answered, so look in the server's log for this one"
        return f"{times}{advice if self._gate.state.waits else ''}"

    def _given_up(self, problem: str, *, permanent: bool = False) -> ModelUnavailable:
        return ModelUnavailable(f"model {self.name}: {problem}", permanent=permanent)


def _is_complete(reply: ChatReply, question: Question) -> bool:
    try:
        read(reply.text, question.answer)
    except Unreadable:
        return bool(reply.refusal)
    return True


def _describe_question(key: CallKey) -> str:
    if key.role == "judge":
        return f"judging {key.metric or 'with a model'}"
    return "the simulated user" if key.role == "user" else "grouping errors"


def _with_schema(messages: Sequence[Message], schema: Any) -> list[Message]:
    last = messages[-1]
    form = (
        "\n\nAnswer with one JSON object and nothing else. It must validate against this JSON Schema:\n"
        + json.dumps(schema, ensure_ascii=False)
    )
    return [*messages[:-1], {**last, "content": last["content"] + form}]
