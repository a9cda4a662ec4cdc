"""Time limits: what the agent takes counts, what holds this program up does not."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from math import inf
from typing import Any

import anyio
import pytest

from agentest.support.deadlines import TimeLimit


class VirtualTime(selectors.SelectSelector):
    """Waits for nothing: the time of its loop goes on by what it should have waited."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 1000.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if not found:
            self.now += 3600.0 if timeout is None else max(0.0, timeout)
        return found


class Loop(asyncio.SelectorEventLoop):
    """An event loop in virtual time."""

    def __init__(self) -> None:
        self.virtual = VirtualTime()
        super().__init__(self.virtual)

    def time(self) -> float:
        return self.virtual.now

    def hold_up(self, seconds: float) -> None:
        """Block the loop, as slow code or a stopped process does."""
        self.virtual.now += seconds


def run(test: Callable[[Loop], Awaitable[Any]]) -> Any:
    """Run the test in virtual time."""
    loop = Loop()
    try:
        return loop.run_until_complete(test(loop))  # type: ignore[arg-type]
    finally:
        loop.close()


def test_a_limit_ends_what_takes_longer() -> None:
    """Work that takes longer than its limit is cancelled; shorter work is not."""

    async def test(loop: Loop) -> float:
        began = loop.time()
        with TimeLimit(2.0) as limit:
            await asyncio.sleep(1.9)
        assert not limit.expired
        with pytest.raises(TimeoutError), TimeLimit(2.0) as limit:
            await asyncio.sleep(60)
        assert limit.expired
        assert limit.elapsed == pytest.approx(2.0)
        return loop.time() - began

    assert run(test) == pytest.approx(3.9)


async def _pause_and_go_on(limit: TimeLimit) -> None:
    with limit.paused():
        await asyncio.sleep(60)
    await asyncio.sleep(6)


def test_pauses_do_not_count() -> None:
    """Time waited in a pause is not counted, and a delay in it is not counted twice."""

    async def test(loop: Loop) -> None:
        with TimeLimit(5.0) as limit:
            await asyncio.sleep(1)
            for _ in range(2):
                with limit.paused():
                    await asyncio.sleep(60)
                    loop.hold_up(7)
                    await asyncio.sleep(1)
                    assert limit.elapsed == pytest.approx(1)
                    assert limit.ends_at == pytest.approx(loop.time() + 4)
            await asyncio.sleep(3)
        assert limit.elapsed == pytest.approx(4)
        with pytest.raises(TimeoutError), TimeLimit(5.0) as limit:
            await _pause_and_go_on(limit)
        assert limit.elapsed == pytest.approx(5)

    run(test)


@pytest.mark.parametrize("delay", [0.3, 4.0, 3600.0])
def test_loop_delays_do_not_count(delay: float) -> None:
    """A limit is extended by the time that the loop was blocked, even if it had expired by then."""

    async def test(loop: Loop) -> tuple[float, float]:
        loop.call_later(0.5, loop.hold_up, delay)
        began = loop.time()
        with TimeLimit(1.0) as limit:
            await asyncio.sleep(0.7)  # by now it has come, if somebody had looked
            await asyncio.sleep(0.2)
        answered = limit.elapsed
        loop.call_later(0.5, loop.hold_up, delay)
        with pytest.raises(TimeoutError), TimeLimit(1.0):
            await asyncio.sleep(7200)
        return answered, loop.time() - began - answered - 2 * delay

    answered, given_up_after = run(test)
    assert answered <= 0.95
    assert given_up_after == pytest.approx(1.0, abs=0.15)


def test_a_delay_extends_all_limits() -> None:
    """Everyone who waits while the loop is blocked gets the time back, even if expired by then."""

    async def test(loop: Loop) -> list[bool]:
        async def wait(seconds: float) -> bool:
            with TimeLimit(seconds):
                await asyncio.sleep(0.45)
            return True

        loop.call_later(0.2, loop.hold_up, 30.0)
        return await asyncio.gather(*(wait(0.5 + n / 100) for n in range(50)))

    assert run(test) == [True] * 50


def test_repeated_delays_extend_limits() -> None:
    """A loop that is blocked again and again gives everyone the time in between."""

    async def test(loop: Loop) -> float:
        def again() -> None:
            loop.hold_up(0.3)
            loop.call_later(0.1, again)

        again()
        with TimeLimit(inf) as clock, pytest.raises(TimeoutError), TimeLimit(5.0):
            await asyncio.sleep(7200)
        return clock.elapsed

    assert run(test) == pytest.approx(5.0, abs=0.5)


