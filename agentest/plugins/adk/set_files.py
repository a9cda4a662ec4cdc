"""Files of evaluation sets: find, read, write and create them, and notice changes on disk."""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import threading
from collections.abc import Iterator, Mapping
from dataclasses import asdict, field
from pathlib import Path, PurePosixPath
from typing import Any

from agentest.plugins.adk.formats.criteria import CRITERIA_FILE
from agentest.plugins.adk.formats.set_reader import (
    BOM,
    EVAL_SET_SUFFIX,
    SUFFIXES,
    FileFormat,
    parse_json,
    read_bytes,
    read_eval_set,
    read_session,
)
from agentest.support.errors import UsageError
from agentest.support.files import atomic_writer, name_problem, read_user_bytes, shown_path, write_atomically
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import snake_keys

_ONE_AT_A_TIME = threading.Lock()
"""Serializes writes, so that the second of two concurrent saves notices the first."""
MAX_BYTES = 50_000_000


class ChangedOnDisk(UsageError):
    """The file has changed since the edit began. `found` is its current content; None if it was deleted."""

    def __init__(self, message: str, current: SetContent | None) -> None:
        super().__init__(message)
        self.current = current


@dataclass(frozen=True, slots=True)
class SetContent:
    """A UTF-8 text file. `name` is its name in messages."""

    path: Path
    name: str
    data: bytes

    @property
    def version(self) -> str:
        """Return a hash of the bytes."""
        return hashlib.sha256(self.data).hexdigest()[:32]

    @property
    def text(self) -> str:
        """Return the file without its byte order mark. Raises UsageError if it is not UTF-8."""
        try:
            return self.data.removeprefix(BOM).decode()
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{self.name}: is not UTF-8 text ({error.reason} at byte {error.start})"
            ) from None

    def with_text(self, text: str) -> SetContent:
        """Return the same file with another text. Raises UsageError for unpaired surrogates."""
        mark = BOM if self.data.startswith(BOM) else b""
        try:
            return SetContent(self.path, self.name, mark + text.encode())
        except UnicodeEncodeError as error:
            raise UsageError(
                f"{self.name}: the text has half of a character, {text[error.start]!r}"
            ) from None


def read(path: Path, name: str) -> SetContent:
    """Read a file. Raises UsageError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{name}: is larger than the {MAX_BYTES:,} bytes that are edited here")
        return SetContent(path, name, read_user_bytes(path))
    except FileNotFoundError:
        raise UsageError(f"{name}: does not exist any more; it was moved or deleted") from None
    except OSError as error:
        raise UsageError(f"{name}: cannot be read: {error.strerror or error}") from None


def check_version(path: Path, name: str, version: str | None) -> None:
    """Raise ChangedOnDisk if the file is not at this version.

    Args:
        version: the version that was read; None if there was no file.
    """
    if version is None:
        if os.path.lexists(path):
            raise ChangedOnDisk(
                f"{name}: is there already; open it, or choose another name", read(path, name)
            )
        return
    try:
        current = read(path, name)
    except UsageError as error:
        raise ChangedOnDisk(str(error), None) from None
    if current.version != version:
        raise ChangedOnDisk(f"{name}: has changed on disk since it was read; nothing was written", current)


def write(new: SetContent, version: str | None) -> SetContent:
    """Write a file in place of the version that was read. Raises ChangedOnDisk and UsageError.

    The write is atomic, and it preserves the file's permissions.
    """
    try:
        with _ONE_AT_A_TIME:
            check_version(new.path, new.name, version)
            _replace(new, version)
    except OSError as error:
        raise UsageError(f"{new.name}: cannot be written: {error.strerror or error}") from None
    return new


def _replace(new: SetContent, version: str | None) -> None:
    mode = None if version is None else stat.S_IMODE(new.path.stat().st_mode)
    if mode is not None and not mode & 0o222:
        raise UsageError(f"{new.name}: is read-only, and was not written")
    with atomic_writer(new.path) as file:
        if mode is not None and hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), mode)
        file.write(new.data)
        file.flush()
        # Check again as late as possible: an editor may have saved the file in between.
        check_version(new.path, new.name, version)


def write_file(path: Path, content: bytes) -> None:
    """Write a file, whatever is there. Raises UsageError."""
    try:
        write_atomically(path, content)
    except OSError as error:
        raise UsageError(f"{path}: cannot be written: {error}") from None


MAX_FILES = 1_000
MAX_FOLDERS = 20_000
_SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__", "site-packages"})


@dataclass(frozen=True, slots=True)
class EvalSetProject:
    """A folder whose evaluation sets can be edited.

    Attributes:
        root: the folder.
        outputs: folder with the results of runs; sets in it are ignored.
    """

    root: Path
    outputs: Path = field(default=Path(".agentest"))

    def file(self, name: str) -> Path:
        """Return the file with this name. Raises UsageError for every name that the listing would not show.

        Args:
            name: relative to the root, with forward slashes.
        """
        parts = PurePosixPath(name).parts
        wrong = self._wrong_name(name, parts)
        if wrong:
            raise UsageError(f"{name!r:.150} cannot be edited here: {wrong}")
        path = self.root.joinpath(*parts)
        try:
            real = path.resolve()
        except (OSError, RuntimeError) as error:
            raise UsageError(f"{name}: cannot be read: {error}") from None
        if real != self.root.resolve().joinpath(*parts):
            raise UsageError(f"{name}: is a link, or lies behind one; edit the file that it leads to")
        return path

    def find(self) -> tuple[list[Path], list[str]]:
        """Find the evaluation sets below the root, except in package, version control, and output folders.

        Returns the files, sorted by path, and notes about what was skipped.
        """
        files: list[Path] = []
        notes: list[str] = []
        for number, (at, folders, names) in enumerate(os.walk(self.root)):
            folder = Path(at)
            folders[:] = sorted(name for name in folders if self._is_entered(folder / name))
            if number >= MAX_FOLDERS or len(files) > MAX_FILES:
                files = files[:MAX_FILES]
                notes.append(
                    f"more than {MAX_FILES:,} sets or {MAX_FOLDERS:,} folders: the rest is not listed"
                )
                break
            files += [folder / name for name in sorted(names) if name.endswith(SUFFIXES)]
        return sorted(files), notes

    def _is_entered(self, folder: Path) -> bool:
        if (
            folder.name.startswith(".")
            or folder.name in _SKIPPED_FOLDERS
            or folder == self.root / self.outputs
        ):
            return False
        return not (folder / "pyvenv.cfg").exists()

    def _wrong_name(self, name: str, parts: tuple[str, ...]) -> str:
        """Return why a name cannot be in the listing; "" if it can."""
        if problem := name_problem(name):
            return f"it {problem}"
        if not parts or PurePosixPath(*parts).as_posix() != name or "\\" in name:
            return "expected a path relative to the project, with forward slashes"
        if parts[0] == "/" or ".." in parts or ":" in parts[0]:
            return "it lies outside of the project"
        if not (name.endswith(SUFFIXES) or parts[-1] == CRITERIA_FILE):
            return f"its name ends neither in {' nor in '.join(SUFFIXES)}, nor is it {CRITERIA_FILE}"
        folders = [self.root.joinpath(*parts[: end + 1]) for end in range(len(parts) - 1)]
        if not all(self._is_entered(folder) for folder in folders):
            return "its folder is one of packages, of versions or of outputs"
        return ""

    def name(self, path: Path) -> str:
        return shown_path(path, self.root)


_ID = re.compile(r"[a-zA-Z0-9_]+")
_SCENARIO_KEYS = ("starting_prompt", "conversation_plan", "user_persona")
_SESSION_KEYS = ("app_name", "user_id", "state", "session_id")
_LONGEST_NAME = 255
"""Maximum length of a file name."""
_USER = "agentest"
"""Default user of a session, as of an agent behind ADK's server."""


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
            raise UsageError(
                f"{self.agent!r} is not an agent; name its folder, or an agent of the configuration"
            )
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
            possible = re.sub("[^a-zA-Z0-9]+", "_", self.set_id).strip("_") or "return_flow_tests"
            raise UsageError(
                f"{self.set_id!r} cannot be the id of an evaluation set: expected letters of a to z, digits "
                f"and _ alone, such as {possible}"
            )
        name = f"{self.set_id}{EVAL_SET_SUFFIX}"
        if len(name) > _LONGEST_NAME:
            raise UsageError(
                f"the id of the evaluation set has {len(self.set_id)} letters, too many for a file"
            )
        return self.folder / name


