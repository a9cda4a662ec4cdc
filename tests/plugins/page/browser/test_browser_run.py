"""The Run view in a real browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import sample_run
from axe import no_finding
from playwright.sync_api import expect

from agentest.domain.events import RunFinished
from agentest.domain.results import JudgeCalibration, ReasonKind, RunResult, ScenarioResult, Severity, Status
from agentest.domain.results.exploration import (
    Explored,
    ExploredPart,
    Finding,
    FindingRate,
    FindingStatus,
)
from agentest.plugins.page.report import HtmlReporter

HOSTILE = "<img src=x onerror=document.title='bad'>\u202egnp"
INTERRUPTED = builders.verdict(Status.ERRORED, "the run was interrupted", ReasonKind.INTERRUPTED)
SHOWN = HOSTILE.replace("\u202e", "\\u202e")


def _open(page: Any, folder: Path, result: RunResult, address: str = "", **more: Any) -> None:
    path = folder / "report.html"
    HtmlReporter(path, run_id="20260102-030405", **more).on_event(RunFinished(result))
    page.goto(path.as_uri() + address)
    page.get_by_role("heading", level=1).wait_for()


def _several(name: str, *passed: bool) -> ScenarioResult:
    held = [
        builders.conversation_result(f"{name}-{n}", trajectory=None if good else builders.MISSED)
        for n, good in enumerate(passed)
    ]
    return builders.scenario_result(name, held, tags=("booking", HOSTILE))


def _run() -> RunResult:
    low = builders.conversation_result(
        "low-1",
        turns=(builders.turn_evaluation(metrics={"helpfulness": builders.scored(2)}),),
        failures=(builders.labelled_failure("low-1-F1"),),
    )
    return builders.run_result(
        builders.scenario_result("fine"),
        _several("sometimes", True, False, True),
        builders.scenario_result(
            HOSTILE,
            [low],
            thresholds={"helpfulness": 4},
            errors=(builders.error_group(occurrences=("low-1-F1",)),),
        ),
        builders.broken_file(),
        builders.skipped_scenario(),
    )


def _names(page: Any) -> list[str]:
    return list(page.locator(".windowed tbody th [data-step]").all_inner_texts())


def test_a_few_keys_lead_from_the_file_to_the_conversation_that_failed(page: Any, tmp_path: Path) -> None:
    """Failures come first: j selects, o expands, Enter opens, and going back returns to the row."""
    _open(page, tmp_path, _run())
    assert _names(page) == ["sometimes", SHOWN, "scenarios/broken.sim.py", "fine", "later"]
    page.keyboard.press("j")
    expect(page.locator(":focus")).to_have_text("create_booking not called as expected")
    page.keyboard.press("o")
    expect(page.locator(".places li").first).to_be_visible()
    page.get_by_role("link", name="List all scenarios").click()
    expect(page.locator(".places")).to_have_count(0)
    page.locator(".windowed tbody a").first.focus()
    page.keyboard.press("o")
    expect(page.locator(".below a").first).to_have_text("sometimes-1")
    page.keyboard.press("o")
    expect(page.locator(".below")).to_have_count(0)
    page.get_by_role("checkbox", name="flaky").check()
    page.locator(".windowed tbody a").first.focus()
    page.keyboard.press("Enter")
    page.wait_for_url("**#/conversation?*scenario=sometimes*")
    page.locator(".view-conversation h1").wait_for()
    page.keyboard.press("n")
    page.locator("main nav").get_by_text("Conversation 3 of 3").wait_for()
    page.wait_for_url("**id=sometimes-*")
    page.keyboard.press("u")
    expect(page.locator(".windowed tbody a").first).to_be_focused()
    assert _names(page) == ["sometimes"]
    assert page.title() != "bad"


def test_filters_and_order_stand_in_the_address(page: Any, tmp_path: Path) -> None:
    """They are there again after a reload, and cleared by one button."""
    _open(page, tmp_path, _run())
    page.get_by_role("checkbox", name="failed").check()
    page.get_by_role("combobox", name="Failed on").select_option("helpfulness")
    page.get_by_role("button", name="Scenario", exact=True).click()
    page.keyboard.press("/")
    page.keyboard.type("below its threshold")
    expect(page.locator(".windowed tbody th [data-step]")).to_have_count(1)
    page.reload()
    expect(page.get_by_role("checkbox", name="failed")).to_be_checked()
    expect(page.get_by_role("searchbox")).to_have_value("below its threshold")
    assert _names(page) == [SHOWN]
    page.get_by_role("button", name="Clear filters").click()
    expect(page.locator(".windowed tbody th [data-step]")).to_have_count(5)
    assert page.locator("th[aria-sort=ascending]").inner_text().startswith("Scenario")


def test_figures_lead_to_scenarios(page: Any, tmp_path: Path) -> None:
    """Folded parts are summarized; open ones are in the address."""
    _open(page, tmp_path, _run())
    page.locator("summary", has_text="Figures").click()
    page.wait_for_url("**open=figures*")
    page.get_by_role("link", name="✗ 1 scenario").click()
    expect(page.locator(".windowed tbody th [data-step]")).to_have_count(1)


def test_tools_and_the_judge_have_charts_with_tables(page: Any, tmp_path: Path) -> None:
    """They show results per tool, and the judge's agreement with people, in both themes."""
    measured = JudgeCalibration(
        model="m", n=40, agreement=0.85, kappa=0.6, low=0.4, high=0.8, date="2026-01-02"
    )
    unknown = replace(measured, kappa=None, low=None, high=None)
    result = builders.run_result(sample_run.wrong_calls())
    _open(
        page,
        tmp_path,
        replace(result, calibrations={"helpfulness": measured, "faithfulness": unknown}),
        "#/run?open=figures,coverage",
    )
    judge = page.locator("figure", has_text="Judge against people")
    judge.get_by_text("Table").click()
    expect(judge.locator("td")).to_have_text("kappa 0.6 [0.4–0.8], the same in 85% of 40 labels, 2026-01-02")
    expect(page.get_by_text("kappa is not defined: faithfulness")).to_be_visible()
    tools = page.locator("figure", has_text="Calls of each tool by outcome")
    tools.get_by_text("Table").click()
    expect(tools.locator("tr", has_text="cancel_booking").locator("td")).to_have_text(["–", "1", "–", "–"])
    no_finding(page)


