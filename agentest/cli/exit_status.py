"""Run the command line and turn its outcome into an exit status. The module imports only click."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from io import StringIO
from typing import NoReturn

import click

from agentest.support.errors import ExitCode, OutputError, UsageError
from agentest.support.terminal import Output, lost, tell


def exit_status_of(command: Callable[[], int]) -> int:
    """Run a command and return its exit status. A user's mistake is printed as one message."""
    try:
        return command()
    except (UsageError, OutputError) as error:
        return _refused(error)
    except click.ClickException:
        raise
    except BaseException as error:  # noqa: BLE001 - a SystemExit of the user's code would set our status
        from agentest.cli.error_output import print_crash

        return print_crash(error)


def _refused(error: Exception) -> ExitCode:
    from agentest.cli.error_output import print_user_error

    return print_user_error(error)


def run_to_exit(cli: click.Group) -> NoReturn:
    """Run the command line and exit with its status."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # the parent process closed it
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115 - stays open until the process exits
    from agentest.support.interrupts import guard_process_exit, hear, heard, prevented_exits

    hear()
    guard_process_exit()
    status = exit_status_of(lambda: _flushed(cli))
    for problem in prevented_exits():
        tell(f"agentest: {problem}: the exit status is {ExitCode.ERRORED}")
        status = ExitCode.ERRORED
    sys.exit(ExitCode.INTERRUPTED if heard() else status)


def _flushed(cli: click.Group) -> int:
    """Return the exit status after flushing standard output, including what the user's code printed."""
    status = _status(cli)
    try:
        Output(sys.stdout).flush()
    except OutputError as error:
        return status or _refused(error)
    return status


def _status(cli: click.Group) -> int:
    """Run click and return our exit status. Click exits with 1 on errors; here 1 means a failed scenario."""
    try:
        return int(cli.main(prog_name="agentest", standalone_mode=False) or ExitCode.PASSED)
    except click.Abort:
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        shown = StringIO()
        error.show(shown)
        tell(shown.getvalue().rstrip("\n"))
        return ExitCode.ERRORED
    except SystemExit:  # click exits after a closed pipe in its help, and after shell completion
        return ExitCode.PASSED
    except OSError as error:  # click failed to write; commands raise no OSError
        raise lost(sys.stdout, error) from None
