"""What is said when a run has ended, and its exit status."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.cli.kinds import Kind
from agentest.domain.events import WantedReport
from agentest.domain.results import RunResult, Status
from agentest.domain.verdict import run_status
from agentest.runner.outputs import output_dir
from agentest.runner.prepare import Prepared
from agentest.store.runs.folder import FILES
from agentest.support.errors import ExitCode
from agentest.support.files import readable
from agentest.support.paths import path_from
from agentest.support.terminal import clean, in_log

if TYPE_CHECKING:  # imported when a run really begins
    from agentest.report.registry import Broadcast
    from agentest.runner.session import Outcome
    from agentest.store.journal import Journal

CONSOLE_REPORTERS = frozenset({"console", "github-actions"})


def status(outcome: Outcome, prepared: Prepared, broadcast: Broadcast, *, complete: bool) -> ExitCode:
    """The exit status of a run that may lack something: its end, or a report that was asked for."""
    if outcome.result is None or outcome.interrupted:
        return ExitCode.INTERRUPTED
    code = exit_code(outcome.result)
    # Nobody asked for the journal by name: without it, a run is still what was wanted.
    lacks_report = bool(prepared.reporters & set(FILES)) and not complete
    incomplete = broadcast.failed & prepared.reporters or outcome.incomplete or lacks_report
    return ExitCode.ERRORED if code is ExitCode.PASSED and incomplete else code


def files_of(reports: Iterable[WantedReport], kind: Kind, prepared: Prepared) -> list[str]:
    """The files of reports, as the user would name them: the fixed names of those in the run's folder."""
    folder = output_dir(prepared)
    named = [
        report.path or folder / kind.fixed.reports[report.name]
        for report in reports
        if report.path or report.name in FILES
    ]
    return [_shown(file, prepared) for file in named]


def in_a_line(
    result: RunResult | None, prepared: Prepared, broadcast: Broadcast, written: Sequence[str]
) -> Iterator[str]:
    """The outcome of the run in a line, unless a reporter has written it to the console."""
    if result is None:
        yield "interrupted before the first conversation"
        return
    skipped = len(result.with_status(Status.SKIPPED))
    if skipped and skipped == len(result.scenarios):
        which = "the only scenario is" if skipped == 1 else f"all {skipped} scenarios are"
        yield f"nothing ran: {which} skipped"
    printed = {report.name for report in prepared.reports if report.path is None}
    if not CONSOLE_REPORTERS & (printed - broadcast.failed):
        counts = [(sum(s.verdict.status is each for s in result.finished), str(each)) for each in Status]
        counts.append((len(result.unfinished), "unfinished"))
        summary = ", ".join(f"{count} {status}" for count, status in counts if count) or "no scenarios"
        where = f"; {', '.join(written)}" if written else ""
        yield f"{'interrupted' if result.interrupted else run_status(result)}: {summary}{where}"
        yield from (warning.message for warning in (*result.unclaimed, *result.unanswered))


def not_kept(journal: Journal | None) -> Iterator[str]:
    """What the journal lacks at the end of the run."""
    if journal and journal.held and not journal.flush():
        yield f"{journal.path} is not complete: there was no room for all of it"


def last_words(prepared: Prepared, journal: Journal | None, kind: Kind) -> str:
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
