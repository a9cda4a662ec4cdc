"""What all workers together have spent, in shared memory."""

from __future__ import annotations

import fcntl
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from mmap import mmap

from agentest.llm.budget import Spending


class SharedSpending(Spending):
    """What all workers together have spent, each in a cell of its own in shared memory.

    A claim takes a file lock, which the system releases when the process that has it is killed.
    """

    def __init__(self, index: int, cells: SharedCells) -> None:
        super().__init__()
        self._index = index
        self._cells = cells

    @property
    def calls(self) -> int:
        return sum(self._cells.calls)

    @property
    def cost(self) -> float:
        return sum(self._cells.costs)

    def claim(self, most: int | None) -> bool:
        with self._cells.locked():
            if most is not None and self.calls >= most:
                return False
            self._cells.calls[self._index] += 1
            return True

    def add(self, cost: float) -> None:
        self._cells.costs[self._index] += cost


class SharedCells:
    """One number of calls and one cost for each forked process, in shared memory."""

    def __init__(self, count: int) -> None:
        memory = memoryview(mmap(-1, 16 * count))
        self.calls = memory[: 8 * count].cast("q")
        self.costs = memory[8 * count :].cast("d")
        self._lock = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it

    def close(self) -> None:
        self._lock.close()

    @contextmanager
    def locked(self) -> Iterator[None]:
        fcntl.lockf(self._lock, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.lockf(self._lock, fcntl.LOCK_UN)
