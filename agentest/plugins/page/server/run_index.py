"""Stored runs for the page: find them by name, and follow runs in progress.

A run may have 10,000 conversations in 500 MB. Its index has only numbers and the position of each
conversation in the journal, which it follows as it grows; a conversation is read again on demand.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, field, replace
from errno import ENOSPC
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock, RLock
from typing import Any, BinaryIO

from agentest.domain.events import ConversationFinished, stored_events
from agentest.domain.results import ConversationResult, ScenarioResult
from agentest.domain.root_causes import root_causes_of
from agentest.domain.verdict import Severities
from agentest.plugins.page.server.json_routes import ItemNotFound, WebProject
from agentest.plugins.page.viewer.overview import ConversationNumbers, overview, scenario_row
from agentest.store import reader
from agentest.store.codec import CODECS, conversation_json, mark_vacuous
from agentest.store.journal import Journal, conversation_in
from agentest.store.run_results import entries, with_severity
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
from agentest.store.shapes import RunLine
from agentest.support.errors import UsageError
from agentest.support.json_text import Json, encoded
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import CredentialFilter
from agentest.version import __version__

_UNREADABLE = (reader.JournalError, LookupError, TypeError, ValueError, AttributeError, RecursionError)
_MOST_PROBLEMS = 20
_FIRST_BYTES = 64 * 1024 * 1024
RUNNING = "running"

_BEGIN = b'{"type"'
_CONVERSATION = _BEGIN + b': "conversation"'
CHOSEN = "chosen"  # name of the run given to `agentest ui RUN`, if it is not a stored run
_MOST_INDEXES = 4
_MOST_HITS = 200
UNDER_WAY = "under way"


@dataclass(slots=True)
class IndexedScenario:
    """A scenario with an agent, and its progress.

    Attributes:
        planned: the number of conversations; 0 if unknown.
        result: without conversations; None if it has not ended.
        numbers: what has been counted of its conversations.
    """

    name: str
    agent: str
    planned: int = 0
    result: ScenarioResult | None = None
    numbers: ConversationNumbers = field(default_factory=ConversationNumbers)
    _row: tuple[object, Json] = (None, {})

    @property
    def severities(self) -> Severities:
        """What the groups of its failures say of its conversations; nothing before it has ended."""
        errors, unknown = (self.result.errors, self.result.severity_unknown) if self.result else ((), False)
        return Severities.of(errors, graded=not unknown)

    def shown(self, *, live: bool) -> Json:
        """Return the scenario as in results.json, without conversations.

        Args:
            live: whether the run goes on. If it was killed, scenarios that have not ended never will.
        """
        finished = self.numbers.conversations
        result = self.result or reader.unfinished((self.name, self.agent), finished, self.planned)
        running = {"status": RUNNING, "failures": [], "reasons": []} if live and not self.result else {}
        return CODECS.write(result) | running

    def row(self, *, live: bool) -> Json:
        """Return the row of the scenario."""
        state = self.result, self.numbers.conversations, live
        if self._row[0] != state:
            self._row = state, scenario_row(self.shown(live=live), self.numbers, self.severities)
        return self._row[1]


class ReaderClosed(Exception):
    """The reader was closed."""


class RunIndex:
    """An index of a run, which reads parts on demand. It is thread-safe.

    Args:
        path: a journal, or a results.json, which is read once as a whole.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ended = False  # set on close, so that readers stop at the next line
        self._copy: TemporaryDirectory[str] | None = None  # has the journal that is made of a results.json
        self.lock = RLock()  # required for consistent access to several values that `refresh` changes
        self._begin()

    def _begin(self) -> None:
        if self._copy is not None:
            self._copy.cleanup()
            self._copy = None
        self._journal: reader.StoredJournal | None = None
        self.head: Json | None = None
        self.scenarios: dict[reader.Place, IndexedScenario] = {}
        self.problems: list[str] = []  # descriptions of unreadable parts
        self._offset = 0
        self._line = 0
        self._file = (0, 0)

    @property
    def run(self) -> RunLine | None:
        """The first line of the journal; None if it has not been read yet."""
        return self._journal.run if self._journal else None

    def refresh(self) -> None:
        """Read new lines. Raises UsageError if the file is not a run."""
        with self.lock:
            try:
                self._refresh()
            except FileNotFoundError:
                raise UsageError(f"{self.path} is not there any more: the run was removed") from None
            except OSError as error:
                raise UsageError(f"{self.path} cannot be read: {error.strerror}") from None
            self._show_results()

    def _refresh(self) -> None:
        stat = self.path.stat()
        file = (stat.st_dev, stat.st_ino)
        if self._offset and (file != self._file or stat.st_size < self._offset):
            self._begin()  # another file has its name
        if self._offset == stat.st_size:
            return
        with self.path.open("rb") as content:
            first = b"" if self._offset else content.readline(_FIRST_BYTES)
            if self._offset or reader.is_journal(first):
                self._follow(content)
            # The first line is long, because it names all scenarios: wait for the rest of it.
            elif first.endswith(b"\n") or first[: len(_BEGIN)] != _BEGIN[: len(first)]:
                self._follow_copy()
                self._offset = stat.st_size
        self._file = file

    def _follow_copy(self) -> None:
        document, run = reader.read_checked(self.path)
        self._copy = TemporaryDirectory(prefix="agentest-")
        copy = Journal(Path(self._copy.name) / JOURNAL)
        conversations = (each for entry in entries(document) for each in entry["conversations"])
        for event in stored_events(run):
            if isinstance(event, ConversationFinished):  # the results of ADK's metrics are not in the value
                event = replace(event, result=encoded(next(conversations)))
            copy.on_event(event)
        is_whole = copy.flush()
        copy.close()
        if not is_whole:
            raise OSError(ENOSPC, "No space left on device")
        with copy.path.open("rb") as content:
            self._follow(content)

    def _follow(self, content: BinaryIO) -> None:
        content.seek(self._offset)
        for line in content:
            if self.ended:
                raise ReaderClosed
            if not line.endswith(b"\n"):
                return
            self._line += 1
            try:
                if self._journal is None:
                    self._journal = reader.StoredJournal.begun(Path(content.name), line)
                    for each in self._journal.run.planned:
                        self._at((each.scenario, each.agent)).planned = each.conversations
                else:
                    if line.startswith(_CONVERSATION):
                        read = json.loads(line)
                        numbers = self._at((read["scenario"], read["agent"])).numbers
                        numbers.add(self._converted(read["conversation"]))
                    self._journal.take(line, self._offset)
            except _UNREADABLE as error:
                if self._journal is None:
                    raise UsageError(
                        f"{self.path} is not a journal of this version of Agentest: {error}"
                    ) from None
                if len(self.problems) < _MOST_PROBLEMS:
                    self.problems.append(f"line {self._line} of {self.path.name} cannot be read: {error}")
            self._offset += len(line)

    def _show_results(self) -> None:
        if (journal := self._journal) is None:
            return
        for key, result in journal.scenarios.items():
            self._at(key).result = result
        if journal.end and journal.document and self.head is None:
            explored = {
                key: each for key, each in journal.document.items() if key in ("findings", "explored")
            }
            self.head = CODECS.write(journal.end) | explored

    def _at(self, key: reader.Place) -> IndexedScenario:
        return self.scenarios.setdefault(key, IndexedScenario(*key))

    def _converted(self, data: Json) -> Json:
        if self.run is not None and self.run.version == __version__:
            return data
        # The results of ADK's metrics are not part of the value.
        return {**data, **conversation_json(CODECS.read(ConversationResult, data), None, {})}

    def conversations(self, key: reader.Place, id: str | None = None) -> Iterator[Json]:
        """Yield the conversations of a scenario, or the one with an id, in the format of results.json.

        Raises UsageError if one is no longer readable.
        """
        wanted = b"" if id is None else encoded(id)
        try:
            agents = self.head["agents"] if self.head else {}
            severities, is_silent = self.scenarios[key].severities, "noCallSeen" in agents.get(key[1], ())
            for line in self._lines(key):
                if wanted not in line:
                    continue
                conversation = json.loads(conversation_in(line)[0])
                if id is None or conversation["conversationId"] == id:
                    conversation = with_severity(self._converted(conversation), severities)
                    yield mark_vacuous(conversation) if is_silent else conversation
        except (OSError, *_UNREADABLE) as error:
            raise UsageError(f"{self.path}: the conversation cannot be read any more ({error})") from None

    def _lines(self, key: reader.Place) -> Iterator[bytes]:
        if self._journal is None:
            return
        with self.lock:
            path, lines = self._journal.path, self._journal.lines(key)
        with path.open("rb") as journal:
            for start, length in lines.values():
                journal.seek(start)
                yield journal.read(length)

    def search(self, text: str, stop: Callable[[], bool]) -> Iterator[tuple[str, str, str]]:
        """Yield scenario, agent and id of conversations whose transcripts contain a text, ignoring case."""
        needle = json.dumps(text, ensure_ascii=False)[1:-1].casefold()  # as in the file
        for key in list(self.scenarios):
            for line in self._lines(key):
                if stop() or self.ended:
                    return
                # Most conversations do not contain the text at all, so they need no parsing.
                if needle in line.decode(errors="replace").casefold():
                    with suppress(*_UNREADABLE):
                        told = self._converted(json.loads(conversation_in(line)[0]))
                        if any(
                            text.casefold() in each.casefold() for k in _TOLD for each in _texts(told.get(k))
                        ):
                            yield *key, told["conversationId"]

    def close(self) -> None:
        """Close the index. Running reads end soon."""
        self.ended = True
        if self._copy is not None:
            self._copy.cleanup()


