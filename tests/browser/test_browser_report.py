"""report.html in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import builders

from agentest.events import RunFinished
from agentest.report.html import HtmlReporter


def test_a_report_opens_from_the_disk_and_asks_nobody(page: Any, tmp_path: Path) -> None:
    """The file shows the run and the conversation that is opened, without one request."""
    path = tmp_path / "report.html"
    HtmlReporter(path).on_event(RunFinished(builders.run_result(builders.scenario_result())))
    page.goto(path.as_uri())
    page.get_by_role("link", name="books").first.click()
    page.get_by_role("list").get_by_text("Is Tuesday free?").first.wait_for()
    assert page.noise.asked == [path.as_uri()]
