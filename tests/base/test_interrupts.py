"""Runs that overlap in one process share the signals."""

from __future__ import annotations

import os
import signal
from contextlib import ExitStack

import anyio
import pytest

from agentest.support.interrupts import handled_signals


@pytest.mark.parametrize("ends_first", [0, 1])
def test_overlapping_runs_hear_one_signal_and_leave_no_handler(ends_first: int) -> None:
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    heard: list[str] = []

    async def overlap() -> None:
        runs = [ExitStack(), ExitStack()]
        for name, run in zip("ab", runs, strict=True):
            run.enter_context(handled_signals(lambda name=name: heard.append(name), str))  # type: ignore[misc]
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.lowlevel.checkpoint()
        runs.pop(ends_first).close()
        assert signal.getsignal(signal.SIGTERM) is not before[signal.SIGTERM]
        runs.pop().close()

    anyio.run(overlap)
    assert heard == ["a", "b"]
    assert {number: signal.getsignal(number) for number in before} == before


def test_a_run_that_began_later_still_hears_after_the_first_ended() -> None:
    heard: list[str] = []

    async def overlap() -> None:
        first, second = ExitStack(), ExitStack()
        first.enter_context(handled_signals(lambda: heard.append("first"), str))
        second.enter_context(handled_signals(lambda: heard.append("second"), str))
        first.close()
        os.kill(os.getpid(), signal.SIGINT)
        await anyio.lowlevel.checkpoint()
        second.close()

    anyio.run(overlap)
    assert heard == ["second"]
