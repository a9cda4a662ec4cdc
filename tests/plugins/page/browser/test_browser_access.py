"""Every view works without a mouse or colors, in another theme, on a small screen and on paper."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import axe
import builders
import page_at
import pytest
import screens
from playwright.sync_api import expect

from agentest.domain.events import RunFinished
from agentest.plugins.page.report import HtmlReporter

PHONE = {"width": 375, "height": 800}
TWICE_AS_LARGE = {"width": 640, "height": 450}
"""What a window of 1280 pixels shows at 200 %."""
SCENARIOS = ("asks for a refund", "books a slot", "changes a booking")


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The address of a report of three scenarios."""
    path: Path = tmp_path_factory.mktemp("report") / "report.html"
    made = [builders.scenario_result(name, [builders.failing_conversation()]) for name in SCENARIOS]
    HtmlReporter(path).on_event(RunFinished(builders.run_result(*made)))
    return path.as_uri()


@pytest.fixture(scope="module")
def views(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """View → its address, of a project in which everything has occurred."""
    root = tmp_path_factory.mktemp("project")
    where = screens.addresses(root)
    with page_at.served(root) as first:
        yield {view: first + address for view, address in where.items()}


def heading(page: Any) -> Any:
    return page.get_by_role("heading", level=1)


@pytest.mark.parametrize("view", screens.VIEWS)
def test_every_view_is_for_everybody(page: Any, views: dict[str, str], view: str) -> None:
    """axe finds nothing serious in either theme; a phone's width and everything twice as large need no
    scrolling to the side; there is one main heading, and headings leave no level out."""
    page.goto(views[view])
    expect(heading(page)).to_have_count(1)
    screens.settled(page)
    axe.no_finding(page)
    levels = page.evaluate(
        "[...document.querySelectorAll('main :is(h1,h2,h3,h4)')].map((e) => +e.tagName[1])"
    )
    assert all(after - before <= 1 for before, after in pairwise(levels)), levels
    page.set_viewport_size(PHONE)
    assert too_wide(page) == []
    page.set_viewport_size(TWICE_AS_LARGE)
    assert too_wide(page) == []
    page.noise.problems.clear()  # a view of a run that cannot be compared is refused, which the browser tells


def too_wide(page: Any) -> list[str]:
    """Elements that overflow the page, outside of scrolling boxes."""
    return page.evaluate("""() => {
      const width = document.documentElement.clientWidth;
      if (document.documentElement.scrollWidth <= width) return [];
      const over = (e) => e.getBoundingClientRect().right > width + 1;
      const named = (e) => `${e.tagName}.${e.className}: ${e.textContent.slice(0, 40)}`;
      return [...document.querySelectorAll("main *")].filter(over).map(named).slice(-5);
    }""")


def test_axe_is_heard(page: Any, report: str) -> None:
    """A field without a name is a finding: the tests that find nothing do look."""
    page.goto(report)
    heading(page).wait_for()
    page.evaluate("document.querySelector('main').append(document.createElement('input'))")
    with pytest.raises(AssertionError, match="label"):
        axe.no_finding(page, ("light",))


def test_a_report_is_walked_through_by_keyboard(page: Any, report: str) -> None:
    """j and k step, Enter opens, u leads back to the row that was opened, ? shows keys and gives the focus
    back, / finds the search, Escape leaves it, and the first Tab is the way past the navigation."""
    page.goto(report)
    heading(page).wait_for()
    page.keyboard.press("j")
    page.keyboard.press("j")
    focused = page.locator(":focus")
    expect(focused).to_have_attribute("data-step", "")
    chosen = focused.text_content()
    page.keyboard.press("j")
    page.keyboard.press("k")
    expect(focused).to_have_text(chosen)
    page.keyboard.press("Enter")
    expect(heading(page)).to_contain_text(chosen)
    expect(page.locator("main")).to_be_focused()
    page.keyboard.press("u")
    expect(focused).to_have_text(chosen)

    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    expect(page.get_by_role("button", name="Close")).to_be_focused()
    page.keyboard.press("j")
    expect(page.get_by_role("button", name="Close")).to_be_focused()
    page.keyboard.press("Escape")
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(focused).to_have_text(chosen)

    search = page.locator("main [type=search]")
    if search.count():
        page.keyboard.press("/")
        expect(search.first).to_be_focused()
        page.keyboard.press("Escape")
        expect(search.first).not_to_be_focused()

    page.goto(report)
    heading(page).wait_for()
    page.evaluate("document.activeElement.blur()")
    page.keyboard.press("Tab")
    expect(page.get_by_role("link", name="Skip to the content")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_a_link_from_elsewhere_leads_up_to_its_run(page: Any, report: str) -> None:
    """From a direct link to a conversation, u leads to the run without leaving the page."""
    page.goto(f"{report}#/conversation?scenario={SCENARIOS[0]}&agent=booking")
    heading(page).wait_for()
    page.keyboard.press("u")
    expect(page.get_by_role("navigation").get_by_role("link", name="Run", exact=True)).to_have_attribute(
        "aria-current", "page"
    )


def test_the_theme_is_chosen_and_stays(page: Any, report: str) -> None:
    """The button changes the colors and names the theme, and the next visit uses it."""
    page.goto(report)
    ground = "getComputedStyle(document.body).backgroundColor"
    button = page.get_by_role("button", name="Theme")
    before = page.evaluate(ground)
    button.click()
    expect(button).to_have_text("Theme: light")
    button.click()
    expect(button).to_have_text("Theme: dark")
    assert page.evaluate(ground) != before
    page.reload()
    expect(button).to_have_text("Theme: dark")


def test_paper_has_dark_text_and_no_buttons(page: Any, report: str) -> None:
    """Printed from the dark theme, text is dark, navigation is left out, and folded parts are open."""
    page.goto(f"{report}#/conversation?scenario={SCENARIOS[0]}&agent=booking")
    heading(page).wait_for()
    page.evaluate("document.documentElement.dataset.theme = 'dark'")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).color") == "rgb(27, 32, 41)"
    expect(page.get_by_role("banner")).to_be_hidden()
    page.evaluate("""() => {
      const details = document.createElement("details");
      details.append(Object.assign(document.createElement("p"), {id: "folded", textContent: "folded"}));
      document.querySelector("main").append(details);
    }""")
    expect(page.locator("#folded")).to_be_visible()


def test_more_contrast_is_given_to_who_wants_it(page: Any, report: str) -> None:
    """Quiet text has the colour of text then, and faint lines that of strong ones."""
    page.emulate_media(contrast="more")
    page.goto(report)
    heading(page).wait_for()
    colours = """['quiet', 'text', 'line', 'strong-line'].map(
        (name) => getComputedStyle(document.body).getPropertyValue(`--${name}`))"""
    quiet, text, line, strong = page.evaluate(colours)
    assert (quiet, line) == (text, strong)


def test_without_colors_borders_stay(page: Any, report: str) -> None:
    """If the system removes colors, badges have a border, and each has a word next to its mark."""
    page.goto(report)
    heading(page).wait_for()
    page.emulate_media(forced_colors="active")
    badge = page.locator(".badge").first
    expect(badge).to_have_css("border-top-style", "solid")
    expect(badge).to_contain_text("failed")
