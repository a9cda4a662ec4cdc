"""Record model responses to cassettes and replay them without a model, a key or a network.

A cassette is one file per scenario and agent with one JSON object per line: a header, the answers in the
order of the conversations, and an end line with their number. An answer is stored under its question's
`CallKey`, which distinguishes repeated conversations. A hash of the request shows whether the question has
changed. During a run, answers are appended to `<name>.jsonl.partial`, so they survive a crash.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any, Literal

from agentest.models.tape import (
    NO_HEADER,
    VERSION,
    CassetteEntry,
    CassetteError,
    CassetteHeader,
    CassetteMode,
    CassettePage,
    Entries,
    Tape,
    cassette_path,
    dump,
    read,
    read_header,
    salvage,
    to_json,
    with_shared_parts,
)
from agentest.support.files import create_file, make_folder, write_atomically
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.redaction import Redactor

Sheets = dict[int, Entries]
"""Number of a conversation → its answers. Number 0 stands for those after all conversations."""


@dataclass(slots=True)
class _Cassette:
    path: Path
    header: CassetteHeader = NO_HEADER
    has_answers: bool = False
    recorded: Sheets = field(default_factory=dict)
    salvaged: Sheets = field(default_factory=dict)
    fresh: Sheets = field(default_factory=dict)
    begun: bool = False  # True if this run continues the content of the `.partial` file

    @property
    def partial(self) -> Path:
        return self.path.with_name(self.path.name + ".partial")


class Cassettes(Tape):
    """The cassettes of one folder during one run: a tape that owns its files.

    Args:
        models: part (`user`, `judge`) → model of this run, including parts that are never called.
        named: part → other models that this run may call instead.
    """

    def __init__(
        self,
        folder: Path,
        mode: CassetteMode | None,
        redact: Redactor,
        *,
        agent_modes: Mapping[str, CassetteMode | None] | None = None,
        names: Mapping[str, str] | None = None,
        models: Mapping[str, str] | None = None,
        named: Mapping[str, Collection[str]] | None = None,
        on_failure: Callable[[CassetteError], None] = lambda _: None,
    ) -> None:
        super().__init__(mode, redact, names or {}, on_failure, agent_modes)
        self._folder = folder
        self.models = models or {}
        self._named = {(part, name) for part, names in (named or {}).items() for name in names}
        self._named -= set(self.models.items())
        self._cassettes: dict[str, _Cassette] = {}

    def check(self, scopes: Iterable[str]) -> None:
        """Read the cassettes of these scopes before the run. Raises CassetteError for damaged files."""
        for scope in scopes:
            self._load(scope)

    def layers(self, scope: str, number: int) -> Iterable[Entries]:
        cassette = self._load(scope)
        every = cassette.fresh, cassette.salvaged, cassette.recorded
        return (sheets.get(number, {}) for sheets in every)

    def page(self, scope: str, number: int) -> CassettePage:
        cassette = self._load(scope)
        _, salvaged, recorded = self.layers(scope, number)
        return CassettePage(
            str(cassette.path),
            tuple(recorded.values()),
            tuple(salvaged.values()),
            has_answers=cassette.has_answers,
            unfinished=cassette.partial.exists(),
        )

    def write(self, entry: CassetteEntry, line: bytes) -> None:
        cassette = self._load(entry.request.key.scope)
        try:
            make_folder(self._folder)
            # The newline comes first, so that the rest of a truncated line damages no other.
            mode: Literal["ab", "wb"] = "ab" if cassette.begun else "wb"
            with open(cassette.partial, mode, opener=create_file) as file:
                file.write(b"\n" + line)
        except OSError as error:
            raise self._unwritable(error) from None
        cassette.begun = True
        cassette.fresh.setdefault(entry.request.key.conversation, {})[entry.request.slot] = entry

    def done(self, scope: str, number: int) -> None:
        """Drop the answers of a finished conversation, which makes no more requests."""
        super().forget(scope, number)
        if self._modes(scope) == {CassetteMode.REPLAY}:
            self._load(scope).recorded.pop(number, None)
        elif self.mode is CassetteMode.KEEP:
            cassette = self._load(scope)
            cassette.salvaged.pop(number, None)
            cassette.fresh.pop(number, None)

    def forget(self, scope: str, number: int) -> None:
        """Discard the recordings of a conversation that was lost with its process.

        In `KEEP` mode, answers that were paid for are replayed in the next attempt.
        """
        super().forget(scope, number)
        cassette = self._load(scope)
        lost = cassette.fresh.pop(number, {})
        if self.mode is CassetteMode.KEEP:
            cassette.salvaged.setdefault(number, {}).update(lost)

    def close(self, *, finished: bool = True) -> None:
        """Move recorded answers into the cassettes."""
        if self.mode is CassetteMode.KEEP and finished:  # no conversation is left that could need an answer
            shutil.rmtree(self._folder, ignore_errors=True)
            return
        problem: OSError | None = None
        for scope, cassette in self._cassettes.items():
            if self.mode is CassetteMode.KEEP and not (cassette.fresh or cassette.salvaged):
                cassette.path.unlink(missing_ok=True)
                cassette.partial.unlink(missing_ok=True)
            elif CassetteMode.RECORD in self._modes(scope) and not finished:
                continue
            elif cassette.fresh or cassette.salvaged:
                # Answers of models that this run does not record stay as they are.
                models, named, old = self.models, self._named, cassette.header
                if self.mode in (None, CassetteMode.REPLAY):
                    models = {}
                    named = {(part, name) for part in ("user", "judge") for name in old.named}
                try:
                    write_atomically(cassette.path, _document(scope, cassette, models, named))
                    cassette.partial.unlink(missing_ok=True)
                except OSError as error:
                    problem = error
        if problem:
            raise self._unwritable(problem)

    def _load(self, scope: str) -> _Cassette:
        if scope not in self._cassettes:
            cassette = _Cassette(cassette_path(self._folder, scope))
            if self.mode is CassetteMode.KEEP:  # damaged answers are requested and paid for again
                salvaged = salvage(cassette.path, scope) | salvage(cassette.partial, scope)
                cassette.salvaged, cassette.begun = _sheets(salvaged), True
            elif (modes := self._modes(scope)) != {CassetteMode.RECORD}:
                try:
                    header, recorded = read(cassette.path, scope)
                    recorded = self._without(CassetteMode.RECORD, recorded)
                    cassette.has_answers, cassette.recorded = bool(recorded), _sheets(recorded)
                    if self.mode is not CassetteMode.RECORD:
                        cassette.header = header
                    if CassetteMode.FILL in modes:
                        salvaged = self._without(CassetteMode.RECORD, salvage(cassette.partial, scope))
                        cassette.salvaged, cassette.begun = _sheets(salvaged), True
                except (OSError, ValueError) as error:
                    raise self.failed(scope, f"{error} (restore the file if you can)") from None
            self._cassettes[scope] = cassette
        return self._cassettes[scope]

    def _modes(self, scope: str) -> set[CassetteMode | None]:
        return {self.mode, self.agent_modes.get(scope, self.mode)}

    def _without(self, mode: CassetteMode, entries: Entries) -> Entries:
        return {slot: entry for slot, entry in entries.items() if self.mode_of(entry.request.key) is not mode}

    def _unwritable(self, problem: OSError) -> CassetteError:
        error = CassetteError(f"the recording cannot be written: {problem}")
        self._on_failure(error)
        return error


def _sheets(entries: Entries) -> Sheets:
    sheets: Sheets = {}
    for slot, entry in entries.items():
        sheets.setdefault(entry.request.key.conversation, {})[slot] = entry
    return sheets


def recorded_models(folder: Path, scopes: Iterable[str] | None = None) -> dict[str, str]:
    """Return part (`user`, `judge`) → recorded model, for all cassettes or those of these scopes.

    Raises CassetteError if there are none, one is damaged, or they disagree.
    """
    paths = _paths(folder, scopes)
    if not paths:
        raise CassetteError(
            f"nothing is recorded in {folder}. Record it first: agentest run --{CassetteMode.RECORD}"
        )
    models: dict[str, tuple[str, Path]] = {}
    for path in paths:
        for part, model in _header_of(path).models.items():
            known, first = models.setdefault(part, (model, path))
            if known != model:
                raise CassetteError(
                    f"the cassettes disagree on the {part} model: {known} in {first}, {model} in {path}. "
                    f"Configure the model, or record all with one: agentest run --{CassetteMode.RECORD}"
                )
    return {part: model for part, (model, _) in models.items()}


def recorded_named_models(folder: Path, scopes: Iterable[str] | None = None) -> frozenset[str]:
    """Return the models that answered in place of a part's model. Raises CassetteError."""
    return frozenset(name for path in _paths(folder, scopes) for name in _header_of(path).named)


