"""In a worker: its conversations, whose calls come from the run's own process, where the servers are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass, field

import anyio
from anyio.abc import TaskGroup

from agentest.mock_servers.port import (
    Addresses,
    AskedTurn,
    How,
    Identity,
    Outside,
    ServedAnswer,
    Serving,
    Stay,
    TurnTraces,
)
from agentest.workers.links import Send, can_be_sent
from agentest.workers.messages import (
    Begin,
    Enter,
    Leave,
    Question,
    RealResult,
    Refused,
    Reply,
    SpansTold,
    SpansWanted,
    Wait,
    Withdrawn,
)

_ENDED = ServedAnswer(how=How.REFUSED, message="the conversation has ended")


@dataclass(slots=True)
class _Hosted:
    serving: Serving
    heard: anyio.Event = field(default_factory=anyio.Event)
    """The run has answered: it may begin, or has to wait."""
    begun: anyio.Event = field(default_factory=anyio.Event)
    addresses: Addresses = Addresses()  # noqa: RUF009 - it is frozen
    traces: bool = False
    spans: asyncio.Future[TurnTraces] | None = None
    """What spans tell of the turn that was asked for last."""


class HostedConversations:
    """The conversations of this worker that are, or would be, under way."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._tasks: TaskGroup
        self._hosted: dict[str, _Hosted] = {}
        self._answering: dict[int, anyio.CancelScope] = {}

    @asynccontextmanager
    async def answering(self) -> AsyncIterator[None]:
        """Answer calls meanwhile: no conversation may be under way outside of the block."""
        async with anyio.create_task_group() as self._tasks:
            yield
            self._tasks.cancel_scope.cancel()

    @asynccontextmanager
    async def under_way(
        self, who: Identity, serving: Serving, outside: Outside = nullcontext
    ) -> AsyncIterator[Stay]:
        """Wait until the conversation may begin, and answer its calls until the block ends."""
        one = self._hosted[who.key] = _Hosted(serving)
        stay = Stay(one.addresses)
        self._send(Enter(who))
        try:
            await one.heard.wait()
            if not one.begun.is_set():
                async with outside():
                    await one.begun.wait()
            stay.addresses = one.addresses
            stay.traces = self if one.traces else None
            yield stay
        except BaseException:  # the run is stopped: nobody tells the agent
            stay.failed = True
            raise
        finally:
            del self._hosted[who.key]
            self._send(Leave(key=who.key, failed=stay.failed, at_work_s=stay.at_work_s))

    async def spans_of(self, asked: AskedTurn) -> TurnTraces:
        """What the spans of a turn tell (`tool_servers.port.TellsSpans`)."""
        one = self._hosted[asked.key]
        one.spans = asyncio.get_running_loop().create_future()
        self._send(SpansWanted(asked))
        return await one.spans

    def receive(self, message: Wait | Begin | Question | Withdrawn | SpansTold) -> None:
        """Handle a message of the run's own process."""
        match message:
            case Wait() if one := self._hosted.get(message.key):
                one.heard.set()
            case Begin() if one := self._hosted.get(message.key):
                one.addresses, one.traces = message.addresses, message.traces
                one.begun.set()
                one.heard.set()
            case SpansTold() if (one := self._hosted.get(message.key)) and one.spans and not one.spans.done():
                one.spans.set_result(message.told)
            case Question():
                scope = self._answering[message.number] = anyio.CancelScope()
                self._tasks.start_soon(self._answer, message, scope)
            case Withdrawn() if message.number in self._answering:
                self._answering[message.number].cancel()

    async def _answer(self, question: Question, scope: anyio.CancelScope) -> None:
        answer: ServedAnswer | None = _ENDED
        try:
            with scope:
                if one := self._hosted.get(question.key):
                    answer = await _answered(one.serving, question)
        except Exception as error:  # noqa: BLE001 - one call must not end the others, nor wait for ever
            answer = ServedAnswer(how=How.FAILED, message=f"internal error: {type(error).__name__}: {error}")
        finally:
            del self._answering[question.number]
        self._send(Reply(number=question.number, answer=answer))


async def _answered(serving: Serving, question: Question) -> ServedAnswer | None:
    if isinstance(question.about, RealResult):
        real = question.about
        await serving.answered(real.number, real.result, failed=real.failed)
        return None
    if isinstance(question.about, Refused):
        await serving.refused(question.about.why)
        return None
    answer = await serving.answer(question.about)
    if can_be_sent(answer):
        return answer
    return ServedAnswer(how=How.FAILED, message="the mock's answer is nested too deeply")
