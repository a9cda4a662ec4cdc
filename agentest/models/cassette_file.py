"""Read and write cassette files: a header, one answer per line with a checksum, and a final count."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

from pydantic import TypeAdapter, ValidationError

from agentest.domain.results import ModelUsage
from agentest.models.port import CallKey, ModelAnswer
from agentest.support.errors import ModelUnavailable

VERSION = 1
_SUM_CHARS = 8
_SURROGATE = re.compile("[\ud800-\udfff]")
_KINDS = ("text", "refusal", "error")

Slot = tuple[CallKey, int, int]
"""Key, repair and repetition of a request, which identify it within a run whatever its content."""


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
        return self.key, self.repair, self.again

    @property
    def order(self) -> tuple[Any, ...]:
        """Sort key within a file: by conversation, with requests after all conversations last."""
        key = self.key
        turn = (key.turn is None, key.turn or 0, key.role != "user")
        metric = (key.metric is not None, key.metric or "", key.sample)
        return key.role == "dedup", key.conversation, *turn, *metric, self.repair, self.again

    def __str__(self) -> str:
        key = self.key
        turn = f", turn {key.turn}" if key.turn is not None else ""
        metric = f", metric {key.metric}" if key.metric is not None else ""
        sample = f", sample {key.sample}" if key.sample else ""
        repair = f", repair {self.repair}" if self.repair else ""
        return f"{key.role}, conversation {key.conversation}{turn}{metric}{sample}{repair}"


@dataclass(frozen=True, slots=True)
class CassetteEntry:
    """A request and its outcome."""

    asked: RecordedRequest
    answered_by: str
    kind: Literal["text", "refusal", "error"]
    content: str
    used: ModelUsage

    @property
    def part(self) -> str:
        """The part whose model was called: `user`, or `judge`, which also groups failures."""
        return "user" if self.asked.key.role == "user" else "judge"

    @property
    def answers_for(self) -> tuple[str, str]:
        """Part and model."""
        return self.part, self.asked.model

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
    models: Mapping[str, str]
    """Part (`user`, `judge`) → its model."""
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
            if ended:
                _check_end(data, len(entries))
            else:
                _add(entries, to_entry(data, scope), header)
        if not ended:
            raise ValueError(
                f"the file ends after {len(entries)} answers without its end line: it was cut off"
            )
    except ValueError as error:
        raise ValueError(f"{path}:{number}: {error}") from None
    return header, entries


def _add(entries: Entries, entry: CassetteEntry, header: CassetteHeader) -> None:
    if entry.asked.slot in entries:
        raise ValueError(f"a second answer to {entry.asked}: the file was edited by hand or badly merged")
    model = header.models.get(entry.part)
    if entry.asked.model not in (model, *header.named):
        raise ValueError(f"this answer is of {entry.asked.model}, the header says {model}")
    entries[entry.asked.slot] = entry


def salvage(path: Path, scope: str) -> Entries:
    """Return every intact answer of a file that may end in the middle of a line."""
    entries = {}
    for line in path.read_bytes().split(b"\n") if path.exists() else ():
        try:
            entry = to_entry(parse(line), scope)
        except ValueError:
            continue
        entries[entry.asked.slot] = entry
    return entries


def read_header(line: bytes) -> CassetteHeader:
    header = parse(line)
    if "cassette" not in header:
        raise ValueError("this is no cassette: its first line is not a cassette's header")
    if header["cassette"] != VERSION:
        raise ValueError(
            f"this is a cassette of version {header['cassette']!r}, and this Agentest knows {VERSION}"
        )
    scenario, models, named = header.get("scenario"), header.get("models"), header.get("named", [])
    if not isinstance(scenario, str) or not isinstance(models, dict) or not isinstance(named, list):
        raise ValueError("the header lacks the scenario or the models: it was edited by hand")
    return CassetteHeader(scenario, models, tuple(map(str, named)))


def _check_end(end: Mapping[str, Any], answers: int) -> None:
    if end.get("answers") != answers:
        raise ValueError(
            f"the end line counts {end.get('answers')!r} answers, the file holds {answers}: "
            "lines were taken out or put in"
        )


def to_json(entry: CassetteEntry) -> dict[str, Any]:
    asked = asdict(entry.asked)
    key = asked.pop("key")
    del key["scope"]  # the header has it
    said = {"answered_by": entry.answered_by, entry.kind: entry.content, "used": asdict(entry.used)}
    line = {**key, **asked, **said}
    return {**line, "sum": digest(line, _SUM_CHARS)}


def to_entry(line: Mapping[str, Any], scope: str) -> CassetteEntry:
    data = dict(line)
    if data.pop("sum", None) != digest(data, _SUM_CHARS):
        raise ValueError("the checksum of this answer is wrong: the line was edited by hand")
    kind = next((kind for kind in _KINDS if kind in data), None)
    content = data.get(kind or "")
    if not isinstance(content, str):
        raise ValueError("this answer has no text: the line was edited by hand")
    asked = {**data, "key": {**data, "scope": scope}}
    try:
        # pydantic rejects lone surrogates, which models do write.
        entry = _ENTRY.validate_python({**data, "asked": asked, "kind": kind, "content": ""})
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
