"""A run of pytest's is kept as any other: in its folder, and as the reports that the configuration names."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from agentest.cli.expecting import forecast_of
from agentest.cli.keeping import LATEST, Keeping, kept
from agentest.domain.events import WantedReport
from agentest.report.registry import Broadcast, Setting, make_reporters
from agentest.runner.fingerprints import with_fingerprints
from agentest.runner.outputs import check_can_be_written, output_dir
from agentest.runner.prepare import Prepared
from agentest.store.runs.folder import FILES
from agentest.store.runs.record import RunKind

if TYPE_CHECKING:
    from agentest.domain.results import RunResult

_RESULTS = WantedReport("json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Say:
    """Where words go while pytest has the terminal."""

    at_once: Callable[[str], object]
    """Receives a line for whoever waits."""
    later: Callable[[str], None]
    """Receives what the user should know at the end."""


@dataclass(slots=True, kw_only=True)
class Records:
    """What is written of a run while it lasts."""

    prepared: Prepared
    broadcast: Broadcast
    keeping: Keeping | None
    commands: list[str]
    """Workflow commands of GitHub, to be printed when pytest has reported."""
    incomplete: bool = False
    """Whether a report that was asked for is missing, or lies at one place only."""

    def end(self, result: RunResult | None) -> list[str]:
        """Have everything written. Returns what could not be published."""
        self.broadcast.finish()
        wanted = self.prepared.reports
        written = [report for report in wanted if report.name not in self.broadcast.failed]
        problems = list(self.keeping.end(result, written)) if self.keeping else []
        asked_for = self.prepared.reporters & set(FILES)
        self.incomplete = bool(self.broadcast.failed & self.prepared.reporters or (problems and asked_for))
        return problems


@contextmanager
def records(prepared: Prepared, say: Say) -> Iterator[Records]:
    """What keeps a run that begins, until the block ends. Raises ConfigError for a report without a place.

    The console's report is left out: pytest's stands in its place.
    """
    prepared = with_fingerprints(replace(prepared, reports=tuple(filter(_beside_pytest, prepared.reports))))
    check_can_be_written(prepared.reports)
    with kept(prepared, RunKind.RUN, LATEST, say.later, os.environ, spans=True) as keeping:
        commands: list[str] = []
        results = () if keeping is None or _RESULTS in prepared.reports else (_RESULTS,)
        setting = _setting(prepared, keeping, commands.append, say)
        reporters = make_reporters((*prepared.reports, *results), setting)
        yield Records(
            prepared=prepared,
            broadcast=Broadcast(reporters, say.later),
            keeping=keeping,
            commands=commands,
        )


def _beside_pytest(report: WantedReport) -> bool:
    return report.name != "console" or report.path is not None


def _setting(
    prepared: Prepared, keeping: Keeping | None, command: Callable[[str], None], say: Say
) -> Setting:
    folder = keeping.folder.path if keeping else output_dir(prepared)
    return Setting(
        root=prepared.request.root,
        folder=folder,
        run_id=keeping.folder.id if keeping else "",
        environ=os.environ,
        next_step="agentest run --resume",
        forecast=forecast_of(prepared, RunKind.RUN),
        journal=keeping.journal if keeping else None,
        record=keeping.record if keeping else None,
        command=command,
        tell=say.at_once,
    )
