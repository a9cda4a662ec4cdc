"""Where a run is kept: its own folder, and the fixed names of the latest run."""

from __future__ import annotations

import shlex
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from agentest.domain.events import WantedReport
from agentest.domain.results import RunResult, RunWarning
from agentest.domain.transcript import Conversation
from agentest.runner.environment import output_dir
from agentest.runner.plan import endpoint
from agentest.runner.prepare import Prepared, cassette_folder
from agentest.store.journal import Journal
from agentest.store.log_file import BoundedLog, LateFile, RawFile, open_new
from agentest.store.runs.folder import FILES, JOURNAL, RUNS, RunFolder, new_run_folder, prune
from agentest.store.runs.record import JOB_VARIABLE, RECORD, RunKind, RunRecord, with_end, write_record
from agentest.store.spans import SPANS
from agentest.support.errors import ConfigError
from agentest.support.files import commit_of
from agentest.support.locking import LOCK, Taken, locked
from agentest.version import __version__

if TYPE_CHECKING:
    from agentest.runner.sources import SourceFactory
    from agentest.workers.ray.worker_process import Recipe

SERVERS = "servers"
"""The folder of their logs."""
ANSWERS = "answers"
"""The folder of what models answered in conversations that a budget left unfinished."""
Note = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class FixedNames:
    """Under which names `output_dir` has the files of the latest run of a kind."""

    journal: str
    reports: Mapping[str, str]
    """Reporter → file."""


LATEST = FixedNames(journal=JOURNAL, reports=FILES)
JUDGED = FixedNames(
    journal="judged.jsonl", reports={"json": "judged.json", "junit": "judged.xml", "html": "judged.html"}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """Where a run under way is kept."""

    folder: RunFolder
    fixed: FixedNames
    record: RunRecord
    journal: Journal
    keep_span: Callable[[bytes], object] | None
    keep_output: Callable[[str, str], object] | None
    """Receives what servers print: the name of one, and whole lines without secrets."""
    keep_runs: int

    def end(self, result: RunResult | None, reports: Iterable[WantedReport]) -> Iterator[str]:
        """Note how the run ended, and remove the oldest runs. Yields what could not be written.

        Args:
            reports: those that were asked for and written; what is in the run's folder becomes the latest.
        """
        names = {FILES[each.name]: self.fixed.reports[each.name] for each in reports if _in_folder(each)}
        # Where files have one name only, the journal was copied when it was almost empty.
        for name, fixed in {JOURNAL: self.fixed.journal, **names}.items():
            if (self.folder.path / name).exists():
                yield from _tried(partial(self.folder.publish, name, fixed), self.folder.output_dir / fixed)
        if result:
            record = with_end(self.record, result)
            yield from _tried(partial(write_record, self.folder.path, record), self.folder.path / RECORD)
        prune(self.folder.output_dir, self.keep_runs)


def _in_folder(report: WantedReport) -> bool:
    """Whether a report is a file in the folder of its run."""
    return report.path is None and report.name in FILES


def _tried(write: Callable[[], None], path: Path) -> Iterator[str]:
    try:
        write()
    except OSError as error:
        yield f"{path} could not be written ({error.strerror or error})"


@contextmanager
def kept(
    prepared: Prepared,
    kind: RunKind,
    fixed: FixedNames,
    note: Note,
    environ: Mapping[str, str],
    *,
    spans: bool,
) -> Iterator[Keeping | None]:
    """The folder of a run that begins; None where nothing can be written and nobody asked for a file.

    Args:
        spans: whether agents may send any.

    Raises ConfigError where a file was asked for that cannot be written.
    """
    with ExitStack() as stack:
        _have_cassettes(prepared, stack)
        try:
            folder = stack.enter_context(new_run_folder(output_dir(prepared), datetime.now(UTC)))
            stack.callback(_remove_if_empty, folder.path)
            record = _record(prepared, kind, folder, environ)
            write_record(folder.path, record)
        except OSError as error:
            _refuse_where_needed(prepared, _problem(prepared, error), note)
            yield None
            return
        journal = Journal(
            folder.path / JOURNAL, note, _open_unnamed, partial(_name, folder, JOURNAL, fixed.journal)
        )
        stack.enter_context(closing(journal))
        yield Keeping(
            folder=folder,
            fixed=fixed,
            record=record,
            journal=journal,
            keep_span=_open_spans(prepared, folder, note, stack) if spans else None,
            keep_output=_logs(folder, note, stack),
            keep_runs=prepared.loaded.config.keep_runs,
        )


def _record(prepared: Prepared, kind: RunKind, folder: RunFolder, environ: Mapping[str, str]) -> RunRecord:
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
        resumed=prepared.kept.id if prepared.kept else None,
        job=environ.get(JOB_VARIABLE),
    )


