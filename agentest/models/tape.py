"""Record and replay model responses during conversations, independent of where cassette files are stored.

One process reads and writes the files, but conversations may run in others. A conversation needs only its own
answers, which are sent along with it as its `CassettePage`.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from anyio.lowlevel import checkpoint
from pydantic import TypeAdapter, ValidationError

from agentest.domain.results import ModelUsage
from agentest.models.port import AnswerSource, CallKey, Ledger, ModelAnswer, Question
from agentest.models.structured_output import answer_schema
from agentest.support.errors import ModelError, ModelUnavailable
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import turn_name

VERSION = 1
_SUM_CHARS = 8
_HASH_CHARS = 16
_SURROGATE = re.compile("[\ud800-\udfff]")
_KINDS = ("text", "refusal", "error", "response")
_PARTS: Mapping[str, str] = {"user": "user", "agent": "agent"}
_ORDER: Mapping[str, int] = {"user": 0, "agent": 1}

Slot = tuple[CallKey, str, int, int]
"""Key, content, repair and repetition, which identify a request within a run.

The content counts for requests of agents alone, whose parallel requests have no certain order.
"""


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """One request of a run. `again` counts earlier requests with the same key and repair."""

    key: CallKey
    repair: int
    again: int
    hash: str
    model: str

    @property
    def slot(self) -> Slot:
        return self.key, self.hash if self.key.role == "agent" else "", self.repair, self.again

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key within a file: by conversation, with requests after all conversations last."""
        key = self.key
        turn = (key.turn is None, key.turn or 0, _ORDER.get(key.role, 2))
        metric = (key.metric is not None, key.metric or "", key.sample)
        again = 0 if key.role == "agent" else self.again  # entries of agents stay in the order of arrival
        return key.role == "dedup", key.conversation, *turn, *metric, self.repair, again

    def __str__(self) -> str:
        key = self.key
        turn = f", {turn_name(key.turn)}" if key.turn is not None else ""
        metric = f", metric {key.metric}" if key.metric is not None else ""
        sample = f", sample {key.sample}" if key.sample else ""
        repair = f", repair {self.repair}" if self.repair else ""
        return f"{key.role}, conversation {key.conversation}{turn}{metric}{sample}{repair}"


@dataclass(frozen=True, slots=True)
class HttpExchange:
    """A request of an agent to its model as HTTP, without the body of the response."""

    sent: Any  # what identifies the request: its path and its body without what changes from run to run
    status: int
    headers: Mapping[str, str]
    cut: bool = False  # True if the end of the response is missing


@dataclass(frozen=True, slots=True)
class CassetteEntry:
    """A request and its outcome."""

    request: RecordedRequest
    answered_by: str
    kind: Literal["text", "refusal", "error", "response"]
    content: str
    used: ModelUsage
    http: HttpExchange | None = None  # set for a `response`, whose content is the body

    @property
    def failed(self) -> bool:
        """True if the model gave no answer, so that another attempt may."""
        http = self.http
        return self.kind == "error" or (http is not None and (http.cut or http.status >= 400))

    @property
    def part(self) -> str:
        """The part whose model was called: `user`, `agent`, or `judge`, which also groups failures."""
        return _PARTS.get(self.request.key.role, "judge")

    @property
    def answers_for(self) -> tuple[str, str]:
        """Part and model."""
        return self.part, self.request.model

    def answered(self) -> ModelAnswer:
        """Return the model's answer. Raises ModelUnavailable if there was none."""
        if self.kind == "error":
            raise ModelUnavailable(self.content)
        text, refusal = (self.content, "") if self.kind == "text" else ("", self.content)
        return ModelAnswer(text, refusal, self.answered_by, self.used)


_ENTRY = TypeAdapter(CassetteEntry)
Entries = dict[Slot, CassetteEntry]


def cassette_path(folder: Path, scope: str) -> Path:
    """Return the path of a scope's cassette: a readable name with a few characters that make it unique."""
    words = "-".join(re.findall(r"\w+", scope.lower()))[:48].strip("-")
    return folder / f"{words or 'scenario'}-{digest(scope, 8)}.jsonl"


@dataclass(frozen=True, slots=True)
class CassetteHeader:
    """The first line of a cassette file."""

    scenario: str
    models: Mapping[str, str]  # part (`user`, `judge`) → its model
    named: tuple[str, ...] = ()
    """Other models that answered because a scenario file names them in place of a part's model."""


NO_HEADER = CassetteHeader("", {})


