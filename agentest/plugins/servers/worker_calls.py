"""Proxy tool calls between the servers in the run's process and the mocks in a worker.

`MockProxy` forwards each call from a server to the worker, and `ProxiedConversations` answers it there.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext
from dataclasses import field, replace
from functools import partial
from itertools import count
from operator import methodcaller
from typing import Any

import anyio
from anyio.abc import TaskGroup

from agentest.agents.call_source_addresses import Addresses
from agentest.plugins.servers import port
from agentest.plugins.servers.active_conversations import Registry
from agentest.plugins.servers.server_calls import ServerCalls
from agentest.runner.call_sources import RunResources, WaitingBlock
from agentest.support.errors import AgentError, AgentestError, OwnFault, described
from agentest.support.lazy_dataclasses import dataclass
from agentest.workers.channel import can_be_sent

_TOO_DEEP = port.TurnTraces(missing="traces incomplete: their content is nested too deeply")
_WORKER_ENDED = port.ServedAnswer(
    how=port.CallOutcome.REFUSED, message="the process that ran the conversation has ended"
)


class MockProxy:
    """The conversations of one worker that are registered with the run's mock servers.

    The worker calls `enter`, `leave`, `said`, `replied`, `request` and `answer`.
    """

    def __init__(self, registry: Registry, worker: Any, tasks: TaskGroup, recordings: Any = None) -> None:
        """Register a worker. Its conversations are tasks of `tasks`, here with the tapes of this process.

        Args:
            worker: stands for the `ProxiedConversations` there.
        """
        self._registry = registry
        self._recordings = recordings
        self._worker: ProxiedConversations = worker
        self._tasks = tasks
        self._waiting: dict[str, anyio.CancelScope] = {}
        self._under_way: dict[str, _WorkerConversation] = {}
        self._numbers = count()
        self._questions: dict[int, asyncio.Future[port.ServedAnswer | None]] = {}
        self._closed = False

    def enter(self, who: port.Identity, access: port.ModelAccess | None = None) -> None:
        """Begin a conversation when the agent's mock servers and its model gateway permit."""
        scope = self._waiting[who.key] = anyio.CancelScope()
        access = access and replace(access, recordings=self._recordings)
        self._tasks.start_soon(self._stay, who, access, scope)

    def leave(self, key: str, at_work_s: float = 0.0, *, failed: bool = True) -> None:
        """End the conversation with this key, or its wait to begin."""
        if conversation := self._under_way.pop(key, None):
            conversation.period.failed, conversation.period.at_work_s = failed, at_work_s
            conversation.left.set()
        elif scope := self._waiting.pop(key, None):
            scope.cancel()

    def said(self, key: str, text: str) -> None:
        conversation = self._under_way.get(key)
        if conversation and conversation.period.model:
            conversation.request = conversation.period.model.said(text)
            conversation.request.__enter__()

    def replied(self, key: str, *, failed: bool) -> None:
        """Let the model gateway know that the agent has replied, or was given up."""
        conversation = self._under_way.get(key)
        if conversation and (request := conversation.request):
            conversation.request = None
            request.__exit__(AgentError if failed else None, AgentError() if failed else None, None)

    def request(self, key: str, number: int, part: str, method: str, *args: object) -> None:
        """Call a method of a part of the conversation's `ActivePeriod`, and send what it returns."""
        self._tasks.start_soon(self._respond, key, number, part, methodcaller(method, *args))

    def answer(self, number: int, answer: port.ServedAnswer | None) -> None:
        """Deliver an answer if the call still waits for it. None confirms that a question was received."""
        reply = self._questions.get(number)
        if reply is not None and not reply.done():
            reply.set_result(answer)

    def close(self) -> None:
        """End all conversations of a worker that has ended. Open questions are answered with a refusal."""
        for key in [*self._waiting, *self._under_way]:
            conversation = self._under_way.get(key)
            at_work_s = conversation.timeout_s if conversation and conversation.request else 0.0
            self.replied(key, failed=True)
            self.leave(key, at_work_s)
        self._closed = True
        for number in self._questions:
            self.answer(number, _WORKER_ENDED)

    async def ask(self, key: str, method: str, *args: object, **options: object) -> port.ServedAnswer:
        """Call a method of the conversation with this key in the worker, and wait for the answer."""
        if self._closed:
            return _WORKER_ENDED
        number = next(self._numbers)
        reply = self._questions[number] = asyncio.get_running_loop().create_future()
        self._worker.ask(number, key, method, *args, **options)
        try:
            return await reply or port.ServedAnswer(how=port.CallOutcome.ANSWERED)
        except asyncio.CancelledError:
            self._worker.cancel(number)
            raise
        finally:
            del self._questions[number]

    async def _stay(
        self, who: port.Identity, access: port.ModelAccess | None, scope: anyio.CancelScope
    ) -> None:
        with scope:
            if scope.cancel_called:  # it left before this task began
                return
            serving, outside = _RemoteServing(who.key, self), partial(self._notify_waiting, who.key)
            async with self._registry.under_way(who, serving, outside, access) as period:
                if scope.cancel_called:  # it left at the moment when it could have begun
                    period.failed = True
                    return
                del self._waiting[who.key]
                conversation = self._under_way[who.key] = _WorkerConversation(
                    period, access.timeout_s if access else 0.0
                )
                self._worker.tell(
                    who.key,
                    "begin",
                    period.addresses,
                    traces=period.traces is not None,
                    model=period.model is not None,
                    lane=period.model.lane if period.model else None,
                )
                await conversation.left.wait()

    @asynccontextmanager
    async def _notify_waiting(self, key: str) -> AsyncIterator[None]:
        self._worker.tell(key, "wait")
        yield

    async def _respond(
        self, key: str, number: int, part: str, call: Callable[[object], Awaitable[object]]
    ) -> None:
        conversation = self._under_way.get(key)
        if conversation is None:
            return  # it has left
        result: object = None
        error: AgentestError | str | None = None
        try:
            result = await call(getattr(conversation.period, part))
        except AgentestError as problem:
            error = problem
        except Exception as problem:  # noqa: BLE001 - the worker's conversation ends, and not the run
            error = described(problem)
        self._worker.tell(key, "accept", number, result if can_be_sent(result) else _TOO_DEEP, error)


