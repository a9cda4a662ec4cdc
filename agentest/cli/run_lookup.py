"""Find stored runs by the references that the command line accepts."""

from __future__ import annotations

import os
from pathlib import Path

from agentest.config.file import find_config, load
from agentest.runner.environment import RunFolders, run_folders_of
from agentest.store.runs.folder import run_file
from agentest.support.errors import ConfigError
from agentest.support.terminal import tell

_DEFAULT = ".agentest"


def runs_folder(place: RunFolders, config: Path | None) -> Path:
    """Return `output_dir` of the configuration, or the default if it cannot be loaded.

    Commands that show past runs work without the variables and files that a run needs. Raises
    ConfigError if the user named the file.
    """
    try:
        path = place.path(config) if config else find_config(place.root)
        return place.root / load(path, dict(os.environ)).config.output_dir
    except ConfigError as error:
        if config:
            raise
        if place.config:
            tell(f"agentest: {error}; runs are looked for in {_DEFAULT}")
        return place.root / _DEFAULT


def run_at(reference: str, place: RunFolders, config: Path | None) -> Path:
    """Return the file that a RUN argument means: an id, a prefix of one, `latest`, a folder or a file.

    Raises UsageError that lists the stored runs.
    """
    path = place.here / reference
    return path if path.is_file() else run_file(reference, runs_folder(place, config), place.here)


def run_here(reference: str) -> Path:
    """Return the file of a RUN argument, for commands without `--config`. Raises UsageError."""
    return run_at(reference, run_folders_of(Path.cwd()), None)
