"""Stored runs for the page: find them by name, index their files once, and follow runs in progress."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from threading import Lock
from typing import Any

from agentest.domain.results import ScenarioResult
from agentest.domain.root_causes import root_causes_of
from agentest.plugins.page.server.journal_index import IndexedScenario, ReaderClosed, RunIndex
from agentest.plugins.page.server.json_routes import ItemNotFound, WebProject
from agentest.plugins.page.viewer.overview import brief, overview, scenario_row
from agentest.store.codec import CODECS
from agentest.store.reader import KILLED
from agentest.store.runs.folder import (
    JOURNAL,
    LATEST,
    RECORD,
    RUNS,
    RunRecord,
    StoredRunFolder,
    check_readable,
    is_run_id,
    list_stored_runs,
)
from agentest.store.runs.past_runs import about, resume_command, trend
from agentest.support.errors import UsageError
from agentest.support.json_text import Json
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import CredentialFilter

CHOSEN = "chosen"  # name of the run given to `agentest ui RUN`, if it is not a stored run
_MOST_INDEXES = 4
_MOST_HITS = 200
UNDER_WAY = "under way"
RUNNING = "running"


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestedRun:
    """A run that the page requested."""

    id: str
    file: Path | None  # the file to read; None if nothing has been written yet
    stored: StoredRunFolder | None  # the folder of the stored run; None if the file is not in one

    @property
    def folder(self) -> Path | None:
        """Folder of the run's other files."""
        return self.stored.path if self.stored else self.file.parent if self.file else None


