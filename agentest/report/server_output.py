"""What servers printed while a turn lasted, in words for all reporters."""

from __future__ import annotations

from collections.abc import Sequence

from agentest.domain.transcript import ServerOutput
from agentest.support.text import count


def server_rows(output: ServerOutput) -> Sequence[str]:
    """A row that says whose lines they are, and the lines."""
    ended = "" if output.exit_status is None else f" exited with status {output.exit_status}"
    if not output.lines:
        return [f"{output.server}{ended}"]
    lines = count(len(output.lines), "line")
    if output.lines_before:
        lines = f"the last {lines} of {len(output.lines) + output.lines_before:,}"
    return [f"{output.server}{ended}{',' if ended else ''} printed meanwhile ({lines}):", *output.lines]
