"""Models' answers, recorded and given again: a replay needs no model, no key and no network.

A cassette is one file per scenario and agent, one JSON object a line: a header, the answers in the order of
the conversations, and an end line that counts them. An answer's place is its question's `CallKey`, so that
repeated conversations stay apart; the hash of what was asked says whether it still is the same question.
While a run lasts, answers are added to `<name>.jsonl.partial`: whatever kills it, they are not lost.
"""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from pathlib import Path
from typing import Any, Literal

from anyio.lowlevel import checkpoint

from agentest.errors import ModelError, ModelUnavailable
from agentest.llm.port import Answered, Answers, CallKey, Ledger, Question
from agentest.llm.recording.cassette_file import (
    NO_HEADER,
    VERSION,
    Asked,
    Entries,
    Entry,
    Header,
    cassette_path,
    digest,
    dump,
    parse,
    read,
    read_header,
    salvage,
    to_entry,
    to_json,
)
from agentest.llm.schema import answer_schema
from agentest.results import ModelUsage
from agentest.support.files import write_atomically
from agentest.support.moments import without_moments
from agentest.support.redact import Redactor

_HASH_CHARS = 16


class CassetteError(ModelError):
    """A cassette lacks an answer, is damaged, or cannot be written."""


class Mode(StrEnum):
    RECORD = "record"
    REPLAY = "replay"
    FILL = "replay-or-record"
    """What is recorded is replayed; what is not, or was an error, is asked live and added."""


class MeasuringLedger(Ledger):
    """A ledger that also measures what one question took, be it answered or not."""

    def __init__(self) -> None:
        super().__init__()
        self._watched: dict[CallKey, ModelUsage] = {}

    def add(self, key: CallKey, used: ModelUsage) -> None:
        super().add(key, used)
        if key in self._watched:
            self._watched[key] += used

    def watch(self, key: CallKey) -> None:
        self._watched[key] = ModelUsage()

    def taken(self, key: CallKey) -> ModelUsage:
        """What was added for this key since `watch`."""
        return self._watched.pop(key, ModelUsage())


@dataclass(slots=True)
class _Cassette:
    """One file: what it holds, and what is to come into it."""

    path: Path
    header: Header = NO_HEADER
    recorded: Entries = field(default_factory=dict)
    fresh: Entries = field(default_factory=dict)
    begun: bool = False
    """Whether what the `.partial` file holds is this run's to keep."""

    @property
    def partial(self) -> Path:
        return self.path.with_name(self.path.name + ".partial")


