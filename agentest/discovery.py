"""Finding scenario files and importing them."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
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
    files: set[Path] = set()
    for path in find_files(root, include, exclude):
        if file_filter and not contains_any(shown_path(path, root), file_filter):
            continue
        before = set(sys.modules)
        files.add(path)
        try:
            scenarios += _load(path)
        except UsageError as error:
            broken.append(BrokenFile(str(path), _line_of(error, path), str(error)))
        except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's module may raise anything
            shown, line = user_traceback(error, path)
            broken.append(BrokenFile(str(path), line, f"importing the file failed\n{shown}"))
        files |= imported_files(before)
    unique, duplicates = _without_duplicates(scenarios)
    return Discovered(tuple(unique), (*broken, *duplicates), frozenset(files))


def _load(path: Path) -> list[Scenario]:
    with collecting() as found:
        import_file(path)
    return found


def _line_of(error: UsageError, path: Path) -> int:
    match = re.match(re.escape(str(path)) + r":(\d+):", str(error))
    return int(match[1]) if match else 1


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
    """Files below `root` that match a pattern of `include` and none of `exclude`, sorted by path.

    Folders that `exclude` covers whole are not entered. Links to folders are not followed.
    """
    wanted = [_pattern(p) for p in include]
    unwanted = [_pattern(p) for p in exclude]
    covered = [_pattern(p.removesuffix("/**")) for p in exclude if p.endswith("/**")]
    found = []
    for folder, folders, names in os.walk(root):
        at = Path(folder).relative_to(root)
        folders[:] = [
            name for name in folders if not any(p.fullmatch((at / name).as_posix()) for p in covered)
        ]
        for name in names:
            if _matches((at / name).as_posix(), wanted, unwanted):
                found.append(Path(folder, name))
    return iter(sorted(found))


def matches(path: Path, root: Path, include: Sequence[str], exclude: Sequence[str]) -> bool:
    """Whether a file is one that `find_files` would find."""
    if not path.is_relative_to(root):
        return False
    relative = path.relative_to(root).as_posix()
    return _matches(relative, [_pattern(p) for p in include], [_pattern(p) for p in exclude])


def _matches(relative: str, wanted: Iterable[re.Pattern[str]], unwanted: Iterable[re.Pattern[str]]) -> bool:
    return any(p.fullmatch(relative) for p in wanted) and not any(p.fullmatch(relative) for p in unwanted)


@cache
def _pattern(glob: str) -> re.Pattern[str]:
    """A glob as a regular expression over paths with forward slashes."""
    glob = glob.removeprefix("./")
    expression = ""
    at = 0
    while at < len(glob):
        if glob.startswith("**/", at):
            expression, at = expression + "(?:[^/]+/)*", at + 3
        elif glob.startswith("**", at):
            expression, at = expression + ".*", at + 2
        elif glob[at] == "*":
            expression, at = expression + "[^/]*", at + 1
        elif glob[at] == "?":
            expression, at = expression + "[^/]", at + 1
        elif glob[at] == "[" and "]" in glob[at + 2 :]:
            end = glob.index("]", at + 2)
            inside = glob[at + 1 : end].replace("\\", "\\\\")
            expression += "[" + ("^" + inside[1:] if inside[0] == "!" else inside) + "]"
            at = end + 1
        else:
            expression, at = expression + re.escape(glob[at]), at + 1
    return re.compile(expression, re.S)


def contains_any(text: str, parts: Iterable[str]) -> bool:
    """Whether the text contains one of the parts, whatever the case."""
    return any(part.casefold() in text.casefold() for part in parts)


def shown_path(path: Path | str, root: Path) -> str:
    """A path as users see it: relative to the working directory where possible, with forward slashes."""
    path = Path(path)
    return (path.relative_to(root) if path.is_relative_to(root) else path).as_posix()
