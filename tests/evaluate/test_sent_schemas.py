"""The schemas of answers, as they are sent to a judge's model."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from agentest.evalset.metrics import judged
from agentest.evalset.metrics.hallucinations import sentence_labels
from agentest.evalset.metrics.rubrics import rubric_answers
from agentest.evaluate.answers import ANSWERS, joint_answer
from agentest.evaluate.dedup import Groups
from agentest.llm.schema import answer_schema

_MADE = (joint_answer(tuple(ANSWERS)), sentence_labels(2), rubric_answers(2), Groups, judged.BinaryAnswer)
"""Shapes that are made when they are needed, and what their modules define beside them."""
_ROOMS = ("agentest.evaluate.", "agentest.evalset.metrics.")


def _shapes(of: type[BaseModel] = BaseModel) -> Iterator[type[BaseModel]]:
    for each in of.__subclasses__():
        if each.__module__.startswith(_ROOMS):
            yield each
        yield from _shapes(each)


SHAPES = sorted({shape.__name__: shape for shape in (*_MADE, *_shapes())}.items())


def _said(schema: Any) -> list[str]:
    """What is described anywhere in a schema."""
    if isinstance(schema, list):
        return [text for each in schema for text in _said(each)]
    if not isinstance(schema, dict):
        return []
    own = [schema["description"]] if isinstance(schema.get("description"), str) else []
    return own + [text for each in schema.values() for text in _said(each)]


def test_all_shapes_are_known() -> None:
    """The table below holds the shapes of all judges' answers."""
    names = {name for name, _ in SHAPES}
    assert {
        "GoalAnswer",
        "CriterionAnswer",
        "JointAnswer",
        "Goals",
        "PolicyAnswer",
        "Labels",
        "Groups",
    } <= names


@pytest.mark.parametrize(("name", "shape"), SHAPES, ids=[name for name, _ in SHAPES])
def test_what_a_model_is_told_of_an_answers_form(name: str, shape: type[BaseModel]) -> None:
    """A schema holds names and choices alone: what our own docstrings say of a shape is no part of a prompt,
    and what gives the reason comes before what it is the reason for."""
    schema = answer_schema(shape)
    assert not _said(schema), name
    assert "judge" not in json.dumps(schema).lower()
    for form in (schema, *schema.get("$defs", {}).values()):
        keys = list(form["properties"])
        for value in (
            {"value", "outcome", "result", "label", "reached"} & set(keys) if "reason" in keys else ()
        ):
            assert keys.index("reason") < keys.index(value)
