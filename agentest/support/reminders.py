"""Work that blocks this thread and may take long: after some seconds it is said what is going on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from agentest.support.terminal import tell

FIRST_S = 5.0
"""Seconds until it is first said."""
EVERY_S = 30.0
"""Seconds until it is said again."""


def pauses() -> Iterator[tuple[float, float]]:
    """Each pause before something is said, and the seconds that have passed after it."""
    passed, pause = 0.0, FIRST_S
    while True:
        passed += pause
        yield pause, passed
        pause = EVERY_S


@contextmanager
def reminded(
    what: str,
    say: Callable[[str], object] = tell,
    make_done: Callable[[], threading.Event] = threading.Event,
) -> Iterator[None]:
    """A block that may take long, while another thread says what is going on.

    The thread has ended when the block has: processes may be forked again.

    Args:
        what: "reading the configuration and the scenarios".
        make_done: what tells the thread that the block has ended.
    """
    done = make_done()

    def remind() -> None:
        for pause, passed in pauses():
            if done.wait(pause):
                return
            say(f"agentest: {what}: {passed:.0f} s so far")

    thread = threading.Thread(target=remind, name="agentest reminder", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()
