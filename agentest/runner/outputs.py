"""Where a run writes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agentest.domain.events import WantedReport
from agentest.runner.prepare import Prepared
from agentest.support.errors import ConfigError
from agentest.support.files import check_writable, readable

_SOURCES = (".py", ".yaml", ".yml", ".toml")
"""What ends the names of files that people write, and of no report."""


def output_dir(prepared: Prepared) -> Path:
    """Where reports are written."""
    return prepared.request.root / prepared.loaded.config.output_dir


def check_can_be_written(reports: Iterable[WantedReport]) -> None:
    """Make the folders of reports with a path of their own.

    Raises ConfigError where that fails, and where a report would take the place of what somebody has written.
    """
    for report in reports:
        if report.path is not None:
            if report.path.suffix in _SOURCES and report.path.exists():
                raise ConfigError(
                    f"reporter {report.name}: {readable(str(report.path))} is there already, and by its name "
                    "a file of the project: a report would replace it; name another file"
                )
            try:
                check_writable(report.path)
            except OSError as error:
                why = error.strerror or error
                raise ConfigError(
                    f"reporter {report.name}: {readable(str(report.path))} cannot be written ({why}); "
                    "name a file in a folder that you may write to"
                ) from None
