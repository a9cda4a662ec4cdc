"""`agentest init` and `agentest doctor`: create a project's first files, and check that it can run."""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Iterator
from datetime import datetime
from functools import partial
from pathlib import Path
from textwrap import wrap

import click

from agentest.cli.location import Location, request_of
from agentest.cli.options import exits, flag, model_option, offline_option, option, where
from agentest.cli.run import forecast_of
from agentest.domain.figures import format_forecast
from agentest.plugins.authoring.checks import Check, CheckOutcome
from agentest.plugins.authoring.doctor import run_checks
from agentest.plugins.authoring.new_project import (
    SCHEMAS,
    CiName,
    InitRequest,
    InitResult,
    NextStep,
    WrittenFile,
    begin,
    schema_text,
)
from agentest.runner.plan import Options
from agentest.runner.prepare import Prepared
from agentest.store.runs.folder import RunKind
from agentest.support.errors import ExitCode, UsageError
from agentest.support.files import path_from
from agentest.support.interrupts import run_event_loop
from agentest.support.redaction import CredentialFilter, looks_secret
from agentest.support.terminal import Output, clean, encodable, say, tell, tell_notes
from agentest.support.text import count

_GLYPHS = {CheckOutcome.GOOD: "✓", CheckOutcome.BAD: "✗", CheckOutcome.OPEN: "–"}
_ASCII_MARKS = {CheckOutcome.GOOD: "ok", CheckOutcome.BAD: "BAD", CheckOutcome.OPEN: "-"}
"""Marks for terminals that cannot show the glyphs."""
_WIDTH = 80
_INDENT = "    "
_VARIABLE = r"\$\{?(\w+)\}?"
_VARIABLES_ALONE = re.compile(r"(?:[A-Za-z]{1,16} +)?(?:(?:[A-Za-z_.-]{1,24}=)?\0[;:, ]*)+")
"""A scheme and variables (as NUL) of a header, each with or without a name: `Bearer $A`, `sid=$B`."""


@click.command()
@where
@option("--agent", "NAME", "Check only this agent of the configuration.")
@model_option
@offline_option
@flag("--interleave", "Send running agents 4 messages, to see if conversations mix.")
@exits
def doctor(location: Location, interleave: bool, options: Options) -> ExitCode:
    """Check everything that a run needs: configuration, scenarios, agents, keys, models.

    Servers of agents are started and stopped. Each agent over HTTP answers one message, and each model one
    short question. Agents that are started here also run two conversations at once.

    Exit status: 0 a run can start; 2 something needs attention.
    """
    request = request_of(location.enter(), options)
    checks: list[Check] = []

    def tell(check: Check) -> None:
        checks.append(check)
        _print_check(check)

    run_doctor = partial(
        run_checks, request, tell, say=_print_progress, expected=_forecast_text, interleave=interleave
    )
    bad = run_event_loop(run_doctor)
    if bad:
        what = "it" if bad == 1 else "them"
        say(f"\n{count(bad, 'problem')}: fix {what}, and run agentest doctor again")
        return ExitCode.ERRORED
    doubt = next((check.name for check in checks if check.leaves_doubt), None)
    say(f"\nNo problem was found, but see {doubt!r}" if doubt else "\nReady: agentest run")
    return ExitCode.PASSED


@click.command()
@click.argument("folder", metavar="[DIR]", default=".", type=click.Path(path_type=Path))
@option("--endpoint", "URL", "Detect the protocol of your agent at URL.")
@option("--header headers", "'NAME: VALUE'", "Send this header, too; $NAME is a variable.", multiple=True)
@flag("--demo", "Add a small agent, to try Agentest without a key.")
@click.option("--ci", type=click.Choice(["github", "gitlab"]), help="Write the workflow that runs it, too.")
@exits
def init(
    folder: Path, endpoint: str | None, headers: tuple[str, ...], demo: bool, ci: CiName | None
) -> ExitCode:
    """Write a configuration, a first scenario and entries of .gitignore to DIR (default: here).

    Existing files are never replaced.

    Exit status: 0 all files exist; 2 nothing was written, or not all settings of the agent were proved.
    """
    sent = dict(map(_header, headers))
    begun = begin(InitRequest(folder=folder, endpoint=endpoint, headers=sent, demo=demo, ci=ci))
    for line in (*_file_lines(begun.files), *_next_steps(folder, begun)):
        say(line)
    tell_notes(begun.notes)
    return ExitCode.PASSED if begun.is_complete else ExitCode.ERRORED


def _header(text: str) -> tuple[str, str]:
    name, colon, value = (part.strip() for part in text.partition(":"))
    variables = re.findall(_VARIABLE, value)
    literal = re.sub(_VARIABLE, "", value)
    is_secret = CredentialFilter()(literal) != literal or (
        looks_secret(name) and not _VARIABLES_ALONE.fullmatch(re.sub(_VARIABLE, "\0", value))
    )
    if not colon or is_secret:
        raise UsageError(
            f"--header {name}: write it as 'NAME: VALUE', with a variable of the environment for a secret: "
            "--header 'Authorization: Bearer $TOKEN'"
        )
    if unset := next((each for each in variables if each not in os.environ), None):
        raise UsageError(f"--header {name}: ${unset} has no value: set it in the environment")
    return name, re.sub(_VARIABLE, r"${\1}", value)


@click.command()
@click.argument("name", type=click.Choice(SCHEMAS))
@exits
def schema(name: str) -> ExitCode:
    """Print a JSON Schema for editors: of agentest.config.yaml, or of scenario files in YAML.

    `agentest init` keeps copies of both in .agentest.
    """
    Output(sys.stdout).write_bytes(schema_text(name))
    return ExitCode.PASSED


def _print_progress(what: str) -> None:
    tell(f"agentest: {what}")


def _forecast_text(prepared: Prepared) -> str:
    forecast = forecast_of(prepared, RunKind.RUN)
    return format_forecast(forecast, datetime.now().astimezone()) if forecast else ""


def _print_check(check: Check) -> None:
    first, *rest = check.text.splitlines() or [""]
    signs = "".join(_GLYPHS.values())
    marks = _GLYPHS if encodable(signs, sys.stdout.encoding or "utf-8") == signs else _ASCII_MARKS
    rows = _wrapped(f"{marks[check.mark]} {check.name}: {first}", "", _INDENT)
    for row in (*rest, *check.advice.splitlines()):
        indent = _INDENT + " " * (len(row) - len(row.lstrip()))
        rows += _wrapped(row.strip(), indent, indent)
    say("\n".join(rows))


def _wrapped(text: str, first: str, later: str) -> list[str]:
    return wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=later,
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
    is_well = begun.step is NextStep.LOOK and begun.is_complete
    yield "Next:" if is_well else "Next: complete `agent` in the configuration, then"
    yield f"  {change_folder}agentest doctor"
    yield f"  {change_folder}agentest run"
