"""Kept runs, as the command line names them."""

from __future__ import annotations

import os
from pathlib import Path

from agentest.config.file import find, load
from agentest.runner.environment import Place, place_of
from agentest.store.runs.folder import run_file
from agentest.support.errors import ConfigError
from agentest.support.terminal import tell

_DEFAULT = ".agentest"


def runs_folder(place: Place, config: Path | None) -> Path:
    """`output_dir` of the configuration; the usual one where there is none, or none that can be read.

    Whoever looks at past runs need not have what a run needs: variables, files.
    """
    try:
        path = place.path(config) if config else find(place.root)
        return place.root / load(path, dict(os.environ)).config.output_dir
    except ConfigError as error:
        if config:
            raise
        if place.config:
            tell(f"agentest: {error}; runs are looked for in {_DEFAULT}")
        return place.root / _DEFAULT


def run_at(reference: str, place: Place, config: Path | None) -> Path:
    """The file that a RUN of the command line means: an id, its beginning, `latest`, a folder or a file.

    Raises UsageError that says which there are.
    """
    path = place.here / reference
    return path if path.is_file() else run_file(reference, runs_folder(place, config), place.here)


def run_here(reference: str) -> Path:
    """The same for a command that needs no configuration. Raises UsageError."""
    return run_at(reference, place_of(Path.cwd()), None)
