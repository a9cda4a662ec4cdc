"""Output of a run: its own folder, the fixed names of the latest run, and the kinds of runs."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agentest.domain.events import ReportRequest
from agentest.domain.results import RunResult, RunWarning
from agentest.domain.transcript import Conversation
from agentest.report.registry import ReporterContext, make_reporters
from agentest.runner.prepare import Prepared, cassette_folder
from agentest.store.journal import Journal, RawFile, RetryingLineFile, open_new
from agentest.store.run_results import conversations_in_memory, document
from agentest.store.runs.folder import (
    ANSWERS,
    JOB_VARIABLE,
    JOURNAL,
    RECORD,
    RESULTS,
    RUNS,
    LatestName,
    RunKind,
    RunRecord,
    StoredRunFolder,
    make_output_folder,
    new_run_folder,
    prune,
    report_file,
    with_end,
    write_record,
)
from agentest.support.errors import ConfigError, ExitCode, UsageError
from agentest.support.files import commit_of, make_folder, path_from, readable, write_atomically
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.locking import LOCK, FolderLocked, locked
from agentest.support.text import count
from agentest.version import __version__

if TYPE_CHECKING:
    from agentest.domain.events import Reporter
    from agentest.runner.engines import Engine, PreparationRecipe
    from agentest.runner.sources import LiveAgents, OnMocks, SourceFactory

SERVERS = "servers"
Note = Callable[[str], None]
RESULTS_REPORT = ReportRequest("json")
_FULL = "the disk was full"
_JUDGED = (JOURNAL, RESULTS, "junit.xml", "report.html")


def claim_names(folder: StoredRunFolder, name: LatestName, stack: ExitStack, note: Note) -> StoredRunFolder:
    """Return the folder with the fixed names, unless another run under way has them. Raises OSError."""
    try:
        stack.enter_context(locked(folder.output_dir, folder.id, name=name("results.lock")))
    except FolderLocked as other:
        fixed = folder.output_dir / name(RESULTS)
        note(f"{other}; {fixed} will be that run's, and this run writes to {folder.path}")
        return folder
    return replace(folder, latest_name=name)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutput:
    """Folder and open files of a run in progress."""

    folder: StoredRunFolder
    record: RunRecord
    journal: Journal
    keep_span: Callable[[bytes], object] | None
    keep_output: Callable[[str, str], object]
    """Receives the output of servers: the server's name, and whole lines with secrets redacted."""
    keep_runs: int

    def end(
        self, result: RunResult | None, reports: Iterable[ReportRequest], unwritten: Iterable[str] = ()
    ) -> list[str]:
        """Store the end of the run and remove the oldest runs. Returns what could not be written, and why.

        Args:
            result: result of the run; None if it was interrupted before it had one.
            reports: requested reports that were written. Those in the run folder become the latest ones.
            unwritten: the reports for which the disk was full.
        """
        missing = {_FULL: list(unwritten)}
        if self.journal.held and not self.journal.flush():
            missing[_FULL].append(JOURNAL)

        def attempt(write: Callable[[], None], name: str) -> None:
            try:
                write()
            except OSError as error:
                why = _FULL if error.errno == errno.ENOSPC else error.strerror or str(error)
                missing.setdefault(why, []).append(name)

        # Without links, the journal was copied while it was almost empty.
        for name in (JOURNAL, *(report_file(each.name) for each in reports if _in_folder(each))):
            if (self.folder.path / name).exists():
                attempt(partial(self.folder.publish, name), f"the latest {name}")
        if result:
            attempt(partial(write_record, self.folder.path, with_end(self.record, result)), RECORD)
        prune(self.folder.output_dir, self.keep_runs)
        texts = ((", ".join(names), why) for why, names in missing.items() if names)
        return [f"{self.folder.path}: {files} could not be written ({why})" for files, why in texts]


