"""User functions in threads: fast ones share a thread, and none waits for one that hangs."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextvars import ContextVar
from time import perf_counter
from typing import Any

import anyio
import pytest

from agentest.support.calling import FunctionTimeout, result_of
from agentest.support.deadlines import TimeLimit
from agentest.support.function_threads import in_function_thread, in_thread

_said: ContextVar[str] = ContextVar("said", default="nothing")


async def _proved_fast(function: Callable[..., Any], *args: Any) -> None:
    """Call it until a call took next to no time, as the last one must have."""
    for _ in range(500):
        began = perf_counter()
        await in_thread(function, *args)
        if perf_counter() - began < 0.001:
            return
    raise AssertionError("this machine never calls a function within a millisecond")


def test_calls_of_a_fast_function_share_a_thread() -> None:
    def thread(_: int) -> int:
        assert in_function_thread()
        return threading.get_ident()

    async def main() -> int:
        await _proved_fast(thread, 0)
        return len(set(await asyncio.gather(*(in_thread(thread, n) for n in range(50)))))

    # On a busy machine a thread may stand still for so long that it looks stuck.
    assert 1 in (asyncio.run(main()) for _ in range(20))


def test_each_call_has_its_own_result_error_and_context() -> None:
    def told(number: int) -> str:
        if number % 2:
            raise ValueError(f"{number} is odd")
        return _said.get()

    async def ask(number: int) -> str:
        _said.set(f"said {number}")
        return str(await in_thread(told, number))

    async def main() -> list[str | BaseException]:
        await _proved_fast(told, 0)
        return await asyncio.gather(*(asyncio.create_task(ask(n)) for n in range(6)), return_exceptions=True)

    found = asyncio.run(main())

    assert found[::2] == ["said 0", "said 2", "said 4"]
    assert [str(error) for error in found[1::2]] == ["1 is odd", "3 is odd", "5 is odd"]


def test_a_hanging_function_does_not_block_other_calls() -> None:
    end, ended = threading.Event(), threading.Event()

    def fast_but_for_one(number: int) -> int:
        if number == 0:
            end.wait()
            ended.set()
        return number

    async def hangs(limit: TimeLimit) -> None:
        with pytest.raises(TimeoutError):
            await result_of(fast_but_for_one, 0, limit=limit)

    async def main() -> list[int]:
        await _proved_fast(fast_but_for_one, 1)
        limit = TimeLimit(0.3)
        hanging = asyncio.create_task(hangs(limit))
        await asyncio.sleep(0)  # it is the first in the row
        with limit.paused(), anyio.fail_after(60):  # a busy machine may let the threads stand still
            behind = await asyncio.gather(*(in_thread(fast_but_for_one, n) for n in range(1, 5)))
        assert not hanging.done()
        await hanging
        later = await asyncio.gather(*(in_thread(fast_but_for_one, n) for n in range(5, 9)))
        return [*behind, *later]

    try:
        assert asyncio.run(main()) == [1, 2, 3, 4, 5, 6, 7, 8]
        assert not ended.is_set()
    finally:
        end.set()


def test_a_function_may_wait_for_a_later_call() -> None:
    other = threading.Event()

    def waits(number: int) -> bool:
        return other.wait(10) if number else True

    def sets() -> bool:
        if asking:
            other.set()
        return True

    asking = False

    async def main() -> list[bool]:
        nonlocal asking
        await _proved_fast(waits, 0)
        await _proved_fast(sets)
        asking = True
        return await asyncio.gather(in_thread(waits, 1), in_thread(sets))

    assert asyncio.run(main()) == [True, True]


def test_an_abandoned_call_is_not_made() -> None:
    end, made = threading.Event(), []

    def fast(number: int) -> None:
        if number == 1:
            end.wait(10)
        made.append(number)

    async def main() -> None:
        await _proved_fast(fast, 0)
        made.clear()
        first, second = asyncio.create_task(in_thread(fast, 1)), asyncio.create_task(in_thread(fast, 2))
        await asyncio.sleep(0)
        second.cancel()
        await asyncio.wait((second,))
        end.set()
        await first

    asyncio.run(main())

    assert made == [1]


def test_a_function_that_hangs_again_and_again_is_called_no_more() -> None:
    """A thousand conversations do not wait for it in turn, and another function is still called."""
    end, calls = threading.Event(), list[int]()

    def hangs() -> None:
        calls.append(1)
        end.wait()

    async def main() -> list[str]:
        said = []
        for _ in range(5):
            with pytest.raises(FunctionTimeout) as raised:
                await result_of(hangs, limit=TimeLimit(0.05))
            said.append(str(raised.value))
        assert await result_of(lambda: 1, limit=TimeLimit(60)) == 1
        return said

    try:
        said = anyio.run(main)
    finally:
        end.set()
    assert len(calls) == 3
    assert said[0].startswith("gave no answer within 0.05 s (test_function_threads.py:")
    assert said[4] == "gave no answer within 0.05 s 3 times, and is called no more"
