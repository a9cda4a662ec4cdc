"""The reporters of a run, and how events reach them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.events import Event, Reporter

if TYPE_CHECKING:  # each is imported by those who want it
    from agentest.report.journal import Journal


def make_reporters(
    names: Sequence[str],
    root: Path,
    results: Path,
    environ: Mapping[str, str],
    *,
    verbose: bool,
    detailed: bool = False,
    journal: Journal | None = None,
) -> list[Reporter]:
    """The reporters of these names, each once.

    Args:
        results: the file that the JSON reporter writes.
        journal: keeps finished conversations; needed where results let them go.
    """
    make: dict[str, Callable[[], Reporter]] = {
        "json": lambda: _json(results, journal),
        "github-actions": lambda: _github(root, environ),
        "console": lambda: _console(environ, verbose, detailed),
    }
    made = [make[name]() for name in dict.fromkeys(names)]
    return [journal, *made] if journal else made  # the journal first: others read what it has written


def _json(results: Path, journal: Journal | None) -> Reporter:
    from agentest.report.json_report import JsonReporter

    return JsonReporter(results, journal.conversations) if journal else JsonReporter(results)


def _github(root: Path, environ: Mapping[str, str]) -> Reporter:
    from agentest.report.github import GitHubReporter

    summary, workspace = environ.get("GITHUB_STEP_SUMMARY"), environ.get("GITHUB_WORKSPACE")
    return GitHubReporter(
        _write_line,
        root,
        Path(summary) if summary else None,
        workspace=Path(workspace) if workspace else None,
    )


def _console(environ: Mapping[str, str], verbose: bool, detailed: bool) -> Reporter:
    from agentest.report.console import make_console_reporter

    return make_console_reporter(environ, verbose, detailed=detailed)


def _write_line(line: str) -> None:
    sys.stdout.write(line.rstrip("\n") + "\n")
    sys.stdout.flush()


class Broadcast:
    """Passes every event to every reporter. One that crashes is reported once and left out from then on."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = list(reporters)
        self.problems: list[str] = []
        self.failed: set[str] = set()
        """Names of the reporters that crashed."""

    def __call__(self, event: Event) -> None:
        for reporter in list(self._reporters):
            try:
                reporter.on_event(event)
            except Exception as error:  # noqa: BLE001 - a reporter's trouble must not cost the run its results
                self._reporters.remove(reporter)
                self.failed.add(reporter.name)
                self.problems.append(f"reporter {reporter.name} failed: {type(error).__name__}: {error}")
