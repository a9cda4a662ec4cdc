"""Blocking work: another thread reports what is going on."""

from __future__ import annotations

import threading

from agentest.support.terminal import with_reminders


class Waits(threading.Event):
    """Lets this many pauses pass at once, and records their lengths."""

    def __init__(self, passing: int) -> None:
        super().__init__()
        self.pauses: list[float | None] = []
        self.passed = threading.Event()
        self._passing = passing

    def wait(self, timeout: float | None = None) -> bool:
        self.pauses.append(timeout)
        if len(self.pauses) <= self._passing:
            return False
        self.passed.set()
        return super().wait()


def test_long_work_is_named_and_the_thread_ends_with_it() -> None:
    """After 5 s, then every 30 s; no thread is left, so that the process can fork."""
    said: list[str] = []
    waits = Waits(2)
    before = set(threading.enumerate())
    with with_reminders("reading", said.append, lambda: waits):
        assert waits.passed.wait(60)
    assert said == ["agentest: reading: 5 s so far", "agentest: reading: 35 s so far"]
    assert waits.pauses == [5.0, 30.0, 30.0]
    assert set(threading.enumerate()) <= before  # others of that time may have ended meanwhile
