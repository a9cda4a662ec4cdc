"""What keeps messages from being lost, doubled or mixed up on their way between two processes.

A call between processes may fail before it is made, or its answer may be lost. So each end numbers what it
sends, and keeps it until the other end has said that it has it.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

_MOST_BYTES = 8_000_000
"""Of a batch, unless a single message is larger: what is sent at once is in memory several times."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Messages that go together."""

    number: int
    """One more than that of the batch before it."""
    bodies: tuple[bytes, ...]
    last: bool = False
    """Whether nothing follows: the end that sent it is closed."""


class Outbox:
    """What one end has to send. It is not safe in several threads at once."""

    def __init__(self) -> None:
        self._bodies: deque[bytes] = deque()
        self._sent: Batch | None = None
        """What the other end has perhaps not received."""
        self._number = 0
        self._closing = False

    def add(self, body: bytes) -> None:
        """Send it after everything else."""
        self._bodies.append(body)

    def close(self) -> None:
        """Nothing is added from now on."""
        self._closing = True

    @property
    def done(self) -> bool:
        """Whether it is closed, and the other end has everything."""
        return self._closing and self._sent is None and not self._bodies

    def acknowledge(self, number: int) -> None:
        """The other end has all batches before this number."""
        if self._sent is not None and self._sent.number < number:
            self._sent = None

    def batch(self) -> Batch | None:
        """What the other end is to be sent: the same again until it has it. None: there is nothing yet."""
        if self._sent is None and self._bodies:
            self._sent = Batch(self._number, self._taken())
            self._number += 1
        elif self._sent is None and self._closing:
            return Batch(self._number, (), last=True)
        return self._sent

    def _taken(self) -> tuple[bytes, ...]:
        taken = [self._bodies.popleft()]
        size = len(taken[0])
        while self._bodies and size + len(self._bodies[0]) <= _MOST_BYTES:
            size += len(self._bodies[0])
            taken.append(self._bodies.popleft())
        return tuple(taken)


class Inbox:
    """What one end has received."""

    def __init__(self) -> None:
        self.next = 0
        """The number of the batch that comes next: all before it are here."""

    def accept(self, batch: Batch) -> tuple[bytes, ...]:
        """What is new in a batch: nothing, where it has come before."""
        if batch.number < self.next or batch.last:
            return ()
        if batch.number > self.next:
            raise ValueError(f"batch {batch.number} has come before batch {self.next}")
        self.next += 1
        return batch.bodies
