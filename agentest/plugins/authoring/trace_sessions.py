"""Read recorded sessions of an agent from traces, logs and exports of observability tools.

Every form becomes *exchanges*: what a model received and what it answered. The exchanges of a session are
joined to one history, because most models receive the whole conversation again with every request.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from itertools import islice
from pathlib import Path
from typing import Any

from agentest.agents.json_reader import read_result
from agentest.plugin import PLUGINS, Feature
from agentest.plugins.authoring.trace_messages import SHAPES, Item, is_message, opened, role_of
from agentest.plugins.protocols.model_messages import entry
from agentest.scenarios.rows import read_rows
from agentest.store.runs.folder import run_file
from agentest.support.errors import UsageError, errors_as
from agentest.support.files import check_user_file
from agentest.support.json_text import json_or, parse_json
from agentest.support.lazy_dataclasses import dataclass

CONTINUED = 200  # the latest sessions, which later records may continue
_LOOKED_AT = 20
_CAN_SAY = "(?i)tool|call|exec|func|invo|mess|sess|conv|turn|chat"  # kinds of records with calls or texts
_MOST_DOCUMENT_BYTES = 200_000_000


def joined(history: list[Item], more: Sequence[Item]) -> list[Item]:
    """Return a history with the part of further items that it does not contain yet."""
    if not more:
        return history
    old, new = [*map(step_key, history)], [*map(step_key, more)]
    said = [key for key in new if key[0] in ("user", "assistant")]
    # A history without the calls between its messages is shorter.
    if old in (new[: len(old)], said[: len(old)]):
        return list(more)
    for size in range(min(len(old), len(new)), 0, -1):
        if old[-size:] == new[:size]:
            return [*history, *more[size:]]
    if len(new) > 1 and new[0] == next((key for key in old if key[0] == "user"), None):
        # The same conversation, as another of its agents has received it.
        known, history = Counter(old), [*history]
        for item, key in zip(more, new, strict=True):
            if known[key] < 1:
                history.append(item)
            known[key] -= 1
        return history
    # An answer that was recorded before, with the messages after it left out.
    is_known = any(old[at : at + len(new)] == new for at in range(len(old) - len(new) + 1))
    return history if is_known else [*history, *more]


def is_before(time: Any, other: Any) -> bool:
    """Return True if a time is earlier than another; False if they cannot be compared."""
    return type(time) is type(other) and isinstance(time, str | int | float) and time < other


def step_key(item: Item) -> tuple[str, str, str]:
    value = json.dumps(item.value, sort_keys=True, default=str) if item.kind == "call" else item.id
    return item.kind, " ".join(item.text.split()), value


@dataclass(slots=True)
class AgentRun:
    """One run of an agent whose own span shows it better than the requests to its model."""

    task: str = ""  # what the user asked; "" if there is no such span
    output: str = ""
    at: str = ""  # when it began
    calls: list[tuple[str, str, Any, Any]] = field(default_factory=list)
    """The beginning, tool, arguments and result of each call."""

    @property
    def items(self) -> Iterator[Item]:
        yield Item("user", self.task)
        for at, (_, tool, arguments, result) in enumerate(sorted(self.calls, key=lambda call: call[0])):
            yield Item("call", tool, arguments, key := f"{self.at} {at}")
            yield Item("result", tool, result, key)
        yield Item("assistant", self.output)


@dataclass(slots=True)
class RecordedSession:
    """One session, as far as the records show it."""

    id: str
    file: str
    items: list[Item] = field(default_factory=list)
    failed: bool = False  # True if a record of it reports an error
    results: dict[str, list[Any]] = field(default_factory=dict)
    """Call id, or name of a tool without one → its results in order, from records of tools."""
    responses: set[str] = field(default_factory=set)  # ids of the model's responses
    began: Any = ""  # when its first exchange began, as its records write it
    runs: dict[str, AgentRun] = field(default_factory=dict)  # trace → the run of the agent in it

    @property
    def steps(self) -> list[Item]:
        """Its history. The requests of smolagents mix plans and instructions into the user's messages."""
        runs = sorted((run for run in self.runs.values() if run.task), key=lambda run: run.at)
        return [item for run in runs for item in run.items] or self.items

    def add(self, received: Sequence[Item], answered: Sequence[Item], at: Any = "") -> None:
        """Join an exchange to the history. Exports may have the newest first."""
        if at and self.began and str(at) < str(self.began):
            self.items = joined([*received, *answered], self.items)
        else:
            self.items = joined(joined(self.items, received), answered)
        self.began = min(filter(None, (str(self.began), str(at or ""))), default="")

    def insert(self, items: Sequence[Item], at: Any) -> None:
        """Add the steps of one message, before the others if it is older than they are."""
        older = is_before(at, self.began)
        at_end = 0 if older else len(self.items)
        self.items[at_end:at_end] = items
        self.began = at if at is not None and (older or not self.began) else self.began

    def add_result(self, key: Any, result: Any) -> None:
        """Note the result that a record of a tool has."""
        self.results.setdefault(str(key or ""), []).append(read_result(result))


