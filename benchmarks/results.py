"""Tables of figures, their limits, and the page that they are written into."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.fakes import REPOSITORY

PAGE = REPOSITORY / "benchmarks" / "README.md"


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


MEASURED = REPOSITORY / "benchmarks" / "targets.json"
_HEAD = ("target", "measured", "limit", "")
_DIGITS = {"×": 2, "ms": 2, "s": 2, "MB": 0, "%": 1, "": 0}


@dataclass(frozen=True, slots=True)
class Target:
    """One figure beside its limit; `unit` is ×, ms, s, MB, %, or nothing for a count."""

    claim: str
    value: float
    limit: float
    unit: str
    at_least: bool = False

    @property
    def met(self) -> bool:
        return self.value >= self.limit if self.at_least else self.value <= self.limit

    def row(self) -> list[str]:
        sign = "≥" if self.at_least else "≤"
        limit = f"{sign} {self.limit:g} {self.unit}".rstrip() if self.limit else "none"
        value = f"{self.value:,.{_DIGITS[self.unit]}f} {self.unit}".rstrip()
        return [self.claim, value, limit, "met" if self.met else "**missed**"]


@dataclass(frozen=True, slots=True)
class Found:
    """What a section measured: its tables in Markdown, and its targets."""

    text: str
    targets: tuple[Target, ...] = ()

    def page(self) -> str:
        """The section as it stands on the page."""
        return "\n\n".join([self.text, *([target_table(self.targets)] if self.targets else [])])


Measured = Mapping[str, tuple[str, Sequence[Target]]]
"""Section → when and where it was measured, and its targets."""


def target_table(targets: Sequence[Target]) -> str:
    """The targets as a table."""
    return table(_HEAD, [target.row() for target in targets])


def summary(measured: Measured) -> str:
    """The targets of all sections as one table."""
    found = [(name, target) for name, (_, targets) in measured.items() for target in targets]
    rows = [[f"`{name}`", *target.row()] for name, target in found]
    met = sum(target.met for _, target in found)
    days = "\n".join(dict.fromkeys(when for when, targets in measured.values() if targets))
    return f"{met} of {len(found)} targets met.\n\n{table(('', *_HEAD), rows, texts=2)}\n\n{days}"


def read_measured(file: Path = MEASURED) -> dict[str, tuple[str, Sequence[Target]]]:
    """What was measured last; nothing where there is no file yet."""
    if not file.exists():
        return {}
    kept = json.loads(file.read_text("utf-8"))
    return {
        name: (section["measured"], [Target(**target) for target in section["targets"]])
        for name, section in kept.items()
    }


def write_measured(measured: Measured, file: Path = MEASURED) -> None:
    """Keep what was measured for the next time."""
    kept = {
        name: {"measured": when, "targets": [asdict(target) for target in targets]}
        for name, (when, targets) in measured.items()
    }
    file.write_text(json.dumps(kept, ensure_ascii=False, indent=1) + "\n", "utf-8")
