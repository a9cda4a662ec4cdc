"""SIGINT, SIGTERM and SIGHUP during a run: the first stops it, the second ends the process at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentest.support.interrupts import end_at_once

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


@contextmanager
def handled_signals(on_first: Callable[[], None], last_words: Callable[[], str]) -> Iterator[list[int]]:
    """Call `on_first` in the event loop at the first signal; write `last_words` and exit at the second.

    Yields the signals received so far. Plain handlers, not the loop's: the loop drops a signal that comes in
    its last moments.
    """
    received: list[int] = []
    loop = asyncio.get_running_loop()

    def handle(number: int, _: object) -> None:
        if received:
            end_at_once(last_words())
        received.append(number)
        # Straight to the file: whatever is blocking may hold the lock of sys.stderr.
        os.write(2, b"\nagentest: stopping; once more ends at once\n")
        loop.call_soon_threadsafe(on_first)

    before = {number: signal.signal(number, handle) for number in _to_handle()}
    try:
        yield received
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _to_handle() -> list[int]:
    """A hang-up that is ignored (nohup) stays ignored. Outside the main thread, signals belong to others."""
    if threading.current_thread() is not threading.main_thread():
        return []
    return [n for n in _SIGNALS if n == signal.SIGINT or signal.getsignal(n) != signal.SIG_IGN]
