"""`agentest show-prompts`: every question to a judge, as it is asked."""

from __future__ import annotations

import re

import pytest
from project import Project

from agentest.judging.questions import SYSTEM
from agentest.plugins.page.commands.calibrate import prompt_text
from agentest.support.errors import UsageError

MODES = ("off", "turn", "conversation")


@pytest.mark.parametrize("mode", MODES)
def test_whole_calls_are_shown(mode: str) -> None:
    """`show-prompts --mode` shows every call of an example, with each text once."""
    shown = prompt_text(None, mode)
    number = shown.count("\n\n## system\n")
    assert number == {"turn": 3, "conversation": 1}.get(mode, number)
    assert f"# call {number} of {number}: the conversation, " in shown
    for turn in (1, 2) if mode != "conversation" else ():  # as the prompt below the heading calls it
        [below, *_] = re.findall(rf"(?ms)^# call \d+ of \d+: turn {turn}, (.+?)(?:^# call |\Z)", shown)
        assert f"The turn to judge: turn {turn}," in below
    assert shown.count(SYSTEM) == 1
    assert '<data name="date_and_time">\nMonday, 2026-03-02, 09:30' in shown
    for text in ("B-17 is a Light fare", "Never asks for the full card number", "The refund is refused"):
        assert text in shown
    assert ("(as in call 1)" in shown) is (number > 1)
    with pytest.raises(UsageError, match="one of them"):
        prompt_text("coherence", mode)
    alias = {"off": "false", "turn": "true"}.get(mode, mode)
    assert prompt_text(None, alias) == shown


@pytest.mark.parametrize(
    ("name", "texts"),
    [
        ("criteria", (SYSTEM, "does the given criterion hold")),
        ("user.check", ("did the user keep its role?",)),
    ],
    ids=["criteria", "user.check"],
)
def test_prompts_of_other_questions_are_shown(name: str, texts: tuple[str, ...]) -> None:
    """`show-prompts --metric` also shows criteria and user prompts, and the list names them."""
    shown = prompt_text(name)
    assert all(text in shown for text in texts)
    assert "{{" not in shown
    assert "# others, shown with --metric NAME\ncriteria, user.check" in prompt_text(None)


def test_prompts_are_shown(project: Project) -> None:
    """show-prompts prints all prompts or one, and suggests the nearest for a wrong name."""
    assert "helpful" in project.agentest("show-prompts").stdout
    one = project.agentest("show-prompts", "--metric", "goal_completion").stdout
    assert "# goal_completion" in one
    assert "# helpfulness" not in one
    wrong = project.agentest("show-prompts", "--metric", "helpfulnes")
    assert wrong.returncode == 2
    assert "helpfulness" in wrong.stderr
