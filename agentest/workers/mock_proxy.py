"""Proxy tool calls between the mock servers in the run's process and the mocks in a worker.

`MockProxy` forwards each call from a server to the worker, and `ProxiedConversations` answers it there.
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
    """The conversations of one worker that are registered with the run's mock servers.

    The worker calls `enter`, `leave`, `request_spans` and `answer`.
    """

    def __init__(self, registry: Registry, send: Send, tasks: TaskGroup) -> None:
        """Register a worker. Conversations that have to wait before they begin wait in `tasks`."""
        self._registry = registry
        self._send = send
        self._worker: ProxiedConversations = remote(MOCKS, send)
        self._tasks = tasks
        self._waiting: dict[str, anyio.CancelScope] = {}
        self._under_way: dict[str, Identity] = {}
        self._numbers = count()
        self._questions: dict[int, asyncio.Future[ServedAnswer | None]] = {}
        self._closed = False

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

    def answer(self, number: int, answer: ServedAnswer | None) -> None:
        """Deliver an answer if the call still waits for it. None confirms that a question was received."""
        reply = self._questions.get(number)
        if reply is not None and not reply.done():
            reply.set_result(answer)

    def close(self) -> None:
        """End all conversations of a worker that has ended. Open questions are answered with a refusal."""
        for key in [*self._waiting, *self._under_way]:
            self.leave(key)
        self._closed = True
        for number in self._questions:
            self.answer(number, _WORKER_ENDED)

    async def ask(self, key: str, method: str, *args: object, **options: object) -> ServedAnswer:
        """Call a method of the conversation with this key in the worker, and wait for the answer."""
        if self._closed:
            return _WORKER_ENDED
        number = next(self._numbers)
        reply = self._questions[number] = asyncio.get_running_loop().create_future()
        self._worker.ask(number, key, method, *args, **options)
        try:
            return await reply or ServedAnswer(how=CallOutcome.ANSWERED)
        except asyncio.CancelledError:
            self._worker.cancel(number)
            raise
        finally:
            del self._questions[number]

    async def _enter(self, who: Identity, scope: anyio.CancelScope) -> None:
        with scope:
            if scope.cancel_called:  # it left before this task began
                return
            serving = _RemoteServing(who.key, self)
            stay = await self._registry.enter(who, serving, partial(self._notify_waiting, who.key))
            if scope.cancel_called:  # it left at the moment when it could have begun
                self._registry.leave(who, failed=True)
                return
            del self._waiting[who.key]
            self._under_way[who.key] = who
            self._conversation(who.key).begin(stay.addresses, traces=stay.traces is not None)

    @asynccontextmanager
    async def _notify_waiting(self, key: str) -> AsyncIterator[None]:
        self._conversation(key).wait()
        yield

    def _conversation(self, key: str) -> ProxiedConversation:
        conversation: ProxiedConversation = remote(key, self._send)
        return conversation

    async def _send_spans(self, request: SpanRequest) -> None:
        who = self._under_way.get(request.key)
        group = self._registry.group_of(who.agent) if who else None
        if group is None or group.traces is None:
            return  # it has left
        traces = await group.traces.spans_of(request)
        if request.key in self._under_way:
            self._conversation(request.key).accept_spans(traces if can_be_sent(traces) else _TOO_DEEP)


class _RemoteServing:
    """A worker's conversation, as the mock servers call it.

    `answered` and `refused` return after the worker knows, because the agent may reply at once.
    """

    def __init__(self, key: str, proxy: MockProxy) -> None:
        self._ask = partial(proxy.ask, key)

    async def answer(self, call: ServedCall) -> ServedAnswer:
        if not can_be_sent(call):
            call = replace(call, arguments=None, problem="the arguments are nested too deeply")
        return await self._ask("answer", call)

    async def answered(self, number: int, result: Any, *, failed: bool, status: int | None = None) -> None:
        del status  # real tools are recorded only in runs with one process
        sent = result if can_be_sent(result) else "(nested too deeply to be kept)"
        await self._ask("answered", number, sent, failed=failed)

    async def refused(self, why: str) -> None:
        await self._ask("refused", why)


_CONVERSATION_ENDED = ServedAnswer(how=CallOutcome.REFUSED, message="the conversation has ended")


@dataclass(slots=True)
class ProxiedConversation:
    """A conversation of this worker. The run's process calls `wait`, `begin` and `accept_spans`."""

    serving: ActiveConversation
    answered: anyio.Event = field(default_factory=anyio.Event)
    """Set when the run's process has responded: the conversation may begin or has to wait."""
    begun: anyio.Event = field(default_factory=anyio.Event)
    addresses: Addresses = Addresses()
    traces: bool = False
    """True if the agent exports spans to Agentest."""
    spans: asyncio.Future[TurnTraces] | None = None
    """The pending response for the spans of the last requested turn."""

    def wait(self) -> None:
        self.answered.set()

    def begin(self, addresses: Addresses, *, traces: bool) -> None:
        self.addresses, self.traces = addresses, traces
        self.begun.set()
        self.answered.set()

    def accept_spans(self, traces: TurnTraces) -> None:
        if self.spans and not self.spans.done():
            self.spans.set_result(traces)


class ProxiedConversations:
    """The conversations of this worker that are running or waiting to begin."""

    def __init__(self, send: Send) -> None:
        self._run: MockProxy = remote(MOCKS, send)
        self._tasks: TaskGroup
        self.hosted: dict[str, ProxiedConversation] = {}
        """Conversations by their keys. The run's process calls them, and `ask` and `cancel`."""
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
        conversation = self.hosted[who.key] = ProxiedConversation(serving)
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
            del self.hosted[who.key]
            self._run.leave(who.key, stay.at_work_s, failed=stay.failed)

    async def spans_of(self, request: SpanRequest) -> TurnTraces:
        """Return what the spans of a turn show (`mock_servers.port.TellsSpans`)."""
        conversation = self.hosted[request.key]
        conversation.spans = asyncio.get_running_loop().create_future()
        self._run.request_spans(request)
        return await conversation.spans

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
                if conversation := self.hosted.get(key):
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
