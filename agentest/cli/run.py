"""`agentest run` from the prepared run to the exit status."""

from __future__ import annotations

import gc
import os
import shlex
from collections.abc import Iterable, Iterator, Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agentest.cli.keeping import JUDGED, LATEST, FixedNames, Keeping, kept
from agentest.errors import ExitCode
from agentest.events import WantedReport
from agentest.results import RunResult, RunWarning, Status
from agentest.run.outputs import check_can_be_written, output_dir
from agentest.run.prepare import Prepared
from agentest.store.kept.folder import FILES
from agentest.store.kept.record import RunKind
from agentest.support.files import readable
from agentest.support.paths import path_from
from agentest.support.terminal import clean, in_log, tell
from agentest.transcript import Conversation
from agentest.verdict import run_status

if TYPE_CHECKING:  # imported when a run really begins
    from agentest.cli.baseline import Against
    from agentest.events import Emit, Reporter
    from agentest.report.registry import Broadcast
    from agentest.run.run import AtSignals
    from agentest.run.session import Outcome
    from agentest.run.sources import SourceFactory
    from agentest.store.journal import Journal

_RESULTS = WantedReport("json")
_CONSOLE_REPORTERS = frozenset({"console", "github-actions"})


class Kind(Protocol):
    """What kind of run this is: where its conversations come from, and what it is called."""

    @property
    def name(self) -> RunKind:
        """What it is called among the kept runs."""
        ...

    @property
    def fixed(self) -> FixedNames:
        """Its files in `output_dir`."""
        ...

    @property
    def spans(self) -> bool:
        """Whether agents may send spans."""
        ...

    @property
    def resumed_by(self) -> str:
        """The command that runs what is left of it when it was ended early; "": there is none."""
        ...

    def processes(self, prepared: Prepared) -> int:
        """Over how many processes the run is spread."""
        ...

    def source(self, keeping: Keeping | None) -> SourceFactory:
        """Where conversations come from, and where is kept what comes with them, if anywhere."""
        ...


@dataclass(frozen=True, slots=True)
class LiveRun:
    """Conversations with the agents, now."""

    name: RunKind = RunKind.RUN
    fixed: FixedNames = LATEST
    spans: bool = True
    resumed_by: str = "agentest run --resume"

    def processes(self, prepared: Prepared) -> int:
        wanted = prepared.request.options.workers
        if wanted == 1:
            return 1
        from agentest.scale.shares import worker_count

        return worker_count(prepared, wanted)

    def source(self, keeping: Keeping | None) -> SourceFactory:
        from agentest.run.sources import LiveAgents

        if keeping is None:
            return LiveAgents()
        return LiveAgents(keep_span=keeping.keep_span, keep_output=keeping.keep_output)


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """Conversations of an earlier run, judged again; its results lie beside those of the latest run."""

    conversations: Mapping[str, Sequence[Conversation]]
    """By scope of the unit."""
    unclaimed: tuple[RunWarning, ...] = ()
    """Of its calls that belonged to no conversation."""
    name: RunKind = RunKind.JUDGE
    fixed: FixedNames = JUDGED
    spans: bool = False
    resumed_by: str = ""

    def processes(self, prepared: Prepared) -> int:
        del prepared  # the models do the work
        return 1

    def source(self, keeping: Keeping | None) -> SourceFactory:
        from agentest.run.sources import EarlierRun

        del keeping  # no agent is there
        return EarlierRun(self.conversations, self.unclaimed)


LIVE = LiveRun()


def eval_of(words: Iterable[str], options: Mapping[str, object]) -> LiveRun:
    """A run of evaluation sets, which goes on with the same words: nothing else says which sets they are.

    Args:
        options: name → value, of those that say what is run.
    """
    given = (
        f"--{name.replace('_', '-')}={value}" for name, value in options.items() if value not in (None, 1)
    )
    return LiveRun(RunKind.EVAL, resumed_by=shlex.join(["agentest", "eval", *words, *given, "--resume"]))


def run_once(
    prepared: Prepared, kind: Kind = LIVE, environ: MutableMapping[str, str] = os.environ
) -> ExitCode:
    """Run what was prepared, with its reporters. Raises UsageError when nothing could be run."""
    check_can_be_written(prepared.reports)
    note = partial(_note, prepared)
    if kind.resumed_by and prepared.kept is None:
        from agentest.run.fingerprints import with_fingerprints

        prepared = with_fingerprints(prepared)
    against = _against(prepared, kind)
    with kept(prepared, kind.name, kind.fixed, note, environ, spans=kind.spans) as keeping:
        return _run(prepared, kind, environ, keeping, against)


