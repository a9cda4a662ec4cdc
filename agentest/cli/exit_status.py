"""Run the command line and turn its outcome into an exit status. The module imports only click."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, NoReturn

import click

from agentest.support.errors import ExitCode, OutputError, UsageError, described, unwrapped
from agentest.support.terminal import Output, lost, tell
from agentest.version import __version__

if TYPE_CHECKING:
    from agentest.support.redaction import Redactor


def exit_status_of(command: Callable[[], int]) -> int:
    """Run a command and return its exit status. A user's mistake is printed as one message."""
    try:
        return command()
    except (UsageError, OutputError) as error:
        return print_user_error(error)
    except click.ClickException:
        raise
    except BaseException as error:  # noqa: BLE001 - a SystemExit of the user's code would set our status
        return print_crash(error)


def run_to_exit(cli: click.Group) -> NoReturn:
    """Run the command line and exit with its status."""
    for stream in ("stdout", "stderr"):
        if getattr(sys, stream) is None:  # the parent process closed it
            setattr(sys, stream, open(os.devnull, "w"))  # noqa: SIM115 - stays open until the process exits
    from agentest.support.interrupts import guard_process_exit, hear, prevented_exits, was_interrupted

    # Objects of a command live until its end or are freed by reference counting, and imports make many.
    gc.set_threshold(20_000, 20, 50)
    hear()
    guard_process_exit()
    status = exit_status_of(lambda: _flushed(cli))
    for problem in prevented_exits():
        tell(f"agentest: {problem}: the exit status is {ExitCode.ERRORED}")
        status = ExitCode.ERRORED
    sys.exit(ExitCode.INTERRUPTED if was_interrupted() else status)


def _flushed(cli: click.Group) -> int:
    """Return the exit status after flushing standard output, including what the user's code printed."""
    status = _status(cli)
    try:
        Output(sys.stdout).flush()
    except OutputError as error:
        return status or print_user_error(error)
    return status


def _status(cli: click.Group) -> int:
    """Run click and return our exit status. Click exits with 1 on errors; here 1 means a failed scenario."""
    try:
        return int(cli.main(prog_name="agentest", standalone_mode=False) or ExitCode.PASSED)
    except click.Abort:
        return ExitCode.INTERRUPTED
    except click.ClickException as error:
        from io import StringIO

        output = StringIO()
        error.show(output)
        tell(output.getvalue().rstrip("\n"))
        return ExitCode.ERRORED
    except SystemExit:  # click exits after a closed pipe in its help, and after shell completion
        return ExitCode.PASSED
    except OSError as error:  # click failed to write; commands raise no OSError
        raise lost(sys.stdout, error) from None


_MAX_LINES = 40
_MAX_LINE_CHARS = 1_000


def print_user_error(error: object) -> ExitCode:
    """Print an error that the user can fix, and return the exit status."""
    tell(f"agentest: {_redactor()(str(error))}")
    return ExitCode.ERRORED


def print_crash(error: BaseException) -> ExitCode:
    """Print an unexpected error with secrets redacted, and return the exit status."""
    import traceback

    errors = list(unwrapped(error))
    if isinstance(errors[-1], KeyboardInterrupt):
        tell("agentest: interrupted")
        return ExitCode.INTERRUPTED
    redact = _redactor()
    what = redact.error(described(error).removesuffix(": "))
    # The message is already printed.
    frames = [frame for each in errors for frame in traceback.format_tb(each.__traceback__)]
    rows = [redact(row) for frame in frames for row in frame.rstrip("\n").split("\n")]
    rows = [row if len(row) <= _MAX_LINE_CHARS else f"{row[: _MAX_LINE_CHARS - 1]}…" for row in rows]
    left_out = ["…"] if len(rows) > _MAX_LINES else []
    tell(
        "\n".join(
            [
                f"agentest: an unexpected error ended the program: {what}",
                *left_out,
                *rows[-_MAX_LINES:],
                f"This is a mistake of Agentest {__version__}, or of code that it ran: please report it.",
            ]
        )
    )
    return ExitCode.ERRORED


def _redactor() -> Redactor:
    from agentest.support.redaction import Redactor, environment_secrets

    return Redactor(environment_secrets(os.environ))