def create_set(location: SetLocation, now: float) -> Path:
    """Write an evaluation set without cases, and return its file. Raises UsageError if it exists.

    Args:
        now: the current time in seconds since 1970.
    """
    file = location.file
    if file.exists():
        raise UsageError(f"{file}: is there already; add cases to it, or choose another id")
    name = location.set_id
    empty = {"eval_set_id": name, "name": name, "eval_cases": [], "creation_timestamp": now}
    write_file(file, _encoded(empty))
    return file


def add_cases(
    location: SetLocation, scenarios: Path, session: Path | None, now: float
) -> list[tuple[str, bool]]:
    """Add each scenario of a file to a set, as a case with this session. Raises UsageError.

    The id of a case is a hash of its scenario, so adding the same scenario again has no effect. Returns the
    id of each, and True if the set did not have it already.
    """
    document, key = _document(location)
    session_input: dict[str, Any] = {}
    if session:  # with the app and user that google-adk requires
        given = snake_keys(read_session(session), _SESSION_KEYS)
        session_input = {"session_input": {"app_name": location.app_name, "user_id": _USER, **given}}
    known = (
        {case.eval_id for case in read_eval_set(location.file).eval_set.eval_cases}
        if document[key]
        else set()
    )
    added = []
    for eval_id, scenario in _scenarios(scenarios):
        added.append((eval_id, eval_id not in known))
        if eval_id not in known:
            known.add(eval_id)
            case = {"eval_id": eval_id, "conversation_scenario": scenario, **session_input}
            document[key].append({**case, "creation_timestamp": now})
    if any(is_new for _, is_new in added):
        write_file(location.file, _encoded(document))
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
    raise UsageError(f"{file}: is not an evaluation set: expected an object with `eval_cases`")


def _scenarios(file: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each scenario of a file with the id that google-adk gives it: eight digits of its hash.

    For a persona given by name, google-adk hashes its description, and Agentest hashes the name. Raises
    UsageError.
    """
    read = read_eval_set(file)
    if read.form is not FileFormat.SCENARIOS:
        form = '{"scenarios": [{"starting_prompt": …, "conversation_plan": …}]}'
        raise UsageError(f"{file}: is an evaluation set already; expected conversation scenarios: {form}")
    written = parse_json(file, read_bytes(file))["scenarios"]
    for case, as_written in zip(read.eval_set.eval_cases, written, strict=True):
        assert case.conversation_scenario is not None, "the form has no other cases"
        named = snake_keys(as_written, _SCENARIO_KEYS)
        values = asdict(case.conversation_scenario)
        if isinstance(named.get("user_persona"), str):
            values["user_persona"] = named["user_persona"]
        digits = hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()
        yield digits[:8], {key: value for key, value in named.items() if value is not None}


def _encoded(document: Mapping[str, Any]) -> bytes:
    return json.dumps(document, indent=2, ensure_ascii=False).encode() + b"\n"
