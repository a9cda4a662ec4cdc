"""The Label view in a real browser, by keyboard alone."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import axe
import builders
import page_at
import pytest
import sample_run
from playwright.sync_api import expect

from agentest.domain.results import Score
from agentest.plugins.page.labels.labels import read_labels

VIEW = "#/label?metric=helpfulness&by=ann&most=20"


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A project with one run, of a conversation whose turns the judge finds good and bad."""
    root = tmp_path_factory.mktemp("project")
    turns = (builders.turn(0), builders.turn(1, "And Monday?", sample_run.HOSTILE_TEXTS[0]))
    scores = [
        builders.turn_evaluation(index, {"helpfulness": Score(value, f"The judge says {value}.")})
        for index, value in enumerate((5, 1))
    ]
    held = builders.conversation_result(turns=scores, held=builders.conversation(turns=turns))
    page_at.keep_runs(root, [builders.run_result(builders.scenario_result("asks twice", [held]))])
    with page_at.served(root) as address:
        yield root, address


@pytest.fixture
def address(served: tuple[Path, str]) -> Iterator[str]:
    yield served[1]
    (served[0] / "labels.jsonl").unlink(missing_ok=True)


def question(page: Any, number: int) -> Any:
    return page.get_by_role("heading", name=f"Question {number} of 2")


def test_a_sitting_by_keyboard_alone(page: Any, address: str, served: tuple[Path, str]) -> None:
    """Keys choose, save and go on; the judge is seen after saving and not before; labels are in the file, and
    the next visit goes on with what is open."""
    page.goto(address + VIEW)
    expect(question(page, 1)).to_be_focused()
    page.keyboard.press("4")
    expect(page.get_by_role("radio").nth(3)).to_be_checked()
    assert "The judge says" not in page.content()
    page.keyboard.press("Enter")
    expect(page.get_by_text("The judge says 5.")).to_be_visible()
    expect(page.get_by_text("1 of 2 answered · you and the judge agree on 1 of 1")).to_be_visible()
    expect(page.get_by_role("button", name="Next question")).to_be_focused()
    axe.no_finding(page)

    page.keyboard.press("Enter")
    expect(question(page, 2)).to_be_focused()
    expect(page.get_by_text("The judge says")).to_have_count(0)
    page.keyboard.press("b")
    expect(question(page, 1)).to_be_focused()
    expect(page.get_by_text("The judge says 5.")).to_be_visible()
    page.keyboard.press("s")
    expect(question(page, 2)).to_be_focused()
    page.goto(address + VIEW)
    expect(question(page, 2)).to_be_focused()
    page.keyboard.press("y")
    page.get_by_label("Note").fill("j and ? are text here")
    page.get_by_role("button", name="Save").press("Enter")
    expect(page.locator(".verdict")).to_contain_text("You differ: the judge sees a fault, you see none.")
    expect(page.get_by_text("2 of 2 answered · you and the judge agree on 1 of 2")).to_be_visible()
    page.get_by_text("Judge against people").click()
    expect(page.locator("figure")).to_have_count(2)
    expect(page.locator("figure").first).to_contain_text("50% [9.5%–91%] of 2 labels")
    axe.no_finding(page)
    assert page.evaluate("window.stolen") is None
    labels = read_labels(served[0] / "labels.jsonl").labels
    assert [(each.value, each.by, each.note) for each in labels] == [
        (4, "ann", ""),
        (5, "ann", "j and ? are text here"),
    ]


def test_the_last_answer_is_taken_back(page: Any, address: str, served: tuple[Path, str]) -> None:
    """A question fits one screen with its buttons. Undo removes the answer and opens its question."""
    page.set_viewport_size({"width": 1024, "height": 768})
    page.goto(address + VIEW)
    expect(question(page, 1)).to_be_focused()
    expect(page.get_by_role("button", name="Undo")).to_be_in_viewport(ratio=1)
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
    page.keyboard.press("2")
    page.keyboard.press("Enter")
    expect(page.get_by_text("1 label; 9 more make 10")).to_be_visible()
    page.keyboard.press("Enter")
    expect(question(page, 2)).to_be_focused()
    page.keyboard.press("z")
    expect(question(page, 1)).to_be_focused()
    expect(page.get_by_text("The judge says")).to_have_count(0)
    expect(page.get_by_text("0 of 2 answered")).to_be_visible()
    assert not read_labels(served[0] / "labels.jsonl").labels


def test_two_tabs_and_an_answer_that_is_changed(page: Any, address: str) -> None:
    """Another tab's answer is shown before it is replaced, without the judge's."""
    page.goto(address + VIEW)
    expect(question(page, 1)).to_be_focused()
    other = page.context.new_page()
    other.goto(address + VIEW)
    expect(question(other, 1)).to_be_focused()
    other.keyboard.press("2")
    other.keyboard.press("Enter")
    expect(other.get_by_text("The judge says 5.")).to_be_visible()
    page.keyboard.press("5")
    page.keyboard.press("Enter")
    alert = page.get_by_role("alert").filter(has_text="You said there: 2. Save again to replace it.")
    expect(alert).to_be_visible()
    expect(page.get_by_text("The judge says")).to_have_count(0)
    page.get_by_role("button", name="Save").click()
    expect(page.locator(".verdict")).to_contain_text("You agree.")
    page.noise.problems.clear()  # the browser itself reports the refusal


def test_a_labeling_session_is_set_up(page: Any, address: str) -> None:
    """Without a selection in the address, a form asks for it; then the address has it."""
    page.goto(address + "#/label")
    page.get_by_label("Metric").select_option("helpfulness")
    page.get_by_label("Your name").fill("bob")
    axe.no_finding(page)
    page.get_by_role("button", name="Begin").click()
    expect(question(page, 1)).to_be_focused()
    assert "metric=helpfulness" in page.url
    assert "by=bob" in page.url
