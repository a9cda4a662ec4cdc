"""An item's report in pytest: the console's lines in place of a traceback, the scenario's time, its place."""

from __future__ import annotations

from typing import Any

import pytest
from _pytest._code.code import ReprEntryNative, ReprExceptionInfo, ReprFileLocation, ReprTraceback

from agentest.domain.results import ScenarioResult, Status
from agentest.pytest_plugin.asked import verbosity
from agentest.pytest_plugin.items import ScenarioItem, Unsuccessful
from agentest.report.console.block import block
from agentest.support.terminal import clean


def dress(report: pytest.TestReport, item: ScenarioItem, call: pytest.CallInfo[Any]) -> None:
    """Have the report of a step say what the scenario's result says."""
    result = item.result
    if result is None:
        return
    raised = call.excinfo.value if call.excinfo else None
    if isinstance(raised, Unsuccessful):
        verbose = verbosity(item.config) > 1
        report.longrepr = _shown(result, item, verbose=verbose)
    elif report.skipped and result.verdict.status is Status.SKIPPED:
        reason = "; ".join(reason.message for reason in result.verdict.reasons)
        report.longrepr = (str(item.path), result.line, f"Skipped: {reason}")
    report.duration = _seconds(report, result)


def _seconds(report: pytest.TestReport, result: ScenarioResult) -> float:
    """The scenario's time belongs to the step that tells its outcome."""
    telling = "call" if result.verdict.status in (Status.PASSED, Status.FAILED) else "setup"
    return result.duration_ms / 1000 if report.when == telling else 0.0


def _shown(result: ScenarioResult, item: ScenarioItem, *, verbose: bool) -> Any:
    """The console's lines as a native traceback: pytest-xdist can send it, and JUnit finds its message."""
    rows = block(result, verbose=verbose)
    entries = ReprTraceback([ReprEntryNative([rows + "\n"])], None, style="native")
    place = ReprFileLocation(str(item.path), result.line, _headline(result))
    return ReprExceptionInfo(reprtraceback=entries, reprcrash=place)


def _headline(result: ScenarioResult) -> str:
    """Why it did not pass, in a row."""
    messages = [reason.message.partition("\n")[0] for reason in result.verdict.reasons]
    more = f" (and {len(messages) - 1} more)" if len(messages) > 1 else ""
    return clean(f"{messages[0]}{more}") if messages else str(result.verdict.status)
