"""`agentest run` from what the command line asks for to the exit status."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, closing
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.errors import ConfigError, ExitCode
from agentest.results import RunResult, Status
from agentest.run.prepare import Prepared
from agentest.support.locking import Taken, locked
from agentest.support.paths import shown_path
from agentest.support.terminal import clean, in_log, tell
from agentest.transcript import Conversation
from agentest.verdict import run_status

if TYPE_CHECKING:  # imported when a run really begins
    from agentest.events import Emit
    from agentest.report.registry import Broadcast
    from agentest.run.session import Outcome
    from agentest.store.journal import Journal
from agentest.run.outputs import output_dir

JOURNAL = "journal.jsonl"
"""Where finished conversations are kept, in `output_dir`."""


_READ_AT_ONCE = frozenset({"console", "github-actions"})


JUDGED = "judged.json"
"""What `agentest judge` writes beside results.json."""


def run_once(
    prepared: Prepared,
    environ: MutableMapping[str, str] = os.environ,
    finished: Mapping[str, Sequence[Conversation]] | None = None,
) -> ExitCode:
    """Run what was prepared and tell the reporters. Raises UsageError when nothing could be run.

    Args:
        finished: conversations of an earlier run by scope, to be judged again instead of held.
    """
    results = output_dir(prepared) / ("results.json" if finished is None else JUDGED)
    with ExitStack() as stack:
        journal = _open_journal(prepared, results, JOURNAL if finished is None else JUDGED + "l", stack)
        return _run(prepared, environ, finished, results, journal)


def _run(
    prepared: Prepared,
    environ: Mapping[str, str],
    finished: Mapping[str, Sequence[Conversation]] | None,
    results: Path,
    journal: Journal | None,
) -> ExitCode:
    from agentest.report.notes import NotesReporter
    from agentest.report.registry import Broadcast, make_reporters
    from agentest.run.file_descriptors import fitted

    count = _processes(prepared) if finished is None else 1
    prepared = fitted(prepared, count)
    request = prepared.request
    reporters = make_reporters(
        prepared.reporters,
        request.root,
        results,
        environ,
        verbose=request.verbose,
        detailed=request.detailed,
        journal=journal,
    )
    note_down = partial(_note, prepared)
    broadcast = Broadcast([*reporters, NotesReporter()], note_down)
    for note in prepared.notes:
        note_down(note)
    outcome = _executed(prepared, broadcast, finished, count, partial(_last_words, journal))
    broadcast.finish()
    for note in (
        *outcome.notes,
        *_not_kept(journal),
        *_in_a_line(outcome.result, prepared, broadcast, results),
    ):
        note_down(note)
    if outcome.result is None or outcome.interrupted:
        return ExitCode.INTERRUPTED
    code = exit_code(outcome.result)
    # Nobody asked for the journal by name: without it, a run is still what was wanted.
    incomplete = broadcast.failed & set(prepared.reporters) or outcome.incomplete
    return ExitCode.ERRORED if code is ExitCode.PASSED and incomplete else code


def _in_a_line(
    result: RunResult | None, prepared: Prepared, broadcast: Broadcast, results: Path
) -> Iterator[str]:
    """What became of the run, where no reporter of those that are read at once tells it."""
    if result is None:
        return
    skipped = len(result.with_status(Status.SKIPPED))
    if skipped and skipped == len(result.scenarios):
        which = "the only scenario is" if skipped == 1 else f"all {skipped} scenarios are"
        yield f"nothing ran: {which} skipped"
    if not _READ_AT_ONCE & (set(prepared.reporters) - broadcast.failed):
        counts = [(len(result.with_status(status)), status) for status in Status]
        told = ", ".join(f"{count} {status}" for count, status in counts if count) or "no scenarios"
        written = "json" in prepared.reporters and "json" not in broadcast.failed
        where = f"; {shown_path(results, Path.cwd())}" if written else ""
        yield f"{'interrupted' if result.interrupted else run_status(result)}: {told}{where}"


def _not_kept(journal: Journal | None) -> Iterator[str]:
    """What the journal has not, now that the run is over."""
    if journal and journal.held and not journal.flush():
        yield f"{journal.path} is not complete: there was no room for all of it"


def _last_words(journal: Journal | None) -> str:
    """What is left of a run that is ended without its reports."""
    if journal is None or not journal.held:
        return ""
    path = shown_path(journal.path, Path.cwd())
    held = f"{journal.held} finished conversation{'' if journal.held == 1 else 's'}"
    words = f"agentest: {path} holds {held}; agentest judge {path} judges again what is there"
    return in_log(clean(words)) + "\n"


def _processes(prepared: Prepared) -> int:
    """How many processes the run is spread over."""
    wanted = prepared.request.options.workers
    if wanted == 1:
        return 1
    from agentest.scale.shares import worker_count

    return worker_count(prepared, wanted)


def _executed(
    prepared: Prepared,
    emit: Emit,
    finished: Mapping[str, Sequence[Conversation]] | None,
    processes: int,
    last_words: Callable[[], str],
) -> Outcome:
    """The run, in so many processes."""
    import anyio

    from agentest.run.session import execute

    _calm_collector()
    # Transcripts are shown with the scenario.
    verbose = prepared.request.verbose
    here = partial(execute, prepared, emit, finished, keep_conversations=verbose, last_words=last_words)
    if processes == 1:
        return anyio.run(here)
    from agentest.scale.pool import crew

    with crew(prepared, processes) as workers:
        return anyio.run(partial(here, crew=workers))


def _calm_collector() -> None:
    """Have Python look for cycles less often: what a run makes lives to its end or dies at once."""
    gc.freeze()  # modules and classes never die
    gc.set_threshold(20_000, 20, 50)


def _open_journal(prepared: Prepared, results: Path, name: str, stack: ExitStack) -> Journal | None:
    """The journal beside the results; none where nothing can be written and no file was asked for.

    While it is open, no other run writes to its folder.
    """
    from agentest.store.journal import Journal

    problem = _make_way_for(results, stack)
    if problem is None:
        return stack.enter_context(closing(Journal(results.with_name(name), partial(_note, prepared))))
    if "json" in prepared.reporters or prepared.request.options.tape not in (None, "replay"):
        raise ConfigError(problem)
    _note(prepared, f"{problem}: finished conversations are not kept")
    return None


def _make_way_for(results: Path, stack: ExitStack) -> str | None:
    """Remove the last run's results, which must not pass for this one's; why new ones cannot be written."""
    folder, now = results.parent, datetime.now(UTC).isoformat(timespec="seconds")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(folder, now))
        results.unlink(missing_ok=True)
    except Taken as taken:
        return f"{taken}; wait for its end, or give this run another folder (`output_dir`, --cwd)"
    except OSError as error:
        return f"output_dir: {folder} cannot be written to ({error.strerror}); set another `output_dir`"
    return None


def _note(prepared: Prepared, note: str) -> None:
    """Tell the user, at once."""
    tell(f"agentest: {prepared.loaded.redact(note)}")


def exit_code(result: RunResult) -> ExitCode:
    """The exit status of a run (contract, section 9)."""
    if result.interrupted:
        return ExitCode.INTERRUPTED
    statuses = {
        Status.PASSED: ExitCode.PASSED,
        Status.FAILED: ExitCode.FAILED,
        Status.ERRORED: ExitCode.ERRORED,
    }
    return statuses[run_status(result)]
