"""Read user files with limits, write files atomically, and format paths for messages."""

from __future__ import annotations

import errno
import os
import re
import secrets
import stat
from codecs import BOM_UTF16_BE, BOM_UTF16_LE
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from subprocess import PIPE, TimeoutExpired
from typing import BinaryIO, Literal, TextIO

from agentest.support.errors import UsageError, errors_as
from agentest.support.interrupts import start_helper

_OTHERS = 0o077


def make_folder(path: Path, *, private: bool = False) -> None:
    """Create a folder and its parents. Raises OSError.

    Only its owner may enter a private folder, and what is created in one is private, too.
    """
    if not path.exists():
        make_folder(path.parent)
        private = private or _is_private(path.parent)
        path.mkdir(0o777 & ~_OTHERS if private else 0o777, exist_ok=True)


def make_private_folder(path: Path) -> None:
    """Create a folder into which only its owner may look, or make it one. Raises OSError."""
    make_folder(path, private=True)
    with suppress(PermissionError):  # it belongs to somebody else
        path.chmod(path.stat().st_mode & ~_OTHERS)


def _is_private(folder: Path) -> bool:
    return not folder.stat().st_mode & _OTHERS


def create_file(path: str | Path, flags: int) -> int:
    """Open a file, and create it with the permissions that its folder demands: an `opener` for `open`."""
    return os.open(path, flags, 0o666 & ~_OTHERS if _is_private(Path(path).parent) else 0o666)


@contextmanager
def atomic_writer(path: Path) -> Iterator[BinaryIO]:
    """Open a file that replaces `path` when the block ends without an error.

    Creates the folder if necessary. Raises OSError, and leaves no partial file behind.
    """
    make_folder(path.parent)
    temporary, file = _beside(path)
    try:
        with file:
            yield file
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def report_writer(path: Path) -> Iterator[BinaryIO]:
    """Open a file like `atomic_writer`, but write directly to a device or pipe (`/dev/stdout`)."""
    if is_special(path):
        with path.open("ab") as file:
            yield file
    else:
        with atomic_writer(path) as file:
            yield file


def open_text(path: Path) -> TextIO:
    """Open a text file for writing row by row, and create its folder if necessary. Raises OSError."""
    make_folder(path.parent)
    mode: Literal["a", "w"] = "a" if is_special(path) else "w"
    return open(path, mode, encoding="utf-8", buffering=1, opener=create_file)


def check_writable(path: Path) -> None:
    """Create the folder if necessary and check that files can be created in it. Raises OSError."""
    if is_special(path):
        path.stat()
        return
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "it is a folder")
    for folder in path.parents:
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(errno.ENOTDIR, f"{folder.name} is not a folder")
    make_folder(path.parent)
    temporary, file = _beside(path)
    file.close()
    temporary.unlink()


def is_special(path: Path) -> bool:
    """Return True for paths that must not be replaced: a device, a pipe, or another process's open file."""
    absolute = path.absolute()
    if absolute.parts[1:2] in (("dev",), ("proc",)) and absolute.parts[:3] != ("/", "dev", "shm"):
        return True
    return path.exists() and not path.is_file() and not path.is_dir()


def _beside(path: Path) -> tuple[Path, BinaryIO]:
    """Create a file in the same folder.

    Its name is unpredictable, so no link can be placed there in advance, and no existing file is written to.
    """
    while True:
        temporary = path.with_name(f".agentest-{secrets.token_hex(8)}.tmp")
        with suppress(FileExistsError):
            return temporary, open(temporary, "xb", opener=create_file)


def write_atomically(path: Path, content: bytes) -> None:
    """Write a whole file, and create its folder if necessary. Raises OSError."""
    with atomic_writer(path) as file:
        file.write(content)


def write_for_user(path: Path, content: bytes, option: str = "") -> None:
    """Write a file like `write_atomically`. Raises UsageError, which names the option if there is one."""
    where = f"{option}: {path}" if option else str(path)
    with errors_as(UsageError, f"{where} cannot be written: ", OSError):
        write_atomically(path, content)


_CONTROL = re.compile("[\x00-\x1f\x7f-\x9f\u2028\u2029]")
_MOST_NAME_BYTES = 255
_MOST_PATH_BYTES = 4000


def name_problem(path: str) -> str | None:
    """Return why a file cannot have this path, as words that follow the path in a message; None if it can."""
    if _CONTROL.search(path):
        return "has a line break or another control character; write a name without"
    try:
        encoded = os.fsencode(path)
    except UnicodeEncodeError:
        return "has half of a character; write a name without"
    longest = max(map(len, encoded.split(b"/")))
    if longest > _MOST_NAME_BYTES:
        return f"has a name of {longest:,} bytes, and {_MOST_NAME_BYTES} are allowed; write a shorter one"
    if len(encoded) > _MOST_PATH_BYTES:
        return f"is longer than {_MOST_PATH_BYTES:,} bytes; write a shorter one"
    return None


_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


def readable(name: str) -> str:
    """Convert a path, or a text with paths in it, to text that can be written anywhere.

    Bytes of a name that are not UTF-8 are shown like `\\xe9`. Python represents them as lone surrogates,
    which terminals and files reject.
    """
    return _LONE_SURROGATE.sub(_escaped, name)


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


MOST_BYTES = 50_000_000  # maximum size of a user's file. Larger ones are mistakes.
_KINDS = (
    (stat.S_ISFIFO, "a named pipe"),
    (stat.S_ISCHR, "a device"),
    (stat.S_ISBLK, "a device"),
    (stat.S_ISSOCK, "a socket"),
)