def _run(
    prepared: Prepared,
    kind: Kind,
    environ: Mapping[str, str],
    keeping: Keeping | None,
    against: Against | None,
) -> ExitCode:
    from agentest.cli.expecting import forecast_of
    from agentest.report.notes import NotesReporter
    from agentest.report.registry import Broadcast, Setting, make_reporters
    from agentest.run.file_descriptors import fitted
    from agentest.run.run import AtSignals

    processes = kind.processes(prepared)
    prepared = fitted(prepared, processes)
    request = prepared.request
    journal = keeping.journal if keeping else None
    folder = keeping.folder.path if keeping else output_dir(prepared)
    setting = Setting(
        root=request.root,
        results=folder / FILES["json"],
        junit=folder / FILES["junit"],
        environ=environ,
        verbose=request.verbose,
        detailed=request.detailed,
        next_step=prepared.loaded.redact(kind.resumed_by),
        forecast=forecast_of(prepared, kind.name),
        compared=against,
        journal=journal,
    )
    # Results are kept of each run, asked for or not.
    results = () if keeping is None or _RESULTS in prepared.reports else (_RESULTS,)
    reporters = make_reporters((*prepared.reports, *results), setting)
    note = partial(_note, prepared)
    if against and keeping:
        against.label = keeping.folder.id
    broadcast = Broadcast([*_with_comparison(reporters, against, prepared, environ), NotesReporter()], note)
    for text in prepared.notes:
        note(text)
    words = AtSignals(last=partial(_last_words, prepared, journal, kind), show=broadcast.show)
    source = _source(prepared, kind, keeping)
    outcome = _executed(prepared, broadcast, source, processes, words)
    broadcast.finish()
    written = [report for report in prepared.reports if report.name not in broadcast.failed]
    lacking = [*_compared(against, keeping), *(keeping.end(outcome.result, written) if keeping else ())]
    for text in (
        *outcome.notes,
        *_not_kept(journal),
        *lacking,
        *_in_a_line(outcome.result, prepared, broadcast, _files(written, kind, prepared)),
    ):
        note(text)
    if against and against.comparisons and not _CONSOLE_REPORTERS & prepared.reporters:
        from agentest.cli.baseline import in_a_line

        note(f"compared: {in_a_line(against)}")
    code = _status(outcome, prepared, broadcast, complete=not lacking)
    return _with_regressions(code, against)


def _against(prepared: Prepared, kind: Kind) -> Against | None:
    """What compares the run: with its baseline, or else its agents with each other. Raises UsageError."""
    request = prepared.request
    judged = kind.name is RunKind.JUDGE  # nobody talked to the agent: what differs would be the judge
    named = request.baseline or prepared.loaded.config.baseline or request.fail_on_regression
    wanted = bool(named) and not judged
    if not prepared.plan.entries or not (wanted or prepared.plan.comparison):
        return None
    from agentest.cli.baseline import Against, read_baseline

    return Against(read_baseline(prepared) if wanted else None, partial=prepared.is_partial)


def _with_comparison(
    reporters: Sequence[Reporter],
    against: Against | None,
    prepared: Prepared,
    environ: Mapping[str, str],
) -> Sequence[Reporter]:
    if against is None:
        return reporters
    from agentest.cli.baseline import Told

    return [against, *reporters, Told(against, prepared, environ)]


def _compared(against: Against | None, keeping: Keeping | None) -> Iterator[str]:
    """Keep the comparison with a baseline. Yields what could not be written."""
    if against is None or against.baseline is None or not against.comparisons or keeping is None:
        return
    from agentest.cli.baseline import COMPARISON, write_comparison

    try:
        write_comparison(against, keeping.folder.path)
        keeping.folder.publish(COMPARISON, COMPARISON)
    except OSError as error:
        yield f"{keeping.folder.path / COMPARISON} could not be written ({error.strerror or error})"


def _with_regressions(code: ExitCode, against: Against | None) -> ExitCode:
    """The exit status of a run that may have regressed: that is a failure where the user says so."""
    if against is None or against.baseline is None or code is ExitCode.INTERRUPTED:
        return code
    if not against.comparisons:  # it was asked for, and is not known
        return code or ExitCode.ERRORED
    failed = against.regressed and against.baseline.fail_on_regression
    return ExitCode.FAILED if failed else code


def _source(prepared: Prepared, kind: Kind, keeping: Keeping | None) -> SourceFactory:
    """Where conversations come from; nowhere, and no agent need be there, where none is left to hold."""
    if prepared.kept and all(unit.kept.is_all(unit.conversations) for unit in prepared.plan.units):
        from agentest.run.sources import EarlierRun

        return EarlierRun({})
    return kind.source(keeping)


