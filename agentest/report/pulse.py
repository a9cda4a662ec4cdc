"""A line now and then that says how far the run is, where no display moves: in CI, in a pipe, in a file."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic

from agentest.domain.events import Event, TimePassed
from agentest.report.progress import Progress, standing_line


class PulseReporter:
    """Says how far the run is whenever some time has passed, through `say`.

    Args:
        say: receives each line.
        expected_s: how long the run may take, by an earlier one.
        clock: seconds of any clock.
    """

    name = "pulse"

    def __init__(
        self,
        say: Callable[[str], object],
        *,
        expected_s: float | None = None,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        self._say = say
        self._clock = clock
        self._progress = Progress(expected_s)

    def on_event(self, event: Event) -> None:
        now = self._clock()
        self._progress.on_event(event, now)
        if isinstance(event, TimePassed):
            self._say(standing_line(self._progress.standing(now)))
