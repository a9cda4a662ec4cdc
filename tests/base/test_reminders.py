"""Work that blocks: what is going on is said from another thread."""

from __future__ import annotations

import threading

from agentest.support.terminal import with_reminders


class Waits(threading.Event):
    """Lets so many pauses pass at once, and keeps how long they were to be."""

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
    """After 5 s, then every 30 s; afterwards no thread is left, so that processes may be forked."""
    said: list[str] = []
    waits = Waits(2)
    before = set(threading.enumerate())
    with with_reminders("reading", said.append, lambda: waits):
        assert waits.passed.wait(60)
    assert said == ["agentest: reading: 5 s so far", "agentest: reading: 35 s so far"]
    assert waits.pauses == [5.0, 30.0, 30.0]
    assert set(threading.enumerate()) <= before  # others of that time may have ended meanwhile
