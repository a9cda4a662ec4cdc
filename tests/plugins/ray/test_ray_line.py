"""The line to a worker on Ray, over calls that fail and are doubled as those of a network do."""

from __future__ import annotations

import asyncio
import os
import pickle
import random
import threading
from typing import Any

import anyio
import anyio.lowlevel
import pytest
from project import wait_until

from agentest.plugins.ray.channel import (
    Inbox,
    MessageBatch,
    Outbox,
    ReachLimits,
    RunEnd,
    WorkerEnd,
    WorkerEnded,
    WorkerUnreachable,
)


def test_messages_are_sent_again_until_they_are_acknowledged() -> None:
    box = Outbox()
    box.add(b"one")
    assert box.batch() == MessageBatch(0, (b"one",))
    box.add(b"two")
    assert box.batch() == MessageBatch(0, (b"one", b"two"))
    box.acknowledge(1)
    assert box.batch() == MessageBatch(1, (b"two",))


def test_a_large_batch_is_divided() -> None:
    box = Outbox()
    sizes = [7_000_000, 7_000_000, 10, 20_000_000]
    for size in sizes:
        box.add(b"x" * size)
    got: list[list[int]] = []
    while batch := box.batch():
        got.append([len(body) for body in batch.bodies])
        box.acknowledge(batch.end)
    assert got == [[7_000_000], [7_000_000, 10], [20_000_000]]


def test_a_closed_box_is_done_when_all_is_acknowledged() -> None:
    box = Outbox()
    box.add(b"one")
    box.close()
    assert not box.done
    assert box.batch() == MessageBatch(0, (b"one",))
    box.acknowledge(1)
    assert box.done
    assert box.batch() == MessageBatch(1, (), last=True)


def test_a_batch_that_comes_twice_counts_once() -> None:
    box = Inbox()
    assert box.accept(MessageBatch(0, (b"one",))) == (b"one",)
    assert box.accept(MessageBatch(0, (b"one",))) == ()
    assert box.accept(MessageBatch(0, (b"one", b"two"))) == (b"two",)
    with pytest.raises(ValueError, match="message 3 has come before message 2"):
        box.accept(MessageBatch(3, (b"four",)))


class _Wire:
    """Calls to a worker's end in this process. Some fail before they are made, of some the answer is lost."""

    def __init__(self, called: WorkerEnd, seed: int = 0, faults: float = 0.0) -> None:
        self._called = called
        self._random = random.Random(seed)
        self._faults = faults
        self.died: str | None = None
        self.killed = 0

    async def receive(self, batch: MessageBatch) -> None:
        await self._made(lambda: self._called.receive(batch))

    async def take(self, acknowledged: int) -> MessageBatch | None:
        return await self._made(lambda: self._called.take(acknowledged, wait_s=0.05))

    async def _made(self, call: Any) -> Any:
        chance = self._random.random()
        if self.died:
            raise WorkerEnded(self.died)
        if chance < self._faults / 2:
            raise WorkerUnreachable("it cannot be reached")
        result = await asyncio.to_thread(call)
        if chance < self._faults:
            raise WorkerUnreachable("the answer is lost")
        return result

    def kill(self) -> None:
        self.killed += 1


_QUICK = ReachLimits(pause_s=0.001)


class _Ends:
    """Both ends of a line, and what each has received."""

    def __init__(self, seed: int = 0, faults: float = 0.0, patience: ReachLimits = _QUICK) -> None:
        self.broken: list[Exception] = []
        self.here: list[Any] = []
        self.there: list[Any] = []
        self.disconnected = anyio.Event()
        self.worker = WorkerEnd(self.broken.append)
        self.worker.listen(self.there.append)
        self.wire = _Wire(self.worker, seed, faults)
        self.run = RunEnd(self.wire, self.here.append, self.disconnected.set, patience)


async def _until(condition: Any) -> None:
    await asyncio.to_thread(wait_until, condition)


@pytest.mark.parametrize("seed", range(3))
def test_nothing_is_lost_doubled_or_mixed_up_where_calls_fail(seed: int) -> None:
    async def go() -> None:
        ends = _Ends(seed, faults=0.3)
        for number in range(200):
            ends.run.send(number)
            ends.worker.send(-number)
            if number % 3 == 0:
                await anyio.sleep(0.001)
        await _until(lambda: len(ends.here) >= 200 and len(ends.there) >= 200)
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ends.worker.close)
            await ends.disconnected.wait()
        assert await ends.run.death() == "closed its end"
        await ends.run.close()
        assert ends.here == [-number for number in range(200)]
        assert ends.there == list(range(200))
        assert not ends.broken

    asyncio.run(go())


def test_messages_of_one_moment_go_in_one_call() -> None:
    async def go() -> None:
        ends = _Ends()
        calls: list[MessageBatch] = []
        receive = ends.wire.receive

        async def counted(batch: MessageBatch) -> None:
            calls.append(batch)
            await receive(batch)

        ends.wire.receive = counted  # type: ignore[method-assign]
        for number in range(100):
            ends.run.send(number)
        await _until(lambda: len(ends.there) == 100)
        assert len(calls) == 1
        await ends.run.close()

    asyncio.run(go())


