"""What the user should know while the run lasts, on stderr."""

from __future__ import annotations

from agentest.domain.events import Event, Noted
from agentest.support.terminal import tell


class NotesReporter:
    """Writes each note when it comes. A live display on the same terminal moves out of its way."""

    name = "notes"

    def on_event(self, event: Event) -> None:
        if isinstance(event, Noted):
            tell(f"agentest: {event.text}")
