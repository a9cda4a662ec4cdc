"""`agentest init` and `agentest doctor`: create a project's first files, and check that it can run."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator, Mapping
from datetime import datetime
from functools import partial
from pathlib import Path
from textwrap import wrap

from agentest.authoring.doctor import Check, CheckOutcome, run_checks
from agentest.authoring.new_project import InitRequest, InitResult, NextStep, WrittenFile, begin
from agentest.cli.requests import RequestOptions
from agentest.runner.prepare import Prepared
from agentest.support.errors import ExitCode
from agentest.support.files import path_from
from agentest.support.interrupts import run_event_loop
from agentest.support.terminal import clean, encodable, say, tell
from agentest.support.text import count

_GLYPHS = {CheckOutcome.GOOD: "✓", CheckOutcome.BAD: "✗", CheckOutcome.OPEN: "–"}
_ASCII_MARKS = {CheckOutcome.GOOD: "ok", CheckOutcome.BAD: "BAD", CheckOutcome.OPEN: "-"}
"""Marks for terminals that cannot show the glyphs."""
_WIDTH = 80
_INDENT = "    "


def doctor(options: RequestOptions) -> ExitCode:
    """Check everything that a run needs; return ERRORED if something would prevent a verdict."""
    request = options.request(options.location.enter())
    run_doctor = partial(run_checks, request, _print_check, say=_print_progress, expected=_forecast_text)
    bad = run_event_loop(run_doctor)
    if bad:
        what = "it" if bad == 1 else "them"
        say(f"\n{count(bad, 'problem')}: fix {what}, and run agentest doctor again")
        return ExitCode.ERRORED
    say("\nReady: agentest run")
    return ExitCode.PASSED


def init(options: InitRequest) -> ExitCode:
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
    from agentest.cli.run import forecast_of
    from agentest.domain.forecast import format_forecast
    from agentest.store.runs.folder import RunKind

    forecast = forecast_of(prepared, RunKind.RUN)
    return format_forecast(forecast, datetime.now().astimezone()) if forecast else ""


def _print_check(check: Check) -> None:
    first, *rest = check.text.splitlines() or [""]
    head = _wrapped(f"{_glyphs()[check.mark]} {check.name}: {first}")
    below = (row for each in (*rest, *check.advice.splitlines()) for row in _indented(each))
    say("\n".join((*head, *below)))


def _glyphs() -> Mapping[CheckOutcome, str]:
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


def _file_lines(files: tuple[WrittenFile, ...]) -> Iterator[str]:
    paths = [clean(path_from(Path.cwd(), file.path)) for file in files]
    width = max(map(len, paths))
    for name, file in zip(paths, files, strict=True):
        yield f"{file.deed.value:<8}  {name:<{width}}  {clean(file.about)}"


def _next_steps(folder: Path, begun: InitResult) -> Iterator[str]:
    is_here = folder.absolute().resolve() == Path.cwd().resolve()
    change_folder = "" if is_here else f"cd {shlex.quote(clean(str(folder)))} && "
    yield ""
    if begun.step is NextStep.RUN:
        yield f"Next: {change_folder}agentest run"
        return
    yield "Next:" if begun.step is NextStep.LOOK else "Next: complete `agent` in the configuration, then"
    yield f"  {change_folder}agentest doctor"
    yield f"  {change_folder}agentest run"
