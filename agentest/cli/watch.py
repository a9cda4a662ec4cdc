"""`agentest run --watch`: run again when something that the run was made of changes."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from watchfiles import Change, DefaultFilter, watch

from agentest.cli.error_output import refused
from agentest.cli.run import run_once
from agentest.cli.selection import Choosing
from agentest.runner.environment import output_dir
from agentest.runner.prepare import Prepared, Request, prepare
from agentest.scenarios.discovery import matches
from agentest.support.errors import ExitCode, UsageError
from agentest.support.files import matches_any, path_from, patterns
from agentest.support.importing import forget_modules, imported_files
from agentest.support.interrupts import heard
from agentest.support.terminal import tell

Stamps = dict[Path, int]


def run_and_watch(request: Request, choose: Choosing) -> ExitCode:
    """Run, wait for a change, run again, until interrupted: while waiting or during a run."""
    logging.getLogger("watchfiles").setLevel(logging.ERROR)
    known: frozenset[Path] = frozenset()
    servers, during = WatchedFiles(), _DuringRuns()
    environ = dict(os.environ)
    while True:
        # What the last run took from `.env` must not hide what stands there now.
        os.environ.clear()
        os.environ.update(environ)
        prepared = _prepared(request, choose)
        known = _files(prepared, known)
        servers = _of_servers(prepared) if prepared else servers
        before, sources = _stamps(known), _stamps(servers.files)
        if (prepared and _run(prepared) is ExitCode.INTERRUPTED) or heard():
            return ExitCode.INTERRUPTED
        # What the run itself imported (handlers, code inside mocks) counts from now on.
        before |= {
            file: stamp for file, stamp in _stamps(_files(prepared, known)).items() if file not in before
        }
        known = frozenset(before)
        for entry in servers.missing:
            tell(f"agentest: watch: {entry!r} names no file that is there")
        tell("agentest: waiting for changes (Ctrl-C ends)")
        # A change during the run came before anybody was looking.
        again = during.to_run_for(_differing(sources, _stamps(servers.files)))
        changed = _differing(before, _stamps(known)) | again
        changed = changed or _changed(request, prepared, known, servers)
        if not changed or heard():
            return ExitCode.INTERRUPTED
        tell(f"agentest: {_named(changed, request)} changed: running again")
        forget_modules(known)


def _of_servers(prepared: Prepared) -> WatchedFiles:
    """What the servers of a run are watched for."""
    own = prepared.own_servers.of_any(prepared.plan.agents)
    entries = (entry for each in own for entry in each.server.watch)
    return watched_files(entries, prepared.request.root, [output_dir(prepared)])


class _DuringRuns:
    """The files of servers that change while runs go on.

    What changes in one run and in the next is what a server writes itself: running again for it would never
    end. While no run goes on no server does, and every change counts.
    """

    def __init__(self) -> None:
        self._last: frozenset[Path] = frozenset()
        self._told: set[Path] = set()

    def to_run_for(self, changed: frozenset[Path]) -> frozenset[Path]:
        """Of the files that changed during the run that has just ended, what to run again for."""
        for path in sorted(changed & self._last - self._told):
            self._told.add(path)
            tell(
                f"agentest: {path.name} changed during this run, and during the one before: taken for what a "
                "server writes; save it again if it was you"
            )
        again, self._last = changed - self._last, changed
        return again


def _differing(before: Stamps, after: Stamps) -> frozenset[Path]:
    return frozenset(
        file for file in before.keys() | after.keys() if before.get(file, 0) != after.get(file, 0)
    )


def _named(changed: frozenset[Path], request: Request) -> str:
    first = min(changed)
    more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
    return f"{path_from(request.here or request.root, first)}{more}"


def _stamps(files: frozenset[Path]) -> Stamps:
    """When each file was last written; 0 where it is not there."""
    return {file: _stamp(file) for file in files}


def _stamp(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _prepared(request: Request, choose: Choosing) -> Prepared | None:
    """The run, or None where a mistake must be mended first; then it is printed."""
    try:
        return choose(prepare(request))
    except UsageError as error:
        refused(error)
        return None


def _run(prepared: Prepared) -> ExitCode:
    try:
        return run_once(prepared)
    except UsageError as error:
        return refused(error)


def _files(prepared: Prepared | None, known: frozenset[Path]) -> frozenset[Path]:
    """What the run is made of; where it could not be prepared, what was known, and what was imported."""
    if prepared is None:
        return known | imported_files()
    config = prepared.loaded.path.resolve()
    return frozenset({*prepared.files, config, config.parent / ".env"}) | imported_files()


def _changed(
    request: Request, prepared: Prepared | None, files: frozenset[Path], servers: WatchedFiles
) -> frozenset[Path]:
    """Wait for a change of one of the files, or of a new scenario file. Nothing: interrupted."""

    def relevant(_: Change, path: str) -> bool:
        changed = Path(path)
        if prepared is None or changed in files or servers.has(changed.resolve()):
            return True
        config = prepared.loaded.config
        return matches(changed, request.root, config.include, config.exclude, prepared.loaded.path)

    folders = {request.root, *servers.folders, *(file.parent for file in files if file.parent.is_dir())}
    for changes in watch(*folders, watch_filter=relevant, raise_interrupt=False):
        return frozenset(Path(path) for _, path in changes)
    return frozenset()


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
