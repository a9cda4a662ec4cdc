"""Proxy tool calls between the mock servers in the run's process and the mocks in a worker.

The mock servers run in the run's process, the mocks in the workers. `MockProxy` forwards each call from a
server to the worker, and `ProxiedConversations` answers it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, nullcontext
from dataclasses import field, replace
from functools import partial
from itertools import count
from operator import methodcaller
from typing import Any

import anyio
from anyio.abc import TaskGroup

from agentest.mock_servers.port import (
    ActiveConversation,
    ActivePeriod,
    Addresses,
    CallOutcome,
    Identity,
    ServedAnswer,
    ServedCall,
    SpanRequest,
    TurnTraces,
    WaitingBlock,
)
from agentest.mock_servers.registry import Registry
from agentest.support.lazy_dataclasses import dataclass
from agentest.workers.channel import Send, can_be_sent, remote

MOCKS = "mocks"
_TOO_DEEP = TurnTraces(missing="traces incomplete: what its spans tell is nested too deeply to be read")
_WORKER_ENDED = ServedAnswer(
    how=CallOutcome.REFUSED, message="the process that held the conversation has ended"
)


class MockProxy:
    """The conversations of one worker that are registered with the run's mock servers."""

    def __init__(self, registry: Registry, send: Send, tasks: TaskGroup) -> None:
        """Register a worker. Conversations that have to wait before they begin wait in `tasks`."""
        self._registry = registry
        self._worker: ProxiedConversations = remote(MOCKS, send)
        self._tasks = tasks
        self._waiting: dict[str, anyio.CancelScope] = {}
        self._under_way: dict[str, Identity] = {}
        self._questions = PendingQuestions(self._worker)
        self.answer = self._questions.answer

    def enter(self, who: Identity) -> None:
        """Begin a conversation when the agent's mock servers permit."""
        scope = self._waiting[who.key] = anyio.CancelScope()
        self._tasks.start_soon(self._enter, who, scope)

    def leave(self, key: str, at_work_s: float = 0.0, *, failed: bool = True) -> None:
        """End the conversation with this key, or its wait to begin."""
        if who := self._under_way.pop(key, None):
            self._registry.leave(who, failed=failed, at_work_s=at_work_s)
        elif scope := self._waiting.pop(key, None):
            scope.cancel()

    def request_spans(self, request: SpanRequest) -> None:
        """Send the tool calls and model usage found in the spans of a turn."""
        self._tasks.start_soon(self._send_spans, request)

    def close(self) -> None:
        """End all conversations of a worker that has ended. Open questions are answered with a refusal."""
        for key in [*self._waiting, *self._under_way]:
            self.leave(key)
        self._questions.close()

    async def _enter(self, who: Identity, scope: anyio.CancelScope) -> None:
        with scope:
            if scope.cancel_called:  # it left before this task began
                return
            serving = _RemoteServing(who, self._questions)
            stay = await self._registry.enter(who, serving, partial(self._notify_waiting, who.key))
            if scope.cancel_called:  # it left at the moment when it could have begun
                self._registry.leave(who, failed=True)
                return
            del self._waiting[who.key]
            self._under_way[who.key] = who
            self._worker.begin(who.key, stay.addresses, traces=stay.traces is not None)

    async def _send_spans(self, request: SpanRequest) -> None:
        who = self._under_way.get(request.key)
        group = self._registry.group_of(who.agent) if who else None
        if group is None or group.traces is None:
            return  # it has left
        traces = await group.traces.spans_of(request)
        if request.key in self._under_way:
            self._worker.accept_spans(request.key, traces if can_be_sent(traces) else _TOO_DEEP)

    @asynccontextmanager
    async def _notify_waiting(self, key: str) -> AsyncIterator[None]:
        self._worker.wait(key)
        yield


class PendingQuestions:
    """The questions sent to one worker and the calls that wait for its answers."""

    def __init__(self, worker: ProxiedConversations) -> None:
        self._worker = worker
        self._numbers = count()
        self._waiting: dict[int, asyncio.Future[ServedAnswer | None]] = {}
        self._closed = False

    async def ask(self, key: str, method: str, *args: object, **options: object) -> ServedAnswer:
        """Call a method of the conversation with this key and wait for the answer."""
        if self._closed:
            return _WORKER_ENDED
        number = next(self._numbers)
        reply = self._waiting[number] = asyncio.get_running_loop().create_future()
        self._worker.ask(number, key, method, *args, **options)
        try:
            return await reply or ServedAnswer(how=CallOutcome.ANSWERED)
        except asyncio.CancelledError:
            self._worker.cancel(number)
            raise
        finally:
            del self._waiting[number]

    def answer(self, number: int, answer: ServedAnswer | None) -> None:
        """Deliver an answer if the call still waits for it. None confirms that the question was received."""
        reply = self._waiting.get(number)
        if reply is not None and not reply.done():
            reply.set_result(answer)

    def close(self) -> None:
        """Answer all open questions with a refusal and send no more."""
        self._closed = True
        for number in self._waiting:
            self.answer(number, _WORKER_ENDED)


