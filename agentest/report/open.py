"""The reporters of a run, and how events reach them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentest.events import Event, Reporter


def make_reporters(
    names: Sequence[str], root: Path, results: Path, environ: Mapping[str, str], *, verbose: bool
) -> list[Reporter]:
    """The reporters of these names, each once. `results` is the file that the JSON reporter writes."""
    return [_reporter(name, root, results, environ, verbose) for name in dict.fromkeys(names)]


def _reporter(name: str, root: Path, results: Path, environ: Mapping[str, str], verbose: bool) -> Reporter:
    if name == "json":
        from agentest.report.json_report import JsonReporter

        return JsonReporter(results)
    if name == "github-actions":
        from agentest.report.github import GitHubReporter

        summary, workspace = environ.get("GITHUB_STEP_SUMMARY"), environ.get("GITHUB_WORKSPACE")
        return GitHubReporter(
            _write_line,
            root,
            Path(summary) if summary else None,
            workspace=Path(workspace) if workspace else None,
        )
    from agentest.report.console import make_console_reporter

    return make_console_reporter(environ, verbose)


def _write_line(line: str) -> None:
    sys.stdout.write(line.rstrip("\n") + "\n")
    sys.stdout.flush()


class Broadcast:
    """Passes every event to every reporter. One that crashes is reported once and left out from then on."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = list(reporters)
        self.problems: list[str] = []

    def __call__(self, event: Event) -> None:
        for reporter in list(self._reporters):
            try:
                reporter.on_event(event)
            except Exception as error:  # noqa: BLE001 - a reporter's trouble must not cost the run its results
                self._reporters.remove(reporter)
                self.problems.append(f"reporter {reporter.name} failed: {type(error).__name__}: {error}")
