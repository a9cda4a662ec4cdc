"""Why a cluster cannot be joined, in words that say what to do about it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path

from agentest.workers.ray.files import Files

WHOLE = "pip install 'agentest-sim[ray]'"
_TOO_LARGE = re.compile(r"exceeds the maximum size|too large|max(imum)? (package )?size", re.I)
_NO_TOKEN = re.compile(r"AuthenticationError|InvalidAuthToken|UNAUTHENTICATED|authentication token", re.I)
_OTHER_VERSION = re.compile(r"version mismatch", re.I)


def not_whole(error: ImportError) -> str:
    """What to say of a Ray that lacks something which it imports."""
    return f"--engine ray: Ray is not installed with all that it needs ({in_a_line(str(error))}): {WHOLE}"


def not_joined(error: BaseException, files: Files) -> str:
    """What to say of a cluster that cannot be joined."""
    said = list(_said(error))
    whole = "\n".join(said)
    if _OTHER_VERSION.search(whole):
        told = next(text for text in said if _OTHER_VERSION.search(text))
        return (
            "the cluster has other versions of Ray or Python than this process; both must be the same. "
            f"Ray says: {in_a_line(told)}"
        )
    if _NO_TOKEN.search(whole):
        return (
            "the cluster asks for a token, and there is none here, or another one: set RAY_AUTH_MODE=token, "
            "with the token in RAY_AUTH_TOKEN or ~/.ray/auth_token"
        )
    if _TOO_LARGE.search(whole):
        return (
            f"the files of {files.root} are too large to be sent to the nodes; largest: "
            f"{', '.join(_largest(files))}. Name what the run does not need in .rayignore "
            "(written as in .gitignore)"
        )
    return f"the cluster cannot be joined: {in_a_line(said[0])}"


def _said(error: BaseException | None) -> Iterator[str]:
    """What an error says, and those that led to it: Ray often tells the cause there alone."""
    while error is not None:
        yield str(error)
        error = error.__cause__ or error.__context__


def in_a_line(text: str) -> str:
    """What Ray says, in so few words that it can be shown."""
    return " ".join(text.split())[:500]


def _largest(files: Files) -> list[str]:
    """The largest entries of the root, by what is below them; what is never sent is left out."""
    sizes: dict[str, int] = {}
    for folder, folders, names in os.walk(files.root):
        folders[:] = [name for name in folders if name not in files.excludes]
        for name in names:
            path = Path(folder, name)
            top = path.relative_to(files.root).parts[0]
            sizes[top] = sizes.get(top, 0) + (path.lstat().st_size if not path.is_symlink() else 0)
    largest = sorted(sizes, key=lambda name: -sizes[name])[:3]
    return [f"{name} ({sizes[name] / 1e6:.0f} MB)" for name in largest if sizes[name] >= 1e6]
