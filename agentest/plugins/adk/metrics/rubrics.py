"""Rubric metrics: a judge answers yes or no for every property that a turn should have."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from math import fsum
from typing import ClassVar, Literal, Self

from pydantic import create_model, model_validator

from agentest.domain.metrics import ADK_METRICS
from agentest.domain.results import RubricScore, Score, Unscored
from agentest.models.port import StructuredAnswer
from agentest.plugins.adk.formats.criteria import MetricCriterion
from agentest.plugins.adk.formats.eval_set import EvalCase, Rubric
from agentest.plugins.adk.formats.other_formats import is_part
from agentest.plugins.adk.metrics.grader import invocation_at, majority
from agentest.support.errors import UsageError
from agentest.support.text import shortened


def effective_rubrics(case: EvalCase, criterion: MetricCriterion, turn_index: int) -> tuple[Rubric, ...]:
    """Return the rubrics of a turn: those of the criterion, the case, and the invocation, in this order.

    Empty if none applies. Raises UsageError for a duplicate id.
    """
    invocation = invocation_at(case, turn_index)
    by_owner = (
        ("the criterion", criterion.rubrics),
        ("the case", _of_type(case.rubrics, criterion)),
        ("the invocation", _of_type(invocation.rubrics if invocation else None, criterion)),
    )
    owners: dict[str, str] = {}
    for owner, rubrics in by_owner:
        for rubric in rubrics:
            if rubric.rubric_id in owners:
                name = f" ({invocation.invocation_id!r})" if invocation and invocation.invocation_id else ""
                at = f", invocation {turn_index}{name}" if invocation else ""
                where = f"case {case.eval_id!r}{at}: {criterion.metric}"
                who = owners[rubric.rubric_id]
                whose = f"by {who} and again by {owner}" if who != owner else f"by {owner}"
                raise UsageError(
                    f"{where}: the rubric id {rubric.rubric_id!r} is given twice, {whose}; "
                    "give each rubric an id of its own"
                )
            owners[rubric.rubric_id] = owner
    return tuple(rubric for _, rubrics in by_owner for rubric in rubrics)


def check_rubrics(case: EvalCase, criterion: MetricCriterion) -> None:
    """Raise UsageError for a duplicate id in a turn, and for a case without rubrics.

    A turn without rubrics is left out if another turn has some.
    """
    turns = len(case.conversation) if case.conversation is not None else 1
    by_turn = [effective_rubrics(case, criterion, index) for index in range(turns)]
    if not any(by_turn):
        raise _no_rubrics(case, criterion)


def rubrics_of_whole(case: EvalCase, criterion: MetricCriterion) -> tuple[Rubric, ...]:
    """Return the rubrics of a conversation: those of the criterion, the case, and all of its invocations.

    A rubric that several invocations repeat is returned once. Raises UsageError for a case without rubrics,
    and if an id has two texts.
    """
    of_invocations = [
        rubric for turn in case.conversation or () for rubric in _of_type(turn.rubrics, criterion)
    ]
    chosen: dict[str, Rubric] = {}
    for rubric in (*criterion.rubrics, *_of_type(case.rubrics, criterion), *of_invocations):
        if chosen.setdefault(rubric.rubric_id, rubric).rubric_content != rubric.rubric_content:
            raise UsageError(
                f"case {case.eval_id!r}: {criterion.metric}: the rubric id {rubric.rubric_id!r} is given "
                "twice, with two texts; give each rubric an id of its own"
            )
    if not chosen:
        raise _no_rubrics(case, criterion)
    return tuple(chosen.values())


def _no_rubrics(case: EvalCase, criterion: MetricCriterion) -> UsageError:
    return UsageError(
        f"case {case.eval_id!r}: {criterion.metric} has no rubrics; give `rubrics` to the criterion "
        "(`rubric` in a file with `metrics`), or "
        f"rubrics of type `{ADK_METRICS[criterion.metric].rubric_type}` to the case or its invocations"
    )


def _of_type(rubrics: Sequence[Rubric] | None, criterion: MetricCriterion) -> tuple[Rubric, ...]:
    wanted = ADK_METRICS[criterion.metric].rubric_type
    return tuple(rubric for rubric in rubrics or () if rubric.type == wanted)


class RubricAnswer(StructuredAnswer):
    """A judge's answer to one property."""

    property: int
    reason: str
    value: Literal["yes", "no"]


class RubricAnswers(StructuredAnswer):
    """A judge's answers: at most one for each property. `rubric_count` is their number."""

    rubric_count: ClassVar[int]

    answers: list[RubricAnswer]

    @model_validator(mode="after")
    def _check_properties(self) -> Self:
        numbers = [answer.property for answer in self.answers]
        for number in numbers:
            if not 1 <= number <= self.rubric_count:
                raise ValueError(
                    f"there is no property {number}; they are numbered from 1 to {self.rubric_count}"
                )
            if numbers.count(number) > 1:
                raise ValueError(f"property {number} is answered {numbers.count(number)} times")
        return self

    def of(self, number: int) -> RubricAnswer | None:
        return next((answer for answer in self.answers if answer.property == number), None)


@cache
def rubric_answers(count: int) -> type[RubricAnswers]:
    """Return the answer type for this number of properties."""
    answers = create_model("Answers", __base__=RubricAnswers, __doc__=None)
    answers.rubric_count = count
    return answers


def combined(rubrics: Sequence[Rubric], answers: Sequence[RubricAnswers]) -> Score | Unscored:
    """Return the mean over the rubrics, each 1 or 0 by the majority of the samples that answer it.

    A rubric that no sample answers leaves the score out. The reason names the missed rubrics, else the
    fulfilled ones.
    """
    scores = []
    for number, rubric in enumerate(rubrics, start=1):
        found = [answer for each in answers if (answer := each.of(number))]
        if not found:
            scores.append(RubricScore(rubric.rubric_id, None))
            continue
        yes = majority([answer.value == "yes" for answer in found])
        reason = next(answer.reason for answer in found if (answer.value == "yes") is yes)
        scores.append(RubricScore(rubric.rubric_id, float(yes), reason))
    unanswered = [repr(s.rubric_id) for s in scores if s.score is None]
    if unanswered:
        return Unscored(f"no judge answered for the rubrics {', '.join(unanswered)}")
    missed = [score for score in scores if not score.score]
    reasons = [f"{_rubric_name(s.rubric_id, rubrics)}: {s.rationale}" for s in missed or scores]
    return Score(
        fsum(s.score or 0 for s in scores) / len(scores),
        ("not fulfilled: " if missed else "fulfilled: ") + "; ".join(reasons),
        tuple(
            sum(answer.value == "yes" for answer in sample.answers) / len(sample.answers)
            for sample in answers
            if sample.answers
        ),
        tuple(scores),
    )


def _rubric_name(rubric_id: str, rubrics: Sequence[Rubric]) -> str:
    """Return the id, and the text of a part of a rubric, because its id means nothing to a reader."""
    texts = {rubric.rubric_id: rubric.rubric_content.text_property for rubric in rubrics}
    return f"{rubric_id} ({shortened(texts[rubric_id], 100)})" if is_part(rubric_id) else rubric_id