def read(path: Path, scope: str) -> tuple[CassetteHeader, Entries]:
    """Read header and answers of a file; empty if there is none. Raises ValueError with the damaged place."""
    try:
        lines = path.read_bytes().rstrip(b"\r\n").split(b"\n")
    except FileNotFoundError:
        return NO_HEADER, {}
    number, ended, entries = 1, False, Entries()
    parts: dict[str, Any] = {}
    try:
        header = read_header(lines[0])
        if header.scenario != scope:
            other = header.scenario
            raise ValueError(f"this is the cassette of {other}, not of {scope}: the file was renamed")
        for number, line in enumerate(lines[1:], 2):  # noqa: B007 - the handler below uses it
            if ended:
                raise ValueError(
                    "something follows the end line: the file was edited by hand or badly merged"
                )
            data = parse(line)
            ended = "end" in data
            if ended and data.get("answers") != len(entries):
                raise ValueError(
                    f"the end line counts {data.get('answers')!r} answers, the file contains {len(entries)}: "
                    "lines were taken out or put in"
                )
            if not ended:
                _add(entries, with_all_parts(to_entry(data, scope), parts), header)
        if not ended:
            raise ValueError(
                f"the file ends after {len(entries)} answers without its end line: it was cut off"
            )
    except ValueError as error:
        raise ValueError(f"{path}:{number}: {error}") from None
    return header, entries


_SAME = "$same"
_LEAST_PART_CHARS = 200


def with_shared_parts(entry: CassetteEntry, known: set[str]) -> CassetteEntry:
    """Replace long parts of a request that an earlier one has, because each request repeats the history.

    Args:
        known: digests of the parts of earlier requests; those of this one are added.
    """

    def shared(value: Any) -> Any:
        if _is_long(value):
            part = digest(value, _HASH_CHARS)
            if part in known:
                return {_SAME: part}
            known.add(part)
        return _with_items(value, shared)

    return replace(entry, http=replace(entry.http, sent=shared(entry.http.sent))) if entry.http else entry


def with_all_parts(entry: CassetteEntry, known: dict[str, Any]) -> CassetteEntry:
    """Undo `with_shared_parts`.

    Args:
        known: digest → part of an earlier request; those of this one are added.
    """

    def whole(value: Any) -> Any:
        if isinstance(value, dict) and value.keys() == {_SAME}:
            return known.get(value[_SAME], value) if isinstance(value[_SAME], str) else value
        value = _with_items(value, whole)
        if _is_long(value):
            known[digest(value, _HASH_CHARS)] = value
        return value

    return replace(entry, http=replace(entry.http, sent=whole(entry.http.sent))) if entry.http else entry


def _is_long(value: Any) -> bool:
    return isinstance(value, str | list | dict) and len(json.dumps(value)) >= _LEAST_PART_CHARS


def _with_items(value: Any, change: Callable[[Any], Any]) -> Any:
    if isinstance(value, list):
        return [change(item) for item in value]
    return {key: change(item) for key, item in value.items()} if isinstance(value, dict) else value


def _add(entries: Entries, entry: CassetteEntry, header: CassetteHeader) -> None:
    if entry.request.slot in entries:
        raise ValueError(f"a second answer to {entry.request}: the file was edited by hand or badly merged")
    model = header.models.get(entry.part)
    if entry.part != "agent" and entry.request.model not in (model, *header.named):
        raise ValueError(f"this answer is of {entry.request.model}, the header says {model}")
    entries[entry.request.slot] = entry


def salvage(path: Path, scope: str) -> Entries:
    """Return every intact answer of a file that may end in the middle of a line."""
    entries = {}
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            entry = to_entry(parse(line), scope)
        except ValueError:
            continue
        entries[entry.request.slot] = entry
    return entries


def read_header(line: bytes) -> CassetteHeader:
    header = parse(line)
    if "cassette" not in header:
        raise ValueError("this is not a cassette: its first line is not a cassette's header")
    if header["cassette"] != VERSION:
        raise ValueError(
            f"this is a cassette of version {header['cassette']!r}, and this Agentest knows {VERSION}"
        )
    scenario, models, named = header.get("scenario"), header.get("models"), header.get("named", [])
    if not isinstance(scenario, str) or not isinstance(models, dict) or not isinstance(named, list):
        raise ValueError("the header lacks the scenario or the models: it was edited by hand")
    return CassetteHeader(scenario, models, tuple(map(str, named)))


def to_json(entry: CassetteEntry) -> dict[str, Any]:
    request = asdict(entry.request)
    key = request.pop("key")
    del key["scope"]  # the header has it
    answer = {"answered_by": entry.answered_by, entry.kind: entry.content, "used": asdict(entry.used)}
    line = {**key, **request, **answer, **(asdict(entry.http) if entry.http else {})}
    return {**line, "sum": digest(line, _SUM_CHARS)}


