"""The panes of the Conversation view: failures and scenarios, the transcript, the evidence of a turn."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

import axe
import builders
import pytest
import sample_run
from playwright.sync_api import expect

from agentest.domain.events import RunFinished
from agentest.domain.results import RunResult
from agentest.plugins.page.report import HtmlReporter

PHONE = {"width": 390, "height": 844}
MARKDOWN = """\
# Your booking

**Tuesday** at `9:00`, see [the terms](https://example.org/terms) or [here](javascript:window.stolen=1):

1. Bring *this* letter
   - and a pen

> We are open.

| day | hours |
| --- | --- |
| Mon | 9–17 |

![map](https://example.org/map.png) <b>not bold</b>
```json
{"a": "**b**"}
```
2 * 3 * 4 and snake_case_name and **open"""


def opened(page: Any, folder: Path, result: RunResult, scenario: str, **params: object) -> Any:
    """The view of the scenario's conversation in a report."""
    path = folder / "report.html"
    HtmlReporter(path).on_event(RunFinished(result))
    more = "".join(f"&{key}={value}" for key, value in params.items())
    page.goto(f"{path.as_uri()}#/conversation?scenario={quote(scenario)}&agent=booking{more}")
    page.locator(".bench").wait_for()
    return page


def words(locator: Any) -> str:
    return re.sub(r"\s+", " ", locator.inner_text()).strip()


def test_arguments_are_compared_key_by_key(page: Any, tmp_path: Path) -> None:
    """Differences from the expected call have a sign, and the differing words are marked."""
    call = builders.tool_call(
        "book", {"time": "at 09:00 sharp", "note": "x, y", "day": "Tuesday", "vip": True}
    )
    expected = {
        "match_mode": "contains",
        "expected": [
            {
                "name": "book",
                "args": {"time": "at 10:30 sharp", "day": "Tuesday", "size": 2},
                "arg_match_mode": "exact",
            }
        ],
    }
    turns = [builders.turn(0, "Book.", "Booked.", tool_calls=(call,))]
    made = sample_run.conversation_of(turns, expected)
    opened(page, tmp_path, builders.run_result(builders.scenario_result("books", [made])), "books")
    rows = page.locator(".keys tbody tr")
    expect(rows).to_have_count(5)
    shown = {words(row.locator("th")): row for row in rows.all()}
    assert set(shown) == {"≠ changed time", "= matched day", "− removed size", "+ added note", "+ added vip"}
    assert [each.inner_text().strip() for each in shown["≠ changed time"].locator("del, ins").all()] == [
        "10:30",
        "09:00",
    ]
    assert words(shown["− removed size"]) == "− removed size 2 –"
    axe.no_finding(page)


def test_arguments_and_results_are_trees_that_are_copied(page: Any, tmp_path: Path) -> None:
    """The first levels are open, deeper ones unfold, and a button copies all of it as JSON."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    deep = {"a": {"b": {"c": [1, {"d": "<b>deep</b>"}]}}, "n": None}
    turns = [builders.turn(0, tool_calls=(builders.tool_call("look", {"q": "x"}, deep),))]
    made = builders.conversation_result(held=builders.conversation("c1", turns))
    opened(page, tmp_path, builders.run_result(builders.scenario_result("looks", [made])), "looks", turn=0)
    evidence = page.locator(".pane.evidence")
    evidence.get_by_text("look", exact=True).click()
    tree = evidence.locator(".tree").nth(1)
    expect(tree).to_contain_text("n: null")
    expect(tree.get_by_text("deep")).to_have_count(0)
    for key in ("b:", "c:", "1:"):
        tree.locator("summary", has_text=key).click()
    expect(tree.get_by_text("<b>deep</b>")).to_be_visible()
    tree.get_by_role("button", name="Copy the result").click()
    expect(tree.get_by_text("Copied")).to_be_visible()
    assert page.evaluate("async () => JSON.parse(await navigator.clipboard.readText())") == deep


def test_messages_are_markdown_without_html_and_without_requests(page: Any, tmp_path: Path) -> None:
    """HTML stays text, a link shows its host and leads away only by a click, an image is a link."""
    turns = [builders.turn(0, "Hi.\nTwo lines.", MARKDOWN)]
    made = builders.conversation_result(held=builders.conversation("c1", turns))
    opened(page, tmp_path, builders.run_result(builders.scenario_result("talks", [made])), "talks", turn=0)
    message = page.locator(".message.agent")
    expect(message.locator("strong")).to_have_text(["Tuesday"])
    expect(message.locator("em")).to_have_text(["this"])
    expect(message.locator("blockquote")).to_have_text("We are open.")
    expect(message.locator("td")).to_have_text(["Mon", "9–17"])
    expect(message.locator("pre")).to_have_text('{"a": "**b**"}')
    expect(message.locator("li")).to_have_text(["1. Bring this letter", "• and a pen"])
    expect(message.locator("a")).to_have_text(["the terms", "map"])
    link = message.get_by_role("link", name="the terms")
    expect(link).to_have_attribute("rel", "noopener noreferrer nofollow")
    for text in (
        "↗ example.org",
        "[here](javascript:window.stolen=1)",
        "<b>not bold</b>",
        "2 * 3 * 4 and snake_case_name and **open",
    ):
        expect(message).to_contain_text(text)
    assert message.locator("img, b").count() == 0
    assert page.noise.asked == [page.url.split("#")[0]]
    assert page.locator(".message.user").inner_text() == "Hi.\nTwo lines."
    axe.no_finding(page)


def test_markdown_that_is_made_to_hang_is_shown_soon(page: Any, tmp_path: Path) -> None:
    """Deep quotes, marks that are never closed and very wide tables cost little, and none of them is lost."""
    texts = [
        ">" * 19_999,
        "**a" * 6_000,
        "[" * 19_999,
        "`" * 19_999,
        "_a " * 6_000,
        "|" * 9_999 + "\n|-|\n",
        "- " * 9_999,
    ]
    turns = [builders.turn(n, text, "ok") for n, text in enumerate(texts)]
    made = builders.conversation_result(held=builders.conversation("c1", turns))
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable")
    opened(page, tmp_path, builders.run_result(builders.scenario_result("talks", [made])), "talks", turn=0)
    expect(page.locator(".turn")).to_have_count(len(texts))
    expect(page.locator(".message.user").first).to_contain_text(">" * 1000)
    assert page.locator("blockquote").count() == 5
    metrics = {each["name"]: each["value"] for each in client.send("Performance.getMetrics")["metrics"]}
    assert metrics["ScriptDuration"] < 2.0


def test_panes_are_tabs_on_a_phone(page: Any, tmp_path: Path) -> None:
    """The transcript comes first; the tabs lead to the evidence of the turn, and to the other failures."""
    page.set_viewport_size(PHONE)
    opened(page, tmp_path, builders.run_result(sample_run.late_failure(), sample_run.refused()), "books late")
    panes = {name: page.locator(f".pane.{name}") for name in ("failures", "text", "evidence")}

    def only(shown: str) -> None:
        for name, pane in panes.items():
            expect(pane).to_be_visible(visible=name == shown)

    expect(page.locator("#turn-11")).to_be_focused()
    only("text")
    page.get_by_role("tab", name="Evidence").click()
    only("evidence")
    expect(panes["evidence"].get_by_role("heading", name="Turn 12")).to_be_in_viewport()
    page.keyboard.press("ArrowLeft")
    only("text")
    page.keyboard.press("/")
    only("failures")
    expect(page.get_by_role("searchbox")).to_be_focused()
    page.keyboard.type("twice")
    axe.no_finding(page)
    panes["failures"].get_by_role("link", name="asks twice").last.click()
    expect(page.get_by_role("heading", level=1)).to_have_text("asks twice")
    only("text")


def test_failures_by_cause_and_scenarios_stand_beside_the_transcript(page: Any, tmp_path: Path) -> None:
    """Causes have counts and places, the open one unfolded; arrows walk through rows; the filter stays."""
    missed = [builders.scenario_result(f"books {n}", [builders.failing_conversation()]) for n in range(3)]
    fine = builders.scenario_result("fine")
    opened(page, tmp_path, builders.run_result(*missed, fine), "books 1")
    pane = page.locator(".pane.failures")
    cause = pane.locator("details").first
    expect(cause.locator("summary")).to_have_text("3 × create_booking not called as expected")
    expect(cause.locator("[aria-current=true]")).to_have_text("books 1")
    cause.get_by_role("link").first.focus()
    page.keyboard.press("ArrowDown")
    expect(cause.get_by_role("link", name="books 1")).to_be_focused()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("books 2")
    pane.get_by_role("combobox", name="Status").select_option("passed")
    expect(pane.locator("details")).to_have_count(0)
    pane.get_by_role("link", name="fine").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("fine")
    expect(pane.get_by_role("combobox", name="Status")).to_have_value("passed")


def test_keys_of_one_letter_can_be_turned_off(page: Any, tmp_path: Path) -> None:
    """Then letters and signs do nothing, arrows do; the choice stays."""
    opened(page, tmp_path, builders.run_result(sample_run.wrong_calls()), "books what was asked for")
    expect(page.locator("#turn-0")).to_be_focused()
    page.keyboard.press("?")
    page.get_by_role("checkbox", name="Keys of a single letter or sign").uncheck()
    page.get_by_role("button", name="Close").click()
    page.reload()
    expect(page.locator("#turn-0")).to_be_focused()
    for key in ("j", "?", "n"):
        page.keyboard.press(key)
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator("#turn-0")).to_be_focused()
    page.keyboard.press("ArrowRight")
    expect(page.locator("#turn-1")).to_be_focused()
    expect(page.locator(".pane.evidence").get_by_role("heading", name="Turn 2")).to_be_visible()


def test_the_time_axis_leads_to_turns(page: Any, tmp_path: Path) -> None:
    """A bar for each turn, as long as it took; those that broke are marked; a click opens one."""
    opened(page, tmp_path, builders.run_result(sample_run.judged_low()), "asks for opening hours")
    bars = page.locator(".axis .turn-bar")
    expect(bars).to_have_count(2)
    expect(page.locator(".axis .turn-bar.wrong.here")).to_have_attribute("data-turn", "1")
    first, last = (bar.bounding_box()["width"] for bar in bars.all())
    assert last > 2 * first
    bars.first.click()
    expect(page.locator("#turn-0")).to_be_focused()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_conversation_opens_among_ten_thousand(page: Any, tmp_path: Path, theme: str) -> None:
    """The pane of scenarios has the first rows; a file of at most 4 MB opens in two seconds of CPU time."""
    page.emulate_media(color_scheme=theme)
    one = builders.scenario_result("x", [builders.failing_conversation()])
    many = [replace(one, name=f"asks {n}") for n in range(10_000)]
    client = page.context.new_cdp_session(page)
    client.send("Performance.enable")
    opened(page, tmp_path, builders.run_result(*many), "asks 9000")
    expect(page.locator(".pane.failures").get_by_text("10,000 of 10,000")).to_be_visible()
    assert page.locator(".pane.failures li").count() < 200
    assert (tmp_path / "report.html").stat().st_size < 4_000_000
    metrics = {each["name"]: each["value"] for each in client.send("Performance.getMetrics")["metrics"]}
    assert metrics["TaskDuration"] < 2.0
    expect(page.locator(".verdict-line")).to_contain_text("create_booking")
