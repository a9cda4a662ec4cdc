"""`show-prompts` and `--dry-run` know the metrics of evaluation sets."""

from __future__ import annotations

import pytest

from agentest.plugins.adk.formats.criteria import MetricCriterion
from agentest.plugins.adk.formats.eval_set import EvalCase, Invocation, content
from agentest.plugins.adk.metrics.grader_factory import JUDGED_NAMES, make_grader
from agentest.plugins.page.commands.calibrate import prompt_text
from agentest.support.errors import UsageError


@pytest.mark.parametrize("metric", JUDGED_NAMES)
def test_every_judged_metric_shows_what_is_asked(metric: str) -> None:
    """The prompt begins with the judge's part and has the conversation and the question."""
    shown = prompt_text(metric)
    assert shown.startswith(f"# {metric}, system\nYou judge")
    assert f"# {metric}, user\n" in shown
    assert "Where is my order?" in shown
    assert "Question: " in shown


def test_names_of_metrics() -> None:
    """Either spelling is known, all are named, and the nearest is named for a wrong one."""
    assert prompt_text("safetyV1") == prompt_text("safety_v1")
    assert prompt_text("goalCompletion") == prompt_text("goal_completion")
    assert all(metric in prompt_text(None) for metric in JUDGED_NAMES)
    with pytest.raises(UsageError, match="did you mean `hallucinations_v1`"):
        prompt_text("hallucination_v1")


@pytest.mark.parametrize(
    ("metric", "samples", "calls"),
    [
        ("response_match_score", 3, 0),
        ("safety_v1", 3, 12),
        ("final_response_match_v2", None, 20),
        ("multi_turn_task_success_v1", 3, 3),
    ],
)
def test_the_maximum_of_judge_calls(metric: str, samples: int | None, calls: int) -> None:
    """A turn metric asks about each of four turns, a conversation metric once, per sample."""
    case = EvalCase("one", (Invocation(content("x", "user")),))
    grader = make_grader(case, MetricCriterion(metric, 0.5, num_samples=samples), {})
    assert grader.most_calls(4) == calls
