"""`agentest run --watch`: run again when something that the run was made of changes."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from watchfiles import Change, watch

from agentest.cli.choosing import Choosing
from agentest.cli.mishaps import refused
from agentest.cli.run import run_once
from agentest.errors import ExitCode, UsageError
from agentest.run.prepare import Prepared, Request, prepare
from agentest.scenarios.discovery import matches
from agentest.support.importing import forget_modules, imported_files
from agentest.support.interrupts import heard
from agentest.support.terminal import tell


def run_and_watch(request: Request, choose: Choosing) -> ExitCode:
    """Run, wait for a change, run again, until interrupted: while waiting or during a run."""
    logging.getLogger("watchfiles").setLevel(logging.ERROR)
    known: frozenset[Path] = frozenset()
    environ = dict(os.environ)
    while True:
        # What the last run took from `.env` must not hide what stands there now.
        os.environ.clear()
        os.environ.update(environ)
        prepared = _prepared(request, choose)
        known = _files(prepared, known)
        before = _stamps(known)
        if (prepared and _run(prepared) is ExitCode.INTERRUPTED) or heard():
            return ExitCode.INTERRUPTED
        # What the run itself imported (handlers, code inside mocks) counts from now on.
        before |= {
            file: stamp for file, stamp in _stamps(_files(prepared, known)).items() if file not in before
        }
        known = frozenset(before)
        tell("agentest: waiting for changes (Ctrl-C ends)")
        # A change during the run came before anybody was looking.
        if (_stamps(known) == before and not _changed(request, prepared, known)) or heard():
            return ExitCode.INTERRUPTED
        forget_modules(known)


def _stamps(files: frozenset[Path]) -> dict[Path, int]:
    """When each file was last written; 0 where it is not there."""
    return {file: file.stat().st_mtime_ns if file.exists() else 0 for file in files}


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


def _changed(request: Request, prepared: Prepared | None, files: frozenset[Path]) -> bool:
    """Wait for a change of one of the files, or of a new scenario file. False: interrupted."""

    def relevant(_: Change, path: str) -> bool:
        changed = Path(path)
        if prepared is None or changed in files:
            return True
        config = prepared.loaded.config
        return matches(changed, request.root, config.include, config.exclude, prepared.loaded.path)

    folders = {request.root, *(file.parent for file in files if file.parent.is_dir())}
    return any(True for _ in watch(*folders, watch_filter=relevant, raise_interrupt=False))
