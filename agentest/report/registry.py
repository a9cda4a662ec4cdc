"""The reporters of a run, and how events reach them."""

from __future__ import annotations

import errno
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.errors import OutputError
from agentest.events import Event, Reporter, RunFinished
from agentest.support.terminal import Output

if TYPE_CHECKING:  # each is imported by those who want it
    from agentest.store.journal import Journal

_PASSING = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.EIO, errno.EAGAIN)
_PAUSES_S = (0.5, 1.0, 2.0)


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
    from agentest.report.json import JsonReporter

    return JsonReporter(results, journal.conversations) if journal else JsonReporter(results)


def _github(root: Path, environ: Mapping[str, str]) -> Reporter:
    from agentest.report.github import GitHubReporter

    summary, workspace = environ.get("GITHUB_STEP_SUMMARY"), environ.get("GITHUB_WORKSPACE")
    return GitHubReporter(
        Output(sys.stdout, environ).command,
        root,
        Path(summary) if summary else None,
        workspace=Path(workspace) if workspace else None,
    )


def _console(environ: Mapping[str, str], verbose: bool, detailed: bool) -> Reporter:
    from agentest.report.console.reporter import make_console_reporter

    return make_console_reporter(environ, verbose, detailed=detailed)


class Broadcast:
    """Passes every event to every reporter. One that crashes is reported once and left out from then on.

    A reporter that writes its whole report at the end, and may do so again (`repeats`), is asked again by
    `finish` where it failed for a reason that may pass.

    Args:
        warn: receives a message at once where a reporter failed.
    """

    def __init__(self, reporters: Sequence[Reporter], warn: Callable[[str], object] = lambda _: None) -> None:
        self._reporters = list(reporters)
        self._warn = warn
        self._again: list[tuple[Reporter, Event]] = []
        self.problems: list[str] = []
        self.failed: set[str] = set()
        """Names of the reporters that crashed."""

    def __call__(self, event: Event) -> None:
        for reporter in list(self._reporters):
            try:
                reporter.on_event(event)
            except Exception as error:  # noqa: BLE001 - a reporter's trouble must not cost the run its results
                self._reporters.remove(reporter)
                if (
                    _may_pass(error)
                    and isinstance(event, RunFinished)
                    and getattr(reporter, "repeats", False)
                ):
                    self._warn(f"reporter {reporter.name} failed: {_message(error)}; it will be tried again")
                    self._again.append((reporter, event))
                else:
                    self._fail(reporter, error)

    def finish(self, pause: Callable[[float], object] = time.sleep) -> None:
        """Ask those again that could not write their report; seconds lie between the attempts."""
        for number, seconds in enumerate(_PAUSES_S if self._again else (), start=1):
            pause(seconds)
            waiting, self._again = self._again, []
            for reporter, event in waiting:
                try:
                    reporter.on_event(event)
                except Exception as error:  # noqa: BLE001 - as above
                    if number < len(_PAUSES_S) and _may_pass(error):
                        self._again.append((reporter, event))
                    else:
                        self._fail(reporter, error)
            if not self._again:
                return

    def _fail(self, reporter: Reporter, error: Exception) -> None:
        self.failed.add(reporter.name)
        self.problems.append(f"reporter {reporter.name} failed: {_message(error)}")
        self._warn(self.problems[-1])


def _may_pass(error: Exception) -> bool:
    """Whether the same may succeed a second later: a full disk, no more open files."""
    return isinstance(error, OSError) and error.errno in _PASSING


def _message(error: Exception) -> str:
    return str(error) if isinstance(error, OutputError) else f"{type(error).__name__}: {error}"
