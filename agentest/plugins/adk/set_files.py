"""Files of evaluation sets: find them, read and change their cases, and notice changes on disk.

A changed file is written anew, with the indentation, line ends, escapes and order of keys that it has.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import stat
import threading
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import field
from functools import lru_cache
from pathlib import Path, PurePosixPath
from typing import Any

from agentest.plugins.adk.formats.criteria import CRITERIA_FILE
from agentest.plugins.adk.formats.set_reader import BOM, SUFFIXES, parse_json
from agentest.support.errors import UsageError, errors_as
from agentest.support.files import atomic_writer, name_problem, read_user_bytes, shown_path
from agentest.support.lazy_dataclasses import dataclass

_ONE_AT_A_TIME = threading.Lock()
"""Serializes writes, so that the second of two concurrent saves notices the first."""


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
    with errors_as(lambda problem: ChangedOnDisk(problem, None), "", UsageError):
        current = read(path, name)
    if current.version != version:
        raise ChangedOnDisk(f"{name}: has changed on disk since it was read; nothing was written", current)


def write(new: SetContent, version: str | None) -> SetContent:
    """Write a file in place of the version that was read. Raises ChangedOnDisk and UsageError.

    The write is atomic, and it preserves the file's permissions.
    """
    with errors_as(UsageError, f"{new.name}: cannot be written: ", OSError), _ONE_AT_A_TIME:
        check_version(new.path, new.name, version)
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
    return new


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
        with errors_as(UsageError, f"{name}: cannot be read: ", (OSError, RuntimeError)):
            real = path.resolve()
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


_FIRST_ENTRY = re.compile(r"^\s*[\[{]\r?\n([ \t]+)")
_ESCAPED = re.compile(r"\\u(?:00[89a-fA-F]|0[1-9a-fA-F]|[1-9a-fA-F])")
_HALF = re.compile("[\ud800-\udfff]")
_ID = ("eval_id", "evalId")
_CASES = ("eval_cases", "evalCases")


@dataclass(frozen=True, slots=True)
class JsonStyle:
    """The formatting of a JSON file.

    Attributes:
        indent: white space per level; None if the whole file is one line.
        newline: `\\n` or `\\r\\n`.
        ascii: True if other letters than ASCII are escaped.
        before, after: white space around the document.
    """

    indent: str | None
    newline: str
    ascii: bool
    before: str = ""
    after: str = "\n"

    def written(self, value: Any) -> str:
        """Return the text of a document."""
        text = json.dumps(value, ensure_ascii=self.ascii, allow_nan=False, indent=self.indent)
        # Unpaired surrogates can only be escaped: the reader reports them.
        text = _HALF.sub(lambda half: f"\\u{ord(half[0]):04x}", text)
        return self.before + text.replace("\n", self.newline) + self.after


def style_of(text: str) -> JsonStyle:
    """Find the formatting of a JSON text."""
    first = _FIRST_ENTRY.search(text)
    return JsonStyle(
        indent=first[1] if first else None,
        newline="\r\n" if "\r\n" in text else "\n",
        ascii=bool(_ESCAPED.search(text)) and text.isascii(),
        before=text[: len(text) - len(text.lstrip())],
        after=text[len(text.rstrip()) :],
    )


@dataclass(frozen=True, slots=True)
class SetFile:
    """An evaluation set that can be edited.

    An edit that changes nothing leaves the file as it is; any other writes the whole file anew, in its own
    indentation.

    Attributes:
        document: the parsed file.
        cases_key: key of the list of cases; "" if the file is that list; None if it is a single case.
        camel: True if its keys are in camelCase, such as `evalId`.
    """

    content: SetContent
    document: Any
    style: JsonStyle
    cases_key: str | None
    camel: bool

    @property
    def cases(self) -> Sequence[Any]:
        """The cases, as they are in the file."""
        if self.cases_key is None:
            return (self.document,)
        cases: list[Any] = self.document[self.cases_key] if self.cases_key else self.document
        return cases

    @property
    def ids(self) -> tuple[str, ...]:
        """The ids of the cases; "" for one that has no text as its id."""
        return tuple(map(_eval_id, self.cases))

    def index_of(self, eval_id: str) -> int:
        """Return the index of a case, from 0. Raises UsageError."""
        if eval_id not in self.ids:
            raise UsageError(f"{self.content.name}: the case {eval_id!r} no longer exists")
        return self.ids.index(eval_id)

    def value(self, index: int) -> Any:
        """Return a copy of a case."""
        return deepcopy(self.cases[index])

    def case_text(self, index: int) -> str:
        """Return a case as JSON text."""
        return JsonStyle(self.style.indent, "\n", self.style.ascii, after="").written(self.cases[index])

    def with_value(self, index: int, value: Any) -> str:
        """Return the file with a new value for a case."""
        old = self.cases[index]
        new = _merged(old, value)
        changed = self.style.written(new) != self.style.written(old)
        return self._with_cases(index, index + 1, new) if changed else self.content.text

    def with_added(self, *cases: Any, index: int | None = None) -> str:
        """Return the file with more cases, before the one at `index`, or at the end.

        Raises UsageError if the file has no list of cases.
        """
        if self.cases_key is None:
            raise UsageError(
                f"{self.content.name}: is one case alone, without a list to which cases could be added; "
                "`agentest migrate OLD NEW` makes a set of it"
            )
        at = len(self.cases) if index is None else index
        return self._with_cases(at, at, *cases)

    def without(self, index: int) -> str:
        """Return the file without a case, of a list."""
        return self._with_cases(index, index + 1)

    def _with_cases(self, start: int, end: int, *cases: Any) -> str:
        changed = [*self.cases[:start], *cases, *self.cases[end:]]
        if self.cases_key is None:
            (document,) = changed
        else:
            document = {**self.document, self.cases_key: changed} if self.cases_key else changed
        return self.style.written(document)


@lru_cache(maxsize=2)  # several consecutive calls open the same file, and a large one takes seconds
def open_set(content: SetContent) -> SetFile:
    """Parse a file whose cases can be edited. Raises UsageError for invalid JSON and other formats."""
    text = content.text
    document = parse_json(Path(content.name), text.encode())
    form = _form_of_cases(document)
    if form is None:
        raise UsageError(
            f"{content.name}: is in another form than an EvalSet, whose cases cannot be edited one by one; "
            "`agentest migrate OLD NEW` converts it. It can be edited as a text"
        )
    cases_key, camel = form
    return SetFile(content, document, style_of(text), cases_key, camel)


def _form_of_cases(document: Any) -> tuple[str | None, bool] | None:
    if isinstance(document, dict):
        for key in _CASES:
            if isinstance(document.get(key), list):
                return key, key == _CASES[1]
        return next(((None, key == _ID[1]) for key in _ID if key in document), None)
    cases = [each for each in document if isinstance(each, dict)] if isinstance(document, list) else []
    spellings = {key for key in _ID for case in cases if key in case}
    return ("", _ID[1] in spellings) if spellings else None


def _eval_id(case: Any) -> str:
    eval_id = next((case[key] for key in _ID if key in case), "") if isinstance(case, dict) else ""
    return eval_id if isinstance(eval_id, str) else ""


def _merged(old: Any, new: Any) -> Any:
    """Return the new value, with the numbers and the order of keys of the old one where they are equal."""
    if isinstance(old, dict) and isinstance(new, Mapping):
        keys = [*(key for key in old if key in new), *(key for key in new if key not in old)]
        return {key: _merged(old.get(key), new[key]) for key in keys}
    if isinstance(old, list) and isinstance(new, list):
        return [_merged(a, b) for a, b in zip(old, new, strict=False)] + new[len(old) :]
    return old if _is_same(old, new) else new


def _is_same(old: Any, new: Any) -> bool:
    if isinstance(old, bool) or isinstance(new, bool):
        return old is new
    if isinstance(old, int | float) and isinstance(new, int | float):
        try:
            return float(old) == float(new)
        except OverflowError:
            return old == new
    return bool(old == new)
