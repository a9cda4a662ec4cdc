"""What `watch` of a server names: files, folders and patterns, and whether a change is one of theirs."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from watchfiles import Change, DefaultFilter

from agentest.support.paths import matches_any, patterns

_WILD = frozenset("*?[")
_NOBODYS = DefaultFilter()
"""Knows what tools write for themselves: `__pycache__`, `.git`, `node_modules`, what editors leave."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watched:
    """One entry of `watch`: what is in a folder and fits a pattern, or one file."""

    entry: str
    """As the user wrote it."""
    folder: Path
    """Or the file."""
    pattern: tuple[str, ...]
    """Of paths from the folder on; (): the file itself, or all that is in the folder."""

    @property
    def looked_at(self) -> Path:
        """The folder in which changes are waited for."""
        return self.folder if self.folder.is_dir() else self.folder.parent

    def has(self, path: Path) -> bool:
        """Whether a file is one that the entry names."""
        if not path.is_relative_to(self.folder):
            return False
        parts = path.relative_to(self.folder).parts
        # What stands above was the user's choice.
        if parts and not _NOBODYS(Change.modified, str(Path(*parts))):
            return False
        return not self.pattern or matches_any(parts, [self.pattern])

    @property
    def files(self) -> Iterator[Path]:
        """The files that are there now."""
        if self.folder.is_file():
            yield self.folder
        for at, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if _NOBODYS(Change.modified, name)]
            yield from (path for name in names if self.has(path := Path(at, name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedFiles:
    """All that the servers of a run are started again for."""

    entries: tuple[Watched, ...] = ()
    left_out: tuple[Path, ...] = ()
    """Folders that runs write to."""

    def has(self, path: Path) -> bool:
        """Whether a file is one of them."""
        written = any(path.is_relative_to(folder) for folder in self.left_out)
        return not written and any(entry.has(path) for entry in self.entries)

    @property
    def files(self) -> frozenset[Path]:
        """Those that are there now."""
        return frozenset(path for entry in self.entries for path in entry.files if self.has(path))

    @property
    def folders(self) -> set[Path]:
        """Where changes are waited for."""
        return {entry.looked_at for entry in self.entries if entry.looked_at.is_dir()}

    @property
    def missing(self) -> list[str]:
        """The entries that name nothing that is there."""
        return [entry.entry for entry in self.entries if not any(True for _ in entry.files)]


def watched_files(entries: Iterable[str], root: Path, left_out: Iterable[Path] = ()) -> WatchedFiles:
    """What entries of `watch` mean, from the folder of the configuration."""
    return WatchedFiles(
        entries=tuple(_watched(entry, root) for entry in dict.fromkeys(entries)),
        left_out=tuple(folder.resolve() for folder in left_out),
    )


def _watched(entry: str, root: Path) -> Watched:
    parts = Path(entry).parts
    fixed = next((at for at, part in enumerate(parts) if _WILD & {*part}), len(parts))
    (pattern,) = patterns(["/".join(parts[fixed:])])
    return Watched(entry=entry, folder=root.joinpath(*parts[:fixed]).resolve(), pattern=pattern)
