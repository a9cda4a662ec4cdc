"""Screenshots of every view, in both themes and on a phone, for review.

python tests/support/screens.py FOLDER
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import page_at
import sample_run

_WAITING = re.compile(r"^\w+ing\b.*\s…$")
WIDTHS = {"wide": 1280, "phone": 375}
THEMES = ("light", "dark")
VIEWS = {
    "runs": "#/runs",
    "run": "#/run?of={run}",
    "run-filtered": "#/run?of={run}&status=failed",
    "conversation": "#/conversation?of={run}&scenario={failed}&agent=booking",
    "conversation-criteria": "#/conversation?of={run}&scenario={criteria}&agent=booking",
    "conversation-hostile": "#/conversation?of={run}&scenario={hostile}&agent=booking",
    "compare": "#/compare?base={earlier}&new={run}",
    "compare-agents": "#/compare?of={compared}",
    "start": "#/start",
    "talk": "#/talk",
    "cases": "#/cases",
    "label": "#/label?of={run}&metric=helpfulness&by=ann&most=20",
    "label-setup": "#/label?of={run}",
}


@dataclass(frozen=True, kw_only=True)
class Shot:
    """A view in one theme and width."""

    view: str
    theme: str
    width: str

    @property
    def file(self) -> str:
        return f"{self.view}-{self.theme}-{self.width}.png"


def shots() -> Iterator[Shot]:
    """All that are made."""
    for view in VIEWS:
        for theme in THEMES:
            for width in WIDTHS:
                yield Shot(view=view, theme=theme, width=width)


def addresses(root: Path) -> dict[str, str]:
    """Map each view to its address, for runs stored in a project's folder."""
    run = sample_run.sample_run()
    earlier, compared, latest = page_at.keep_runs(root, [run, sample_run.compared_run(), run])
    names = {
        "failed": sample_run.wrong_calls().name,
        "criteria": sample_run.criteria_and_state().name,
        "hostile": sample_run.hostile().name,
    }
    known = {"earlier": earlier, "compared": compared, "run": latest}
    quoted = {key: quote(value) for key, value in (known | names).items()}
    return {view: address.format(**quoted) for view, address in VIEWS.items()}


def take(folder: Path, wanted: str = "") -> None:
    """Write the screenshots of the views whose names contain a text."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as root, sync_playwright() as playwright:
        where = addresses(Path(root))
        with page_at.served(Path(root)) as first:
            browser = playwright.chromium.launch(
                executable_path=shutil.which("chromium"), args=["--no-sandbox"]
            )
            for shot in shots():
                if wanted in shot.view:
                    _shoot(browser, first, where[shot.view], shot, folder)
            browser.close()


def settled(page: Any) -> None:
    """Wait until a view has its data."""
    page.locator("main .view h1").or_(page.locator("main [role=alert]")).first.wait_for()
    page.get_by_text(_WAITING).first.wait_for(state="detached")


def _shoot(browser: Any, first: str, address: str, shot: Shot, folder: Path) -> None:
    context = browser.new_context(
        viewport={"width": WIDTHS[shot.width], "height": 800},
        color_scheme=shot.theme,
        reduced_motion="reduce",
        device_scale_factor=1,
    )
    page = context.new_page()
    page.goto(first + address)
    settled(page)
    page.screenshot(path=folder / shot.file)
    context.close()


if __name__ == "__main__":
    take(Path(sys.argv[1]), *sys.argv[2:3])
