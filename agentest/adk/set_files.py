"""Files of evaluation sets: read and write them, notice changes on disk, and find them in a project."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from collections.abc import Iterator
from dataclasses import field
from pathlib import Path, PurePosixPath

from agentest.adk.formats.criteria import CRITERIA_FILE
from agentest.adk.formats.set_reader import SUFFIXES
from agentest.support.errors import UsageError
from agentest.support.files import atomic_writer, name_problem, read_user_bytes, shown_path
from agentest.support.lazy_dataclasses import dataclass

_BOM = b"\xef\xbb\xbf"
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
            return self.data.removeprefix(_BOM).decode()
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{self.name}: is not UTF-8 text ({error.reason} at byte {error.start})"
            ) from None

    def with_text(self, text: str) -> SetContent:
        """Return the same file with another text. Raises UsageError for unpaired surrogates."""
        mark = _BOM if self.data.startswith(_BOM) else b""
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


MAX_FILES = 1_000
MAX_FOLDERS = 20_000
_SKIPPED_FOLDERS = frozenset({"node_modules", "__pycache__", "site-packages"})


@dataclass(frozen=True, slots=True)
class FoundEvalSets:
    """The evaluation sets of a project, sorted by path. `notes` names what was skipped."""

    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()


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

    def criteria_file_of(self, name: str) -> str:
        """Return the name of the set's criteria file."""
        return PurePosixPath(name).with_name(CRITERIA_FILE).as_posix()

    def find(self) -> FoundEvalSets:
        """Find the evaluation sets below the root, except in package, version control, and output folders."""
        files: list[Path] = []
        notes: list[str] = []
        for number, (folder, names) in enumerate(self._folders()):
            if number >= MAX_FOLDERS or len(files) > MAX_FILES:
                files = files[:MAX_FILES]
                notes.append(
                    f"more than {MAX_FILES:,} sets or {MAX_FOLDERS:,} folders: the rest is not listed"
                )
                break
            files += [folder / name for name in sorted(names) if name.endswith(SUFFIXES)]
        return FoundEvalSets(tuple(sorted(files)), tuple(notes))

    def _folders(self) -> Iterator[tuple[Path, list[str]]]:
        for at, folders, names in os.walk(self.root):
            folder = Path(at)
            folders[:] = sorted(name for name in folders if self._is_entered(folder / name))
            yield folder, names

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
