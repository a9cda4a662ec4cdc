"""`agentest eval_set`: create evaluation sets on the command line, as `adk eval_set` does."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from agentest.adk.formats.eval_set import ConversationScenario
from agentest.adk.formats.set_reader import (
    EVAL_SET_SUFFIX,
    FileFormat,
    parse_json,
    read_bytes,
    read_eval_set,
    read_session,
)
from agentest.support.errors import UsageError
from agentest.support.files import write_atomically
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import snake_keys

_ID = re.compile(r"[a-zA-Z0-9_]+")
_SCENARIO_KEYS = ("starting_prompt", "conversation_plan", "user_persona")
_SESSION_KEYS = ("app_name", "user_id", "state", "session_id")
_LONGEST_NAME = 255
"""Maximum length of a file name."""
_USER = "agentest"
"""Default user of a session, as for agents of type `adk`."""


@dataclass(frozen=True, slots=True)
class SetLocation:
    """The location of an agent's evaluation set: in the agent's folder, as in google-adk."""

    agent: str
    set_id: str

    @property
    def folder(self) -> Path:
        """Return the agent's folder, or the working directory if the agent is a name or a URL.

        Raises UsageError for a missing folder, or for a word that cannot name an agent.
        """
        if not self.agent.strip() or Path(self.agent).is_file():
            raise UsageError(f"{self.agent!r} is no agent; name its folder, or an agent of the configuration")
        for folder in (Path(self.agent), Path(*self.agent.split("."))):
            if folder.is_dir():
                return folder
        if "://" not in self.agent and re.search(r"[/\\]", self.agent):
            raise UsageError(f"{self.agent}: the agent's folder does not exist")
        return Path()

    @property
    def app_name(self) -> str:
        """Return the agent's name in google-adk: `agent` if that is a valid name, else its folder's name."""
        return self.agent if _ID.fullmatch(self.agent) else self.folder.resolve().name

    @property
    def file(self) -> Path:
        """Return the set's file. Raises UsageError for an id that google-adk does not accept."""
        if not _ID.fullmatch(self.set_id):
            raise UsageError(
                f"{self.set_id!r} cannot be the id of an evaluation set: expected letters of a to z, digits "
                f"and _ alone, such as {_possible_id(self.set_id)}"
            )
        name = f"{self.set_id}{EVAL_SET_SUFFIX}"
        if len(name) > _LONGEST_NAME:
            raise UsageError(
                f"the id of the evaluation set has {len(self.set_id)} letters, too many for a file"
            )
        return self.folder / name


def _possible_id(text: str) -> str:
    return re.sub("[^a-zA-Z0-9]+", "_", text).strip("_") or "return_flow_tests"


def create_set(location: SetLocation, now: float) -> Path:
    """Write an evaluation set without cases, and return its file. Raises UsageError if it exists.

    Args:
        now: the current time in seconds since 1970.
    """
    file = location.file
    if file.exists():
        raise UsageError(f"{file}: is there already; add cases to it, or choose another id")
    empty = {
        "eval_set_id": location.set_id,
        "name": location.set_id,
        "eval_cases": [],
        "creation_timestamp": now,
    }
    _write(file, empty)
    return file


@dataclass(frozen=True, slots=True)
class AddedCase:
    """A scenario as a case. `new` is False if the set had it already."""

    eval_id: str
    new: bool


def add_cases(location: SetLocation, scenarios: Path, session: Path | None, now: float) -> list[AddedCase]:
    """Add each scenario of a file to a set, as a case with this session. Raises UsageError.

    The id of a case is a hash of its scenario, so adding the same scenario again has no effect.
    """
    document, key = _document(location)
    session_input = _session(session, location) if session else None
    known = _ids(location.file, document[key])
    added = []
    for eval_id, scenario in _scenarios(scenarios):
        added.append(AddedCase(eval_id, eval_id not in known))
        if added[-1].new:
            known.add(eval_id)
            case = {"eval_id": eval_id, "conversation_scenario": scenario}
            case |= {"session_input": session_input} if session_input else {}
            document[key].append({**case, "creation_timestamp": now})
    if any(each.new for each in added):
        _write(location.file, document)
    return added


def _document(location: SetLocation) -> tuple[dict[str, Any], str]:
    """Return the set's raw JSON, so that unknown keys are preserved, and the key of its cases."""
    file = location.file
    if not file.exists():
        raise UsageError(
            f"{file}: does not exist; agentest eval_set create {location.agent} {location.set_id} makes it"
        )
    document = parse_json(file, read_bytes(file))
    for key in ("eval_cases", "evalCases"):
        if isinstance(document, dict) and isinstance(document.get(key), list):
            return document, key
    raise UsageError(f"{file}: is no evaluation set to add cases to: expected an object with `eval_cases`")


def _ids(file: Path, cases: list[Any]) -> set[str]:
    """Return the ids of the existing cases. Raises UsageError if a case is malformed."""
    return {case.eval_id for case in read_eval_set(file).eval_set.eval_cases} if cases else set()


def _scenarios(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each scenario of a file with the id that google-adk gives it. Raises UsageError."""
    read = read_eval_set(file)
    if read.form is not FileFormat.SCENARIOS:
        form = '{"scenarios": [{"starting_prompt": …, "conversation_plan": …}]}'
        raise UsageError(f"{file}: is an evaluation set already; expected conversation scenarios: {form}")
    written = parse_json(file, read_bytes(file))["scenarios"]
    for case, as_written in zip(read.eval_set.eval_cases, written, strict=True):
        assert case.conversation_scenario is not None, "the form has no other cases"
        named = snake_keys(as_written, _SCENARIO_KEYS)
        yield _id_of(case.conversation_scenario, named), {k: v for k, v in named.items() if v is not None}


def _id_of(scenario: ConversationScenario, written: Mapping[str, Any]) -> str:
    """Return the first eight digits of the scenario's hash.

    For a persona given by name, google-adk hashes its description, and Agentest hashes the name.
    """
    values = asdict(scenario)
    if isinstance(written.get("user_persona"), str):
        values["user_persona"] = written["user_persona"]
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:8]


def _session(file: Path, location: SetLocation) -> dict[str, Any]:
    """Return the session of a file, with the app and user that google-adk requires."""
    session = snake_keys(read_session(file), _SESSION_KEYS)
    return {"app_name": location.app_name, "user_id": _USER, **session}


def _write(file: Path, document: Mapping[str, Any]) -> None:
    try:
        write_atomically(file, json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n")
    except OSError as error:
        raise UsageError(f"{file}: cannot be written: {error}") from None
