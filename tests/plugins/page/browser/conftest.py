"""Pages in Chromium. One browser serves all tests of a process; each test has its own context."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

WANTED = os.environ.get("AGENTEST_BROWSER")
"""The command of the browser, or `playwright` for its own. Set where a missing browser is a failure."""
CHROMIUM = shutil.which(WANTED or "chromium")
OF_PLAYWRIGHT = WANTED == "playwright"
PATIENCE_MS = 60_000
"""For what is to appear: a busy machine lets a page or a server stand still for some seconds."""
# Tests import Playwright at their top: without it none of them can be loaded.
collect_ignore_glob = [] if WANTED or importlib.util.find_spec("playwright") else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests in this folder, and skip them without a browser."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.browser)
            if not WANTED and not (CHROMIUM and importlib.util.find_spec("playwright")):
                item.add_marker(pytest.mark.skip(reason="needs Chromium and Playwright"))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser."""
    from playwright.sync_api import expect, sync_playwright

    expect.set_options(timeout=PATIENCE_MS)
    assert CHROMIUM or OF_PLAYWRIGHT, f"{WANTED} is not installed"
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=None if WANTED == "playwright" else CHROMIUM, args=["--no-sandbox"]
        )
        yield browser
        browser.close()


class Noise:
    """A page's errors and foreign requests: empty at the end of each test."""

    def __init__(self, page: Any) -> None:
        self.problems: list[str] = []
        self.asked: list[str] = []
        page.on("pageerror", lambda error: self.problems.append(str(error)))
        page.on("console", lambda said: said.type == "error" and self.problems.append(said.text))
        page.on("request", lambda request: self.asked.append(request.url))


@pytest.fixture
def page(chromium: Any) -> Iterator[Any]:
    """A page in its own context. Errors that it reports fail the test; `page.noise` has them."""
    context = chromium.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce")
    context.set_default_timeout(PATIENCE_MS)
    shown = context.new_page()
    shown.noise = Noise(shown)
    yield shown
    problems = shown.noise.problems
    context.close()
    assert not problems, problems