class WebRuns:
    """The runs of a project. Methods read files, so call them in threads."""

    def __init__(self, project: WebProject) -> None:
        self._project = project
        self.folder = project.output_dir / RUNS
        self._indexes: dict[Path, RunIndex] = {}
        self._ended_records: dict[str, RunRecord] = {}  # records of runs that have ended, which do not change
        self._lock = Lock()

    def close(self) -> None:
        """Make all reads in progress end soon."""
        with self._lock:
            for index in self._indexes.values():
                index.close()

    @property
    def chosen(self) -> str | None:
        """Name of the run given to `agentest ui`; None if none was given."""
        path = self._project.chosen
        if path is None:
            return None
        folder = path.parent
        is_stored = is_run_id(folder.name) and folder.parent.resolve() == self.folder.resolve()
        return folder.name if is_stored else CHOSEN

    def find(self, name: str) -> RequestedRun:
        """Find a run by id, `latest` or `chosen`. Raises ItemNotFound with a message for the page."""
        if name == CHOSEN and self._project.chosen:
            return RequestedRun(id=CHOSEN, file=_journal_or(self._project.chosen), stored=None)
        if name == LATEST:
            name = self._latest()
        if not is_run_id(name):
            raise ItemNotFound(f"{name[:80]!r} is not a run: expected the id of a stored run, or {LATEST}")
        run = StoredRunFolder(self.folder / name)
        if not run.path.is_dir():
            raise ItemNotFound(
                f"the run {name} is no longer stored: `keep_runs` in the configuration sets how many runs are"
            )
        if run.path.is_symlink() and run.path.resolve().parent != self.folder.resolve():
            raise ItemNotFound(
                f"{run.path} links to another folder: agentest ui {run.path.resolve()} shows it"
            )
        return _stored(run)

    def _latest(self) -> str:
        check_readable(self._project.output_dir)
        for run in reversed(list_stored_runs(self._project.output_dir)):
            if run.file or self._record(run):
                return run.id
        raise ItemNotFound(f"no run is stored in {self.folder} yet: start one, here or with agentest run")

    def _record(self, run: StoredRunFolder | None) -> RunRecord | None:
        known = self._ended_records.get(run.id) if run else None
        if run and known is None:
            known = run.record
            if known and known.ended:
                self._ended_records[run.id] = known
        return known

    def index(self, requested: RequestedRun) -> RunIndex | None:
        """Return an up-to-date index of the run's file; None if there is no file yet. Raises UsageError."""
        if requested.file is None:
            return None
        with self._lock:
            index = self._indexes.pop(requested.file, None) or RunIndex(requested.file, brief)
            self._indexes[requested.file] = index  # insertion order is the order of last use
            while len(self._indexes) > _MOST_INDEXES:
                self._indexes.pop(next(iter(self._indexes))).close()
        try:
            index.refresh()
        except ReaderClosed:
            raise UsageError("the server closed the run: request it again") from None
        except UsageError:
            index.close()
            with self._lock:
                self._indexes.pop(requested.file, None)
            raise
        return index

    def state(self, requested: RequestedRun) -> str:
        """Return how the run ended, or that it is in progress."""
        stored = requested.stored
        return stored.state_of(self._record(stored)) if stored else ""

    def mark(self, name: str) -> tuple[str, bool]:
        """Return a text that changes whenever the run does, and True if the run is in progress.

        Only file sizes and times are read. Raises ItemNotFound.
        """
        requested = self.find(name)
        state = self.state(requested)
        stamps: list[str] = []
        for file in (requested.file, requested.folder and requested.folder / RECORD):
            with suppress(OSError):
                stat = file.stat() if file else None
                stamps.append(f"{stat.st_ino}.{stat.st_size}.{stat.st_mtime_ns}" if stat else "-")
        return f"{requested.id} {state} {' '.join(stamps)}", state == UNDER_WAY

    def marks(self) -> str:
        """Return a text that changes whenever the list of runs does."""
        return "\n".join(
            f"{run.id} {run.state_of(record)} {record is None}"
            for run in list_stored_runs(self._project.output_dir)
            for record in [self._record(run)]
        )

    def rows(self, name: str) -> int:
        """Return the number of rows that the page shows for a run; 0 if no page has requested it."""
        index = self._indexes.get(self.find(name).file or Path())
        return len(index.scenarios) if index else 0

    def listed(self) -> Json:
        """Return all stored runs, those in progress first and then latest first.

        `chosen` is the run named on the command line.
        """
        check_readable(self._project.output_dir)
        runs = [self._listed(run) for run in reversed(list_stored_runs(self._project.output_dir))]
        live = [each for each in runs if each["state"] == UNDER_WAY]
        return {
            "runs": [*live, *(each for each in runs if each["state"] != UNDER_WAY)],
            "chosen": self.chosen,
            "folder": str(self.folder),
        }

    def _listed(self, run: StoredRunFolder) -> Json:
        record = self._record(run)
        state = run.state_of(record)
        if record and not record.ended and state not in (UNDER_WAY, "killed"):
            record = self._record(run)  # it may have ended in the meantime
        content = _run_json(run.id, state, record)
        if state == UNDER_WAY:
            with suppress(UsageError):
                index = self.index(_stored(run))
                content |= _progress(index) if index else {}
        return content

    def overview(self, name: str) -> Json:
        """Return the run's figures and a row for each scenario. Raises UsageError."""
        requested = self.find(name)
        mark, _ = self.mark(name)  # computed before reading, so that later changes count as new
        index = self.index(requested)
        state = self.state(requested)
        record = self._record(requested.stored)
        run = _run_json(requested.id, state, record) | {"mark": mark}
        earlier = trend(self._project.output_dir, record, record_of=self._record) if record else []
        if index is None:
            why = (
                f"{requested.folder} contains neither a journal nor results: the run ended "
                f"before its first conversation"
            )
            none = run | {"problems": [] if state == UNDER_WAY else [why]}
            return overview(run=none, head=None, scenarios=[], root_causes=[], trend=earlier)
        with index.lock:
            run |= {"problems": list(index.problems), **_progress(index)}
            if state in ("", "unknown"):  # only the results file says how the run ended
                run["state"] = "killed"
                if index.head is not None:
                    counts: dict[str, Any] = index.head["summary"]
                    judged = "failed" if counts["failedScenarios"] else "errored"
                    run["state"] = "passed" if counts["passed"] else judged
                    run["state"] = "interrupted" if index.head["interrupted"] else run["state"]
            run.setdefault("startedAt", index.run.started_at if index.run else None)
            if run["state"] == "killed":
                run["stopped"] = KILLED
            scenarios = [
                _scenario_json(indexed, live=state == UNDER_WAY) for indexed in index.scenarios.values()
            ]
            rows = [
                scenario_row(each, list(indexed.rows.values()))
                for each, indexed in zip(scenarios, index.scenarios.values(), strict=True)
            ]
            if record:
                run["resume"] = resume_command(record, (e["file"] for e in scenarios if e.get("evalSetId")))
            causes = _root_causes(index)
            whole = overview(run=run, head=index.head, scenarios=rows, root_causes=causes, trend=earlier)
            return CredentialFilter()(whole, keep={each["name"] for each in scenarios})

    def scenario(
        self, name: str, scenario: str, agent: str
    ) -> tuple[RequestedRun, RunIndex, IndexedScenario, Json]:
        """Return one scenario with an agent, including its form in results.json. Raises UsageError."""
        requested = self.find(name)
        index = self.index(requested)
        indexed = index.scenarios.get((scenario, agent)) if index else None
        if index is None or indexed is None:
            raise ItemNotFound(
                f"the run {requested.id} has no scenario {scenario[:200]!r} with the agent {agent[:80]!r}"
            )
        return requested, index, indexed, _scenario_json(indexed, live=self.state(requested) == UNDER_WAY)

    def conversation(self, name: str, scenario: str, agent: str, id: str) -> tuple[RequestedRun, Json]:
        """Return one conversation in the form of results.json. Raises UsageError."""
        requested, index, _, _ = self.scenario(name, scenario, agent)
        number = index.number_of(scenario, agent, id)
        if number is None:
            raise ItemNotFound(
                f"the scenario {scenario[:200]!r} of this run has no conversation {id[:200]!r} yet"
            )
        return requested, index.conversation(scenario, agent, number)

    def search(self, name: str, text: str, stop: Callable[[], bool]) -> Json:
        """Search transcripts; return the `hits`, and whether there are `more`. Raises UsageError."""
        index = self.index(self.find(name))
        hits: list[Json] = []
        for scenario, agent, id in index.search(text, stop) if index and text else ():
            if len(hits) == _MOST_HITS:
                return {"hits": hits, "more": True}
            hits.append({"name": scenario, "agent": agent, "conversationId": id})
        return {"hits": hits, "more": False}

    def failed(self, name: str) -> tuple[RunRecord | None, list[Json]]:
        """Return the failed and errored scenarios of a run in the form of results.json. Raises UsageError."""
        requested = self.find(name)
        index = self.index(requested)
        rows = [_scenario_json(indexed, live=False) for indexed in index.scenarios.values()] if index else []
        record = self._record(requested.stored)
        return record, [each for each in rows if each["status"] in ("failed", "errored")]