def to_entry(line: Mapping[str, Any], scope: str) -> CassetteEntry:
    data = dict(line)
    if data.pop("sum", None) != digest(data, _SUM_CHARS):
        raise ValueError("the checksum of this answer is wrong: the line was edited by hand")
    kind = next((kind for kind in _KINDS if kind in data), None)
    content = data.get(kind or "")
    if not isinstance(content, str):
        raise ValueError("this answer has no text: the line was edited by hand")
    request = {**data, "key": {**data, "scope": scope}}
    try:
        http = data if kind == "response" else None  # pydantic rejects lone surrogates, which models do write
        entry = _ENTRY.validate_python(
            {**data, "request": request, "kind": kind, "content": "", "http": http}
        )
    except ValidationError as error:
        first = error.errors()[0]
        raise ValueError(f"`{first['loc'][-1]}`: {first['msg']}: the line was edited by hand") from None
    return replace(entry, content=content)


def parse(line: bytes) -> dict[str, Any]:
    try:
        data = json.loads(line.decode())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"not a line of JSON ({error}): the file was cut off or edited by hand") from None
    if not isinstance(data, dict):
        raise ValueError("expected a JSON object: the file was cut off or edited by hand")
    return data


def dump(line: Mapping[str, Any]) -> bytes:
    """Encode a line in readable form. Characters that UTF-8 cannot represent are escaped."""
    text = json.dumps(line, ensure_ascii=False)
    return _SURROGATE.sub(lambda half: f"\\u{ord(half[0]):04x}", text).encode()


def digest(value: Any, chars: int) -> str:
    canonical = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()[:chars]


class CassetteError(ModelError):
    """A cassette lacks an answer, is damaged, or cannot be written."""


class CassetteMode(StrEnum):
    RECORD = "record"
    REPLAY = "replay"
    FILL = "replay-or-record"  # replay recorded answers. Request and record missing answers and errors.
    KEEP = "keep"
    """Like FILL, for conversations that may exceed a budget.

    Answers are stored until the conversation has finished, and those that an earlier run has paid for are not
    counted again.
    """


@dataclass(frozen=True, slots=True)
class CassettePage:
    """The part of its scope's cassette that a conversation may need."""

    path: str
    recorded: tuple[CassetteEntry, ...] = ()  # the conversation's answers in the file
    salvaged: tuple[CassetteEntry, ...] = ()
    """The conversation's answers from an unfinished recording, which take precedence over the file."""
    has_answers: bool = False
    unfinished: bool = False  # True if there is an unfinished recording in addition to the file


NO_PAGE = CassettePage("")


