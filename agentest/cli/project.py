"""`agentest doctor`: a line for each thing that was looked at, and what to do next below it."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from textwrap import wrap

from agentest.authoring.check import Check, Mark
from agentest.authoring.doctor import examine
from agentest.authoring.new_project import Begun, Filed, Step, Wish, begin
from agentest.runner.prepare import Prepared, Request
from agentest.support.errors import ExitCode
from agentest.support.files import path_from
from agentest.support.interrupts import in_event_loop
from agentest.support.terminal import clean, encodable, say, tell
from agentest.support.text import count

_GLYPHS = {Mark.GOOD: "✓", Mark.BAD: "✗", Mark.OPEN: "–"}
_WORDS = {Mark.GOOD: "ok", Mark.BAD: "BAD", Mark.OPEN: "-"}
"""Where the terminal has no such signs."""
_WIDTH = 80
_INDENT = "    "


def doctor(request: Request) -> ExitCode:
    """Look at everything that a run needs; exit status 2 where something would keep it from being judged."""
    look = partial(examine, request, _say, say=_say_waiting, expected=_expected)
    bad = in_event_loop(look)
    if bad:
        what = "it" if bad == 1 else "them"
        say(f"\n{count(bad, 'problem')}: see to {what}, and run agentest doctor again")
        return ExitCode.ERRORED
    say("\nReady: agentest run")
    return ExitCode.PASSED


def _say_waiting(what: str) -> None:
    tell(f"agentest: {what}")


def _expected(prepared: Prepared) -> str:
    """What a run may take by an earlier one; "" where that is not known."""
    from agentest.cli.forecast import forecast_of
    from agentest.domain.forecast import forecast_words
    from agentest.store.runs.record import RunKind

    found = forecast_of(prepared, RunKind.RUN)
    return forecast_words(found, datetime.now().astimezone()) if found else ""


def _say(check: Check) -> None:
    first, *rest = check.text.splitlines() or [""]
    head = _folded(f"{_glyphs()[check.mark]} {check.name}: {first}")
    below = (row for each in (*rest, *check.advice.splitlines()) for row in _below(each))
    say("\n".join((*head, *below)))


def _glyphs() -> Mapping[Mark, str]:
    signs = "".join(_GLYPHS.values())
    return _GLYPHS if encodable(signs, sys.stdout.encoding or "utf-8") == signs else _WORDS


def _folded(text: str) -> list[str]:
    """A text in rows that fit the screen; what cannot be broken, such as an address, stays whole."""
    return wrap(text, _WIDTH, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)


def _below(row: str) -> Iterator[str]:
    indent = _INDENT + " " * (len(row) - len(row.lstrip()))
    yield from wrap(
        row.strip(),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


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
