"""`agentest init` and `agentest doctor`: create a project's first files, and check that it can run."""

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
_ASCII_MARKS = {Mark.GOOD: "ok", Mark.BAD: "BAD", Mark.OPEN: "-"}
"""Marks for terminals that cannot show the glyphs."""
_WIDTH = 80
_INDENT = "    "


def doctor(request: Request) -> ExitCode:
    """Check everything that a run needs; return ERRORED if something would prevent a verdict."""
    look = partial(examine, request, _print_check, say=_print_progress, expected=_forecast_text)
    bad = in_event_loop(look)
    if bad:
        what = "it" if bad == 1 else "them"
        say(f"\n{count(bad, 'problem')}: see to {what}, and run agentest doctor again")
        return ExitCode.ERRORED
    say("\nReady: agentest run")
    return ExitCode.PASSED


def init(options: Wish) -> ExitCode:
    """Write a project's first files and print the next steps. Raises UsageError."""
    begun = begin(options)
    for line in (*_file_lines(begun.files), *_next_steps(options.folder, begun)):
        say(line)
    for note in begun.notes:
        tell(f"agentest: {note}")
    return ExitCode.PASSED if begun.is_known else ExitCode.ERRORED


def _print_progress(what: str) -> None:
    tell(f"agentest: {what}")


def _forecast_text(prepared: Prepared) -> str:
    """Return the expected duration and cost based on an earlier run; "" if there is none."""
    from agentest.cli.forecast import forecast_of
    from agentest.domain.forecast import forecast_words
    from agentest.store.runs.record import RunKind

    found = forecast_of(prepared, RunKind.RUN)
    return forecast_words(found, datetime.now().astimezone()) if found else ""


def _print_check(check: Check) -> None:
    first, *rest = check.text.splitlines() or [""]
    head = _wrapped(f"{_glyphs()[check.mark]} {check.name}: {first}")
    below = (row for each in (*rest, *check.advice.splitlines()) for row in _indented(each))
    say("\n".join((*head, *below)))


def _glyphs() -> Mapping[Mark, str]:
    signs = "".join(_GLYPHS.values())
    return _GLYPHS if encodable(signs, sys.stdout.encoding or "utf-8") == signs else _ASCII_MARKS


def _wrapped(text: str) -> list[str]:
    """Wrap a text to the screen width. Words that cannot be broken, such as addresses, stay whole."""
    return wrap(text, _WIDTH, subsequent_indent=_INDENT, break_long_words=False, break_on_hyphens=False)


def _indented(row: str) -> Iterator[str]:
    indent = _INDENT + " " * (len(row) - len(row.lstrip()))
    yield from wrap(
        row.strip(),
        _WIDTH,
        initial_indent=indent,
        subsequent_indent=indent,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _file_lines(files: tuple[Filed, ...]) -> Iterator[str]:
    shown = [clean(path_from(Path.cwd(), file.path)) for file in files]
    width = max(map(len, shown))
    for name, file in zip(shown, files, strict=True):
        yield f"{file.deed.value:<8}  {name:<{width}}  {clean(file.about)}"


def _next_steps(folder: Path, begun: Begun) -> Iterator[str]:
    is_here = folder.absolute().resolve() == Path.cwd().resolve()
    there = "" if is_here else f"cd {shlex.quote(clean(str(folder)))} && "
    yield ""
    if begun.step is Step.RUN:
        yield f"Next: {there}agentest run"
        return
    yield "Next:" if begun.step is Step.LOOK else "Next: see to `agent` in the configuration, then"
    yield f"  {there}agentest doctor"
    yield f"  {there}agentest run"
