"""What the conversations of all workers have in common, in the run's own process: usage and recordings."""

from __future__ import annotations

from agentest.models.port import Ledger
from agentest.models.recording.cassette import Cassettes
from agentest.models.recording.tape import Page
from agentest.workers.recorded import Recorded, RecordingDesk
from agentest.workers.usage import UsageDesk, Used


class Desks:
    """Receives what conversations use and record, and knows what a conversation leaves behind.

    Args:
        cassettes: what is recorded or replayed; None: neither is.
    """

    def __init__(self, ledger: Ledger, cassettes: Cassettes | None) -> None:
        self._usage = UsageDesk(ledger)
        self._recording = RecordingDesk(cassettes) if cassettes else None

    def page(self, scope: str, number: int) -> Page | None:
        """What is recorded of a conversation, for the worker that is to hold it."""
        return self._recording.page(scope, number) if self._recording else None

    def receive(self, message: Used | Recorded) -> None:
        match message:
            case Used():
                self._usage.receive(message)
            case Recorded() if self._recording:
                self._recording.receive(message)

    def done(self, scope: str, number: int) -> None:
        """The conversation is done."""
        self._usage.done(scope, number)
        if self._recording:
            self._recording.done(scope, number)

    def forget(self, scope: str, number: int) -> None:
        """The conversation was lost with its worker."""
        self._usage.forget(scope, number)
        if self._recording:
            self._recording.forget(scope, number)