@dataclass(slots=True)
class ReadTraces:
    """The content found in the files."""

    sessions: dict[str, RecordedSession] = field(default_factory=dict)
    forms: Counter[str] = field(default_factory=Counter)  # form → number of its records
    broken_lines: list[str] = field(default_factory=list)  # `FILE:LINE: problem`
    conversations: dict[str, str] = field(default_factory=dict)
    """Trace → the session that one of its spans names."""
    silent_spans: int = 0  # requests to models without the messages
    unknown: Counter[str] = field(default_factory=Counter)
    """Keys of records of unknown form → how many there are."""
    examples: dict[str, str] = field(default_factory=dict)
    left_out: Counter[str] = field(default_factory=Counter)  # what no scenario can have → how often
    roles: Mapping[str, str] = field(default_factory=dict)
    """Words for who speaks, such as names → `user` or `assistant`, in addition to those that are known."""
    words: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Unusual words for who speaks, with their roles → how many messages have them."""
    passed_over: Counter[str] = field(default_factory=Counter)
    """Kind of records without messages of their own → how many there are."""
    around: list[tuple[str, Sequence[Item], Sequence[Item], Any]] = field(default_factory=list)
    """Traces and exchanges of spans around requests to models, for traces without such requests."""
    exchanged: set[str] = field(default_factory=set)  # traces with requests to models

    path: Path = Path()  # the file of the current record
    number: int = 0  # the current record, from 1

    @property
    def here(self) -> str:
        """The place of the current record, for sessions that have no id."""
        return f"{self.path.name}:{self.number}"

    def session(self, id: str, file: str = "") -> RecordedSession:
        """Return the session with this id; a new one, of the current file, if there is none."""
        return self.sessions.setdefault(id, RecordedSession(id, file or str(self.path)))


def files_of(source: Path) -> Sequence[Path]:
    """Return a file itself, or a folder's: those of a run, or all JSON but for that in hidden folders."""
    if not source.is_dir():
        return (source,)
    if any((source / name).is_file() for name in ("run.json", "results.json", "journal.jsonl")):
        return (run_file(str(source.resolve()), source, source),)
    found = sorted(each for ending in ("json", "jsonl") for each in source.rglob(f"*.{ending}"))
    found = [each for each in found if "/." not in f"/{each.relative_to(source).as_posix()}"]
    if not found:
        raise UsageError(f"{source} has no .json or .jsonl file")
    return found


def _recognizable_forms() -> Sequence[Feature]:
    # Ours come last, because some take almost any record with messages.
    forms = sorted(PLUGINS.all("trace format").values(), key=lambda each: each.plugin.name == "authoring")
    return [each for each in forms if "recognize" in each.facts]


def _form_of(record: Any, forms: Sequence[Feature]) -> Feature | None:
    """Return the form of a record by its keys; None if it is unknown."""
    is_object = isinstance(record, dict)
    return next((form for form in forms if is_object and form.call(record, fact="recognize")), None)


def read_traces(
    paths: Iterable[Path], form: str | None = None, roles: Mapping[str, str] | None = None
) -> ReadTraces:
    """Read all sessions of files in a form, or by the keys of each record. Raises UsageError.

    Args:
        roles: names of speakers → `user` or `assistant`.
    """
    found, forms = ReadTraces(roles=roles or {}), _recognizable_forms()
    named = PLUGINS.get("trace format", form) if form else None
    last = PLUGINS.find("trace format", "jsonl")
    for path in paths:
        found.path = path
        for number, (record, known) in enumerate(_records(path, found, forms), 1):
            found.number = number
            used = named or known or last if isinstance(record, dict) else None
            if used is None or not used.call(record, found):
                kind = str(entry(record).get("message_type", entry(record).get("type", "")))
                if kind in SHAPES["silent"]["kinds"] or (kind and not re.search(_CAN_SAY, kind)):
                    found.passed_over[kind] += 1
                    continue
                keys = ", ".join(sorted(map(str, entry(record)))[:6]) or type(record).__name__
                found.unknown[keys] += 1
                found.examples.setdefault(keys, f"{path.name}, record {number}")
    for trace, received, answered, at in found.around:
        if trace not in found.exchanged:
            found.session(found.conversations.get(trace, trace)).add(received, answered, at)
    for trace, id in found.conversations.items():  # the span that names the session may be the last one
        if trace != id and (part := found.sessions.pop(trace, None)):
            session = found.session(id, part.file)
            session.add(part.items, ())
            session.failed |= part.failed
            session.runs |= part.runs
            for key, results in part.results.items():
                session.results.setdefault(key, []).extend(results)
    return found


