"""`agentest init`: what was written, and what to do next, as lines."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from pathlib import Path

from agentest.authoring.project.init.files import Filed
from agentest.authoring.project.init.project import Begun, Step, Wish, begin
from agentest.support.errors import ExitCode
from agentest.support.paths import path_from
from agentest.support.terminal import clean, say, tell


def init(wish: Wish) -> ExitCode:
    """Write a project's first files. Raises UsageError."""
    begun = begin(wish)
    for line in (*_files(begun.files), *_next(wish.folder, begun)):
        say(line)
    for note in begun.notes:
        tell(f"agentest: {note}")
    return ExitCode.PASSED if begun.is_known else ExitCode.ERRORED


def _files(files: tuple[Filed, ...]) -> Iterator[str]:
    shown = [clean(path_from(Path.cwd(), file.path)) for file in files]
    width = max(map(len, shown))
    for name, file in zip(shown, files, strict=True):
        yield f"{file.deed.value:<8}  {name:<{width}}  {clean(file.about)}"


def _next(folder: Path, begun: Begun) -> Iterator[str]:
    is_here = folder.absolute().resolve() == Path.cwd().resolve()
    there = "" if is_here else f"cd {shlex.quote(clean(str(folder)))} && "
    yield ""
    if begun.step is Step.RUN:
        yield f"Next: {there}agentest run"
        return
    yield "Next:" if begun.step is Step.LOOK else "Next: see to `agent` in the configuration, then"
    yield f"  {there}agentest doctor"
    yield f"  {there}agentest run"
