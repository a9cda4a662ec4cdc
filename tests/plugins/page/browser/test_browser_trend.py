"""The trend of the Run view in a real browser."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from agentest.plugins.page.viewer.overview import overview
from agentest.plugins.page.viewer.page import PageVariant, data_element, packed
from agentest.plugins.page.viewer.page import page as whole_page


def test_the_trend_has_a_chart_and_a_table(page: Any, tmp_path: Path) -> None:
    """Each run is a row, latest first; an unknown cost is marked and not drawn as zero."""
    runs = [
        {"id": f"run-{n}", "startedAt": f"2026-01-0{n}T03:04:05Z", "state": state, "passed": n}
        | {"failed": 3 - n, "errored": 0, "cost": None if n == 1 else n / 10, "durationMs": 1000 * n}
        for n, state in ((1, "failed"), (2, "failed"), (3, "passed"))
    ]
    run = {"id": "run-3", "state": "passed"}
    data = overview(run=run, head=None, scenarios=[], root_causes=[], trend=runs)
    path = tmp_path / "report.html"
    shown = whole_page(PageVariant.FILE, "run")
    written = data_element("overview", packed(data | {"packed": []})) + data_element("end", "")
    path.write_text(shown.head + written + shown.tail, encoding="utf-8")
    page.goto(path.as_uri() + "#/run?open=trend")
    rows = page.locator(".inside > .scroll tbody tr")
    assert "(this run)" in rows.first.inner_text()
    assert "unknown" in rows.last.inner_text()
    assert page.locator(".picture circle").count() == 3