class _RemoteServing:
    """A worker's conversation, as the mock servers call it."""

    def __init__(self, who: Identity, questions: PendingQuestions) -> None:
        self._who = who
        self._questions = questions

    async def answer(self, call: ServedCall) -> ServedAnswer:
        return await self._questions.ask(self._who.key, "answer", _sendable(call))

    async def answered(self, number: int, result: Any, *, failed: bool, status: int | None = None) -> None:
        """Return after the worker has the result. The agent gets it only then, and may reply at once."""
        del status  # real tools are recorded only in runs with one process
        sent = result if can_be_sent(result) else "(nested too deeply to be kept)"
        await self._questions.ask(self._who.key, "answered", number, sent, failed=failed)

    async def refused(self, why: str) -> None:
        """Return after the worker knows, for the same reason as `answered`."""
        await self._questions.ask(self._who.key, "refused", why)


def _sendable(call: ServedCall) -> ServedCall:
    if can_be_sent(call):
        return call
    return replace(call, arguments=None, problem="the arguments are nested too deeply")


_CONVERSATION_ENDED = ServedAnswer(how=CallOutcome.REFUSED, message="the conversation has ended")


@dataclass(slots=True)
class _ProxiedConversation:
    serving: ActiveConversation
    answered: anyio.Event = field(default_factory=anyio.Event)
    """Set when the run's process has responded: the conversation may begin or has to wait."""
    begun: anyio.Event = field(default_factory=anyio.Event)
    addresses: Addresses = Addresses()
    traces: bool = False
    spans: asyncio.Future[TurnTraces] | None = None
    """The pending response for the spans of the last requested turn."""


class ProxiedConversations:
    """The conversations of this worker that are running or waiting to begin."""

    def __init__(self, send: Send) -> None:
        self._run: MockProxy = remote(MOCKS, send)
        self._tasks: TaskGroup
        self._hosted: dict[str, _ProxiedConversation] = {}
        self._answering: dict[int, anyio.CancelScope] = {}

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Answer calls inside of the block. No conversation may run outside of it."""
        async with anyio.create_task_group() as self._tasks:
            yield
            self._tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def under_way(
        self, who: Identity, serving: ActiveConversation, outside: WaitingBlock = nullcontext
    ) -> AsyncIterator[ActivePeriod]:
        """Wait until the conversation may begin, and answer its calls until the block ends."""
        conversation = self._hosted[who.key] = _ProxiedConversation(serving)
        stay = ActivePeriod(conversation.addresses)
        self._run.enter(who)
        try:
            await conversation.answered.wait()
            if not conversation.begun.is_set():
                async with outside():
                    await conversation.begun.wait()
            stay.addresses = conversation.addresses
            stay.traces = self if conversation.traces else None
            yield stay
        except BaseException:  # the run is being stopped, and nobody notifies the agent
            stay.failed = True
            raise
        finally:
            del self._hosted[who.key]
            self._run.leave(who.key, stay.at_work_s, failed=stay.failed)

    async def spans_of(self, request: SpanRequest) -> TurnTraces:
        """Return what the spans of a turn show (`mock_servers.port.TellsSpans`)."""
        conversation = self._hosted[request.key]
        conversation.spans = asyncio.get_running_loop().create_future()
        self._run.request_spans(request)
        return await conversation.spans

    # Called by the run's process:

    def wait(self, key: str) -> None:
        """The conversation with this key has to wait before it begins."""
        if conversation := self._hosted.get(key):
            conversation.answered.set()

    def begin(self, key: str, addresses: Addresses, *, traces: bool) -> None:
        """The conversation with this key may begin.

        Args:
            addresses: those of the mock servers.
            traces: True if the agent exports spans to Agentest.
        """
        if conversation := self._hosted.get(key):
            conversation.addresses, conversation.traces = addresses, traces
            conversation.begun.set()
            conversation.answered.set()

    def accept_spans(self, key: str, traces: TurnTraces) -> None:
        """Deliver the response to `spans_of`."""
        spans = self._hosted[key].spans if key in self._hosted else None
        if spans and not spans.done():
            spans.set_result(traces)

    def ask(self, number: int, key: str, method: str, *args: object, **options: object) -> None:
        """Call a method of a conversation and send its answer.

        Args:
            number: unique among all questions to this worker.
        """
        self._answering[number] = anyio.CancelScope()
        self._tasks.start_soon(self._answer, number, key, methodcaller(method, *args, **options))

    def cancel(self, number: int) -> None:
        """The answer to this question is no longer needed."""
        if scope := self._answering.get(number):
            scope.cancel()

    async def _answer(
        self, number: int, key: str, call: Callable[[ActiveConversation], Awaitable[ServedAnswer | None]]
    ) -> None:
        answer: ServedAnswer | None = _CONVERSATION_ENDED
        try:
            with self._answering[number]:
                if conversation := self._hosted.get(key):
                    answer = await call(conversation.serving)
                    if not can_be_sent(answer):
                        problem = "the mock's answer is nested too deeply"
                        answer = ServedAnswer(how=CallOutcome.FAILED, message=problem)
        except Exception as error:  # noqa: BLE001 - one failing call must not end the others or wait forever
            answer = ServedAnswer(
                how=CallOutcome.FAILED, message=f"internal error: {type(error).__name__}: {error}"
            )
        finally:
            del self._answering[number]
        self._run.answer(number, answer)