def test_failures_are_grouped_by_cause(page: Any, tmp_path: Path) -> None:
    """Each cause appears once with its number of conversations, links to the first, and lists all scenarios;
    failures without a cause are counted."""
    missed = [_several(f"books {n}", False, False) for n in range(60)]
    other = builders.scenario_result("odd", verdict=builders.verdict(Status.FAILED, "why", ReasonKind.ERROR))
    _open(page, tmp_path, builders.run_result(*missed, other, builders.scenario_result("fine")))
    causes = page.get_by_role("region", name="Failures by cause").locator("li:has(h3)")
    expect(causes).to_have_count(2)
    expect(causes.first).to_contain_text("create_booking not called as expected")
    expect(causes.first).to_contain_text("120 conversations in 60 scenarios")
    expect(causes.last).to_contain_text("Other failures")
    expect(causes.first).to_be_in_viewport(ratio=1)
    first = page.get_by_role("link", name="Open the first failure")
    assert "id=books+0-0" in (first.get_attribute("href") or "")
    causes.first.get_by_text("in 60 scenarios").click()
    expect(page.locator(".places li")).to_have_count(40)
    expect(page.get_by_text("60 of 62 scenarios")).to_be_visible()
    expect(
        page.get_by_role("heading", name="with the cause “create_booking not called as expected”")
    ).to_be_visible()
    page.reload()
    expect(page.get_by_text("60 of 62 scenarios")).to_be_visible()
    causes.last.get_by_role("link", name="Other failures").click()
    expect(page.get_by_text("1 of 62 scenarios")).to_be_visible()
    page.get_by_role("searchbox").fill("books 7")
    expect(causes.first).to_contain_text("create_booking")
    expect(causes).to_have_count(1)
    page.get_by_role("button", name="Clear filters").click()
    causes.first.get_by_role("link", name="create_booking not called").click()
    page.wait_for_url("**#/conversation?*id=books+0-0*")


def test_on_a_phone_the_parts_are_tabs(page: Any, tmp_path: Path) -> None:
    """Failures come first; a cause leads to its scenarios, and one comes back to the tab that was left."""
    page.set_viewport_size({"width": 390, "height": 844})
    _open(page, tmp_path, _run())
    causes, list_, figures = (page.locator(f".pane.{name}") for name in ("failures", "scenarios", "figures"))
    expect(causes).to_be_visible()
    expect(list_).to_be_hidden()
    page.get_by_role("tab", name="Figures").click()
    expect(figures).to_be_visible()
    expect(causes).to_be_hidden()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox")).to_be_focused()
    expect(list_).to_be_visible()
    page.get_by_role("tab", name="Scenarios").click()
    list_.get_by_role("link", name="sometimes", exact=True).click()
    page.locator(".view-conversation h1").wait_for()
    page.go_back()
    expect(list_.get_by_role("link", name="sometimes", exact=True)).to_be_focused()
    page.get_by_role("tab", name="Failures").click()
    causes.get_by_role("link", name="1 conversation in 1 scenario").first.click()
    expect(list_.get_by_role("heading", name="with the cause")).to_be_visible()
    no_finding(page)