class Tape:
    """A source of recorded answers and a place to record new ones.

    Args:
        mode: how the run uses recordings of its own models; None: not at all.
        agent_modes: scope → the same for the agent's model, where that differs.
        names: scope → the scenario's name as `--scenario` takes it, for messages.
        on_failure: receives every CassetteError before it is raised, so that the first one stops the run.
    """

    def __init__(
        self,
        mode: CassetteMode | None,
        redact: Callable[[str], str],
        names: Mapping[str, str],
        on_failure: Callable[[CassetteError], None],
        agent_modes: Mapping[str, CassetteMode | None] | None = None,
    ) -> None:
        self.mode = mode
        self.agent_modes = agent_modes or {}
        self.redact = redact
        self._names = names
        self._on_failure = on_failure
        self._asked: defaultdict[tuple[str, int], Counter[tuple[CallKey, int]]] = defaultdict(Counter)
        """How often each question was asked in running conversations."""

    def mode_of(self, key: CallKey) -> CassetteMode | None:
        """Return how recordings of these requests are used."""
        return self.agent_modes.get(key.scope, self.mode) if key.role == "agent" else self.mode

    def recorded_request(
        self, question: Question, model: str, parameters: Mapping[str, Any]
    ) -> RecordedRequest:
        """Convert the question to a request of this run. Call it once for each time the question is asked."""
        key = question.key
        times = self._asked[key.scope, key.conversation]
        time = times[key, question.repair]
        times[key, question.repair] += 1
        # The date is not part of the question, because a replay runs on another day.
        messages = question.messages if question.timeless is None else question.timeless
        request = [model, dict(parameters), [dict(each) for each in messages], answer_schema(question.answer)]
        return RecordedRequest(key, question.repair, time, digest(request, _HASH_CHARS), model)

    def forget(self, scope: str, number: int) -> None:
        """Reset the counts of a conversation that has ended, for a possible next attempt."""
        self._asked.pop((scope, number), None)

    def find(self, request: RecordedRequest) -> CassetteEntry | None:
        """Return the recorded answer to the request; None if there is none or it must not be used."""
        for entries in self.layers(request.key.scope, request.key.conversation):
            entry = entries.get(request.slot)
            if entry and entry.request.hash == request.hash:
                is_repeated = self.mode in (CassetteMode.FILL, CassetteMode.KEEP) and entry.kind == "error"
                return None if is_repeated else entry
        return None

    def record(self, entry: CassetteEntry) -> CassetteEntry:
        """Record the answer and return it as a replay will, with secrets redacted. Raises CassetteError."""
        redact = self.redact
        entry = replace(entry, answered_by=redact(entry.answered_by), content=redact(entry.content))
        line = dump(to_json(entry))
        entry = to_entry(parse(line), entry.request.key.scope)
        self.write(entry, line)
        return entry

    def missing(self, request: RecordedRequest) -> CassetteError:
        """Return the error that says what is missing for the request, and what to do."""
        page = self.page(request.key.scope, request.key.conversation)
        entry = next((each for each in page.recorded if each.request.slot == request.slot), None)
        if not page.has_answers:
            why = f"nothing is recorded for it in {page.path}"
        elif entry is None:
            why = f"{page.path} has no such answer: the conversation went on longer or another way"
        elif entry.request.model != request.model:
            why = f"{page.path} contains the answer of {entry.request.model}, and {request.model} is asked"
        else:
            changed = "the prompt (what the agent said is in it), the parameters or the answer's form"
            why = f"{changed} changed since {page.path} was recorded"
        if page.unfinished:
            why += f"; an unfinished recording is next to it, which --{CassetteMode.FILL} completes"
        return self.failed(request.key.scope, f"nothing to replay for {request}: {why}")

    def failed(self, scope: str, problem: str) -> CassetteError:
        """Report the problem of a scenario's cassette, and return the error with how to record it again."""
        error = CassetteError(f"scenario {self.name_of(scope)!r}: {problem}. {self.remedy_for(scope)}")
        self._on_failure(error)
        return error

    def name_of(self, scope: str) -> str:
        """Return a scenario's name as `--scenario` takes it."""
        return self._names.get(scope, scope)

    def remedy_for(self, scope: str) -> str:
        """Return how to record a scenario again."""
        name = shlex.quote(self.name_of(scope))
        return f"Record it again: agentest run --{CassetteMode.RECORD} --scenario {name}"

    def layers(self, scope: str, number: int) -> Iterable[Entries]:
        """Return the sources of a conversation's answers, latest recording first."""
        raise NotImplementedError

    def page(self, scope: str, number: int) -> CassettePage:
        """Return the recorded answers that a conversation can need."""
        raise NotImplementedError

    def write(self, entry: CassetteEntry, line: bytes) -> None:
        """Store an answer and its line. Raises CassetteError."""
        raise NotImplementedError

    def close(self, *, finished: bool = True) -> None:
        """Finish. An unfinished recording replaces no cassette.

        Raises CassetteError.
        """


@dataclass(slots=True, eq=False)
class RecordedModel:
    """A model whose answers are recorded or replayed, as the tape's mode says.

    Replayed answers have their original usage in the ledger.
    """

    _tape: Tape
    _ledger: Ledger
    name: str
    parameters: Mapping[str, Any]
    _live: AnswerSource | None = None  # answers what is not replayed; None if everything is

    async def answer(self, question: Question) -> ModelAnswer:
        """Return the recorded or the live answer.

        Raises ModelUnavailable if there was none, CassetteError if it is missing or cannot be recorded.
        """
        tape, ledger, key = self._tape, self._ledger, question.key
        request = tape.recorded_request(question, self.name, self.parameters)
        if tape.mode is not CassetteMode.RECORD:
            await checkpoint()
            if entry := tape.find(request):
                if tape.mode is not CassetteMode.KEEP:
                    ledger.add_replayed(key, entry.used)
                return entry.answered()
        if self._live is None:
            raise tape.missing(request)
        ledger.watch(key)
        failed = None
        try:
            answered = await self._live.answer(question)
        except ModelUnavailable as error:
            failed = error
        finally:
            used = ledger.taken(key)
        if failed:
            tape.record(CassetteEntry(request, "", "error", str(failed), used))
            raise failed
        kind: Literal["text", "refusal"] = "refusal" if answered.refusal else "text"
        content = answered.refusal or answered.text
        answered_by = answered.model.encode(errors="replace").decode()
        return tape.record(CassetteEntry(request, answered_by, kind, content, used)).answered()
