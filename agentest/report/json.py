"""The json reporter: `results.json`, written when the run has ended."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentest.domain.events import Event, RunFinished
from agentest.store.run_results import Conversations, conversations_in_memory, document
from agentest.support.files import report_writer

if TYPE_CHECKING:
    from agentest.report.registry import ReporterContext


def make_reporter(context: ReporterContext, path: Path) -> JsonReporter:
    """Create the reporter of a run, whose file stays on this machine, or of a stored run."""
    if context.journal:
        return JsonReporter(path, context.journal.conversations)
    reporter = JsonReporter(path)
    reporter.receives_credentials = False  # its file may be meant for others
    return reporter


class JsonReporter:
    """Writes `results.json` when the run has ended.

    Args:
        path: the file, whose folder is created if it does not exist.
        conversations: reads those of a scenario; `Journal.conversations` if results drop them.
    """

    name = "json"
    events = (RunFinished,)
    receives_credentials = True

    def __init__(self, path: Path, conversations: Conversations = conversations_in_memory) -> None:
        self._path = path
        self._conversations = conversations

    def on_event(self, event: Event) -> None:
        if isinstance(event, RunFinished):
            with report_writer(self._path) as file:
                file.writelines(document(event.result, self._conversations))