def _paths(folder: Path, scopes: Iterable[str] | None) -> list[Path]:
    every = folder.glob("*.jsonl") if scopes is None else (cassette_path(folder, s) for s in scopes)
    return sorted(path for path in every if path.exists())


def _header_of(path: Path) -> CassetteHeader:
    try:
        with path.open("rb") as file:
            return read_header(file.readline())
    except (OSError, ValueError) as error:
        advice = f"Restore the file, or record it again: agentest run --{CassetteMode.RECORD}"
        raise CassetteError(f"{path}:1: {error}. {advice}") from None


def _document(
    scope: str, cassette: _Cassette, configured: Mapping[str, str], named: Collection[tuple[str, str]]
) -> bytes:
    models = {**configured, **cassette.header.models}
    fresh = _merged(cassette.salvaged, cassette.fresh)
    models |= dict(
        entry.answers_for for entry in fresh if entry.part != "agent" and entry.answers_for not in named
    )
    # A file has one model per part, and named ones. Answers of other models would never be found again.
    merged = _merged(cassette.recorded, cassette.salvaged, cassette.fresh)
    names = {*models.items(), *named}
    entries = [entry for entry in merged if entry.part == "agent" or entry.answers_for in names]
    header: dict[str, Any] = {"cassette": VERSION, "scenario": scope, "models": dict(sorted(models.items()))}
    if others := {entry.request.model for entry in entries if entry.answers_for in named}:
        header["named"] = sorted(others)
    entries.sort(key=lambda entry: entry.request.order)
    parts: set[str] = set()
    answers = [to_json(with_shared_parts(entry, parts)) for entry in entries]
    end = {"end": True, "answers": len(answers)}
    return b"".join(dump(line) + b"\n" for line in (header, *answers, end))


def _merged(*layers: Sheets) -> Collection[CassetteEntry]:
    merged: Entries = {}
    for layer in layers:
        for entries in layer.values():
            merged.update(entries)
    return merged.values()
