"""The schemas of judges' answers."""

from __future__ import annotations

from judge_schemas import check_no_descriptions, check_reasons_come_first, shapes

from agentest.judging.answers import ANSWERS, CriterionAnswer
from agentest.judging.error_grouping import Groups

SHAPES = {*ANSWERS.values(), CriterionAnswer, Groups, *shapes("agentest.judging.")}
"""Shapes of the modules that have them, and such as are made when they are needed."""


def test_schemas_of_answers() -> None:
    assert {"GoalAnswer", "CriterionAnswer", "Groups"} <= {shape.__name__ for shape in SHAPES}
    for shape in SHAPES:
        check_no_descriptions(shape)


def test_reasons_come_before_values() -> None:
    for shape in SHAPES:
        check_reasons_come_first(shape)
