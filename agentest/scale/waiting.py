"""Which worker runs which unit: any of them the next one, but for agents that are exclusive."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable

from agentest.run.plan import Unit


class WaitingUnits:
    """The units that no worker has yet, in their order.

    Those of an exclusive agent go to one worker, the first that takes one: workers know nothing of each
    other's conversations.
    """

    def __init__(self, units: Iterable[Unit]) -> None:
        self._units = deque(units)
        self._kept: defaultdict[int, deque[Unit]] = defaultdict(deque)
        """Worker → units that it alone may run, passed over when others asked."""
        self._worker_of: dict[str, int] = {}

    def next_for(self, worker: int) -> Unit | None:
        """Take the next unit that this worker may run; None when none is left for it."""
        if self._kept[worker]:
            return self._kept[worker].popleft()
        while self._units:
            unit = self._units.popleft()
            line = unit.about.line
            of = worker if line is None else self._worker_of.setdefault(line, worker)
            if of == worker:
                return unit
            self._kept[of].append(unit)
        return None
