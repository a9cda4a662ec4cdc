"""How a command ends: its exit status, and what is said when it cannot work. It imports nothing but click."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from io import StringIO
from typing import NoReturn

import click

from agentest.support.errors import ExitCode, OutputError, UsageError
from agentest.support.terminal import Output, lost, tell


def ended(command: Callable[[], int]) -> int:
    """The command's exit status; what the user got wrong is printed in one message."""
    try:
        return command()
    except (UsageError, OutputError) as error:
        return _refused(error)
    except click.ClickException:
        raise
    except BaseException as error:  # noqa: BLE001 - also a SystemExit of the user's code: it would choose our status
        from agentest.cli.error_output import crashed

        return crashed(error)


def _refused(error: Exception) -> ExitCode:
    from agentest.cli.error_output import refused

    return refused(error)


def run_to_exit(cli: click.Group) -> NoReturn:
    """Run the command line, and exit with its status."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # closed by whoever started us
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115 - open for as long as we live
    from agentest.support.interrupts import guard_process_exit, hear, heard, prevented_exits

    hear()
    guard_process_exit()
    status = ended(lambda: _flushed(cli))
    for problem in prevented_exits():
        tell(f"agentest: {problem}: the exit status is {ExitCode.ERRORED}")
        status = ExitCode.ERRORED
    sys.exit(ExitCode.INTERRUPTED if heard() else status)


def _flushed(cli: click.Group) -> int:
    """The exit status, when all that was printed is where it belongs: also what the user's code printed."""
    status = _status(cli)
    try:
        Output(sys.stdout).flush()
    except OutputError as error:
        return status or _refused(error)
    return status


def _status(cli: click.Group) -> int:
    """What click makes of the command line. Its own exits would mix up ours: 1 is a scenario that failed."""
    try:
        return int(cli.main(prog_name="agentest", standalone_mode=False) or ExitCode.PASSED)
    except click.Abort:
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        shown = StringIO()
        error.show(shown)
        tell(shown.getvalue().rstrip("\n"))
        return ExitCode.ERRORED
    except SystemExit:  # click's own: nobody reads its help on, or a shell has its completions
        return ExitCode.PASSED
    except OSError as error:  # of its own writing, as commands raise none
        raise lost(sys.stdout, error) from None
