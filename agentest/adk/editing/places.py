"""Which files of a project are evaluation sets and criteria that may be edited."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from agentest.adk.formats.criteria import CRITERIA_FILE
from agentest.adk.formats.targets import SUFFIXES
from agentest.support.errors import UsageError
from agentest.support.files import name_problem
from agentest.support.paths import shown_path

MAX_FILES = 1_000
MAX_FOLDERS = 20_000
_NOT_ENTERED = frozenset({"node_modules", "__pycache__", "site-packages"})


@dataclass(frozen=True, slots=True)
class Found:
    """The evaluation sets of a project, in the order of their paths. `notes`: what was not looked at."""

    files: tuple[Path, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Project:
    """A folder whose evaluation sets are edited.

    Attributes:
        root: its folder.
        outputs: where runs are kept: nothing there is the user's own.
    """

    root: Path
    outputs: Path = field(default=Path(".agentest"))

    def file(self, name: str) -> Path:
        """The file that a name means. Raises UsageError for all that the listing would not name.

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

    def criteria_beside(self, name: str) -> str:
        """What the criteria of a set are called."""
        return PurePosixPath(name).with_name(CRITERIA_FILE).as_posix()

    def find(self) -> Found:
        """The evaluation sets below the root. Folders of packages, versions and outputs are not entered."""
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
        return Found(tuple(sorted(files)), tuple(notes))

    def _folders(self) -> Iterator[tuple[Path, list[str]]]:
        for at, folders, names in os.walk(self.root):
            folder = Path(at)
            folders[:] = sorted(name for name in folders if self._is_entered(folder / name))
            yield folder, names

    def _is_entered(self, folder: Path) -> bool:
        if folder.name.startswith(".") or folder.name in _NOT_ENTERED or folder == self.root / self.outputs:
            return False
        return not (folder / "pyvenv.cfg").exists()

    def _wrong_name(self, name: str, parts: tuple[str, ...]) -> str:
        """Why a name is none of the listing; "" where it may be."""
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
