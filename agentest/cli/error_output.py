"""What a command prints when it cannot work: a sentence for the user's mistake, a traceback for ours."""

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


def refused(error: object) -> ExitCode:
    """Print what is wrong with what the user handed over; the exit status."""
    tell(f"agentest: {_redactor()(str(error))}")
    return ExitCode.ERRORED


def crashed(error: BaseException) -> ExitCode:
    """Print an error that nobody foresaw, without secrets; the exit status."""
    errors = list(unwrapped(error))
    if isinstance(errors[-1], KeyboardInterrupt):
        tell("agentest: interrupted")
        return ExitCode.INTERRUPTED
    redact = _redactor()
    what = redact.error(described(error).removesuffix(": "))
    rows = [_cut(redact(row)) for each in errors for row in _rows(each)]
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
    """The traceback's rows, but for the message at its end, which is printed already."""
    for frame in traceback.format_tb(error.__traceback__):
        yield from frame.rstrip("\n").split("\n")


def _cut(row: str) -> str:
    return row if len(row) <= _MAX_LINE_CHARS else row[: _MAX_LINE_CHARS - 1] + "…"


def _redactor() -> Redactor:
    return Redactor(environment_secrets(os.environ))
