"""Who has no mouse, no colours, another theme or a small screen gets along with every view."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import axe
import builders
import pytest

from agentest.events import RunFinished
from agentest.report.html import HtmlReporter


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report with a scenario that passed and one that failed."""
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    failed = builders.scenario_result("asks for a refund", [builders.failing_conversation()])
    HtmlReporter(path).on_event(RunFinished(builders.run_result(builders.scenario_result(), failed)))
    return path.as_uri()


def test_axe_finds_nothing_serious_in_the_frame(page: Any, report: str) -> None:
    """The views of a report have no serious or critical finding, in neither theme."""
    page.goto(report)
    page.get_by_role("heading", level=1).wait_for()
    axe.no_finding(page)
    page.get_by_role("link", name="books").first.click()
    page.get_by_text("Is Tuesday free?").first.wait_for()
    axe.no_finding(page)


def test_axe_is_heard(page: Any, report: str) -> None:
    """A field without a name is a finding: the tests that find nothing do look."""
    page.goto(report)
    page.get_by_role("heading", level=1).wait_for()
    page.evaluate("document.querySelector('main').append(document.createElement('input'))")
    with pytest.raises(AssertionError, match="label"):
        axe.no_finding(page, ("light",))
