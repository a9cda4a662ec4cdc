"""`agentest run --watch`: run again when something that the run was made of changes."""

from __future__ import annotations

import sys
from pathlib import Path

from watchfiles import Change, watch

from agentest.app import Prepared, Request, prepare, run_once
from agentest.discovery import matches
from agentest.errors import ExitCode, UsageError
from agentest.importing import forget_modules


def run_and_watch(request: Request) -> ExitCode:
    """Run, wait for a change, run again, until interrupted."""
    known: frozenset[Path] = frozenset()
    while True:
        prepared = _run(request)
        files = _files(prepared) if prepared else known
        known = files or known
        sys.stderr.write("agentest: waiting for changes (Ctrl-C ends)\n")
        if not _changed(request, prepared, known):
            return ExitCode.INTERRUPTED
        forget_modules(known)


def _run(request: Request) -> Prepared | None:
    """One run. A mistake in the configuration is told, and waits for its mending like any failure."""
    try:
        prepared = prepare(request)
    except UsageError as error:
        sys.stderr.write(f"agentest: {error}\n")
        return None
    try:
        run_once(prepared)
    except UsageError as error:
        sys.stderr.write(f"agentest: {error}\n")
    return prepared


def _files(prepared: Prepared) -> frozenset[Path]:
    config = prepared.loaded.path.resolve()
    return frozenset({*prepared.found.files, config, config.parent / ".env"})


def _changed(request: Request, prepared: Prepared | None, files: frozenset[Path]) -> bool:
    """Wait for a change of one of the files, or of a new scenario file. False: interrupted."""

    def relevant(_: Change, path: str) -> bool:
        changed = Path(path)
        if prepared is None or changed in files:
            return True
        config = prepared.loaded.config
        return matches(changed, request.root, config.include, config.exclude)

    folders = {request.root, *(file.parent for file in files if file.parent.is_dir())}
    for _ in watch(*folders, watch_filter=relevant, raise_interrupt=False):
        return True
    return False
