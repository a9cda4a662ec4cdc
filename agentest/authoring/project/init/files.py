"""Writing files where none are: what is there stays as it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from agentest.support.errors import UsageError

IGNORED = (".agentest/", ".env")
"""What does not belong into a repository: what runs write, and keys."""


class Deed(Enum):
    """What became of a file. The value is the word for it."""

    WROTE = "wrote"
    ADDED = "added to"
    STAYS = "stays"


@dataclass(frozen=True, slots=True, kw_only=True)
class Filed:
    """One file, and what became of it."""

    path: Path
    deed: Deed
    about: str
    """What it is, or why it stays: a few words."""


def make_folder(path: Path) -> None:
    """Make a folder and those above it. Raises UsageError."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise UsageError(f"{path} is a file, and a folder is expected; name another DIR") from None
    except OSError as error:
        raise _not_written(path, error) from None


def write_new(path: Path, text: str, about: str) -> Filed:
    """Write a file, with its folder, unless something is there already. Raises UsageError."""
    if path.parent.exists() or not path.parent.is_symlink():
        make_folder(path.parent)
    try:
        with path.open("x", encoding="utf-8", newline="\n") as file:
            file.write(text)
    except FileExistsError:
        return Filed(path=path, deed=Deed.STAYS, about="it was there")
    except OSError as error:
        raise _not_written(path, error) from None
    return Filed(path=path, deed=Deed.WROTE, about=about)


def ignore(folder: Path) -> Filed:
    """Have git ignore what does not belong into a repository; what is ignored already is not added again.

    Raises UsageError.
    """
    path = folder / ".gitignore"
    try:
        known = path.read_bytes().decode("utf-8", "surrogateescape") if path.exists() else None
        missing = [entry for entry in IGNORED if not _is_ignored(entry, known or "")]
        if missing:
            _append(path, known, missing)
    except OSError as error:
        raise _not_written(path, error) from None
    if not missing:
        return Filed(path=path, deed=Deed.STAYS, about=f"it has {' and '.join(IGNORED)}")
    deed = Deed.WROTE if known is None else Deed.ADDED
    return Filed(path=path, deed=deed, about=" and ".join(missing))


def _is_ignored(entry: str, text: str) -> bool:
    lines = {line.strip().lstrip("/").rstrip("/*") for line in text.splitlines()}
    return entry.rstrip("/") in lines


def _append(path: Path, known: str | None, entries: list[str]) -> None:
    """Add lines at the end, which may lack its line break, with the line breaks that the file has."""
    end = "\r\n" if known and "\r\n" in known else "\n"
    before = end if known and not known.endswith("\n") else ""
    with path.open("ab") as file:
        file.write((before + "".join(entry + end for entry in entries)).encode())


def _not_written(path: Path, error: OSError) -> UsageError:
    return UsageError(
        f"{path} cannot be written: {error.strerror or error}. What was written before it stays; "
        "see to its permissions, or name another DIR, and run agentest init again"
    )
