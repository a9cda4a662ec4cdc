"""Which files and cases of evaluation sets are wanted."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentest.support.errors import UsageError

TEST_SUFFIX = ".test.json"
"""How the names of sets end that a folder runs."""
EVAL_SET_SUFFIX = ".evalset.json"
"""How the names of sets end that a folder runs only where all are wanted."""
SUFFIXES = (TEST_SUFFIX, EVAL_SET_SUFFIX)

_DRIVE = re.compile(r"[A-Za-z]:[\\/]")


@dataclass(frozen=True, slots=True)
class FoundSets:
    """The evaluation sets of a folder that are wanted, in the order of their paths."""

    files: tuple[Path, ...]
    note: str | None = None
    """What was left out, and how to have it, too."""


def find_eval_sets(folder: Path, *, every: bool = False) -> FoundSets:
    """The `*.test.json` below a folder, with `every` also `*.evalset.json`. Raises UsageError when none."""
    if not folder.is_dir():
        raise UsageError(f"{folder}: is not a folder")
    there = eval_sets_in(folder)
    if not there:
        raise UsageError(f"{folder}: no evaluation sets in it; their names end in {' or '.join(SUFFIXES)}")
    wanted = tuple(file for file in there if every or file.name.endswith(TEST_SUFFIX))
    others = len(there) - len(wanted)
    shown = f"{others} file{'s' * (others > 1)} *{EVAL_SET_SUFFIX}"
    how = f"--all (from Python: every_set=True) runs {'it' if others == 1 else 'them'}"
    if not wanted:
        raise UsageError(f"{folder}: no *{TEST_SUFFIX} in it, but {shown}: {how}")
    return FoundSets(wanted, f"{folder}: {shown} left out; {how}, too" if others else None)


def eval_sets_in(folder: Path) -> list[Path]:
    """All evaluation sets below a folder, in the order of their paths."""
    return sorted(
        Path(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if name.endswith(SUFFIXES)
    )


def parse_target(text: str, root: Path = Path()) -> tuple[str, tuple[str, ...]]:
    """A file or folder, and which cases are wanted (none: all): `orders.test.json:lookup,cancel`.

    A path below `root` that exists as it stands is never split. Raises UsageError where no case follows
    the colon.
    """
    splits = [(text, None), *_splits(text)]
    there = [split for split in splits if split[0] and _exists(root / split[0])]
    path, wanted = next(iter(there), splits[1] if len(splits) > 1 else splits[0])
    if wanted is None:
        return path, ()
    cases = tuple(dict.fromkeys(name.strip() for name in wanted.split(",") if name.strip()))
    if not cases:
        raise UsageError(f"{text}: no case after the colon; write {path}:case1,case2 or {path}")
    return path, cases


def set_name(path: Path) -> str:
    """What a set without a name is called: its file's name without the suffix."""
    for suffix in (*SUFFIXES, ".json"):
        if path.name.endswith(suffix) and path.name != suffix:
            return path.name.removesuffix(suffix)
    return path.name


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # such as a name that is too long for a file: it is a list of cases
        return False


def _splits(text: str) -> Iterator[tuple[str, str]]:
    """Every way to split at a colon, the longest path first; a Windows drive's colon is none."""
    first = 2 if _DRIVE.match(text) else 1
    for place in range(len(text) - 1, first - 1, -1):
        if text[place] == ":":
            yield text[:place], text[place + 1 :]