def _stored(run: StoredRunFolder) -> RequestedRun:
    return RequestedRun(id=run.id, file=_journal_or(run.file) if run.file else None, stored=run)


def _journal_or(path: Path) -> Path:
    """Return the run's journal if there is one, because it can be read in parts."""
    journal = path.with_name(JOURNAL)
    return journal if path.with_name(RECORD).is_file() and journal.is_file() else path


def _run_json(id: str, state: str, record: RunRecord | None) -> Json:
    if record is None:
        return {"id": id, "state": state}
    ended = asdict(record.ended) if record.ended else None
    return {
        **about(record),
        "id": id,
        "state": state,
        "scenarios": record.scenarios,
        "conversations": record.conversations,
        "job": record.job,
        "ended": ended and {"durationMs": ended.pop("duration_ms"), **ended},
    }


def _progress(index: RunIndex) -> Json:
    scenarios = index.scenarios.values()
    return {
        "finished": index.finished,
        "planned": len(scenarios),
    }


def _scenario_json(indexed: IndexedScenario, *, live: bool) -> Json:
    if indexed.scenario is not None:
        return indexed.scenario
    lost = indexed.lost()
    return {**lost, "status": RUNNING, "failures": [], "reasons": []} if live else lost


def _root_causes(index: RunIndex) -> list[Json]:
    if index.head is not None and "rootCauses" in index.head:
        stored: list[Json] = index.head["rootCauses"]
        return stored
    finished = [indexed.scenario for indexed in index.scenarios.values() if indexed.scenario is not None]
    troubled = [each for each in finished if each["errors"] or each["status"] != "passed"]
    causes = root_causes_of([CODECS.read(ScenarioResult, each) for each in troubled])
    return [CODECS.write(cause) for cause in causes]
