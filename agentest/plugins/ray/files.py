"""Select the project files and environment variables that are sent to the nodes of a Ray cluster."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from dotenv import dotenv_values

from agentest.models.providers import DIRECT, key_variables
from agentest.runner.prepare import Prepared
from agentest.support.errors import UsageError
from agentest.support.lazy_dataclasses import dataclass

_EXCLUDED = (
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
"""The last pattern matches files with keys, which are sent separately."""


@dataclass(frozen=True, slots=True)
class ProjectFiles:
    """The folder to send, with exclusions in addition to those in .gitignore."""

    root: Path
    excludes: tuple[str, ...] = ()
    size: int = 0
    """Bytes, including files that .gitignore and .rayignore exclude."""


def files_of(prepared: Prepared) -> ProjectFiles:
    """Return the files of a run."""
    root = prepared.request.root
    # Not every version of Ray reads .rayignore. Our patterns come last, so that nothing there overrides them.
    ignore_file = root / ".rayignore"
    ignored = ignore_file.read_text(encoding="utf-8").splitlines() if ignore_file.exists() else []
    environments = tuple(path.parent.name for path in root.glob("*/pyvenv.cfg"))
    output = os.path.normpath(prepared.loaded.config.output_dir).strip("/")
    size, loops = _scan(root)
    return ProjectFiles(root, (*ignored, *environments, *loops, f"/{output}", *_EXCLUDED), size)


def _scan(root: Path) -> tuple[int, list[str]]:
    """Return the size of all files, and symbolic links that lead to a parent folder.

    Ray would follow such links until the system stops it, and send everything again each time.
    """
    size, loops = 0, []
    for folder, folders, names in os.walk(root):
        folders[:] = [name for name in folders if name not in _EXCLUDED]
        for path in (Path(folder, name) for name in folders):
            if path.is_symlink() and path.parent.resolve().is_relative_to(path.resolve()):
                loops.append(f"/{path.relative_to(root).as_posix()}")
        size += sum(_file_size(Path(folder, name)) for name in names)
    return size, loops


def python_files(root: Path) -> Iterator[Path]:
    """Yield the project's Python files, including an agent's own modules, which only workers import."""
    for folder, folders, names in os.walk(root):
        folders[:] = [
            name
            for name in folders
            if name not in _EXCLUDED and not Path(folder, name, "pyvenv.cfg").exists()
        ]
        yield from (Path(folder, name) for name in names if name.endswith(".py"))


def _file_size(file: Path) -> int:
    try:
        return file.lstat().st_size
    except FileNotFoundError:  # deleted in the meantime
        return 0


def check_inside(root: Path, named: Iterable[Path]) -> None:
    """Raise UsageError for a file outside of the folder that is sent."""
    outside = [path for path in named if not path.resolve().is_relative_to(root.resolve())]
    if outside:
        raise UsageError(
            f"--engine ray: {outside[0]} is not below {root}, the folder that is sent to the "
            f"nodes. Start the run with --cwd in a folder above both, or move the file"
        )


_PLACEHOLDER = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)")
_ENVIRON_ACCESS = re.compile(r"""(?:environ(?:\.get)?|getenv)\s*[\[(]\s*["']([A-Za-z_][A-Za-z0-9_]*)["']""")
_ALWAYS_SENT = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
_PROVIDER_PREFIXES = {
    "bedrock": ("AWS_",),
    "sagemaker": ("AWS_",),
    "vertex_ai": ("VERTEX", "GOOGLE_"),
    "gemini": ("GEMINI_", "GOOGLE_"),
    "huggingface": ("HF_", "HUGGINGFACE_"),
}


def needed_variables(prepared: Prepared, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables named in the configuration, `.env` and project files, those of providers, and
    ours.
    """
    config = prepared.loaded.path
    names = set(_find_variables(config)) | set(dotenv_values(config.parent / ".env"))
    for file in {*prepared.files, *python_files(prepared.request.root)}:
        names |= set(_find_variables(file))
    specs = (prepared.user, prepared.judge, prepared.confirm, *prepared.named.values())
    providers = {spec.name.partition("/")[0] for spec in specs if spec}
    beginnings = ["AGENTEST_"]
    for provider in providers:
        direct = DIRECT.get(provider)
        names |= {*key_variables(provider), *(direct.base_variables if direct else ())}
        beginnings += [f"{provider.upper()}_", *_PROVIDER_PREFIXES.get(provider, ())]
    return {
        name: value
        for name, value in environ.items()
        if name in names or name.startswith(tuple(beginnings)) or name.lower() in _ALWAYS_SENT
    }


def _find_variables(file: Path) -> Iterable[str]:
    """Find variables in one of the user's files, in a placeholder or where Python reads them."""
    try:
        text = file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):  # reported where the file is needed
        return ()
    return (*_PLACEHOLDER.findall(text), *_ENVIRON_ACCESS.findall(text))