@contextmanager
def open_run_output(prepared: Prepared, variant: RunVariant, note: Note) -> Iterator[RunOutput | None]:
    """Open the folder of a new run; yield None if it cannot be written and no file was requested.

    Raises ConfigError if a requested file cannot be written.
    """
    with ExitStack() as stack:
        _lock_cassettes(prepared, stack)
        try:
            folder = stack.enter_context(new_run_folder(prepared.output_dir, datetime.now(UTC)))
            stack.callback(_remove_if_empty, folder.path)
            record = _record(prepared, variant, folder)
            write_record(folder.path, record)
            folder = claim_names(folder, variant.latest_name, stack, note)
        except OSError as error:
            runs = prepared.output_dir / RUNS
            taken = runs if runs.is_symlink() or runs.exists() else runs.parent
            problem = f"output_dir: {taken} cannot be written to ({error.strerror}); set another `output_dir`"
            if any(map(_in_folder, prepared.reports)) or prepared.is_recorded:
                raise ConfigError(problem) from None
            note(f"{problem}: finished conversations are not stored")
            yield None
            return
        output = RunOutput(
            folder=folder,
            record=record,
            journal=stack.enter_context(closing(_new_journal(folder, note))),
            keep_span=_open_spans(prepared, folder, note, stack) if variant.spans else None,
            keep_output=logs_in(folder.path / SERVERS, note, stack),
            keep_runs=prepared.loaded.config.keep_runs,
        )
        try:
            yield output
        except BaseException:
            if text := store_finished(prepared, output, variant):
                note(text)
            raise


def store_finished(prepared: Prepared, output: RunOutput | None, variant: RunVariant) -> str:
    """Write results.json from the journal of a run that ends early, and return a message about it, or ""."""
    if output is None or not output.journal.path.exists():
        return ""
    from agentest.store.reader import read_results

    folder, problem = output.folder, ""
    path = path_for_user(folder.visible(RESULTS), prepared)
    try:
        if not (folder.path / RESULTS).exists():
            result = read_results(output.journal.path)
            write_atomically(folder.path / RESULTS, b"".join(document(result, conversations_in_memory)))
            write_record(folder.path, with_end(output.record, result))
        folder.publish(RESULTS)
    except (OSError, UsageError) as error:
        problem = f" ({path} could not be written: {error})"
        path = path_for_user(output.journal.path, prepared)
    goes_on = f"{variant.resumed_by} reuses them and runs the rest, " if variant.resumed_by else ""
    finished = count(output.journal.held, "finished conversation")
    return f"{path} has {finished}{problem}; {goes_on}agentest judge {path} judges them again"


def path_for_user(path: Path, prepared: Prepared) -> str:
    request = prepared.request
    if not path.is_relative_to(request.root):
        return readable(path.as_posix())
    return path_from(request.here or request.root, path)


def live_agents(output: RunOutput | None, on_mocks: OnMocks | None = None) -> LiveAgents:
    """Return the source of conversations with the agents."""
    from agentest.runner.sources import LiveAgents

    if output is None:
        return LiveAgents(on_mocks)
    return LiveAgents(on_mocks, output.keep_span, output.keep_output)


class AfterScenarios(Protocol):
    """Goes on with the same agents after the scenarios have run."""

    def open(self, prepared: Prepared, output: RunOutput | None) -> AbstractContextManager[Engine]:
        """Open the engine of the run."""

    def exit_code(self, result: RunResult) -> ExitCode:
        """Return the exit status of the run."""


@dataclass(frozen=True, slots=True)
class RunVariant:
    """Kind of a run: the source of its conversations and the names of its files.

    By default, the conversations are those of scenarios with the agents.
    """

    name: RunKind = RunKind.RUN
    latest_name: LatestName = str
    spans: bool = True
    earlier: bool = False
    resumed_by: str = "agentest run --resume"  # command that resumes an interrupted run; "" if there is none
    recipe: PreparationRecipe | None = None
    """How another process prepares the run; None for a run of scenarios."""
    source: Callable[[RunOutput | None], SourceFactory] = live_agents
    """Returns the source of conversations, which stores their output, if given."""
    exploration: AfterScenarios | None = None
    """What explores after the scenarios have run; None: nothing does."""


LIVE = RunVariant()


def judged_run(
    conversations: Mapping[str, Sequence[Conversation]], unclaimed: tuple[RunWarning, ...]
) -> RunVariant:
    """Return a run that judges conversations again; the results have their own file names.

    Args:
        conversations: conversations of an earlier run by the scope of their unit.
        unclaimed: warnings about calls that belong to no conversation.
    """
    from agentest.runner.sources import EarlierRun

    source = EarlierRun(conversations, unclaimed)
    return RunVariant(
        RunKind.JUDGE, _judged_name, spans=False, earlier=True, resumed_by="", source=lambda _: source
    )


def _judged_name(file: str) -> str:
    return f"judged{Path(file).suffix}" if file in _JUDGED else f"judged-{file}"


def open_reporters(
    reports: Sequence[ReportRequest], context: ReporterContext, output: RunOutput | None
) -> list[Reporter]:
    """Create the requested reporters. Every stored run also writes results.json."""
    if output is None:
        return make_reporters(reports, context)
    context = replace(
        context,
        folder=output.folder.path,
        run_id=output.folder.id,
        journal=output.journal,
        record=output.record,
    )
    return make_reporters((*reports, *([] if RESULTS_REPORT in reports else [RESULTS_REPORT])), context)


