"""Import the user's Python: configuration modules, scenario files, objects named by import path."""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from importlib.machinery import SourceFileLoader
from importlib.util import find_spec
from itertools import takewhile
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any

from agentest.support.text import nearest

_NOT_THE_USERS = tuple(
    str(folder) + os.sep
    for folder in (Path(__file__).parents[1], sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib"))
)
_MAX_TRACEBACK_LINES = 30


class Imports:
    """Imports the user's files one after another.

    It caches what it knows of modules and folders, because scanning all of them for each file would take
    minutes if there are thousands. Files created in the meantime may be missed.
    """

    def __init__(self) -> None:
        self.files: set[Path] = set()
        """Files of the user's modules, including modules imported before or forgotten since."""
        self._seen = ""  # the last module at the previous look
        self._loaded: dict[str, dict[str, None]] = {}
        """First part of the name → names of the modules, in order."""
        self._last: Path | None = None  # the folder that was first on the import path the last time
        self._names: dict[Path, frozenset[str]] = {}
        importlib.invalidate_caches()
        self._record_imports()

    def import_file(self, path: Path, source: bytes | None = None) -> ModuleType:
        """Import a file under a unique module name, with its folder importable.

        Exceptions that the module raises at import are passed on unchanged.

        Args:
            source: imported in place of the file's content. The file need not exist, and nothing is written.
        """
        name = module_name(path)
        loader: SourceFileLoader | None = None
        if source is not None:
            loader = UnsavedSourceLoader(name, str(path), source)
        elif path.suffix == ".py":
            loader = AssertRewritingLoader(name, str(path))
        spec = importlib.util.spec_from_file_location(name, path, loader=loader)
        if spec is None or spec.loader is None:
            raise ImportError(f"{path} is not a Python file")
        module = importlib.util.module_from_spec(spec)
        self.files.add(path)
        sys.modules[name] = module
        with self.importable(path.parent):
            try:
                spec.loader.exec_module(module)
            except BaseException:
                sys.modules.pop(name, None)
                raise
        return module

    @contextmanager
    def importable(self, folder: Path) -> Iterator[None]:
        """Put a folder first on the import path, and move it to the end afterwards.

        It stays on the path because a mock's body may import when it is called. Two folders may each have a
        `helpers.py`, so a module from another folder is forgotten first.
        """
        entry = str(folder)
        while entry in sys.path:
            sys.path.remove(entry)
        self._forget_namesakes(folder)
        sys.path.insert(0, entry)
        try:
            yield
        finally:
            sys.path.remove(entry)
            sys.path.append(entry)
            self._record_imports()

    def _record_imports(self) -> None:
        names = list(sys.modules)
        for name in takewhile(lambda name: name != self._seen, reversed(names)):
            self._loaded.setdefault(name.partition(".")[0], {})[name] = None
            if file := _users_file(sys.modules.get(name)):
                self.files.add(Path(file))
        self._seen = names[-1]

    def _forget_namesakes(self, folder: Path) -> None:
        if folder == self._last:
            return  # modules imported since then were found in this folder first
        self._last = folder
        self._record_imports()
        if folder not in self._names:
            paths: list[Path] = []
            with suppress(OSError):
                paths += folder.iterdir()
            self._names[folder] = frozenset(path.name.removesuffix(".py") for path in paths)
        for top in self._names[folder] & self._loaded.keys():
            is_importable = (folder / f"{top}.py").is_file() or any((folder / top).glob("*.py"))
            for name in list(self._loaded[top]) if is_importable else ():
                if _is_from_other_folder(name, folder):
                    del sys.modules[name]
                if name not in sys.modules:
                    del self._loaded[top][name]
        self._seen = next(reversed(sys.modules))  # the previous last module may be gone


def import_file(path: Path) -> ModuleType:
    """Import a single user file (see `Imports.import_file`)."""
    return Imports().import_file(path)


def module_name(path: Path) -> str:
    """Return a readable module name that is unique for the file's path."""
    stem = "".join(c if c.isalnum() else "_" for c in path.name.removesuffix(".py"))
    return f"agentest_file_{stem}_{hashlib.sha1(os.fsencode(path)).hexdigest()[:10]}"


def _is_from_other_folder(name: str, folder: Path) -> bool:
    module, top = sys.modules.get(name), name.partition(".")[0]
    if file := getattr(module, "__file__", None):
        inside = Path(file) == folder / f"{top}.py" or Path(file).is_relative_to(folder / top)
        return is_users_file(file) and not inside
    paths = (entry for entry in getattr(module, "__path__", ()) if not entry.startswith(_NOT_THE_USERS))
    return any(not Path(entry).is_relative_to(folder / top) for entry in paths)


def import_object(reference: str, root: Path) -> Any:
    """Return the object that `pkg.module:name` names, with the working directory importable.

    Raises ValueError with a sentence for the user if that fails.
    """
    module_path, colon, attribute = reference.partition(":")
    if not colon or not module_path or not attribute or module_path.startswith("."):
        raise ValueError(f"{reference!r} is not an import path of the form pkg.module:Name")
    if module_path.endswith(".py") and not Path(module_path).is_absolute():
        likely = ".".join(Path(module_path).with_suffix("").parts)
        raise ValueError(f"{reference!r} names a file; its import path is {f'{likely}:{attribute}'!r}")
    try:
        with Imports().importable(root):
            target: Any = importlib.import_module(module_path)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # the user's module may raise anything, even SystemExit
        missing = error.name if isinstance(error, ModuleNotFoundError) else None
        # A wrong working directory is noticed if the message says where the module was searched.
        searched = "; it is looked for in the working directory and where packages are installed"
        is_missing = missing is not None and f"{module_path}.".startswith(f"{missing}.")
        raise ValueError(
            f"importing {module_path!r} failed: {type(error).__name__}: {error}{searched * is_missing}"
        ) from error
    for part in attribute.split("."):
        if not hasattr(target, part):
            close = nearest(part, [name for name in dir(target) if not name.startswith("__")])
            hint = f"; did you mean {close!r}?" if close else ""
            raise ValueError(f"module {module_path!r} has no {attribute!r}{hint}")
        target = getattr(target, part)
    return target


def has_module(name: str, root: Path) -> bool:
    """Return True if a module with this name can be found, with the working directory importable.

    Only its parent packages are imported. If one fails to import, the module does not count as found.
    """
    if not all(part.isidentifier() for part in name.split(".")):
        return False
    try:
        with Imports().importable(root):
            return importlib.util.find_spec(name) is not None
    except KeyboardInterrupt:
        raise
    except BaseException:  # noqa: BLE001 - the user's packages may raise anything
        return False


def imported_files() -> frozenset[Path]:
    """Return the files of all user modules."""
    files = map(_users_file, list(sys.modules.values()))
    return frozenset(Path(file) for file in files if file)


def forget_modules(files: frozenset[Path]) -> None:
    """Remove modules, so that the next import reads their files again."""
    for name, module in list(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and Path(file) in files:
            del sys.modules[name]


def _users_file(module: ModuleType | None) -> str | None:
    file = getattr(module, "__file__", None)
    return file if file and is_users_file(file) else None


def is_users_file(file: str) -> bool:
    """Return True for the user's own Python files: not Python's, not installed, not Agentest's."""
    if not file.endswith(".py") or file.startswith(_NOT_THE_USERS):
        return False
    return not {"site-packages", "dist-packages"} & set(Path(file).parts)


def user_traceback(error: BaseException, path: Path) -> tuple[str, int]:
    """Return the traceback within the user's files, starting at `path`, and the line in that file."""
    if isinstance(error, SyntaxError) and error.filename == str(path):
        text = "".join(traceback.format_exception_only(error))
        return text.strip(), error.lineno or 1
    frames = traceback.extract_tb(error.__traceback__)
    start = next((i for i, frame in enumerate(frames) if frame.filename == str(path)), len(frames))
    user_frames = [frame for frame in frames[start:] if is_users_file(frame.filename)]
    line = (user_frames[0].lineno if user_frames else None) or 1
    text = "".join(traceback.format_list(user_frames)) + "".join(traceback.format_exception_only(error))
    lines = text.strip().splitlines()
    if len(lines) > _MAX_TRACEBACK_LINES:
        lines = ["…", *lines[-_MAX_TRACEBACK_LINES:]]
    return "\n".join(lines), line


class AssertRewritingLoader(SourceFileLoader):
    """Loads a file with its assertions rewritten by pytest, so that errors show the values on both sides.

    A file without `assert`, or without pytest, is loaded normally. Rewritten code is not cached as bytecode,
    so other imports of the file are not affected.
    """

    def get_code(self, fullname: str) -> CodeType | None:
        """Return the code like Python's own loader, with rewritten assertions."""
        path = self.get_filename(fullname)
        try:
            data = self.get_data(path)
        except OSError:
            return super().get_code(fullname)
        rewritten = _rewrite_asserts(data, path) if b"assert" in data else None
        return rewritten or super().get_code(fullname)


class UnsavedSourceLoader(AssertRewritingLoader):
    """Loads a source that is in no file, as if it were in the file."""

    def __init__(self, fullname: str, path: str, source: bytes) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_data(self, path: str) -> bytes:  # noqa: ARG002
        return self._source

    def path_stats(self, path: str) -> Any:
        """Raise OSError, so that no bytecode is read or written."""
        raise OSError(f"{path} is not saved")


def _rewrite_asserts(data: bytes, path: str) -> CodeType | None:
    try:
        tree = ast.parse(data, path)
        if not any(isinstance(node, ast.Assert) for node in ast.walk(tree)) or not find_spec("_pytest"):
            return None
        # This is not a public interface of pytest, but it has existed as long as its assertion rewriting.
        from _pytest.assertion.rewrite import rewrite_asserts

        rewrite_asserts(tree, data, path)
        return compile(tree, path, "exec", dont_inherit=True)
    except Exception:  # noqa: BLE001 - Python then reports any error in the file
        return None


def raised_at(error: BaseException, code: Any = None) -> str:
    """Return file and line of the innermost frame of an error in the user's files.

    Returns "" if there is none.

    Args:
        code: a function or object whose definition is used if no frame is in the user's files.
    """
    places = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    users_frames = [f"{Path(file).name}:{line}" for file, line in places if is_users_file(file)]
    return users_frames[-1] if users_frames else defined_at(code)


def called_at(frame: FrameType | None) -> str:
    """Return file and line of a frame, or of its nearest caller, in the user's files; "" if there is none."""
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}" if frame else ""


def defined_at(code: Any) -> str:
    """Return file and line of a user function; "" for anything else."""
    while isinstance(code, partial):
        code = code.func
    compiled = getattr(inspect.unwrap(code) if inspect.isroutine(code) else None, "__code__", None)
    if compiled is None or not is_users_file(compiled.co_filename):
        return ""
    return f"{Path(compiled.co_filename).name}:{compiled.co_firstlineno}"
