"""`agentest run --watch`: run again when a file that the run depends on changes."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import TypeVar

from watchfiles import Change, DefaultFilter, watch

from agentest.cli.exit_status import print_user_error
from agentest.cli.run import run_once
from agentest.cli.selection import ScenarioSelection
from agentest.runner.environment import output_dir
from agentest.runner.prepare import Prepared, RunRequest, prepare
from agentest.scenarios.discovery import is_scenario_file
from agentest.support.errors import ExitCode, UsageError
from agentest.support.files import matches_any, path_from, patterns
from agentest.support.importing import forget_modules, imported_files
from agentest.support.interrupts import was_interrupted
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.terminal import tell

Done = TypeVar("Done")
Stamps = dict[Path, int]
_WILDCARDS = frozenset("*?[")
_TOOL_FILES_FILTER = DefaultFilter()
"""Ignores files that tools write: `__pycache__`, `.git`, `node_modules`, editor files."""


def run_and_watch(request: RunRequest, select: ScenarioSelection) -> ExitCode:
    """Run, wait for a change and run again, until interrupted while waiting or during a run."""
    logging.getLogger("watchfiles").setLevel(logging.ERROR)
    known: frozenset[Path] = frozenset()
    servers, written_by_servers = WatchedFiles(), _FilesWrittenByServers()
    environ = dict(os.environ)
    while True:
        # Otherwise variables from the last `.env` would hide its current values.
        os.environ.clear()
        os.environ.update(environ)
        prepared = _attempt(lambda: select(prepare(request)))
        known = _files(prepared, known)
        servers = _server_files(prepared) if prepared else servers
        before, sources = _stamps(known), _stamps(servers.files)
        status = _attempt(partial(run_once, prepared)) if prepared else None
        if status is ExitCode.INTERRUPTED or was_interrupted():
            return ExitCode.INTERRUPTED
        # Watch files that the run itself imported, such as handlers and code in mocks.
        before |= {
            file: stamp for file, stamp in _stamps(_files(prepared, known)).items() if file not in before
        }
        known = frozenset(before)
        for entry in servers.missing:
            tell(f"agentest: watch: {entry!r} names no file that is there")
        tell("agentest: waiting for changes (Ctrl-C ends)")
        # The watcher was not active during the run, so compare the timestamps.
        again = written_by_servers.to_run_for(_changed_between(sources, _stamps(servers.files)))
        changed = _changed_between(before, _stamps(known)) | again
        changed = changed or _wait_for_change(request, prepared, known, servers)
        if not changed or was_interrupted():
            return ExitCode.INTERRUPTED
        more = f" and {len(changed) - 1} more" if len(changed) > 1 else ""
        first = path_from(request.here or request.root, min(changed))
        tell(f"agentest: {first}{more} changed: running again")
        forget_modules(known)


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEntry:
    """One entry of `watch`: a file, or the files in a folder that match a pattern."""

    entry: str
    """The entry in the configuration."""
    folder: Path
    """The folder, or the file if the entry names one."""
    pattern: tuple[str, ...]
    """Pattern for paths relative to the folder; () for the file itself or everything in the folder."""

    @property
    def watched_folder(self) -> Path:
        """The folder to watch."""
        return self.folder if self.folder.is_dir() else self.folder.parent

    def has(self, path: Path) -> bool:
        """Return True if the entry matches a file."""
        if not path.is_relative_to(self.folder):
            return False
        parts = path.relative_to(self.folder).parts
        # The user chose the folder, so only the path below it is filtered.
        if parts and not _TOOL_FILES_FILTER(Change.modified, str(Path(*parts))):
            return False
        return not self.pattern or matches_any(parts, [self.pattern])

    @property
    def files(self) -> Iterator[Path]:
        """Yield the existing files."""
        if self.folder.is_file():
            yield self.folder
        for at, folders, names in os.walk(self.folder):
            folders[:] = [name for name in folders if _TOOL_FILES_FILTER(Change.modified, name)]
            yield from (path for name in names if self.has(path := Path(at, name)))


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchedFiles:
    """All files that restart the servers of a run."""

    entries: tuple[WatchEntry, ...] = ()
    left_out: tuple[Path, ...] = ()
    """Folders that runs write to."""

    def has(self, path: Path) -> bool:
        """Return True if a file is one of them."""
        written = any(path.is_relative_to(folder) for folder in self.left_out)
        return not written and any(entry.has(path) for entry in self.entries)

    @property
    def files(self) -> frozenset[Path]:
        """The existing files."""
        return frozenset(path for entry in self.entries for path in entry.files if self.has(path))

    @property
    def folders(self) -> set[Path]:
        """The folders to watch."""
        return {entry.watched_folder for entry in self.entries if entry.watched_folder.is_dir()}

    @property
    def missing(self) -> list[str]:
        """Entries that match no existing file."""
        return [entry.entry for entry in self.entries if not any(True for _ in entry.files)]


def parse_watch_entries(entries: Iterable[str], root: Path, left_out: Iterable[Path] = ()) -> WatchedFiles:
    """Return the files that the entries of `watch` mean."""
    return WatchedFiles(
        entries=tuple(_watched(entry, root) for entry in dict.fromkeys(entries)),
        left_out=tuple(folder.resolve() for folder in left_out),
    )


def _server_files(prepared: Prepared) -> WatchedFiles:
    """Return the files that the servers of a run are watched for."""
    servers = prepared.managed_servers.of_any(prepared.plan.agents)
    entries = (entry for each in servers for entry in each.server.watch)
    return parse_watch_entries(entries, prepared.request.root, [output_dir(prepared)])


class _FilesWrittenByServers:
    """Detects which server files changed because a server wrote them.

    A file that changes during two consecutive runs counts as written by a server, because running again
    for it would never end. Between runs no server is active, so every change counts.
    """

    def __init__(self) -> None:
        self._last: frozenset[Path] = frozenset()
        self._reported: set[Path] = set()

    def to_run_for(self, changed: frozenset[Path]) -> frozenset[Path]:
        """Return the files to run again for, given those that changed during the last run."""
        for path in sorted(changed & self._last - self._reported):
            self._reported.add(path)
            tell(
                f"agentest: {path.name} changed during this run, and during the one before: taken for what a "
                "server writes; save it again if it was you"
            )
        again, self._last = changed - self._last, changed
        return again


def _changed_between(before: Stamps, after: Stamps) -> frozenset[Path]:
    return frozenset(
        file for file in before.keys() | after.keys() if before.get(file, 0) != after.get(file, 0)
    )


def _stamps(files: frozenset[Path]) -> Stamps:
    """Return the modification time of each file in nanoseconds; 0 if it does not exist."""
    return {file: _stamp(file) for file in files}


def _stamp(file: Path) -> int:
    try:
        return file.stat().st_mtime_ns
    except OSError:
        return 0


def _attempt(work: Callable[[], Done]) -> Done | None:
    """Return the result; print the error and return None if the user has to fix something."""
    try:
        return work()
    except UsageError as error:
        print_user_error(error)
        return None


def _files(prepared: Prepared | None, known: frozenset[Path]) -> frozenset[Path]:
    """Return the files that the run depends on; if it was not prepared, the known and the imported ones."""
    if prepared is None:
        return known | imported_files()
    config = prepared.loaded.path.resolve()
    return frozenset({*prepared.files, config, config.parent / ".env"}) | imported_files()


def _wait_for_change(
    request: RunRequest, prepared: Prepared | None, files: frozenset[Path], servers: WatchedFiles
) -> frozenset[Path]:
    """Wait until a file changes or a scenario file is added. Returns an empty set if interrupted."""

    def relevant(_: Change, path: str) -> bool:
        changed = Path(path)
        if prepared is None or changed in files or servers.has(changed.resolve()):
            return True
        config = prepared.loaded.config
        return is_scenario_file(changed, request.root, config.include, config.exclude, prepared.loaded.path)

    folders = {request.root, *servers.folders, *(file.parent for file in files if file.parent.is_dir())}
    for changes in watch(*folders, watch_filter=relevant, raise_interrupt=False):
        return frozenset(Path(path) for _, path in changes)
    return frozenset()


def _watched(entry: str, root: Path) -> WatchEntry:
    parts = Path(entry).parts
    fixed = next((at for at, part in enumerate(parts) if _WILDCARDS & {*part}), len(parts))
    (pattern,) = patterns(["/".join(parts[fixed:])])
    return WatchEntry(entry=entry, folder=root.joinpath(*parts[:fixed]).resolve(), pattern=pattern)