def _in_folder(report: ReportRequest) -> bool:
    return report.path is None and report_file(report.name) != ""


def selection_hash(prepared: Prepared, variant: RunVariant) -> str:
    """Return a hash of what the command line selects, because it may name addresses with secrets."""
    options = prepared.request.options
    paths = [(path_from(prepared.request.root, each.path), each.line, each.name) for each in options.paths]
    chosen = (paths, options.scenarios, options.files, options.tags, options.agent)
    shard = prepared.part.shard if prepared.part else None
    text = " ".join(map(str, (variant.resumed_by, *chosen, shard)))
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]


def _record(prepared: Prepared, variant: RunVariant, folder: StoredRunFolder) -> RunRecord:
    plan = prepared.plan
    return RunRecord(
        id=folder.id,
        kind=variant.name,
        started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        version=__version__,
        models=prepared.model_names,
        agents={name: prepared.loaded.redact(agent.address) for name, agent in plan.agents.items()},
        scenarios=len(plan.entries),
        conversations=sum(unit.conversations for unit in plan.units),
        commit=commit_of(prepared.request.root, os.environ),
        shard=str(prepared.part.shard) if prepared.part else None,
        part=prepared.part,
        partial=prepared.is_partial,
        selection=selection_hash(prepared, variant),
        resumed=prepared.resumed_run.id if prepared.resumed_run else None,
        job=os.environ.get(JOB_VARIABLE),
    )


def _lock_cassettes(prepared: Prepared, stack: ExitStack) -> None:
    if not prepared.is_recorded:
        return
    folder = cassette_folder(prepared.loaded.config, prepared.request.options, prepared.request.root)
    try:
        if folder.is_relative_to(prepared.output_dir):
            make_output_folder(prepared.output_dir)
        make_folder(folder)
        stack.enter_context(locked(folder, datetime.now(UTC).isoformat(timespec="seconds")))
    except FolderLocked as taken:
        raise ConfigError(f"{taken}; wait for its end, or record to another folder (--cassettes)") from None
    except OSError as error:
        raise ConfigError(
            f"cassettes: {folder} cannot be written to ({error.strerror}); set another folder"
        ) from None


def _unnamed(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _new_journal(folder: StoredRunFolder, note: Note) -> Journal:
    """Create a journal under a temporary name, so that readers never find one without its first lines."""
    path = folder.path / JOURNAL

    def named() -> None:
        _unnamed(path).replace(path)
        with suppress(OSError):  # tried again and reported at the end
            folder.publish(JOURNAL)

    return Journal(path, note, lambda path: open_new(_unnamed(path)), named)


def _open_spans(
    prepared: Prepared, folder: StoredRunFolder, note: Note, stack: ExitStack
) -> Callable[[bytes], object] | None:
    if not any(agent.traces for agent in prepared.plan.agents.values()):
        return None
    from agentest.store.spans import SPANS

    def opened(path: Path) -> RawFile:
        """Open and publish the file at once, so that it is there if the run is killed."""
        file = open_new(path)
        with suppress(OSError):  # tried again and reported at the end
            folder.publish(SPANS)
        return file

    return stack.enter_context(closing(RetryingLineFile(folder.path / SPANS, note, opened))).add


def logs_in(folder: Path, note: Note, stack: ExitStack, most: int = 25_000_000) -> Callable[[str, str], None]:
    """Return what stores lines of a server in `NAME.log`, and those before its last ones in `NAME.log.1`."""
    logs: dict[str, RetryingLineFile] = {}

    def keep(server: str, lines: str) -> None:
        path, line = folder / f"{server}.log", f"{lines}\n".encode("utf-8", "backslashreplace")
        if server in logs and logs[server].size + len(line) > most:
            logs.pop(server).close()
            with suppress(OSError):  # as `note` has received already
                path.replace(f"{path}.1")
        if server not in logs:
            logs[server] = stack.enter_context(closing(RetryingLineFile(path, note, most_waiting=most)))
        logs[server].add(line)

    return keep


def _remove_if_empty(folder: Path) -> None:
    nothing = {RECORD, LOCK, SERVERS, ANSWERS, _unnamed(Path(JOURNAL)).name}
    with suppress(OSError):
        if {entry.name for entry in folder.iterdir()} <= nothing:
            shutil.rmtree(folder)