def speakers(columns: Sequence[str]) -> dict[str, str]:
    """Return the role of each speaker that is named, like `user=Ann`. Raises UsageError."""
    named = [each.partition("=")[::2] for each in columns]
    for role, speaker in named:
        if role not in ("user", "assistant") or not speaker:
            raise UsageError(
                f"--column {role}={speaker}: of recorded sessions, write user=NAME or assistant=NAME"
            )
    return {speaker: role for role, speaker in named}


def has_sessions(path: Path) -> bool:
    """Return True if any of the first records of a file is of a known form."""
    forms = _recognizable_forms()
    try:
        records = [*islice(_records(path, ReadTraces(), forms), _LOOKED_AT)]
        # Of a table with a column like `type`, rows in which only users speak are what a test sends.
        given = [opened(each) if is_message(each) else {"role": ""} for each, _ in records]
        alone = ["role" not in each and role_of(each, {})[1] == "user" for each in given]
        return not all(alone) and any(form for _, form in records)
    except UsageError:
        return False


def _records(path: Path, found: ReadTraces, forms: Sequence[Feature]) -> Iterator[tuple[Any, Feature | None]]:
    """Yield the records of a file, and the form of each if it is known."""
    if path.suffix.lower() in (".csv", ".tsv"):
        with errors_as(UsageError, ""):
            columns = (dict(row.columns) for row in read_rows(path, Path()))
            yield from ((each, _form_of(each, forms)) for each in columns)
        return
    with errors_as(UsageError, f"{path} cannot be read: ", OSError):
        check_user_file(path, most=None)
        with path.open("rb") as file:
            head = file.readline(_MOST_DOCUMENT_BYTES)
            first = json_or(head)
            is_document = first is None or (isinstance(first, list) and not file.readline().strip())
            if is_document and (size := path.stat().st_size) > _MOST_DOCUMENT_BYTES:
                raise UsageError(f"{path} is one document of {size:,} bytes; export it as JSON lines")
            file.seek(0)
            content = _document(file.read(), path, found) if is_document else _lines(file, path, found)
            yield from _unwrapped(content, forms)


def _document(content: bytes, path: Path, found: ReadTraces) -> Any:
    if not content.strip():
        raise UsageError(f"{path} is empty")
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        if parsed := list(_lines(content.splitlines(), path, found)):
            return parsed
        raise UsageError(f"{path} is not JSON: {error}") from None


def _lines(lines: Iterable[bytes], path: Path, found: ReadTraces) -> Iterator[Any]:
    for number, line in enumerate(lines, 1):
        try:
            if line.strip():
                yield parse_json(line)
        except (ValueError, RecursionError) as error:
            found.broken_lines.append(f"{path}:{number}: {error}")


_LISTS = ("data", "traces", "runs", "sessions", "spans", "observations", "conversations", "items")


def _unwrapped(value: Any, forms: Sequence[Feature]) -> Iterator[tuple[Any, Feature | None]]:
    if isinstance(value, list | Iterator):
        for each in value:
            is_session = isinstance(each, list) and all("role" in entry(item) for item in each)
            yield from _unwrapped({"messages": each} if is_session else each, forms)
        return
    form = _form_of(value, forms)
    if isinstance(value, dict) and form is None:
        lists = {str(key): each for key, each in value.items() if isinstance(each, list)}
        named = [lists[key] for key in _LISTS if key in lists and not any(map(is_message, lists[key]))]
        known = [
            each
            for each in lists.values()
            if any(_form_of(one, forms) and not is_message(one) for one in each[:_LOOKED_AT])
        ]
        if named or known:
            yield from _unwrapped((named or known)[0], forms)
            return
    yield value, form