class Cassettes:
    """The cassettes of one folder, during one run.

    Args:
        names: scope → the scenario's name as `--scenario` takes it; messages call it by that.
        models: part (`user`, `judge`) → model of this run, also of parts that are never asked anything.
        named: part → other models that this run may ask in its place.
        on_failure: receives every CassetteError before it is raised, to stop the run at the first.
    """

    def __init__(
        self,
        folder: Path,
        mode: Mode,
        redact: Redactor,
        *,
        names: Mapping[str, str] | None = None,
        models: Mapping[str, str] | None = None,
        named: Mapping[str, Collection[str]] | None = None,
        on_failure: Callable[[CassetteError], None] = lambda _: None,
    ) -> None:
        self._folder = folder
        self._mode = mode
        self._redact = redact
        self._names = names or {}
        self._models = models or {}
        self._named = {(part, name) for part, names in (named or {}).items() for name in names}
        self._named -= set(self._models.items())
        self._on_failure = on_failure
        self._cassettes: dict[str, _Cassette] = {}
        self._times: Counter[tuple[CallKey, int]] = Counter()

    def check(self, scopes: Iterable[str]) -> None:
        """Read what is recorded of these scopes, before the run. Raises CassetteError for damaged files."""
        for scope in scopes:
            self._load(scope)

    def asked(self, question: Question, model: str, parameters: Mapping[str, Any]) -> Asked:
        """The question as a request of this run. To be called once for every time it is asked."""
        time = self._times[question.key, question.repair]
        self._times[question.key, question.repair] += 1
        # The day on which a conversation is held is no part of the question: a replay is held on another.
        messages = [
            {**message, "content": without_moments(message["content"])} for message in question.messages
        ]
        request = [model, dict(parameters), messages, answer_schema(question.answer)]
        return Asked(question.key, question.repair, time, digest(request, _HASH_CHARS), model)

    def find(self, asked: Asked) -> Entry | None:
        """What is recorded for the request; None where that is nothing, or would not be its answer."""
        cassette = self._load(asked.key.scope)
        for entries in (cassette.fresh, cassette.recorded):
            entry = entries.get(asked.slot)
            if entry and entry.asked.hash == asked.hash:
                return None if self._mode is Mode.FILL and entry.kind == "error" else entry
        return None

    def keep(self, entry: Entry) -> Entry:
        """Record the answer; back comes what a replay will give: without secrets."""
        redact = self._redact
        entry = replace(entry, answered_by=redact(entry.answered_by), content=redact(entry.content))
        scope = entry.asked.key.scope
        cassette = self._load(scope)
        line = dump(to_json(entry))
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            # The newline comes first: what is left of a line that was cut off spoils no other.
            with cassette.partial.open("ab" if cassette.begun else "wb") as file:
                file.write(b"\n" + line)
        except OSError as error:
            raise self._failed(f"the recording cannot be written: {error}") from None
        cassette.begun = True
        entry = to_entry(parse(line), scope)
        cassette.fresh[entry.asked.slot] = entry
        return entry

    def close(self, *, finished: bool = True) -> None:
        """Bring what was recorded into the files; a recording that did not finish replaces none."""
        if self._mode is Mode.REPLAY or (self._mode is Mode.RECORD and not finished):
            return
        problem: OSError | None = None
        for scope, cassette in self._cassettes.items():
            if cassette.fresh:
                try:
                    write_atomically(cassette.path, _document(scope, cassette, self._models, self._named))
                    cassette.partial.unlink(missing_ok=True)
                except OSError as error:
                    problem = error
        if problem:
            raise self._failed(f"the recording cannot be written: {problem}")

    def missing(self, asked: Asked) -> CassetteError:
        """The error that says what of the request is not recorded, and what to do."""
        cassette = self._load(asked.key.scope)
        entry = cassette.recorded.get(asked.slot)
        if not cassette.recorded:
            why = f"nothing is recorded for it in {cassette.path}"
        elif entry is None:
            why = f"{cassette.path} has no such answer: the conversation went on longer or another way"
        elif entry.asked.model != asked.model:
            why = f"{cassette.path} holds the answer of {entry.asked.model}, and {asked.model} is asked"
        else:
            changed = "the prompt (what the agent said is in it), the parameters or the answer's form"
            why = f"{changed} changed since {cassette.path} was recorded"
        if cassette.partial.exists():
            why += f"; an unfinished recording is beside it, which --{Mode.FILL} completes"
        return self._failed(f"nothing to replay for {asked}: {why}", asked.key.scope)

    def _load(self, scope: str) -> _Cassette:
        """The scope's cassette, read when it is first needed. Raises CassetteError when it is damaged."""
        if scope not in self._cassettes:
            cassette = _Cassette(cassette_path(self._folder, scope))
            if self._mode is not Mode.RECORD:
                try:
                    cassette.header, cassette.recorded = read(cassette.path, scope)
                    if self._mode is Mode.FILL:
                        cassette.fresh, cassette.begun = salvage(cassette.partial, scope), True
                except (OSError, ValueError) as error:
                    raise self._failed(f"{error} (restore the file if you can)", scope) from None
            self._cassettes[scope] = cassette
        return self._cassettes[scope]

    def _failed(self, message: str, scope: str | None = None) -> CassetteError:
        if scope is not None:
            name = self._names.get(scope, scope)
            command = f"agentest run --{Mode.RECORD} --scenario {shlex.quote(name)}"
            message = f"scenario {name!r}: {message}. Record it again: {command}"
        error = CassetteError(message)
        self._on_failure(error)
        return error