def test_closing_waits_until_the_worker_has_everything_and_ends_it() -> None:
    async def go() -> None:
        ends = _Ends()
        ends.run.send("last")
        await ends.run.close()
        await anyio.lowlevel.checkpoint()
        assert ends.there == ["last"]
        assert ends.wire.killed == 1
        assert not ends.disconnected.is_set()

    asyncio.run(go())


def test_a_worker_that_dies_disconnects_once_and_closing_ends() -> None:
    async def go() -> None:
        ends = _Ends()
        ends.wire.died = "has died: its node is gone"
        ends.run.send("nobody reads it")
        with anyio.fail_after(10):
            await ends.disconnected.wait()
            assert await ends.run.death() == "has died: its node is gone"
            await ends.run.close()

    asyncio.run(go())


def test_a_worker_that_stays_out_of_reach_is_given_up() -> None:
    async def go() -> None:
        ends = _Ends(faults=2.0, patience=ReachLimits(pause_s=0.001, out_of_reach_s=0.05))
        with anyio.fail_after(10):
            assert "was out of reach" in await ends.run.death()
        await ends.run.close()

    asyncio.run(go())


class _Mute:
    """A worker that takes calls and answers none, as on a machine that has lost its network."""

    killed = 0

    async def receive(self, batch: MessageBatch) -> None:
        await anyio.sleep_forever()

    async def take(self, acknowledged: int) -> MessageBatch | None:
        await anyio.sleep_forever()
        return None

    def kill(self) -> None:
        self.killed += 1


def test_a_worker_that_answers_no_call_is_given_up_and_ended() -> None:
    async def go() -> None:
        mute, disconnected = _Mute(), anyio.Event()
        run = RunEnd(mute, print, disconnected.set, ReachLimits(pause_s=0.001, out_of_reach_s=0.05))
        run.send("a conversation")
        with anyio.fail_after(10):
            await disconnected.wait()
            assert await run.death() == "was out of reach for 0 s: a call was not answered"
        assert mute.killed
        await run.close()

    asyncio.run(go())


def test_a_worker_that_waits_for_its_place_is_not_called() -> None:
    """It may wait for long: only what has begun has to answer."""

    async def go() -> None:
        begun, got = asyncio.Event(), list[Any]()
        called = WorkerEnd(print)
        called.listen(got.append)
        wire = _Wire(called)
        run = RunEnd(wire, print, print, ReachLimits(pause_s=0.001, out_of_reach_s=0.05), begun)
        run.send("early")
        wire.died = "is not there yet"
        await anyio.wait_all_tasks_blocked()
        wire.died = None
        begun.set()
        await _until(lambda: bool(got))
        assert got == ["early"]
        await run.close()

    asyncio.run(go())


def test_what_comes_before_anybody_listens_is_kept() -> None:
    async def go() -> None:
        got: list[Any] = []
        called = WorkerEnd(print)
        run = RunEnd(_Wire(called), print, print)
        run.send("early")
        await run.close()
        await anyio.lowlevel.checkpoint()
        called.listen(got.append)
        assert got == ["early"]

    asyncio.run(go())


def test_who_handles_a_message_may_use_the_event_loop() -> None:
    """Calls come in threads of Ray: a message is handled as if the loop's own thread had received it."""

    async def go() -> None:
        told: list[Exception] = []
        scopes: list[anyio.CancelScope] = []
        called = WorkerEnd(told.append)
        called.listen(lambda message: scopes.append(anyio.CancelScope()))
        box = Outbox()
        box.add(pickle.dumps(["a question"]))
        threading.Thread(target=called.receive, args=(box.batch(),)).start()
        await _until(lambda: told or scopes)
        assert told == []

    anyio.run(go)


def test_a_later_question_takes_the_place_of_an_earlier_one() -> None:
    async def go() -> None:
        called = WorkerEnd(print)
        earlier = asyncio.create_task(asyncio.to_thread(called.take, 0))
        await anyio.sleep(0.02)
        later = asyncio.create_task(asyncio.to_thread(called.take, 0))
        with anyio.fail_after(10):
            assert await earlier is None
            called.send("one")
            batch = await later
        assert batch is not None
        assert batch.number == 0

    asyncio.run(go())


def test_a_message_that_cannot_be_handled_is_told() -> None:
    async def go() -> None:
        told: list[Exception] = []

        def refuse(message: Any) -> None:
            raise LookupError(message)

        called = WorkerEnd(told.append)
        called.listen(refuse)
        wire = _Wire(called)
        run = RunEnd(wire, print, print)
        run.send("what")
        await _until(lambda: told)
        assert isinstance(told[0], LookupError)
        await run.close()

    asyncio.run(go())


def test_what_a_worker_sends_and_nobody_can_read_ends_it() -> None:
    class Nonsense:
        killed = False

        async def receive(self, batch: MessageBatch) -> None:
            del batch

        async def take(self, acknowledged: int) -> MessageBatch | None:
            del acknowledged
            return MessageBatch(0, (os.urandom(8),))

        def kill(self) -> None:
            self.killed = True

    async def go() -> None:
        nonsense = Nonsense()
        run = RunEnd(nonsense, print, lambda: None)
        with anyio.fail_after(10):
            assert "sent what cannot be handled" in await run.death()
        assert nonsense.killed
        await run.close()

    asyncio.run(go())
