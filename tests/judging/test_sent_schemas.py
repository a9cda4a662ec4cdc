"""The schemas of answers, as they are sent to a judge's model."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from agentest.judging.answers import ANSWERS, CriterionAnswer
from agentest.judging.error_grouping import Groups
from agentest.models.structured_output import answer_schema
from agentest.plugins.adk.metrics.hallucinations import sentence_labels
from agentest.plugins.adk.metrics.judge_graders import Goals, PolicyAnswer
from agentest.plugins.adk.metrics.rubrics import rubric_answers

_MADE = (
    *ANSWERS.values(),
    CriterionAnswer,
    Groups,
    Goals,
    PolicyAnswer,
    sentence_labels(2),
    rubric_answers(2),
)
"""Shapes of the modules that have them, and such as are made when they are needed."""
_ROOMS = ("agentest.judging.", "agentest.plugins.adk.metrics.")


def _shapes(of: type[BaseModel] = BaseModel) -> Iterator[type[BaseModel]]:
    """Those that are written down in modules of judges."""
    for each in of.__subclasses__():
        module = sys.modules.get(each.__module__)
        if each.__module__.startswith(_ROOMS) and getattr(module, each.__name__, None) is each:
            yield each
        yield from _shapes(each)


def _said(schema: Any) -> list[str]:
    """What is described anywhere in a schema."""
    if isinstance(schema, list):
        return [text for each in schema for text in _said(each)]
    if not isinstance(schema, dict):
        return []
    own = [schema["description"]] if isinstance(schema.get("description"), str) else []
    return own + [text for each in schema.values() for text in _said(each)]


def test_what_a_model_is_told_of_an_answers_form() -> None:
    """The schema of every judge's answer holds names and choices alone: what our own docstrings say of a
    shape or of a choice is not a part of a prompt."""
    shapes = {*_MADE, *_shapes()}
    names = {shape.__name__ for shape in shapes}
    assert {
        "GoalAnswer",
        "CriterionAnswer",
        "Goals",
        "PolicyAnswer",
        "Labels",
        "Answers",
        "Groups",
    } <= names
    for shape in shapes:
        schema = answer_schema(shape)
        assert not _said(schema), shape
        assert "judge" not in json.dumps(schema).lower(), shape


def test_reasons_come_before_what_they_are_for() -> None:
    """A model that writes in the order of the schema gives its reason before the value that it decides."""
    decisive = {"value", "outcome", "result", "label", "reached"}
    for shape in {*_MADE, *_shapes()}:
        schema = answer_schema(shape)
        for form in (schema, *schema.get("$defs", {}).values()):
            keys = list(form.get("properties", ()))
            decided = decisive.intersection(keys) if "reason" in keys else ()
            assert all(keys.index("reason") < keys.index(key) for key in decided), shape
