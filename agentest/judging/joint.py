"""One answer to several questions: its shape, and what can be used of it where some of it cannot.

Each question has an object of its own. In an answer about all turns the questions about turn N stand in the
object `turn_N`, so that turns have the same shape as long as the same is asked of them.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Annotated, Any

from pydantic import BaseModel, Field, PlainValidator, ValidationError, create_model

from agentest.judging.answers import WITHOUT_EVIDENCE
from agentest.judging.questions import JudgeQuestion
from agentest.models.structured import Left, Problem


def joint_answer(questions: Sequence[JudgeQuestion], *, by_turn: bool = False) -> type[BaseModel]:
    """The shape of an answer to several questions. The evidence about a turn's statements is asked for once.

    Its attribute `what_is_left` is the `Left` in which an answer is read that is wrong in parts.

    Args:
        by_turn: whether questions about turns stand in an object for each turn.
    """
    turns: dict[int, list[tuple[str, type[BaseModel]]]] = {}
    whole: list[tuple[str, type[BaseModel]]] = []
    with_evidence: set[int | None] = set()
    for each in questions:
        own = turns.setdefault(each.turn, []) if by_turn and each.turn is not None else whole
        shape = each.answer
        if shape in WITHOUT_EVIDENCE:
            shape = WITHOUT_EVIDENCE[shape] if each.turn in with_evidence else shape
            with_evidence.add(each.turn)
        own.append((each.field, shape))
    return _shape(tuple((turn, tuple(fields)) for turn, fields in turns.items()), tuple(whole))


def picked(answer: Any, question: JudgeQuestion, *, by_turn: bool = False) -> Any:
    """The answer to one question of several, or the Problem that it has."""
    holder = getattr(answer, f"turn_{question.turn}") if by_turn and question.turn is not None else answer
    return holder if isinstance(holder, Problem) else getattr(holder, question.field)


def with_shared_evidence(answers: Mapping[JudgeQuestion, Any]) -> dict[JudgeQuestion, Any]:
    """One sample's answers; those that lack evidence have that of another answer about the same turn."""
    about = {q: a for q, a in answers.items() if q.answer in WITHOUT_EVIDENCE and not isinstance(a, Problem)}
    known = {q.turn: a.evidence for q, a in reversed(about.items()) if a.evidence is not None}
    lacking = {q: known[q.turn] for q, a in about.items() if a.evidence is None and q.turn in known}
    return {**answers, **{q: about[q].model_copy(update={"evidence": e}) for q, e in lacking.items()}}


_Fields = tuple[tuple[str, type[BaseModel]], ...]


@cache
def _shape(turns: tuple[tuple[int, _Fields], ...], whole: _Fields) -> type[BaseModel]:
    return _model(
        (*((f"turn_{turn}", _model(fields, "TurnAnswer")) for turn, fields in turns), *whole), "JointAnswer"
    )


@cache
def _model(fields: _Fields, name: str) -> type[BaseModel]:
    exact: dict[str, Any] = {field: (answer, Field()) for field, answer in fields}
    left: dict[str, Any] = {
        field: (_usable_or_problem(getattr(answer, "what_is_left", answer)), Problem("it is missing"))
        for field, answer in fields
    }
    model: Any = create_model(name, **exact)
    model.what_is_left = create_model(f"{name}Left", __base__=Left, **left)
    shape: type[BaseModel] = model
    return shape


def _usable_or_problem(answer: type[BaseModel]) -> Any:
    def read(value: Any) -> Any:
        try:
            return answer.model_validate_json(json.dumps(value), strict=True)
        except ValidationError as error:
            return Problem("; ".join(_text(details) for details in error.errors(include_url=False)[:3]))

    return Annotated[Any, PlainValidator(read)]


def _text(details: Any) -> str:
    at = ".".join(str(part) for part in details["loc"])
    return f"{at}: {details['msg']}" if at else str(details["msg"])
