"""`agentest run` from the prepared run to the exit status."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from agentest.cli.afterwards import files_of, in_a_line, last_words, not_kept, status
from agentest.cli.against import comparing, in_words, kept_comparison, with_comparison, with_regressions
from agentest.cli.engines import opened_engine, processes_of, within_limits
from agentest.cli.keeping import Keeping, kept
from agentest.cli.kinds import LIVE, Kind
from agentest.domain.events import WantedReport
from agentest.runner.outputs import check_can_be_written, output_dir
from agentest.runner.ports import shared_ports
from agentest.runner.prepare import Prepared
from agentest.support.errors import ExitCode
from agentest.support.interrupts import in_event_loop
from agentest.support.terminal import tell

if TYPE_CHECKING:  # imported when a run really begins
    from agentest.cli.baseline import Against
    from agentest.report.registry import Broadcast
    from agentest.runner.session import Outcome
    from agentest.runner.sources import SourceFactory

_RESULTS = WantedReport("json")


def run_once(
    prepared: Prepared, kind: Kind = LIVE, environ: MutableMapping[str, str] = os.environ
) -> ExitCode:
    """Run what was prepared, with its reporters. Raises UsageError when nothing could be run."""
    check_can_be_written(prepared.reports)
    note = partial(_note, prepared)
    if kind.resumed_by and prepared.kept is None:
        from agentest.runner.fingerprints import with_fingerprints

        prepared = with_fingerprints(prepared)
    against = comparing(prepared, kind)
    with kept(prepared, kind.name, kind.fixed, note, environ, spans=kind.spans) as keeping:
        processes = processes_of(prepared)
        return _Run(within_limits(prepared, processes), kind, environ, keeping, against).run(processes)


@dataclass(frozen=True, slots=True)
class _Run:
    """A run that begins: what it is, where it is kept, and what it is compared with."""

    prepared: Prepared
    kind: Kind
    environ: Mapping[str, str]
    keeping: Keeping | None
    against: Against | None

    def run(self, processes: int) -> ExitCode:
        """The run with its reports, over so many processes."""
        from agentest.runner.run import AtSignals, Mode, execute
        from agentest.runner.session import Spending

        prepared, journal = self.prepared, self.keeping.journal if self.keeping else None
        broadcast, spending = self._broadcast(), None
        if prepared.tape_mode == "keep" or prepared.request.options.has_budget:
            from agentest.cli.spending import spending_of

            spending = spending_of(prepared, self.kind, self.keeping, partial(_note, prepared))
        for text in prepared.notes:
            _note(prepared, text)
        words = AtSignals(last=partial(last_words, prepared, journal, self.kind), show=broadcast.show)
        source = _source(prepared, self.kind, self.keeping)
        _calm_collector()
        with (
            shared_ports(prepared) as known,  # by workers, too, which begin here
            opened_engine(known, processes, self.kind.recipe, earlier=self.kind.earlier) as engine,
        ):
            # Transcripts are shown with the scenario.
            verbose = prepared.request.verbose
            mode = Mode(source, engine, keep_conversations=verbose, spending=spending or Spending())
            outcome = in_event_loop(execute, known, broadcast, mode, words)
        broadcast.finish()
        return self._ended(outcome, broadcast)

    def _broadcast(self) -> Broadcast:
        """The reporters, and who compares."""
        from agentest.cli.expecting import forecast_of
        from agentest.report.notes import NotesReporter
        from agentest.report.registry import Broadcast, Setting, make_reporters

        prepared, keeping, request = self.prepared, self.keeping, self.prepared.request
        folder = keeping.folder.path if keeping else output_dir(prepared)
        setting = Setting(
            root=request.root,
            folder=folder,
            run_id=keeping.folder.id if keeping else "",
            environ=self.environ,
            verbose=request.verbose,
            detailed=request.detailed,
            next_step=prepared.loaded.redact(self.kind.resumed_by),
            forecast=forecast_of(prepared, self.kind.name),
            compared=self.against,
            journal=keeping.journal if keeping else None,
            record=keeping.record if keeping else None,
        )
        # Results are kept of each run, asked for or not.
        results = () if keeping is None or _RESULTS in prepared.reports else (_RESULTS,)
        reporters = make_reporters((*prepared.reports, *results), setting)
        if self.against and keeping:
            self.against.label = keeping.folder.id
        told = with_comparison(reporters, self.against, prepared, self.environ)
        return Broadcast([*told, NotesReporter()], partial(_note, prepared))

    def _ended(self, outcome: Outcome, broadcast: Broadcast) -> ExitCode:
        """What is kept and said at the end, and the exit status."""
        prepared, keeping = self.prepared, self.keeping
        written = [report for report in prepared.reports if report.name not in broadcast.failed]
        lacking = list(kept_comparison(self.against, keeping))
        lacking += keeping.end(outcome.result, written) if keeping else ()
        for text in (*outcome.notes, *self._lost(), *lacking):
            _note(prepared, text)
        files = files_of(written, self.kind, prepared)
        for text in (
            *in_a_line(outcome.result, prepared, broadcast, files),
            *in_words(self.against, prepared),
        ):
            _note(prepared, text)
        code = status(outcome, prepared, broadcast, complete=not lacking)
        return with_regressions(code, self.against)

    def _lost(self) -> Iterator[str]:
        """What the journal lacks."""
        return not_kept(self.keeping.journal if self.keeping else None)


def _source(prepared: Prepared, kind: Kind, keeping: Keeping | None) -> SourceFactory:
    """Where conversations come from; nowhere, and no agent need be there, where none is left to hold."""
    if prepared.kept and all(unit.kept.is_all(unit.conversations) for unit in prepared.plan.units):
        from agentest.runner.sources import EarlierRun

        return EarlierRun({})
    return kind.source(keeping)


def _calm_collector() -> None:
    """Have Python look for cycles less often: what a run makes lives to its end or dies at once."""
    gc.freeze()  # modules and classes never die
    gc.set_threshold(20_000, 20, 50)


def _note(prepared: Prepared, note: str) -> None:
    """Write a note to the user, at once."""
    tell(f"agentest: {prepared.loaded.redact(note)}")