_TOLD = ("turns", "unfinishedTurn", "error", "initialState", "criteria", "labelledFailures")


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for each in value.values():
            yield from _texts(each)
    elif isinstance(value, list):
        for each in value:
            yield from _texts(each)


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
            index = self._indexes.pop(requested.file, None) or RunIndex(requested.file)
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
                run["stopped"] = reader.KILLED
            rows = [each.row(live=state == UNDER_WAY) for each in index.scenarios.values()]
            if record:
                run["resume"] = resume_command(record, (e["file"] for e in rows if e.get("evalSetId")))
            causes = _root_causes(index)
            whole = overview(run=run, head=index.head, scenarios=rows, root_causes=causes, trend=earlier)
            return CredentialFilter()(whole, keep={each["name"] for each in rows})

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
        return requested, index, indexed, indexed.shown(live=self.state(requested) == UNDER_WAY)

    def conversation(self, name: str, scenario: str, agent: str, id: str) -> tuple[RequestedRun, Json]:
        """Return one conversation in the form of results.json. Raises UsageError."""
        requested, index, _, _ = self.scenario(name, scenario, agent)
        for conversation in index.conversations((scenario, agent), id):
            return requested, conversation
        raise ItemNotFound(
            f"the scenario {scenario[:200]!r} of this run has no conversation {id[:200]!r} yet"
        )

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
        rows = [each.shown(live=False) for each in index.scenarios.values()] if index else []
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
    return {"finished": sum(each.result is not None for each in scenarios), "planned": len(scenarios)}


def _root_causes(index: RunIndex) -> list[Json]:
    if index.head is not None and "rootCauses" in index.head:
        stored: list[Json] = index.head["rootCauses"]
        return stored
    ended = (each.result for each in index.scenarios.values() if each.result)
    troubled = [each for each in ended if each.errors or not each.verdict.passed]
    return [CODECS.write(cause) for cause in root_causes_of(troubled)]
