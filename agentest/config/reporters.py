"""Which reports are wanted, and where: `junit`, or `junit=reports/agents.xml`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agentest.config.fields import check_name
from agentest.domain.events import WantedReport

REPORTERS = ("console", "json", "github-actions", "junit", "html")
_STREAM = "-"


def wanted_report(text: str, root: Path | None = None) -> WantedReport:
    """The report that `NAME` or `NAME=PATH` asks for. Raises ValueError.

    Args:
        root: what a relative path is relative to.
    """
    name, equals, path = text.partition("=")
    if equals and not name:
        raise ValueError(f"found {text!r}; expected NAME=PATH, such as junit={path or 'report.xml'}")
    check_name(name, REPORTERS, "reporter")
    if equals and not path.strip():
        raise ValueError(f"{text!r} names no file; write {name}=PATH, or {name} alone for the usual place")
    if path == _STREAM:
        raise ValueError(f"{text!r}: '-' is no file; write {name}=/dev/stdout for the standard output")
    return WantedReport(name, (root or Path()) / Path(path).expanduser() if equals else None)


def wanted_reports(texts: Iterable[str], root: Path) -> tuple[WantedReport, ...]:
    """All reports that are asked for, each once. Raises ValueError, also for two reports in one file."""
    wanted = tuple(dict.fromkeys(wanted_report(text, root) for text in texts))
    owners: dict[Path, str] = {}
    for report in wanted:
        if report.path and owners.setdefault(report.path.resolve(), report.name) != report.name:
            other = owners[report.path.resolve()]
            raise ValueError(f"{other} and {report.name} are both to be written to {report.path}")
    return wanted
