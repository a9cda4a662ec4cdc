"""Output of a run: its own folder, the fixed names of the latest run, and the kinds of runs."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import field, replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.cli.requests import EvalRecipe
from agentest.domain.events import ReportRequest
from agentest.domain.results import RunResult, RunWarning
from agentest.domain.transcript import Conversation
from agentest.report.registry import ReporterContext, make_reporters
from agentest.runner.environment import output_dir
from agentest.runner.plan import endpoint
from agentest.runner.prepare import Prepared, cassette_folder
from agentest.store.journal import BoundedLog, Journal, RawFile, RetryingLineFile, open_new
from agentest.store.runs.folder import (
    ANSWERS,
    FILES,
    JOB_VARIABLE,
    JOURNAL,
    RECORD,
    RUNS,
    RunKind,
    RunRecord,
    StoredRunFolder,
    new_run_folder,
    prune,
    with_end,
    write_record,
)
from agentest.support.errors import ConfigError
from agentest.support.files import commit_of
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.locking import LOCK, FolderLocked, locked
from agentest.version import __version__

if TYPE_CHECKING:
    from agentest.adk.plan import EvalRequest
    from agentest.domain.events import Reporter
    from agentest.runner.sources import LiveAgents, OnMocks, SourceFactory
    from agentest.workers.ray.worker_process import PreparationRecipe

SERVERS = "servers"
"""Folder for the logs of servers."""
Note = Callable[[str], None]
RESULTS_REPORT = ReportRequest("json")


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedNames:
    """Names of the latest run's files in `output_dir`, for one kind of run."""

    journal: str
    reports: Mapping[str, str]
    """Maps a reporter to its file."""


LATEST = FixedNames(journal=JOURNAL, reports=FILES)


