"""Where a run writes."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from agentest.errors import ConfigError
from agentest.events import WantedReport
from agentest.run.prepare import Prepared
from agentest.support.files import check_writable, readable


def output_dir(prepared: Prepared) -> Path:
    """Where reports are written."""
    return prepared.request.root / prepared.loaded.config.output_dir


def check_can_be_written(reports: Iterable[WantedReport]) -> None:
    """Make the folders of reports with a path of their own. Raises ConfigError where that fails."""
    for report in reports:
        if report.path is not None:
            try:
                check_writable(report.path)
            except OSError as error:
                why = error.strerror or error
                raise ConfigError(
                    f"reporter {report.name}: {readable(str(report.path))} cannot be written ({why}); "
                    "name a file in a folder that you may write to"
                ) from None