@dataclass(slots=True)
class _WorkerConversation:
    period: port.ActivePeriod
    timeout_s: float  # the time that its agent may go on for when the worker has died
    left: anyio.Event = field(default_factory=anyio.Event)
    request: AbstractContextManager[None] | None = None


class _RemoteServing:
    """A worker's conversation, as the mock servers call it.

    `answered` and `refused` return after the worker knows, because the agent may reply at once.
    """

    def __init__(self, key: str, proxy: MockProxy) -> None:
        self._ask = partial(proxy.ask, key)

    async def answer(self, call: port.ServedCall) -> port.ServedAnswer:
        if not can_be_sent(call):
            made = call.made and replace(call.made, args=None, result=None)
            call = replace(call, arguments=None, made=made, problem="the arguments are nested too deeply")
        return await self._ask("answer", call)

    async def answered(self, number: int, answer: port.RealAnswer) -> None:
        result = answer.result if can_be_sent(answer.result) else "(nested too deeply to store)"
        await self._ask("answered", number, replace(answer, result=result, raw=None))

    async def refused(self, why: str, *, ours: bool = False) -> None:
        await self._ask("refused", why, ours=ours)


_CONVERSATION_ENDED = port.ServedAnswer(how=port.CallOutcome.REFUSED, message="the conversation has ended")