def _status(outcome: Outcome, prepared: Prepared, broadcast: Broadcast, *, complete: bool) -> ExitCode:
    """The exit status of a run that may lack something: its end, or a report that was asked for."""
    if outcome.result is None or outcome.interrupted:
        return ExitCode.INTERRUPTED
    code = exit_code(outcome.result)
    # Nobody asked for the journal by name: without it, a run is still what was wanted.
    lacks_report = bool(prepared.reporters & set(FILES)) and not complete
    incomplete = broadcast.failed & prepared.reporters or outcome.incomplete or lacks_report
    return ExitCode.ERRORED if code is ExitCode.PASSED and incomplete else code


def _files(reports: Iterable[WantedReport], kind: Kind, prepared: Prepared) -> list[str]:
    """The files of reports, as the user would name them: the fixed names of those in the run's folder."""
    folder = output_dir(prepared)
    named = [
        report.path or folder / kind.fixed.reports[report.name]
        for report in reports
        if report.path or report.name in FILES
    ]
    return [_shown(file, prepared) for file in named]


def _in_a_line(
    result: RunResult | None, prepared: Prepared, broadcast: Broadcast, written: Sequence[str]
) -> Iterator[str]:
    """The outcome of the run in a line, unless a reporter has written it to the console."""
    if result is None:
        return
    skipped = len(result.with_status(Status.SKIPPED))
    if skipped and skipped == len(result.scenarios):
        which = "the only scenario is" if skipped == 1 else f"all {skipped} scenarios are"
        yield f"nothing ran: {which} skipped"
    printed = {report.name for report in prepared.reports if report.path is None}
    if not _CONSOLE_REPORTERS & (printed - broadcast.failed):
        counts = [(sum(s.verdict.status is each for s in result.finished), str(each)) for each in Status]
        counts.append((len(result.unfinished), "unfinished"))
        summary = ", ".join(f"{count} {status}" for count, status in counts if count) or "no scenarios"
        where = f"; {', '.join(written)}" if written else ""
        yield f"{'interrupted' if result.interrupted else run_status(result)}: {summary}{where}"
        yield from (warning.message for warning in (*result.unclaimed, *result.unanswered))


def _not_kept(journal: Journal | None) -> Iterator[str]:
    """What the journal lacks at the end of the run."""
    if journal and journal.held and not journal.flush():
        yield f"{journal.path} is not complete: there was no room for all of it"


def _last_words(prepared: Prepared, journal: Journal | None, kind: Kind) -> str:
    """What the user should know when a run ends without its reports."""
    if journal is None or not journal.held:
        return ""
    path = _shown(journal.path, prepared)
    held = f"{journal.held} finished conversation{'' if journal.held == 1 else 's'}"
    goes_on = f"{kind.resumed_by} keeps what is there and runs the rest, " if kind.resumed_by else ""
    words = f"agentest: {path} holds {held}; {goes_on}agentest judge {path} judges again what is there"
    return in_log(clean(prepared.loaded.redact(words))) + "\n"


def _shown(path: Path, prepared: Prepared) -> str:
    """A path that the run writes to, as the user would write it from where they are."""
    request = prepared.request
    if not path.is_relative_to(request.root):
        return readable(path.as_posix())
    return path_from(request.here or request.root, path)


def _executed(
    prepared: Prepared,
    emit: Emit,
    source: SourceFactory,
    processes: int,
    words: AtSignals,
) -> Outcome:
    """The run, in so many processes."""
    import anyio

    from agentest.run.run import Mode, execute

    _calm_collector()
    # Transcripts are shown with the scenario.
    mode = Mode(source=source, keep_conversations=prepared.request.verbose)
    if processes == 1:
        return anyio.run(execute, prepared, emit, mode, words)
    from agentest.scale.pool import worker_pool

    with worker_pool(prepared, processes) as pool:
        return anyio.run(execute, prepared, emit, replace(mode, engine=pool), words)


def _calm_collector() -> None:
    """Have Python look for cycles less often: what a run makes lives to its end or dies at once."""
    gc.freeze()  # modules and classes never die
    gc.set_threshold(20_000, 20, 50)


def _note(prepared: Prepared, note: str) -> None:
    """Write a note to the user, at once."""
    tell(f"agentest: {prepared.loaded.redact(note)}")


def exit_code(result: RunResult) -> ExitCode:
    """The exit status of a run."""
    if result.interrupted:
        return ExitCode.INTERRUPTED
    statuses = {
        Status.PASSED: ExitCode.PASSED,
        Status.FAILED: ExitCode.FAILED,
        Status.ERRORED: ExitCode.ERRORED,
    }
    return statuses[run_status(result)]
