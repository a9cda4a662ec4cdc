"""A file as it was read: its bytes, by which a later change of it is noticed."""

from __future__ import annotations

import hashlib
import os
import stat
import threading
from dataclasses import dataclass
from pathlib import Path

from agentest.support.errors import UsageError
from agentest.support.files import atomic_writer, user_bytes

_BOM = b"\xef\xbb\xbf"
_ONE_AT_A_TIME = threading.Lock()
"""Two pages that save at once: the second one is told of the first."""
MAX_BYTES = 50_000_000


class ChangedOnDisk(UsageError):
    """The file is not what the edit began from. `found`: what it is now; None where it is gone."""

    def __init__(self, message: str, found: Content | None) -> None:
        super().__init__(message)
        self.found = found


@dataclass(frozen=True, slots=True)
class Content:
    """A file of UTF-8 text. `name`: what messages call it."""

    path: Path
    name: str
    data: bytes

    @property
    def version(self) -> str:
        """Other bytes have another one."""
        return hashlib.sha256(self.data).hexdigest()[:32]

    @property
    def text(self) -> str:
        """The file without the mark of its byte order. Raises UsageError where it is no UTF-8."""
        try:
            return self.data.removeprefix(_BOM).decode()
        except UnicodeDecodeError as error:
            raise UsageError(
                f"{self.name}: is not UTF-8 text ({error.reason} at byte {error.start})"
            ) from None

    def with_text(self, text: str) -> Content:
        """The same file with another text. Raises UsageError for halves of characters."""
        mark = _BOM if self.data.startswith(_BOM) else b""
        try:
            return Content(self.path, self.name, mark + text.encode())
        except UnicodeEncodeError as error:
            raise UsageError(
                f"{self.name}: the text has half of a character, {text[error.start]!r}"
            ) from None


def read(path: Path, name: str) -> Content:
    """What a file holds now. Raises UsageError."""
    try:
        if path.stat().st_size > MAX_BYTES:
            raise UsageError(f"{name}: is larger than the {MAX_BYTES:,} bytes that are edited here")
        return Content(path, name, user_bytes(path))
    except FileNotFoundError:
        raise UsageError(f"{name}: does not exist any more; it was moved or deleted") from None
    except OSError as error:
        raise UsageError(f"{name}: cannot be read: {error.strerror or error}") from None


def check_version(path: Path, name: str, version: str | None) -> None:
    """Raise ChangedOnDisk where a file is not what it was.

    Args:
        version: what was read; None where there was no file.
    """
    if version is None:
        if os.path.lexists(path):
            raise ChangedOnDisk(
                f"{name}: is there already; open it, or choose another name", read(path, name)
            )
        return
    try:
        found = read(path, name)
    except UsageError as error:
        raise ChangedOnDisk(str(error), None) from None
    if found.version != version:
        raise ChangedOnDisk(f"{name}: has changed on disk since it was read; nothing was written", found)


def write(new: Content, version: str | None) -> Content:
    """Put a file in place of the version that was read. Raises ChangedOnDisk and UsageError.

    A reader finds the old file or the new one, with the permissions that it had.
    """
    try:
        with _ONE_AT_A_TIME:
            check_version(new.path, new.name, version)
            _replace(new, version)
    except OSError as error:
        raise UsageError(f"{new.name}: cannot be written: {error.strerror or error}") from None
    return new


def _replace(new: Content, version: str | None) -> None:
    mode = None if version is None else stat.S_IMODE(new.path.stat().st_mode)
    if mode is not None and not mode & 0o222:
        raise UsageError(f"{new.name}: is read-only, and was not written")
    with atomic_writer(new.path) as file:
        if mode is not None and hasattr(os, "fchmod"):
            os.fchmod(file.fileno(), mode)
        file.write(new.data)
        file.flush()
        # Once more, as late as can be: an editor may have saved the file in between.
        check_version(new.path, new.name, version)