def test_rows_of_ten_thousand_scenarios_come_as_one_scrolls(page: Any, tmp_path: Path) -> None:
    """Fifty rows are rendered at first, more on scrolling; the filter covers all; going back returns to the
    opened row; paper shows how many are missing."""
    one = _several("x", True)
    many = [replace(one, name=f"asks {n}") for n in range(10_000)]
    _open(page, tmp_path, builders.run_result(*many))
    rows = page.locator(".windowed tbody tr")
    expect(page.get_by_text("9,950 more scenarios below")).to_be_attached()
    assert rows.count() == 50
    page.get_by_text("more scenarios below").scroll_into_view_if_needed()
    expect(rows.nth(90)).to_be_attached()
    rows.nth(90).get_by_role("link").click()
    page.wait_for_url("**#/conversation?*")
    page.go_back()
    expect(rows.nth(90).get_by_role("link")).to_be_focused()
    page.get_by_role("searchbox").fill("asks 777")
    expect(rows).to_have_count(19)
    page.get_by_role("searchbox").fill("")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    expect(rows).to_have_count(2000)
    expect(page.get_by_text("8,000 more scenarios below")).to_be_visible()


def test_agents_that_are_compared_have_a_column(page: Any, tmp_path: Path) -> None:
    """Each scenario has a row for each agent, and a link to what differs."""
    both = [
        replace(builders.scenario_result("books"), agent="one"),
        replace(_several("books", False), agent="two"),
    ]
    _open(page, tmp_path, builders.run_result(*both, comparison=True))
    assert page.locator(".windowed tbody td:nth-child(3)").all_inner_texts() == ["two", "one"]
    page.get_by_role("button", name="Details of books").first.click()
    link = page.get_by_role("link", name="Compare the agents side by side")
    assert "scenario=books" in (link.get_attribute("href") or "")


def test_a_run_that_is_no_pass_says_so(page: Any, tmp_path: Path) -> None:
    """Nothing but skipped scenarios, nothing at all, and what ended early are notices."""
    result = builders.run_result(builders.skipped_scenario(), stopped="the budget is spent")
    _open(page, tmp_path, result)
    assert page.locator(".notice").all_inner_texts() == [
        "This run was stopped before its end: the budget is spent.",
        "Every scenario was skipped, so the run did not pass.",
    ]
    _open(page, tmp_path, replace(result, scenarios=(), stopped=None), "?again")
    expect(page.locator(".notice")).to_contain_text("No scenario ran, so the run did not pass.")


def test_a_run_that_ended_early_names_the_command_that_goes_on(page: Any, tmp_path: Path) -> None:
    """At the top: why it ended, how much of it finished, and the command, which is copied."""
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    left = builders.scenario_result("later", (), planned=3, verdict=INTERRUPTED)
    for more, why in (
        ({"interrupted": True, "stopped": "interrupted"}, "This run was interrupted, by Ctrl-C"),
        ({"interrupted": True, "stopped": "killed before its end"}, "This run was killed"),
        ({"stopped": "the budget is spent"}, "This run was stopped before its end: the budget is spent."),
    ):
        result = builders.run_result(builders.scenario_result("fine"), left, **more)
        _open(page, tmp_path, result, f"?{len(why)}", next_step="agentest run --resume r1")
        early = page.locator(".early-end")
        expect(early).to_be_in_viewport(ratio=1)
        expect(early).to_contain_text(why)
        expect(early).to_contain_text("1 of 4 conversations finished")
        early.get_by_role("button", name="Copy command").click()
        expect(early.get_by_role("button", name="Copied")).to_be_visible()
        assert page.evaluate("navigator.clipboard.readText()") == "agentest run --resume r1"


def test_transcripts_of_a_single_scenario_can_be_searched(page: Any, tmp_path: Path) -> None:
    """It may have ten thousand conversations: the search is there."""
    _open(page, tmp_path, builders.run_result(_several("one", True, False)))
    page.get_by_role("searchbox").fill("one")
    page.get_by_role("button", name="Search transcripts").click()
    expect(page.get_by_role("region", name="Transcripts found").get_by_role("listitem")).to_have_count(2)


def test_findings_of_an_exploration_come_first(page: Any, tmp_path: Path) -> None:
    """Each has its rate, the change and the command to repeat it; its texts stay text."""
    finding = Finding(
        id="no_claim-pay-123456",
        title=f"the agent says that {HOSTILE} worked",
        oracle="no_claim",
        severity=Severity.HIGH,
        status=FindingStatus.NEW,
        part=ExploredPart.FAULTS,
        change="error of pay, call 1",
        scenario="pays",
        agent="shop",
        source="pay.sim.py",
        line=3,
        rate=FindingRate(k=9, n=20, low=0.26, high=0.66),
        text="pay failed, but the reply says 'Paid.'",
        transcript=builders.conversation_result(),
    )
    explored = Explored(findings=(finding,), tries=12, conversations=60)
    _open(page, tmp_path, replace(builders.run_result(builders.scenario_result("pays")), explored=explored))
    item = page.locator("ol.causes > li").first
    expect(item).to_contain_text("fails in 9 of 20 conversations (26%–66%)")
    expect(item).to_contain_text("error of pay, call 1")
    expect(page.get_by_text("Nothing failed")).to_have_count(0)
    expect(item).to_contain_text(SHOWN)
    assert page.title() != "bad"
    item.get_by_text("The smallest conversation").click()
    expect(item).to_contain_text("Is Tuesday free?")
