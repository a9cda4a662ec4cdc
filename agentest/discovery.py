"""Finding scenario files and importing them."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path

from agentest.errors import UsageError
from agentest.importing import import_file, imported_files, user_traceback
from agentest.scenarios import Scenario, collecting


@dataclass(frozen=True, slots=True)
class BrokenFile:
    """A scenario file, or one scenario of it, that could not be loaded."""

    file: str
    line: int
    message: str
    name: str | None = None
    """The scenario's name, where it is a single scenario that cannot be run."""


@dataclass(frozen=True, slots=True)
class Discovered:
    """What the scenario files of a run hold. `files`: they and everything of the user's they imported."""

    scenarios: tuple[Scenario, ...] = ()
    broken: tuple[BrokenFile, ...] = ()
    files: frozenset[Path] = frozenset()
    empty: tuple[str, ...] = ()
    """Files that define no scenario."""

    def redacted(self, redact: Callable[[str], str]) -> Discovered:
        """The same with secrets hidden in what is told of broken files."""
        broken = tuple(replace(file, message=redact(file.message)) for file in self.broken)
        return replace(self, broken=broken)


def discover(
    root: Path, include: Sequence[str], exclude: Sequence[str], file_filter: Sequence[str] = ()
) -> Discovered:
    """Import the scenario files below `root`, in the order of their paths.

    Args:
        include, exclude: patterns relative to `root`; `**` stands for any number of folders.
        file_filter: keep only files whose path contains one of these texts, whatever the case.
    """
    scenarios: list[Scenario] = []
    broken: list[BrokenFile] = []
    empty: list[str] = []
    # What the configuration imported may be imported by scenarios as well.
    files = set(imported_files({}))
    for path in find_files(root, include, exclude):
        if file_filter and not contains_any(shown_path(path, root), file_filter):
            continue
        before = dict(sys.modules)
        files.add(path)
        try:
            defined = _load(path)
            scenarios += defined
            empty += [] if defined else [shown_path(path, root)]
        except KeyboardInterrupt:
            raise
        except BaseException as error:  # noqa: BLE001 - a user's module may raise anything, sys.exit() too
            broken.append(_broken(error, path))
        files |= imported_files(before)
    unique, duplicates = _without_duplicates(scenarios)
    return Discovered(tuple(unique), (*broken, *duplicates), frozenset(files), tuple(empty))


def _load(path: Path) -> list[Scenario]:
    with collecting() as found:
        import_file(path)
    return found


def _broken(error: BaseException, path: Path) -> BrokenFile:
    shown, line = user_traceback(error, path)
    message = str(error) if isinstance(error, UsageError) else f"importing the file failed\n{shown}"
    return BrokenFile(str(path), line, message)


def _without_duplicates(scenarios: Iterable[Scenario]) -> tuple[list[Scenario], list[BrokenFile]]:
    first: dict[str, Scenario] = {}
    duplicates = []
    for scenario in scenarios:
        known = first.setdefault(scenario.name, scenario)
        if known is not scenario:
            message = (
                f"{scenario.file}:{scenario.line}: the name {scenario.name!r} is taken: "
                f"{known.file}:{known.line} defines a scenario of that name. Give one of them another name"
            )
            duplicates.append(BrokenFile(scenario.file, scenario.line, message, scenario.name))
    return list(first.values()), duplicates


def find_files(root: Path, include: Sequence[str], exclude: Sequence[str]) -> Iterator[Path]:
    """Python files below `root` that match a pattern of `include` and none of `exclude`, sorted by path.

    Folders that `exclude` covers whole are not entered. Links to folders are not followed.
    """
    wanted, unwanted = _patterns(include), _patterns(exclude)
    covered = [pattern[:-2] for pattern in unwanted if pattern[-2:] == _EVERYTHING]
    found = []
    for folder, folders, names in os.walk(root):
        at = Path(folder).relative_to(root).parts
        folders[:] = [name for name in folders if not _matches((*at, name), covered)]
        for name in names:
            parts = (*at, name)
            if name.endswith(".py") and _matches(parts, wanted) and not _matches(parts, unwanted):
                found.append(Path(folder, name))
    return iter(sorted(found))


def matches(path: Path, root: Path, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether a file is one that `find_files` would find."""
    if not path.is_relative_to(root) or path.suffix != ".py":
        return False
    parts = path.relative_to(root).parts
    return _matches(parts, _patterns(include)) and not _matches(parts, _patterns(exclude))


_EVERYTHING = ("**", "*")


def _patterns(globs: Iterable[str]) -> list[tuple[str, ...]]:
    patterns = [tuple(part for part in glob.split("/") if part not in ("", ".")) for glob in globs]
    # `a/**` is about what is in `a`, not about `a`.
    return [(*pattern, "*") if pattern[-1:] == ("**",) else pattern for pattern in patterns]


def _matches(parts: tuple[str, ...], patterns: Iterable[tuple[str, ...]]) -> bool:
    return any(_fits(parts, pattern) for pattern in patterns)


def _fits(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    """Whether the parts of a path fit those of a glob; `**` stands for any number of them, also none."""
    reached = {0}  # how many parts may have been used up so far
    for piece in pattern:
        if piece == "**":
            reached = set(range(min(reached), len(parts) + 1))
        else:
            reached = {n + 1 for n in reached if n < len(parts) and fnmatchcase(parts[n], piece)}
        if not reached:
            return False
    return len(parts) in reached


def contains_any(text: str, parts: Iterable[str]) -> bool:
    """Whether the text contains one of the parts, whatever the case."""
    return any(part.casefold() in text.casefold() for part in parts)


def shown_path(path: Path | str, root: Path) -> str:
    """A path as users see it: relative to the working directory where possible, with forward slashes."""
    path = Path(path)
    for folder in (root, root.resolve()):
        if path.is_relative_to(folder):
            return path.relative_to(folder).as_posix()
    return path.as_posix()
