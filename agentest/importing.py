"""Importing the user's Python: configuration modules, scenario files, things named by import path."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

_NOT_THE_USERS = tuple(
    str(folder) + os.sep
    for folder in (Path(__file__).parent, sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
)
_MAX_TRACEBACK_LINES = 30


def import_file(path: Path) -> ModuleType:
    """Import a file under a module name of its own, with its folder importable.

    Whatever the module raises at import is passed on as it is.
    """
    name = module_name(path)
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        with importable(path.parent):
            spec.loader.exec_module(module)
    except BaseException:
        sys.modules.pop(name, None)
        raise
    return module


def module_name(path: Path) -> str:
    """A module name that no other file has: readable, and unique by the whole path."""
    stem = "".join(c if c.isalnum() else "_" for c in path.name.removesuffix(".py"))
    return f"agentest_file_{stem}_{hashlib.sha1(str(path).encode()).hexdigest()[:10]}"


@contextmanager
def importable(folder: Path) -> Iterator[None]:
    """Put a folder first on the import path, and keep it there behind everything else afterwards.

    "Keep", because a mock's body may import when it is called. Two folders may each have a `helpers.py`:
    one that came from another folder is forgotten first, so that this folder's own is found.
    """
    entry = str(folder)
    while entry in sys.path:
        sys.path.remove(entry)
    _forget_namesakes(folder)
    sys.path.insert(0, entry)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        sys.path.remove(entry)
        sys.path.append(entry)


def _forget_namesakes(folder: Path) -> None:
    own = {p.stem for p in folder.glob("*.py")} | {p.parent.name for p in folder.glob("*/*.py")}
    for name, module in list(sys.modules.items()):
        if name.partition(".")[0] in own and _is_anothers(module, folder):
            del sys.modules[name]


def _is_anothers(module: ModuleType, folder: Path) -> bool:
    """Whether a module of the user's came from another folder. A folder without `__init__.py` has no file."""
    file = getattr(module, "__file__", None)
    if file:
        return _is_users_file(file) and not Path(file).is_relative_to(folder)
    return any(not Path(entry).is_relative_to(folder) for entry in getattr(module, "__path__", ()))


def import_object(reference: str, root: Path) -> Any:
    """The object that `pkg.module:name` names, with the working directory importable.

    Raises ValueError with a sentence for the user when it cannot be had.
    """
    module_path, colon, attribute = reference.partition(":")
    if not colon or not module_path or not attribute:
        raise ValueError(f"{reference!r} is not an import path of the form pkg.module:Name")
    try:
        with importable(root):
            found: Any = importlib.import_module(module_path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's module may raise anything, sys.exit() too
        raise ValueError(f"importing {module_path!r} failed: {type(error).__name__}: {error}") from error
    for part in attribute.split("."):
        if not hasattr(found, part):
            raise ValueError(f"module {module_path!r} has no {attribute!r}")
        found = getattr(found, part)
    return found


def imported_files(since: Mapping[str, ModuleType]) -> frozenset[Path]:
    """Files of the user's modules that were imported since `dict(sys.modules)` was taken."""
    new = (module for name, module in list(sys.modules.items()) if since.get(name) is not module)
    files = (getattr(module, "__file__", None) for module in new)
    return frozenset(Path(file) for file in files if file and _is_users_file(file))


def forget_modules(files: frozenset[Path]) -> None:
    """Drop modules, so that the next import reads their files again."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and Path(file) in files:
            del sys.modules[name]


def _is_users_file(file: str) -> bool:
    if not file.endswith(".py") or file.startswith(_NOT_THE_USERS):
        return False
    return not {"site-packages", "dist-packages"} & set(Path(file).parts)


def user_traceback(error: BaseException, path: Path) -> tuple[str, int]:
    """The traceback in the user's own files, from the given one on, and that file's line in it."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        shown = "".join(traceback.format_exception_only(error))
        return shown.strip(), error.lineno or 1
    frames = traceback.extract_tb(error.__traceback__)
    start = next((i for i, frame in enumerate(frames) if frame.filename == str(path)), len(frames))
    kept = [frame for frame in frames[start:] if _is_users_file(frame.filename)]
    line = (kept[0].lineno if kept else None) or 1
    shown = "".join(traceback.format_list(kept)) + "".join(traceback.format_exception_only(error))
    lines = shown.strip().splitlines()
    if len(lines) > _MAX_TRACEBACK_LINES:
        lines = ["…", *lines[-_MAX_TRACEBACK_LINES:]]
    return "\n".join(lines), line
