"""The schemas of graders' answers."""

from __future__ import annotations

from judge_schemas import check_no_descriptions, check_reasons_come_first, shapes

from agentest.plugins.adk.metrics.hallucinations import sentence_labels
from agentest.plugins.adk.metrics.judge_graders import Goals, PolicyAnswer
from agentest.plugins.adk.metrics.rubrics import rubric_answers

SHAPES = {
    Goals,
    PolicyAnswer,
    sentence_labels(2),
    rubric_answers(2),
    *shapes("agentest.plugins.adk.metrics."),
}
"""Shapes of the modules that have them, and such as are made when they are needed."""


def test_what_a_model_is_told_of_an_answers_form() -> None:
    assert {"Goals", "PolicyAnswer", "Labels", "Answers"} <= {shape.__name__ for shape in SHAPES}
    for shape in SHAPES:
        check_no_descriptions(shape)


def test_reasons_come_before_what_they_are_for() -> None:
    for shape in SHAPES:
        check_reasons_come_first(shape)