def check_user_file(path: Path | int, most: int | None = MOST_BYTES) -> None:
    """Raise OSError if a file cannot be read to its end, without opening it.

    A pipe or a device may never end, and opening one may block forever.

    Args:
        path: a path or a descriptor.
        most: maximum size in bytes; None for any size.
    """
    status = os.stat(path)  # noqa: PTH116
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    kind = next((kind for is_one, kind in _KINDS if is_one(status.st_mode)), None)
    if kind:
        raise OSError(errno.EINVAL, f"it is {kind}, not a file")
    if most is not None and status.st_size > most:
        raise OSError(errno.EFBIG, f"it has {status.st_size:,} bytes; at most {most:,} are read")


def read_user_bytes(path: Path, most: int | None = MOST_BYTES) -> bytes:
    """Return the content of a user's file. Raises OSError, also if `check_user_file` does."""
    check_user_file(path, most)
    with os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0)), "rb") as file:
        check_user_file(file.fileno(), most)  # it may have been replaced
        content = file.read() if most is None else file.read(most + 1)
    if most is not None and len(content) > most:  # it grows, or does not report its size
        raise OSError(errno.EFBIG, f"it has more than {most:,} bytes")
    return content


def user_text(path: Path, most: int | None = MOST_BYTES) -> str:
    """Return the text of a user's file: UTF-8, or UTF-16 with its byte order mark. Raises OSError."""
    content = read_user_bytes(path, most)
    if content.startswith(b"version https://git-lfs."):
        raise OSError(errno.EINVAL, "it is a pointer of Git LFS; get the file itself: git lfs pull")
    try:
        text = content.decode("utf-16" if content.startswith((BOM_UTF16_LE, BOM_UTF16_BE)) else "utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"it is not UTF-8 text ({error.reason} at byte {error.start}); save it as UTF-8"
        raise OSError(errno.EILSEQ, problem) from None
    return text.replace("\r\n", "\n").replace("\r", "\n") if "\r" in text else text


def read_text_file(path: Path) -> str:
    """Return the text of a user's file. Raises ValueError with the problem, without the path."""
    try:
        text = user_text(path)
    except FileNotFoundError:
        raise ValueError("does not exist") from None
    except OSError as error:
        raise ValueError(f"cannot be read: {error.strerror or error}") from None
    if not text.strip():
        raise ValueError("is empty")
    return text


EVERYTHING = ("**", "*")


def patterns(globs: Iterable[str]) -> list[tuple[str, ...]]:
    patterns = [tuple(part for part in glob.split("/") if part not in ("", ".")) for glob in globs]
    # `a/**` matches the content of `a`, not `a` itself.
    return [(*pattern, "*") if pattern[-1:] == ("**",) else pattern for pattern in patterns]


def matches_any(parts: tuple[str, ...], patterns: Iterable[tuple[str, ...]]) -> bool:
    return any(_matches_glob(parts, pattern) for pattern in patterns)


def _matches_glob(parts: tuple[str, ...], pattern: tuple[str, ...]) -> bool:
    # `**` matches any number of parts, including none.
    reached = {0}  # possible numbers of path parts matched so far
    for piece in pattern:
        if piece == "**":
            reached = set(range(min(reached), len(parts) + 1))
        else:
            reached = {n + 1 for n in reached if n < len(parts) and fnmatchcase(parts[n], piece)}
        if not reached:
            return False
    return len(parts) in reached


def contains_any(text: str, parts: Iterable[str]) -> bool:
    """Return True if the text contains one of the parts, ignoring case."""
    return any(part.casefold() in text.casefold() for part in parts)


def shown_path(path: Path | str, root: Path) -> str:
    """Format a path for users: relative to the working directory if possible, with forward slashes.

    Bytes that are not text are escaped (see `readable`).
    """
    path = Path(path)
    for folder in (root, root.resolve()):
        if path.is_relative_to(folder):
            return readable(path.relative_to(folder).as_posix())
    return readable(path.as_posix())


def path_from(folder: Path, path: Path) -> str:
    """Return a path as a user in `folder` would write it."""
    try:
        return readable(Path(os.path.relpath(path, folder)).as_posix())
    except ValueError:  # on another drive
        return readable(path.as_posix())


def modified_ns(path: Path) -> int:
    """Return when a file was changed, in nanoseconds; 0 if it does not exist."""
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


def moved(path: Path, old: Path, new: Path) -> Path:
    """Return a file's path after its folder moved from `old` to `new`. Files outside of `old` stay."""
    full, root = path.resolve(), old.resolve()
    return new / full.relative_to(root) if full.is_relative_to(root) else path


_TIMEOUT_S = 2.0
_CI_VARIABLES = ("GITHUB_SHA", "CI_COMMIT_SHA", "GIT_COMMIT")
"""Variables with the commit that CI sets for jobs, whose image may lack git."""


def commit_of(folder: Path, environ: Mapping[str, str] = os.environ) -> str | None:
    """Return the commit that is checked out in a folder; None if it is unknown."""
    words = ["git", "-C", str(folder), "rev-parse", "--verify", "--quiet", "HEAD"]
    commit = ""
    env = {**environ, "GIT_OPTIONAL_LOCKS": "0"}
    with suppress(OSError, TimeoutExpired), start_helper(words, stdout=PIPE, env=env) as git:
        try:
            commit = git.communicate(timeout=_TIMEOUT_S)[0].decode("ascii", "replace").strip()
        finally:
            git.kill()
    return commit or next((environ[name] for name in _CI_VARIABLES if environ.get(name)), None)
