"""Glob patterns, and paths as users see them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from fnmatch import fnmatchcase
from pathlib import Path

from agentest.support.files import readable

EVERYTHING = ("**", "*")


def patterns(globs: Iterable[str]) -> list[tuple[str, ...]]:
    patterns = [tuple(part for part in glob.split("/") if part not in ("", ".")) for glob in globs]
    # `a/**` is about what is in `a`, not about `a`.
    return [(*pattern, "*") if pattern[-1:] == ("**",) else pattern for pattern in patterns]


def matches_any(parts: tuple[str, ...], patterns: Iterable[tuple[str, ...]]) -> bool:
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
    """A path as users see it: relative to the working directory where possible, with forward slashes.

    What is no text in it is escaped (`files.readable`).
    """
    path = Path(path)
    for folder in (root, root.resolve()):
        if path.is_relative_to(folder):
            return readable(path.relative_to(folder).as_posix())
    return readable(path.as_posix())


def path_from(here: Path, path: Path) -> str:
    """A path as a user who is in the folder `here` would write it, be it above or beside."""
    try:
        return readable(Path(os.path.relpath(path, here)).as_posix())
    except ValueError:  # on another drive
        return readable(path.as_posix())


def moved(path: Path, old: Path, new: Path) -> Path:
    """Where a file is when the folder `old` is at `new`; a file that is not below it stays where it is."""
    full, root = path.resolve(), old.resolve()
    return new / full.relative_to(root) if full.is_relative_to(root) else path