JUDGED = FixedNames(
    journal="judged.jsonl", reports={"json": "judged.json", "junit": "judged.xml", "html": "judged.html"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunOutput:
    """Folder and open files of a run in progress."""

    folder: StoredRunFolder
    fixed: FixedNames
    record: RunRecord
    journal: Journal
    keep_span: Callable[[bytes], object] | None
    keep_output: Callable[[str, str], object] | None
    """Receives the output of servers: the server's name, and whole lines with secrets redacted."""
    keep_runs: int

    def end(self, result: RunResult | None, reports: Iterable[ReportRequest]) -> Iterator[str]:
        """Store the end of the run and remove the oldest runs. Yields what could not be written.

        Args:
            result: result of the run; None if it was interrupted before it had one.
            reports: requested reports that were written. Those in the run folder become the latest ones.
        """
        names = {FILES[each.name]: self.fixed.reports[each.name] for each in reports if _in_folder(each)}
        # Without links, the journal was copied while it was almost empty.
        for name, fixed in {JOURNAL: self.fixed.journal, **names}.items():
            if (self.folder.path / name).exists():
                yield from _problem_of(
                    partial(self.folder.publish, name, fixed), self.folder.output_dir / fixed
                )
        if result:
            record = with_end(self.record, result)
            yield from _problem_of(partial(write_record, self.folder.path, record), self.folder.path / RECORD)
        prune(self.folder.output_dir, self.keep_runs)


@contextmanager
def open_run_output(
    prepared: Prepared, variant: RunVariant, note: Note, environ: Mapping[str, str]
) -> Iterator[RunOutput | None]:
    """Open the folder of a new run; yield None if it cannot be written and no file was requested.

    Raises ConfigError if a requested file cannot be written.
    """
    with ExitStack() as stack:
        _lock_cassettes(prepared, stack)
        try:
            folder = stack.enter_context(new_run_folder(output_dir(prepared), datetime.now(UTC)))
            stack.callback(_remove_if_empty, folder.path)
            record = _record(prepared, variant.name, folder, environ)
            write_record(folder.path, record)
        except OSError as error:
            _refuse_if_file_requested(prepared, _problem(prepared, error), note)
            yield None
            return
        journal = Journal(
            folder.path / JOURNAL,
            note,
            _open_unnamed,
            partial(_publish, folder, JOURNAL, variant.fixed.journal),
        )
        stack.enter_context(closing(journal))
        yield RunOutput(
            folder=folder,
            fixed=variant.fixed,
            record=record,
            journal=journal,
            keep_span=_open_spans(prepared, folder, note, stack) if variant.spans else None,
            keep_output=_server_logs(folder, note, stack),
            keep_runs=prepared.loaded.config.keep_runs,
        )


def live_agents(output: RunOutput | None, on_mocks: OnMocks | None = None) -> LiveAgents:
    """Return the source of conversations with the agents."""
    from agentest.runner.sources import LiveAgents

    if output is None:
        return LiveAgents(on_mocks)
    return LiveAgents(on_mocks, output.keep_span, output.keep_output)


@dataclass(frozen=True, slots=True)
class RunVariant:
    """Kind of a run: the source of its conversations and the names of its files.

    By default, the conversations are those of scenarios with the agents.
    """

    name: RunKind = RunKind.RUN
    """Kind stored in the run's record."""
    fixed: FixedNames = LATEST
    """Names of the run's files in `output_dir`."""
    spans: bool = True
    """True if agents can send spans."""
    earlier: bool = False
    """True if the conversations come from an earlier run."""
    resumed_by: str = "agentest run --resume"
    """Command that resumes an interrupted run; "" if there is none."""
    recipe: PreparationRecipe | None = None
    """How another process prepares the run; None for a run of scenarios."""

    def source(self, output: RunOutput | None) -> SourceFactory:
        """Return the source of conversations, which stores their output in `output`, if given."""
        return live_agents(output)


@dataclass(frozen=True, slots=True)
class JudgedRun(RunVariant):
    """Judge conversations of an earlier run again; the results have their own file names."""

    name: RunKind = RunKind.JUDGE
    fixed: FixedNames = JUDGED
    spans: bool = False
    earlier: bool = True
    resumed_by: str = ""
    conversations: Mapping[str, Sequence[Conversation]] = field(default_factory=dict)
    """Conversations by the scope of their unit."""
    unclaimed: tuple[RunWarning, ...] = ()
    """Warnings about calls that belong to no conversation."""

    def source(self, output: RunOutput | None) -> SourceFactory:
        from agentest.runner.sources import EarlierRun

        del output  # no agent runs
        return EarlierRun(self.conversations, self.unclaimed)


LIVE = RunVariant()


def evaluation_run(evaluation: EvalRequest, words: Iterable[str]) -> RunVariant:
    """Return the kind of a run of evaluation sets, with the command that resumes it.

    Args:
        words: positional arguments of the command.
    """
    agent = evaluation.request.options.agent
    command = [*words, *([f"--agent={agent}"] if agent is not None else ())]
    if evaluation.num_runs != 1:
        command.append(f"--num-runs={evaluation.num_runs}")
    return RunVariant(
        RunKind.EVAL,
        resumed_by=shlex.join(["agentest", "eval", *command, "--resume"]),
        recipe=EvalRecipe(evaluation),
    )


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
    return report.path is None and report.name in FILES


def _problem_of(write: Callable[[], None], path: Path) -> Iterator[str]:
    try:
        write()
    except OSError as error:
        yield f"{path} could not be written ({error.strerror or error})"


def _record(
    prepared: Prepared, kind: RunKind, folder: StoredRunFolder, environ: Mapping[str, str]
) -> RunRecord:
    plan = prepared.plan
    return RunRecord(
        id=folder.id,
        kind=kind,
        started_at=datetime.now(UTC).isoformat(timespec="milliseconds"),
        version=__version__,
        models=prepared.model_names,
        agents={name: prepared.loaded.redact(endpoint(agent)) for name, agent in plan.agents.items()},
        scenarios=len(plan.entries),
        conversations=sum(unit.conversations for unit in plan.units),
        commit=commit_of(prepared.request.root, environ),
        shard=str(prepared.part.shard) if prepared.part else None,
        part=prepared.part,
        partial=prepared.is_partial,
        resumed=prepared.resumed_run.id if prepared.resumed_run else None,
        job=environ.get(JOB_VARIABLE),
    )


def _problem(prepared: Prepared, error: OSError) -> str:
    folder = output_dir(prepared)
    if (folder / RUNS).is_symlink() or (folder / RUNS).exists():
        folder /= RUNS
    return f"output_dir: {folder} cannot be written to ({error.strerror}); set another `output_dir`"


def _refuse_if_file_requested(prepared: Prepared, problem: str, note: Note) -> None:
    if any(map(_in_folder, prepared.reports)) or _records(prepared):
        raise ConfigError(problem)
    note(f"{problem}: finished conversations are not stored")


def _records(prepared: Prepared) -> bool:
    return prepared.request.options.tape not in (None, "replay")


def _lock_cassettes(prepared: Prepared, stack: ExitStack) -> None:
    """Lock the cassette folder, so that only one run records to it. Raises ConfigError."""
    if not _records(prepared):
        return
    folder = cassette_folder(prepared.loaded.config, prepared.request.options, prepared.request.root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(folder, datetime.now(UTC).isoformat(timespec="seconds")))
    except FolderLocked as taken:
        raise ConfigError(f"{taken}; wait for its end, or record to another folder (--cassettes)") from None
    except OSError as error:
        raise ConfigError(
            f"cassettes: {folder} cannot be written to ({error.strerror}); set another folder"
        ) from None


def _open_published(folder: StoredRunFolder, fixed: str, path: Path) -> RawFile:
    """Open a file and publish it at its fixed name at once, so that it is there if the run is killed."""
    file = open_new(path)
    with suppress(OSError):  # tried again and reported at the end
        folder.publish(path.name, fixed)
    return file


def _open_unnamed(path: Path) -> RawFile:
    """Open the journal under a temporary name, so that readers never find one without its first lines."""
    return open_new(_unnamed(path))


def _unnamed(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _publish(folder: StoredRunFolder, name: str, fixed: str) -> None:
    """Give the journal its final name and publish it as the latest one. Raises OSError."""
    path = folder.path / name
    _unnamed(path).replace(path)
    with suppress(OSError):  # tried again and reported at the end
        folder.publish(name, fixed)


def _open_spans(
    prepared: Prepared, folder: StoredRunFolder, note: Note, stack: ExitStack
) -> Callable[[bytes], object] | None:
    """Return a function that adds a line to the file of spans; None if no agent sends any."""
    if not any(agent.traces for agent in prepared.plan.agents.values()):
        return None
    from agentest.store.spans import SPANS

    def opened(path: Path) -> RawFile:
        return _open_published(folder, SPANS, path)

    return stack.enter_context(closing(RetryingLineFile(folder.path / SPANS, note, opened))).add


def _server_logs(folder: StoredRunFolder, note: Note, stack: ExitStack) -> Callable[[str, str], None]:
    """Return a function that adds lines to a server's log; the log is created with the first line."""
    logs: dict[str, BoundedLog] = {}

    def keep(server: str, lines: str) -> None:
        if server not in logs:
            log = BoundedLog(folder.path / SERVERS / f"{server}.log", note)
            logs[server] = stack.enter_context(closing(log))
        logs[server].add(lines)

    return keep


def _remove_if_empty(folder: Path) -> None:
    """Remove the folder of a run that never started. The error already contains the output of its servers."""
    nothing = {RECORD, LOCK, SERVERS, ANSWERS, _unnamed(Path(JOURNAL)).name}
    with suppress(OSError):
        if {entry.name for entry in folder.iterdir()} <= nothing:
            shutil.rmtree(folder)