def test_the_clock_counts_other_peoples_time() -> None:
    """A clock counts the time that others take, and reports delays that may have caused a failure."""

    async def test(loop: Loop) -> None:
        with TimeLimit(inf) as clock:
            await asyncio.sleep(1.0)
            loop.hold_up(5.0)
            await asyncio.sleep(1.2)
            assert clock.delay == pytest.approx(5.0, abs=0.1)
        assert clock.elapsed == pytest.approx(2.2, abs=0.1)
        with TimeLimit(inf) as just_after:
            assert just_after.delay == 0.0  # it ended more than a second ago
            loop.hold_up(5.0)
            await asyncio.sleep(0.1)
            with TimeLimit(inf) as within:
                assert within.delay == pytest.approx(5.0, abs=0.1)
                assert within.elapsed == 0.0

    run(test)


def test_an_idle_loop_is_not_a_delay() -> None:
    """Time in which nobody waited, and the loop may not have run, is not a delay."""

    async def test(loop: Loop) -> None:
        with TimeLimit(inf):
            await asyncio.sleep(1.0)
        loop.hold_up(60.0)
        with TimeLimit(inf) as clock:
            assert clock.delay == 0.0
            await asyncio.sleep(1.0)
            assert clock.delay == 0.0
        assert clock.elapsed == pytest.approx(1.0)

    run(test)


def test_errors_of_the_work_pass_through() -> None:
    """A TimeoutError, a cancellation or another error of the work is not attributed to the limit."""

    async def test(loop: Loop) -> None:
        with pytest.raises(TimeoutError, match="its own"), TimeLimit(1.0) as limit:
            raise TimeoutError("its own")
        assert not limit.expired
        with pytest.raises(asyncio.CancelledError), TimeLimit(1.0):
            raise asyncio.CancelledError

        async def tidies_up() -> None:
            try:
                await asyncio.sleep(60)
            finally:
                await asyncio.sleep(0.5)

        with pytest.raises(TimeoutError), TimeLimit(1.0):
            await tidies_up()
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0

    run(test)


def test_nested_limits() -> None:
    """Of two limits, the one that expired raises; an outer cancellation has priority over both."""

    async def test(loop: Loop) -> None:
        with pytest.raises(TimeoutError), TimeLimit(1.0) as outer, TimeLimit(2.0) as inner:
            await asyncio.sleep(60)
        assert (outer.expired, inner.expired) == (True, False)
        with TimeLimit(2.0) as outer:
            with pytest.raises(TimeoutError), TimeLimit(1.0):
                await asyncio.sleep(60)
            await asyncio.sleep(0.5)
        assert not outer.expired
        with anyio.CancelScope() as scope:
            loop.call_later(0.5, scope.cancel)
            with TimeLimit(1.0) as limit:
                await asyncio.sleep(60)
        assert scope.cancelled_caught
        assert not limit.expired

    run(test)


def test_work_that_swallows_cancellation_is_cancelled_again() -> None:
    """It is cancelled every second until it ends."""

    async def test(loop: Loop) -> int:
        swallowed = 0

        async def stubborn() -> None:
            nonlocal swallowed
            while True:
                try:
                    await asyncio.sleep(60)
                except asyncio.CancelledError:
                    swallowed += 1
                    if swallowed == 4:
                        raise

        with pytest.raises(TimeoutError), TimeLimit(1.0):
            await stubborn()
        current = asyncio.current_task()
        assert current is not None
        assert current.cancelling() == 0
        return swallowed

    assert run(test) == 4


def test_limits_shorter_than_a_heartbeat() -> None:
    """Limits end on time, even if several end before the next heartbeat."""

    async def test(loop: Loop) -> list[float]:
        async def wait(seconds: float) -> float:
            began = loop.time()
            with pytest.raises(TimeoutError), TimeLimit(seconds):
                await asyncio.sleep(60)
            return loop.time() - began

        async with asyncio.TaskGroup() as tasks:
            waiting = [tasks.create_task(wait(seconds)) for seconds in (0.6, 0.04, 0.01, 0.02)]
        return [task.result() for task in waiting]

    assert run(test) == pytest.approx([0.6, 0.04, 0.01, 0.02])


def test_a_limit_leaves_nothing_behind() -> None:
    """The heartbeat ends with the last limit, and a loop that is gone is forgotten."""

    async def test(loop: Loop) -> int:
        with TimeLimit(1.0):
            await asyncio.sleep(0.5)
        await asyncio.sleep(0.2)
        return len(loop._scheduled)  # type: ignore[attr-defined]

    assert run(test) == 0
