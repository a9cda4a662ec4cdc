"""What the run's own process knows of its workers, wherever they are: forked processes, or actors of Ray."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

OnMessage = Callable[[Any], None]
OnDisconnect = Callable[[], None]


class Connection(Protocol):
    """The run's end of the line to one worker."""

    def send(self, message: object) -> None:
        """Send a message: at once, and after all that were sent before. It is lost where nobody is there."""
        ...

    async def close(self) -> None:
        """Close the line when the other end has read everything."""
        ...

    def kill(self) -> None:
        """End the worker at once."""
        ...

    async def death(self) -> str:
        """How a worker ended whose line is closed; follows after "the worker": `was killed by SIGKILL`."""
        ...


class Fleet(Protocol):
    """Where workers come from."""

    @property
    def size(self) -> int:
        """How many workers there are to be."""
        ...

    @property
    def needed(self) -> int:
        """How many of them must be ready before the run begins."""
        ...

    @property
    def called(self) -> str:
        """What a worker is called: `worker process`."""
        ...

    async def connect(self, on_message: OnMessage, on_disconnect: OnDisconnect) -> Connection:
        """One more worker: the first ones, and then those in place of others that have died.

        Args:
            on_message: receives every message of the worker, in order.
            on_disconnect: is called once, when the worker has ended and all its messages have arrived; not
                after `close`.

        Neither is called before there is a connection. Raises UsageError.
        """
        ...