def _problem(prepared: Prepared, error: OSError) -> str:
    folder = output_dir(prepared)
    if (folder / RUNS).is_symlink() or (folder / RUNS).exists():
        folder /= RUNS
    return f"output_dir: {folder} cannot be written to ({error.strerror}); set another `output_dir`"


def _refuse_where_needed(prepared: Prepared, problem: str, note: Note) -> None:
    if any(map(_in_folder, prepared.reports)) or _records(prepared):
        raise ConfigError(problem)
    note(f"{problem}: finished conversations are not kept")


def _records(prepared: Prepared) -> bool:
    return prepared.request.options.tape not in (None, "replay")


def _have_cassettes(prepared: Prepared, stack: ExitStack) -> None:
    """While a run records, no other run records to the same folder. Raises ConfigError."""
    if not _records(prepared):
        return
    folder = cassette_folder(prepared.loaded.config, prepared.request.options, prepared.request.root)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        stack.enter_context(locked(folder, datetime.now(UTC).isoformat(timespec="seconds")))
    except Taken as taken:
        raise ConfigError(f"{taken}; wait for its end, or record to another folder (--cassettes)") from None
    except OSError as error:
        raise ConfigError(
            f"cassettes: {folder} cannot be written to ({error.strerror}); set another folder"
        ) from None


def _open_published(folder: RunFolder, fixed: str, path: Path) -> RawFile:
    """The journal, open, and also the latest one at its fixed name: a run that is killed has it there."""
    file = open_new(path)
    with suppress(OSError):  # said at the end, where it is tried again
        folder.publish(path.name, fixed)
    return file


def _open_unnamed(path: Path) -> RawFile:
    """The journal, open, under another name: whoever finds a journal finds what it begins with."""
    return open_new(_unnamed(path))


def _unnamed(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _name(folder: RunFolder, name: str, fixed: str) -> None:
    """Give the journal its name, and make it the latest one: a run that is killed has it there, too.

    Raises OSError.
    """
    path = folder.path / name
    _unnamed(path).replace(path)
    with suppress(OSError):  # said at the end, where it is tried again
        folder.publish(name, fixed)


def _open_spans(
    prepared: Prepared, folder: RunFolder, note: Note, stack: ExitStack
) -> Callable[[bytes], object] | None:
    """What adds a line to the file of spans, where agents send any."""
    if not any(agent.traces for agent in prepared.plan.agents.values()):
        return None

    def opened(path: Path) -> RawFile:
        return _open_published(folder, SPANS, path)

    return stack.enter_context(closing(LateFile(folder.path / SPANS, note, opened))).add


def _logs(folder: RunFolder, note: Note, stack: ExitStack) -> Callable[[str, str], None]:
    """What adds lines to the log of a server; each has its own, once it has printed anything."""
    logs: dict[str, BoundedLog] = {}

    def keep(server: str, lines: str) -> None:
        if server not in logs:
            log = BoundedLog(folder.path / SERVERS / f"{server}.log", note)
            logs[server] = stack.enter_context(closing(log))
        logs[server].add(lines)

    return keep


def _remove_if_empty(folder: Path) -> None:
    """Remove the folder of a run that never began; what its servers printed is in its error."""
    nothing = {RECORD, LOCK, SERVERS, ANSWERS, _unnamed(Path(JOURNAL)).name}
    with suppress(OSError):
        if {entry.name for entry in folder.iterdir()} <= nothing:
            shutil.rmtree(folder)


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

    @property
    def earlier(self) -> bool:
        """Whether its conversations are of an earlier run."""
        ...

    @property
    def recipe(self) -> Recipe | None:
        """How it is prepared again in another process; None: as any run of scenarios."""
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
    earlier: bool = False
    resumed_by: str = "agentest run --resume"
    recipe: Recipe | None = None

    def source(self, keeping: Keeping | None) -> SourceFactory:
        from agentest.runner.sources import LiveAgents

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
    earlier: bool = True
    resumed_by: str = ""
    recipe: Recipe | None = None

    def source(self, keeping: Keeping | None) -> SourceFactory:
        from agentest.runner.sources import EarlierRun

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
