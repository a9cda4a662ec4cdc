"""The Compare view in a real browser: served for stored runs, and in a report file."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import builders
import page_at
import pytest
import sample_run
from axe import no_finding

from agentest.cli.comparison import RunComparison
from agentest.domain.events import RunFinished
from agentest.domain.results import RunResult
from agentest.history.compared_runs import measure_run, measure_scenario
from agentest.plugins.page.report import HtmlReporter

HOURS, MORNING, CALLS = "asks for opening hours", "user books a morning slot", "books what was asked for"


def calls_otherwise() -> Any:
    """The scenario of wrong calls with correct ones: other arguments, and one call fewer."""
    right, wrong = sample_run.passing(CALLS), sample_run.wrong_calls()
    return replace(right, name=wrong.name)


def run(*scenarios: Any) -> RunResult:
    made: RunResult = builders.run_result(*scenarios)
    return made


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """The page over an earlier run, one of two agents, and a later one."""
    root = tmp_path_factory.mktemp("project")
    gone = sample_run.passing(MORNING)
    runs = [
        run(sample_run.passing(HOURS), calls_otherwise(), gone, sample_run.hostile()),
        sample_run.compared_run(),
        run(sample_run.judged_low(), sample_run.wrong_calls(), sample_run.hostile()),
    ]
    ids = page_at.keep_runs(root, runs)
    with page_at.served(root) as address:
        yield address, ids


def opened(page: Any, kept: tuple[str, list[str]], **params: str) -> None:
    page.goto(f"{kept[0]}#/compare?{urlencode(params)}")
    page.locator("main h1").wait_for()


def test_from_a_run_to_the_words_that_changed(page: Any, kept: tuple[str, list[str]]) -> None:
    """By the keyboard from the table to both transcripts, and back with the same filters."""
    from playwright.sync_api import expect

    first, _, last = kept[1]
    opened(page, kept, base=first, new=last)
    expect(page.locator("#base")).to_have_value(first)
    expect(page.locator("tr.scenario")).to_have_count(4)
    page.get_by_label("Name").fill("hours")
    expect(page.locator("main").get_by_role("status")).to_have_text("1 of 4 scenarios")
    expect(page.locator("tr.scenario")).to_contain_text("passed → failed")
    assert "text=hours" in page.url
    no_finding(page)

    page.locator("h1").click()
    page.keyboard.press("j")
    page.keyboard.press("Enter")
    expect(page.locator("h1")).to_have_text(HOURS)
    turn = page.locator(".pairs > li").nth(1)
    expect(turn.locator("del").first).to_have_text("Book 9:00 for Ada.")
    expect(turn.locator("ins").last).to_have_text("Of course, always!")
    expect(turn.locator(".call")).to_contain_text("only in base")
    expect(turn.get_by_label("Scores that differ")).to_contain_text("helpfulness: 5 → 2 (-3)")
    no_finding(page)
    page.keyboard.press("u")
    expect(page.get_by_label("Name")).to_have_value("hours")

    page.get_by_role("button", name="Swap").click()
    expect(page.locator("#base")).to_have_value(last)
    expect(page.locator("tr.scenario")).to_contain_text("failed → passed")


def test_the_verdict_is_seen_on_a_phone(page: Any, kept: tuple[str, list[str]]) -> None:
    """The column stays while the figures scroll below it."""
    page.set_viewport_size({"width": 390, "height": 844})
    opened(page, kept, base=kept[1][0], new=kept[1][2])
    cell = page.locator("tr.scenario > :last-child").first.bounding_box()
    assert cell["x"] + cell["width"] <= 390


def test_agents_of_one_run(page: Any, kept: tuple[str, list[str]]) -> None:
    """They are chosen in the same places; a run in place of an agent changes both sides."""
    from playwright.sync_api import expect

    first, both, _ = kept[1]
    opened(page, kept, of=both)
    expect(page.locator("#base")).to_have_value("booking")
    page.locator("#base").select_option(first)
    expect(page.locator("#base")).to_have_value(first)
    expect(page.locator("#new")).not_to_have_value("candidate")
    opened(page, kept, of=both, base="booking", new="candidate", scenario="answers three questions")
    # The first that failed, beside its counterpart.
    expect(page.locator("#of-base")).to_have_value("c2")
    page.locator("#of-base").select_option("c1")
    expect(page.locator(".pair").first.locator(".badge.passed")).to_be_visible()
    assert "b=c1" in page.url
    expect(page.locator("#of-new")).to_have_value("c2")


def test_calls_and_hostile_texts(page: Any, kept: tuple[str, list[str]]) -> None:
    """Calls of one name are paired with their differences; hostile texts stay text, also on a phone."""
    from playwright.sync_api import expect

    first, _, last = kept[1]
    opened(page, kept, base=first, new=last, scenario=CALLS)
    expect(page.get_by_text("arguments date").first).to_be_visible()
    expect(page.get_by_text("+ only in new").first).to_be_visible()
    expect(page.get_by_role("heading", name="Turn 3, only in new")).to_be_visible()
    page.set_viewport_size({"width": 375, "height": 800})
    opened(page, kept, base=first, new=last, scenario=sample_run.HOSTILE_NAME)
    expect(page.locator("h1")).to_contain_text("<script>")
    assert page.evaluate("window.stolen") is None
    assert page.evaluate("document.documentElement.scrollWidth") <= 375
    opened(page, kept, base=first, new=last, scenario=MORNING)
    expect(page.get_by_role("alert")).to_have_text("This side does not have the scenario.")


def test_the_file_compares_its_agents_and_its_baseline(page: Any, tmp_path: Path) -> None:
    """Agents have both transcripts in the file; a baseline has only figures, and the page says so."""
    from playwright.sync_api import expect

    path = tmp_path / "report.html"
    before = run(sample_run.passing(HOURS))
    base = measure_run(before, "earlier", map(measure_scenario, before.scenarios))
    later = run(sample_run.judged_low())
    baseline = RunComparison(base)
    baseline.label = "R"
    for result, against in ((sample_run.compared_run(), RunComparison()), (later, baseline)):
        against.on_event(RunFinished(result))
        HtmlReporter(path, run_id="R", compared=against).on_event(RunFinished(result))
        page.goto("about:blank")
        page.goto(f"{path.as_uri()}#/compare")
        page.get_by_role("link", name=HOURS).click()
        expect(page.locator("h1")).to_have_text(HOURS)
        expect(page.locator(".pairs .message").first).to_be_visible()
        if against is not baseline:
            expect(page.locator(".pairs ins").first).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("not in this file")
    expect(page.get_by_text("Of course, always!").first).to_be_visible()
    assert all(url.startswith(("file:", "about:", "data:")) for url in page.noise.asked)


def test_turns_are_aligned_by_message(page: Any, tmp_path: Path) -> None:
    """A turn of only one side has its own row; the others stay paired."""
    from playwright.sync_api import expect

    said = ["Hello, are you open today?", "Book a cut at ten please.", "Thanks, that is all."]
    more = [said[0], "Do you take credit cards?", "Book a cut at eleven please.", said[2]]
    both = []
    for agent, texts in (("one", said), ("two", more)):
        turns = [
            builders.turn(
                n, text, f"Sure: {text}", tool_calls=(builders.tool_call("book", {"at": text.split()[-2]}),)
            )
            for n, text in enumerate(texts)
        ]
        made = builders.conversation_result("c1", held=builders.conversation("c1", turns))
        both.append(replace(builders.scenario_result("books", [made]), agent=agent))
    result = builders.run_result(*both, comparison=True)
    compared = RunComparison()
    compared.on_event(RunFinished(result))
    path = tmp_path / "report.html"
    HtmlReporter(path, run_id="R", compared=compared).on_event(RunFinished(result))
    page.goto(f"{path.as_uri()}#/compare?scenario=books")
    rows = page.locator(".pairs > li")
    expect(rows.locator("h2")).to_have_text(
        ["Turn 1", "Turn 2, only in new", "Turn 2 beside Turn 3", "Turn 3 beside Turn 4"]
    )
    expect(rows.nth(2).locator(".message.user del")).to_have_text("ten")
    expect(rows.nth(2).locator(".message.user ins")).to_have_text("eleven")
    expect(rows.nth(3).locator("ins, del")).to_have_count(0)
    no_finding(page)
