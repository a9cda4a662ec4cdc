"""A reporter: one row for each scenario, as a table for spreadsheets."""

import csv
from pathlib import Path

from agentest.domain.events import Event, RunFinished
from agentest.report.registry import ReporterContext


def make_reporter(context: ReporterContext, path: Path) -> "CsvReporter":
    """Create the reporter of a run."""
    return CsvReporter(path)


class CsvReporter:
    """Writes the table when the run has ended."""

    name = "csv"
    events = (RunFinished,)

    def __init__(self, path: Path) -> None:
        self._path = path

    def on_event(self, event: Event) -> None:
        if isinstance(event, RunFinished):
            with self._path.open("w", encoding="utf-8", newline="") as file:
                table = csv.writer(file)
                table.writerow(["scenario", "agent", "status"])
                for each in event.result.scenarios:
                    table.writerow([each.name, each.agent, each.verdict.status.value])
