"""SIGINT, SIGTERM and SIGHUP during a run: the first stops it, the second ends the process at once."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentest.support.interrupts import STOPPING, end_at_once

_SIGNALS = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]


def unshown(text: str) -> bool:
    """Nobody shows it."""
    del text
    return False


@contextmanager
def handled_signals(
    on_first: Callable[[], None], last_words: Callable[[], str], show: Callable[[str], bool] = unshown
) -> Iterator[list[int]]:
    """Call `on_first` in the event loop at the first signal; write `last_words` and exit at the second.

    Yields the signals received so far. `show` may show what is said at the first one in a place of its own,
    and returns whether it did. Plain handlers, not the loop's: the loop drops a signal that comes in
    its last moments.
    """
    received: list[int] = []
    loop = asyncio.get_running_loop()

    def handle(number: int, _: object) -> None:
        if received:
            end_at_once(last_words())
        received.append(number)
        shown = show(STOPPING)
        if not shown or not os.isatty(2):  # written to the terminal, it would be in the way of what shows it
            # Straight to the file: whatever is blocking may hold the lock of sys.stderr.
            os.write(2, f"\nagentest: {STOPPING}\n".encode())
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
