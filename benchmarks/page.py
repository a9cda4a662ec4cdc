"""Tables, and the page that they are written into."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.fakes import REPOSITORY

PAGE = REPOSITORY / "docs" / "performance.md"


def table(head: Sequence[str], rows: Sequence[Sequence[str]], texts: int = 1) -> str:
    """A Markdown table; so many columns are text, the others are numbers."""
    rule = ["---" if column < texts else "---:" for column in range(len(head))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (head, rule, *rows))


def ratio(value: float, base: float) -> str:
    """How many times the base a value is."""
    return f"{value / base:.2f} ×"


def machine() -> str:
    """The machine and the day, as they stand under a table."""
    return (
        f"Measured {datetime.now(UTC):%Y-%m-%d} on {_processor()}, {os.cpu_count()} cores, "
        f"{platform.system()}, Python {platform.python_version()}."
    )


def _processor() -> str:
    try:
        info = Path("/proc/cpuinfo").read_text("utf-8")
    except OSError:
        info = ""
    named = re.search(r"^model name\s*:\s*(.+)$", info, re.M)
    return named[1] if named else platform.processor() or platform.machine()


def write(name: str, text: str, page: Path = PAGE) -> None:
    """Put a section's text between its markers on the page. Raises ValueError when they are not there."""
    begin, end = f"<!-- begin {name} -->", f"<!-- end {name} -->"
    before, found, rest = page.read_text("utf-8").partition(begin)
    _, found_end, after = rest.partition(end)
    if not found or not found_end:
        raise ValueError(f"{page.name} lacks the markers {begin} and {end}")
    page.write_text(f"{before}{begin}\n\n{text}\n\n{end}{after}", "utf-8")
