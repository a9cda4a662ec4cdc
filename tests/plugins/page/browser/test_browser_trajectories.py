"""Several trajectories of a conversation, and checks of the whole, in the Conversation view."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders as make
import pytest
from axe import no_finding

from agentest.domain.events import RunFinished
from agentest.domain.results import AlignedRow, CheckResult, RowStatus, TrajectoryResult, TrajectoryScore
from agentest.plugins.page.report import HtmlReporter

CALLS = (
    make.tool_call("get_order", {"id": 17}),
    make.tool_call("refund_order", {"order_id": "17", "amount": 500}),
)
WRITES = TrajectoryResult(
    matched=False,
    summary="expected calls are missing: refund_order",
    mode="strict",
    missing_calls=("refund_order",),
    alignment=(
        AlignedRow(expected=None, call=0, status=RowStatus.FREE, difference="free: a read (get_*)"),
        AlignedRow(
            expected="refund_order(amount=5, …)",
            call=1,
            status=RowStatus.DIFFERENT,
            difference="amount: expected 5, got 500",
        ),
    ),
    name="writes only <these>",
    score=TrajectoryScore(met=0.5, precision=0.25, recall=1.0),
)
ORDER = TrajectoryResult(
    matched=False,
    summary="before: refund_order (call 2) without login before it",
    alignment=(
        AlignedRow(expected=None, call=0, status=RowStatus.FREE),
        AlignedRow(
            expected=None,
            call=1,
            status=RowStatus.OUT_OF_ORDER,
            difference="before: refund_order (call 2) without login before it",
        ),
    ),
)
LOGIN = TrajectoryResult(matched=True, summary="2 tool calls, as expected", name="login first")
BOTH = replace(WRITES, alignment=(), parts=(LOGIN, WRITES), name="", score=None)
CHECKS = (
    CheckResult(check="says", passed=False, summary="no reply says text('refunded')", turn_index=0),
    CheckResult(check="never_says", passed=True, summary="'credit card' was never said"),
    CheckResult(
        check="final_state", passed=False, summary=("could not be decided: no state"), error="no state"
    ),
    CheckResult(check="check", passed=False, summary="paid twice (shop.sim.py:9)\nassert 2 == 1"),
)


def open_report(page: Any, folder: Path, trajectory: TrajectoryResult = BOTH, **more: Any) -> Any:
    """The conversation's view in a report."""
    talk = make.conversation("c1", turns=(make.turn(tool_calls=CALLS),))
    held = make.conversation_result("c1", held=talk, trajectory=trajectory)
    held = replace(held, checks=CHECKS, **more)
    thresholds = {"trajectory_score": 0.9} if "trajectory_score" in held.metrics else {}
    result = make.run_result(make.scenario_result("refund", [held], thresholds=thresholds))
    path = folder / "report.html"
    HtmlReporter(path).on_event(RunFinished(result))
    page.goto(f"{path.as_uri()}#/conversation?scenario=refund&agent=booking&id=c1")
    page.locator("#turn-0:focus, .why-box").first.wait_for()
    page.get_by_role("tab", name="Conversation").click()
    page.locator(".why-box").wait_for()
    return page


def words(page: Any, selector: str) -> str:
    return re.sub(r"\s+", " ", page.locator(selector).first.inner_text())


@pytest.fixture
def opened(page: Any, tmp_path: Path) -> Any:
    return open_report(page, tmp_path)


def test_each_trajectory_stands_by_its_name(opened: Any) -> None:
    """Those that do not hold are open, with their rows, why calls are free, and their score."""
    boxes = opened.locator("details.box > summary").filter(has_text="Expected and actual calls")
    assert [re.sub(r"\s+", " ", each) for each in boxes.all_inner_texts()] == [
        "Expected and actual calls, login first: ✓ as expected",
        "Expected and actual calls, writes only <these>: ✗ differ",
    ]
    text = words(opened, "details.box.wrong")
    assert "Met 0.5, precision 0.25, recall 1, F1 0.4" in text
    assert "· allowed" in text
    assert "free: a read (get_*)" in text
    assert text.count("amount: expected 5, got 500") == 1
    no_finding(opened)


def test_what_speaks_against_the_conversation_comes_first(opened: Any) -> None:
    """The head names the trajectory and each check that did not hold, with its turn."""
    text = words(opened, ".why-box")
    assert "Turn 1: Tool calls, writes only <these>: expected calls are missing: refund_order" in text
    assert "Turn 1: Check says: no reply says text('refunded')" in text
    assert "Check final_state" in text
    assert "Check: paid twice (shop.sim.py:9)\nassert 2 == 1" in opened.locator(".why-box").inner_text()
    assert "never_says" not in text


def test_a_reason_appears_once_above_the_calls(page: Any, tmp_path: Path) -> None:
    """An order has one column of calls below its reason; differences are in their row."""
    order = words(open_report(page, tmp_path, ORDER), "details.box.wrong")
    assert "Expected (" not in order
    assert order.count("before: refund_order (call 2)") == 1
    assert "↕ out of order refund_order(" in order


def test_checks_of_the_whole_stand_with_what_is_said_of_it(opened: Any) -> None:
    """All of them, with what became of them."""
    part = opened.locator(".evidence section").filter(
        has=opened.get_by_role("heading", name="Scores and checks")
    )
    text = re.sub(r"\s+", " ", part.inner_text())
    assert "✗ says does not hold (Turn 1): no reply says text('refunded')" in text
    assert "✓ never_says holds: 'credit card' was never said" in text
    assert "? final_state cannot be told: no state" in text


def test_calls_that_a_threshold_counts_are_no_trouble(page: Any, tmp_path: Path) -> None:
    """They are shown as they differ, and the head reports the rest alone."""
    opened = open_report(page, tmp_path, metrics={"trajectory_score": make.scored(0.5)})
    assert "≠ differ, which the threshold counts" in words(
        opened, "details.box:has-text('writes only') > summary"
    )
    text = words(opened, ".why-box")
    assert "Tool calls" not in text
    assert "trajectory_score 0.5, below 0.9" in text
