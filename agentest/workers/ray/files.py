"""The project's files, as they travel to the nodes."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from agentest.runner.prepare import Prepared
from agentest.support.errors import UsageError

_NEVER = (
    ".git",
    ".venv",
    "venv",
    "node_modules",
    "__pycache__",
    ".mypy_cache",
    ".pytest_cache",
    ".ruff_cache",
    ".tox",
    ".nox",
    ".env*",
)
"""The last one holds keys, which travel by themselves."""


@dataclass(frozen=True, slots=True)
class Files:
    """A folder, and what of it does not travel besides what .gitignore names."""

    root: Path
    excludes: tuple[str, ...] = ()
    size: int = 0
    """Bytes; what .gitignore and .rayignore name is counted, too."""


def files_of(prepared: Prepared) -> Files:
    """The files of a run."""
    root = prepared.request.root
    # Not every version of Ray reads .rayignore itself. Ours come last: nothing there may undo them.
    ignored = tuple(_lines(root / ".rayignore"))
    environments = tuple(path.parent.name for path in root.glob("*/pyvenv.cfg"))
    output = os.path.normpath(prepared.loaded.config.output_dir).strip("/")
    size, loops = _looked_through(root)
    return Files(root, (*ignored, *environments, *loops, f"/{output}", *_NEVER), size)


def _looked_through(root: Path) -> tuple[int, list[str]]:
    """The size of all files, and the links that lead back to a folder above them: Ray would follow them until
    the system stops it, and send everything again each time."""
    size, loops = 0, []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NEVER]
        for path in (Path(folder, name) for name in folders):
            if path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve()):
                loops.append(f"/{path.relative_to(root).as_posix()}")
        size += sum(_size(Path(folder, name)) for name in names)
    return size, loops


def python_files(root: Path) -> Iterator[Path]:
    """Those of the project; an agent's own modules are among them, which only a worker imports."""
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _NEVER and not _is_environment(folder, name)]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _is_environment(folder: str, name: str) -> bool:
    return Path(folder, name, "pyvenv.cfg").exists()


def _size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except FileNotFoundError:  # it is gone by now
        return 0


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []


def check_inside(root: Path, named: Iterable[Path]) -> None:
    """Raise UsageError for a file outside of the folder that travels."""
    outside = [path for path in named if not path.resolve().is_relative_to(root.resolve())]
    if outside:
        raise UsageError(
            f"--engine ray: {outside[0]} is not below {root}, which is what is sent to the nodes. "
            "Start the run with --cwd in a folder above both, or move the file"
        )