@dataclass(slots=True)
class ProxiedConversation:
    """A conversation of this worker.

    It asks the run's process for its spans and what its model did (implements `SpanSource` and
    `ModelConversation`).
    """

    who: port.Identity
    serving: port.ActiveConversation
    run: MockProxy
    answered: anyio.Event = field(default_factory=anyio.Event)
    """Set when the run's process has responded: the conversation may begin or has to wait."""
    begun: anyio.Event = field(default_factory=anyio.Event)
    addresses: Addresses = Addresses()
    has_traces: bool = False  # True if the agent exports spans to Agentest
    has_model: bool = False  # True if the agent calls its model through a gateway
    lane: int | None = None
    _requests: dict[int, asyncio.Future[Any]] = field(default_factory=dict)
    _numbers: Iterator[int] = field(default_factory=count)

    def wait(self) -> None:
        self.answered.set()

    def begin(self, addresses: Addresses, *, traces: bool, model: bool, lane: int | None) -> None:
        self.addresses, self.has_traces, self.has_model, self.lane = addresses, traces, model, lane
        self.begun.set()
        self.answered.set()

    def accept(self, number: int, result: object, error: AgentestError | str | None) -> None:
        """Take what a part of its `ActivePeriod` returned or raised."""
        if (reply := self._requests.get(number)) is None or reply.done():
            return
        if error is None:
            reply.set_result(result)
        else:
            reply.set_exception(RuntimeError(error) if isinstance(error, str) else error)

    async def spans_of(self, request: port.SpanRequest) -> port.TurnTraces:
        traces: port.TurnTraces = await self._request("traces", "spans_of", request)
        return traces

    @contextmanager
    def said(self, text: str) -> Iterator[None]:
        self.run.said(self.who.key, text)
        failed = True
        try:
            yield
            failed = False
        finally:
            self.run.replied(self.who.key, failed=failed)

    async def has_heard(self) -> None:
        await self._request("model", "has_heard")

    async def error_of(self, agent_error: Exception | None) -> AgentestError | None:
        sent = AgentError(str(agent_error)) if agent_error else None
        error: AgentestError | None = await self._request("model", "error_of", sent)
        return error

    async def end_turn(self) -> port.TurnTraces:
        traces: port.TurnTraces = await self._request("model", "end_turn")
        return traces

    async def _request(self, part: str, method: str, *args: object) -> Any:
        number = next(self._numbers)
        reply = self._requests[number] = asyncio.get_running_loop().create_future()
        self.run.request(self.who.key, number, part, method, *args)
        try:
            return await reply
        finally:
            del self._requests[number]


class ProxiedConversations(ServerCalls):
    """The conversations of this worker that are running or waiting to begin.

    The run's process calls `tell`, `ask` and `cancel` for the conversation with a key.

    Args:
        run: stands for the `MockProxy` there.
    """

    def __init__(self, run: Any) -> None:
        super().__init__(self.under_way)
        self._run: MockProxy = run
        self._tasks: TaskGroup
        self._hosted: dict[str, ProxiedConversation] = {}
        self._answering: dict[int, anyio.CancelScope] = {}

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Answer calls inside of the block. No conversation may run outside of it."""
        async with anyio.create_task_group() as self._tasks:
            yield
            self._tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def under_way(
        self,
        who: port.Identity,
        serving: port.ActiveConversation,
        outside: WaitingBlock = nullcontext,
        access: port.ModelAccess | None = None,
    ) -> AsyncIterator[port.ActivePeriod]:
        """Wait until the conversation may begin, and answer its calls until the block ends."""
        conversation = self._hosted[who.key] = ProxiedConversation(who, serving, self._run)
        stay = port.ActivePeriod(conversation.addresses)
        self._run.enter(who, access and replace(access, recordings=None))
        try:
            await conversation.answered.wait()
            if not conversation.begun.is_set():
                async with outside():
                    await conversation.begun.wait()
            stay.addresses = conversation.addresses
            stay.traces = conversation if conversation.has_traces else None
            stay.model = conversation if conversation.has_model else None
            yield stay
        except BaseException:  # the run is being stopped, and nobody notifies the agent
            stay.failed = True
            raise
        finally:
            del self._hosted[who.key]
            self._run.leave(who.key, stay.at_work_s, failed=stay.failed)

    def tell(self, key: str, method: str, *args: object, **options: object) -> None:
        """Call `wait`, `begin` or `accept` of a conversation, unless it has ended."""
        if conversation := self._hosted.get(key):
            methodcaller(method, *args, **options)(conversation)

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
        self,
        number: int,
        key: str,
        call: Callable[[port.ActiveConversation], Awaitable[port.ServedAnswer | None]],
    ) -> None:
        answer: port.ServedAnswer | None = _CONVERSATION_ENDED
        try:
            with self._answering[number]:
                if conversation := self._hosted.get(key):
                    answer = await call(conversation.serving)
                    if not can_be_sent(answer):
                        problem = "the mock's answer is nested too deeply"
                        answer = port.ServedAnswer(how=port.CallOutcome.FAILED, message=problem)
        except Exception as error:  # noqa: BLE001 - one failing call must not end the others or wait forever
            answer = port.ServedAnswer(how=port.CallOutcome.FAILED, message=str(OwnFault.of(error)))
            if conversation := self._hosted.get(key):
                await conversation.serving.refused(answer.message, ours=True)
        finally:
            del self._answering[number]
        self._run.answer(number, answer)


async def open_proxied_servers(resources: RunResources, run: Any) -> ProxiedConversations:
    """Open the servers of the run's process for a worker (`OpenWorkerEnd`)."""
    conversations = ProxiedConversations(run)
    await resources.closing.enter_async_context(conversations.answering())
    return conversations
