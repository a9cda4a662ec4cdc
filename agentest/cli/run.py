"""`agentest run` from the prepared run to the exit status."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agentest.errors import ConfigError, ExitCode
from agentest.results import RunResult, RunWarning, Status
from agentest.run.outputs import output_dir
from agentest.run.prepare import Prepared
from agentest.support.files import readable
from agentest.support.locking import Taken, locked
from agentest.support.paths import path_from
from agentest.support.terminal import clean, in_log, tell
from agentest.transcript import Conversation
from agentest.verdict import run_status

if TYPE_CHECKING:  # imported when a run really begins
    from agentest.events import Emit
    from agentest.report.registry import Broadcast
    from agentest.run.session import Outcome
    from agentest.run.sources import SourceFactory
    from agentest.store.journal import Journal

_CONSOLE_REPORTERS = frozenset({"console", "github-actions"})


class RunKind(Protocol):
    """What kind of run this is: where its conversations come from, and where it writes."""

    @property
    def results(self) -> str:
        """The file of the results, in `output_dir`."""
        ...

    @property
    def journal(self) -> str:
        """The file that keeps finished conversations, in `output_dir`."""
        ...

    @property
    def spans(self) -> str | None:
        """The file that keeps spans of agents, in `output_dir`; None: there are none."""
        ...

    def processes(self, prepared: Prepared) -> int:
        """Over how many processes the run is spread."""
        ...

    def source(self, keep_span: Callable[[bytes], object] | None) -> SourceFactory:
        """Where conversations come from; `keep_span` receives the spans of live agents, each a line."""
        ...


@dataclass(frozen=True, slots=True)
class LiveRun:
    """Conversations with the agents, now."""

    results: str = "results.json"
    journal: str = "journal.jsonl"
    spans: str | None = "spans.jsonl"

    def processes(self, prepared: Prepared) -> int:
        wanted = prepared.request.options.workers
        if wanted == 1:
            return 1
        from agentest.scale.shares import worker_count

        return worker_count(prepared, wanted)

    def source(self, keep_span: Callable[[bytes], object] | None) -> SourceFactory:
        from agentest.run.sources import LiveAgents

        return LiveAgents(keep_span=keep_span)


@dataclass(frozen=True, slots=True)
class JudgedRun:
    """Conversations of an earlier run, judged again; written beside its results."""

    conversations: Mapping[str, Sequence[Conversation]]
    """By scope of the unit."""
    unclaimed: tuple[RunWarning, ...] = ()
    """Of its calls that belonged to no conversation."""
    results: str = "judged.json"
    journal: str = "judged.jsonl"
    spans: str | None = None

    def processes(self, prepared: Prepared) -> int:
        del prepared  # the models do the work
        return 1

    def source(self, keep_span: Callable[[bytes], object] | None) -> SourceFactory:
        from agentest.run.sources import EarlierRun

        del keep_span  # nobody sends any
        return EarlierRun(self.conversations, self.unclaimed)


LIVE = LiveRun()


def run_once(
    prepared: Prepared, kind: RunKind = LIVE, environ: MutableMapping[str, str] = os.environ
) -> ExitCode:
    """Run what was prepared, with its reporters. Raises UsageError when nothing could be run."""
    results = output_dir(prepared) / kind.results
    with ExitStack() as stack:
        journal = _open_journal(prepared, results, kind.journal, stack)
        spans = _open_spans(prepared, results, kind.spans, stack) if journal else None
        return _run(prepared, kind, environ, results, journal, spans)


def _run(
    prepared: Prepared,
    kind: RunKind,
    environ: Mapping[str, str],
    results: Path,
    journal: Journal | None,
    keep_span: Callable[[bytes], object] | None,
) -> ExitCode:
    from agentest.report.notes import NotesReporter
    from agentest.report.registry import Broadcast, make_reporters
    from agentest.run.file_descriptors import fitted

    processes = kind.processes(prepared)
    prepared = fitted(prepared, processes)
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
    note = partial(_note, prepared)
    broadcast = Broadcast([*reporters, NotesReporter()], note)
    for text in prepared.notes:
        note(text)
    last_words = partial(_last_words, prepared, journal)
    outcome = _executed(prepared, broadcast, kind.source(keep_span), processes, last_words)
    broadcast.finish()
    for text in (
        *outcome.notes,
        *_not_kept(journal),
        *_in_a_line(outcome.result, prepared, broadcast, results),
    ):
        note(text)
    return _status(outcome, prepared, broadcast)


def _status(outcome: Outcome, prepared: Prepared, broadcast: Broadcast) -> ExitCode:
    """The exit status of a run that may lack something: its end, or a report that was asked for."""
    if outcome.result is None or outcome.interrupted:
        return ExitCode.INTERRUPTED
    code = exit_code(outcome.result)
    # Nobody asked for the journal by name: without it, a run is still what was wanted.
    incomplete = broadcast.failed & set(prepared.reporters) or outcome.incomplete
    return ExitCode.ERRORED if code is ExitCode.PASSED and incomplete else code


def _in_a_line(
    result: RunResult | None, prepared: Prepared, broadcast: Broadcast, results: Path
) -> Iterator[str]:
    """The outcome of the run in a line, unless a reporter has written it to the console."""
    if result is None:
        return
    skipped = len(result.with_status(Status.SKIPPED))
    if skipped and skipped == len(result.scenarios):
        which = "the only scenario is" if skipped == 1 else f"all {skipped} scenarios are"
        yield f"nothing ran: {which} skipped"
    if not _CONSOLE_REPORTERS & (set(prepared.reporters) - broadcast.failed):
        counts = [(len(result.with_status(status)), status) for status in Status]
        summary = ", ".join(f"{count} {status}" for count, status in counts if count) or "no scenarios"
        written = "json" in prepared.reporters and "json" not in broadcast.failed
        where = f"; {_shown(results, prepared)}" if written else ""
        yield f"{'interrupted' if result.interrupted else run_status(result)}: {summary}{where}"
        yield from (warning.message for warning in (*result.unclaimed, *result.unanswered))


def _not_kept(journal: Journal | None) -> Iterator[str]:
    """What the journal lacks at the end of the run."""
    if journal and journal.held and not journal.flush():
        yield f"{journal.path} is not complete: there was no room for all of it"


def _last_words(prepared: Prepared, journal: Journal | None) -> str:
    """What the user should know when a run ends without its reports."""
    if journal is None or not journal.held:
        return ""
    path = _shown(journal.path, prepared)
    held = f"{journal.held} finished conversation{'' if journal.held == 1 else 's'}"
    words = f"agentest: {path} holds {held}; agentest judge {path} judges again what is there"
    return in_log(clean(words)) + "\n"


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
    last_words: Callable[[], str],
) -> Outcome:
    """The run, in so many processes."""
    import anyio

    from agentest.run.run import Mode, execute

    _calm_collector()
    # Transcripts are shown with the scenario.
    mode = Mode(source=source, keep_conversations=prepared.request.verbose)
    if processes == 1:
        return anyio.run(execute, prepared, emit, mode, last_words)
    from agentest.scale.pool import worker_pool

    with worker_pool(prepared, processes) as pool:
        return anyio.run(execute, prepared, emit, replace(mode, engine=pool), last_words)


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


def _open_spans(
    prepared: Prepared, results: Path, name: str | None, stack: ExitStack
) -> Callable[[bytes], object] | None:
    """What adds a line to the file of spans beside the results, which is new where any are received."""
    if name is None:
        return None
    path = results.with_name(name)
    path.unlink(missing_ok=True)  # the last run's, which must not pass for this one's
    if not any(agent.traces for agent in prepared.plan.agents.values()):
        return None
    from agentest.store.late_file import LateFile

    return stack.enter_context(closing(LateFile(path, partial(_note, prepared)))).add


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