class Recorder:
    """Answers of a live model, all kept; also that there was none."""

    def __init__(self, live: Answers, cassettes: Cassettes, ledger: MeasuringLedger) -> None:
        self.name = live.name
        self.parameters = live.parameters
        self._live = live
        self._cassettes = cassettes
        self._ledger = ledger

    async def answer(self, question: Question) -> Answered:
        """The live model's answer. Raises ModelUnavailable, CassetteError."""
        return await self.record(question, self._cassettes.asked(question, self.name, self.parameters))

    async def record(self, question: Question, asked: Asked) -> Answered:
        """The live model's answer to a question that counts as asked already."""
        self._ledger.watch(asked.key)
        try:
            answered = await self._live.answer(question)
        except ModelUnavailable as error:
            self._cassettes.keep(Entry(asked, "", "error", str(error), self._ledger.taken(asked.key)))
            raise
        kind: Literal["text", "refusal"] = "refusal" if answered.refusal else "text"
        content, used = answered.refusal or answered.text, self._ledger.taken(asked.key)
        answered_by = answered.model.encode(errors="replace").decode()
        return self._cassettes.keep(Entry(asked, answered_by, kind, content, used)).answered()


class Replay:
    """Recorded answers, which count in the ledger as they did; with `live`, what is missing is recorded."""

    def __init__(
        self,
        cassettes: Cassettes,
        ledger: Ledger,
        name: str,
        parameters: Mapping[str, Any],
        live: Recorder | None = None,
    ) -> None:
        self.name = name
        self.parameters = parameters
        self._cassettes = cassettes
        self._ledger = ledger
        self._live = live

    async def answer(self, question: Question) -> Answered:
        """The recorded answer. Raises ModelUnavailable where there was none, CassetteError."""
        await checkpoint()
        asked = self._cassettes.asked(question, self.name, self.parameters)
        entry = self._cassettes.find(asked)
        if entry:
            self._ledger.add_replayed(question.key, entry.used)
            return entry.answered()
        if self._live:
            return await self._live.record(question, asked)
        raise self._cassettes.missing(asked)


def recorded_models(folder: Path, scopes: Iterable[str] | None = None) -> dict[str, str]:
    """Part (`user`, `judge`) → the model that was recorded; all cassettes, or those of these scopes.

    Raises CassetteError when there is none, one is damaged, or they disagree.
    """
    paths = _paths(folder, scopes)
    if not paths:
        raise CassetteError(f"nothing is recorded in {folder}. Record it first: agentest run --{Mode.RECORD}")
    models: dict[str, tuple[str, Path]] = {}
    for path in paths:
        for part, model in _header_of(path).models.items():
            known, first = models.setdefault(part, (model, path))
            if known != model:
                raise CassetteError(
                    f"the cassettes disagree on the {part} model: {known} in {first}, {model} in {path}. "
                    f"Configure the model, or record all with one: agentest run --{Mode.RECORD}"
                )
    return {part: model for part, (model, _) in models.items()}


def recorded_named_models(folder: Path, scopes: Iterable[str] | None = None) -> frozenset[str]:
    """The models that answered in place of a part's. Raises CassetteError for a damaged cassette."""
    return frozenset(name for path in _paths(folder, scopes) for name in _header_of(path).named)


def _paths(folder: Path, scopes: Iterable[str] | None) -> list[Path]:
    every = folder.glob("*.jsonl") if scopes is None else (cassette_path(folder, s) for s in scopes)
    return sorted(path for path in every if path.exists())


def _header_of(path: Path) -> Header:
    try:
        with path.open("rb") as file:
            return read_header(file.readline())
    except (OSError, ValueError) as error:
        advice = f"Restore the file, or record it again: agentest run --{Mode.RECORD}"
        raise CassetteError(f"{path}:1: {error}. {advice}") from None


def _document(
    scope: str, cassette: _Cassette, configured: Mapping[str, str], named: Collection[tuple[str, str]]
) -> bytes:
    models = {**configured, **cassette.header.models}
    fresh = cassette.fresh.values()
    models |= dict(entry.answers_for for entry in fresh if entry.answers_for not in named)
    # A file is of one model a part, and of named ones: what others answered would never be found again.
    merged = {**cassette.recorded, **cassette.fresh}.values()
    kept = {*models.items(), *named}
    entries = [entry for entry in merged if entry.answers_for in kept]
    header: dict[str, Any] = {
        "cassette": VERSION,
        "scenario": scope,
        "models": dict(sorted(models.items())),
    }
    if others := {entry.asked.model for entry in entries if entry.answers_for in named}:
        header["named"] = sorted(others)
    answers = [to_json(entry) for entry in sorted(entries, key=lambda entry: entry.asked.order)]
    end = {"end": True, "answers": len(answers)}
    return b"".join(dump(line) + b"\n" for line in (header, *answers, end))
