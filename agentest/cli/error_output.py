"""Print errors: one sentence for a user's mistake, a traceback for a bug in Agentest."""

from __future__ import annotations

import os
import traceback
from collections.abc import Iterator

from agentest.support.errors import ExitCode, described, unwrapped
from agentest.support.redaction import Redactor, environment_secrets
from agentest.support.terminal import tell
from agentest.version import __version__

_MAX_LINES = 40
_MAX_LINE_CHARS = 1_000


def print_user_error(error: object) -> ExitCode:
    """Print an error that the user can fix, and return the exit status."""
    tell(f"agentest: {_redactor()(str(error))}")
    return ExitCode.ERRORED


def print_crash(error: BaseException) -> ExitCode:
    """Print an unexpected error with secrets redacted, and return the exit status."""
    errors = list(unwrapped(error))
    if isinstance(errors[-1], KeyboardInterrupt):
        tell("agentest: interrupted")
        return ExitCode.INTERRUPTED
    redact = _redactor()
    what = redact.error(described(error).removesuffix(": "))
    rows = [_shortened(redact(row)) for each in errors for row in _rows(each)]
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


def _rows(error: BaseException) -> Iterator[str]:
    """Yield the rows of the traceback without the message, which is already printed."""
    for frame in traceback.format_tb(error.__traceback__):
        yield from frame.rstrip("\n").split("\n")


def _shortened(row: str) -> str:
    return row if len(row) <= _MAX_LINE_CHARS else row[: _MAX_LINE_CHARS - 1] + "…"


def _redactor() -> Redactor:
    return Redactor(environment_secrets(os.environ))
