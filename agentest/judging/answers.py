"""Answer shapes for judge questions, and one result from several sampled answers.

Each shape puts the reason first because a model that gives its reasons before the value judges better. The
worst choice comes first among the choices. Docstrings of shapes and choices are for developers:
`StructuredAnswer` and `choices_of` keep them out of the schema that is sent to the model.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from itertools import chain
from statistics import median_high, median_low
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    WithJsonSchema,
    create_model,
    model_validator,
)

from agentest.config.fields import no_bool
from agentest.domain.metrics import BUILTIN, FALSE_INFORMATION, GOAL, NO_FAILURE, Kind, MetricDefinition
from agentest.domain.results import (
    DECIDED,
    NO_MODEL,
    CriterionOutcome,
    CriterionResult,
    Evidence,
    GoalOutcome,
    Score,
    Severity,
    Unscored,
)
from agentest.judging.judge_input import JudgeQuestion
from agentest.models.port import StructuredAnswer
from agentest.scenarios.model import Criterion

_Shape = TypeVar("_Shape", bound=BaseModel)
_REASON_CHARS = 10_000
"""Limit for a reason. One or two sentences are requested, but some models repeat themselves endlessly."""
_SEVERE = ("critical", "high")
"""Severities that contradict an empty list of labels. Weak models give a lower one instead of null."""
_NO_LABEL = (NO_FAILURE, "none", "None")


def choices_of(names: Iterable[StrEnum]) -> WithJsonSchema:
    """Return a schema that lists the enum's values inline, without the enum's docstring."""
    return WithJsonSchema({"type": "string", "enum": [name.value for name in names]})


_Evidence = Annotated[Evidence | None, choices_of(Evidence)]
"""Always requested; an answer without it is still valid."""


def _truncated(reason: str) -> str:
    return reason if len(reason) <= _REASON_CHARS else f"{reason[:_REASON_CHARS]}…"


class _Answer(StructuredAnswer):
    reason: Annotated[str, AfterValidator(_truncated)]


class ScaleAnswer(_Answer):
    value: Annotated[Literal[1, 2, 3, 4, 5], BeforeValidator(no_bool)]


class BinaryAnswer(_Answer):
    value: Annotated[Literal[0, 1], BeforeValidator(no_bool)]


class EvidencedAnswer(_Answer):
    evidence: _Evidence = None
    value: Annotated[Literal[1, 2, 3, 4, 5], BeforeValidator(no_bool)]


class GoalAnswer(_Answer):
    outcome: Annotated[GoalOutcome, choices_of(GoalOutcome)]

    @model_validator(mode="before")
    @classmethod
    def _value_for_outcome(cls, data: Any) -> Any:
        if not isinstance(data, dict) or "value" not in data:
            return data
        if "outcome" in data:
            told, value = data["outcome"], data["value"]
            if told in tuple(GoalOutcome) and value in (0, 1) and value != GoalOutcome(told).value_of_goal:
                raise ValueError(f"the outcome {str(told)!r} and the value {value} exclude each other")
            return data
        value = no_bool(data["value"])
        known = {1: GoalOutcome.REACHED, 0: GoalOutcome.NOT_REACHED}
        return {**data, "outcome": known[value] if value in (0, 1) else value}


_Severity = Literal["critical", "high", "medium", "low"]


def _severity_or_none(value: object) -> object:
    return value if isinstance(value, str) and value in get_args(_Severity) else None


class LabelsAnswer(_Answer):
    known: ClassVar[Sequence[str]] = ()  # the metric's labels in order of precedence
    evidence: _Evidence = None
    labels: list[str]
    severity: Annotated[_Severity | None, BeforeValidator(_severity_or_none)] = None

    @model_validator(mode="before")
    @classmethod
    def _names_failures(cls, data: Any) -> Any:
        if isinstance(data, dict) and (data.get("value") is not None or "labels" in data):
            labels = _failures_named(cls.known, data)
            if labels == [] and data.get("severity") in _SEVERE:
                raise ValueError(
                    f"it names no label, but the severity {data['severity']!r}; name what failed, or set "
                    "severity to null"
                )
            return {**data, "labels": labels}
        return data

    @property
    def value(self) -> str:
        return self.labels[0] if self.labels else NO_FAILURE


class CriterionAnswer(_Answer):
    turn: Annotated[int | None, BeforeValidator(lambda value: value if type(value) is int else None)] = None
    result: Annotated[CriterionOutcome, choices_of(CriterionOutcome)]


def _failures_named(known: Sequence[str], data: Mapping[str, Any]) -> Any:
    """Return the failures that an answer names, by precedence. Raises ValueError if it contradicts itself.

    An answer in the old form also has a `value`, which decides; unknown labels in its list are ignored.
    """
    failures, value = [label for label in known if label != NO_FAILURE], data.get("value")
    labels = data.get("labels")
    named = [labels] if isinstance(labels, str) else labels
    if value is None:
        if not isinstance(named, list):
            return labels
        others = [each for each in named if each not in (*failures, *_NO_LABEL)]
        none_named = NO_FAILURE in named
    else:
        if value not in tuple(known):  # a tuple, because unhashable values are possible
            raise ValueError(f"`value` must be one of {', '.join(map(repr, known))}")
        named = [each for each in named or () if isinstance(each, str)] if isinstance(named, list) else []
        others = [each for each in named if each not in (*failures, *_NO_LABEL, "")]
        none_named = value == NO_FAILURE
    named_failures = [label for label in failures if label == value or label in named]
    if others and not named_failures:
        raise ValueError(f"{others!r:.200} names other failures than {', '.join(map(repr, failures))}")
    if named_failures and none_named:
        raise ValueError(
            f"it names the failure {named_failures[0]!r} and says {NO_FAILURE!r}; decide for one"
        )
    return named_failures


def _without_evidence_in_schema(shape: type[_Shape]) -> type[_Shape]:

    def drop_evidence(schema: dict[str, Any]) -> None:
        schema.pop("description", None)
        del schema["properties"]["evidence"]

    class Answer(shape):  # type: ignore[misc, valid-type]
        model_config = ConfigDict(json_schema_extra=drop_evidence)

    Answer.__name__ = Answer.__qualname__ = shape.__name__
    return Answer


def _answer_type(metric: MetricDefinition) -> type[BaseModel]:
    if metric.kind is Kind.LABEL:
        choice: Any = Literal[tuple(label for label in metric.labels if label != NO_FAILURE)]
        labels: Any = (list[choice], Field())
        shape = create_model("LabelsAnswer", __base__=LabelsAnswer, labels=labels)
        shape.known = tuple(metric.labels)
        return _without_evidence_in_schema(shape) if metric.judges_tool_calls else shape
    if metric.name == GOAL:
        return GoalAnswer
    return EvidencedAnswer if metric.name == "faithfulness" else ScaleAnswer


ANSWERS = {name: _answer_type(metric) for name, metric in BUILTIN.items()}
"""Built-in metric → the shape of an answer to its question."""

WITHOUT_EVIDENCE = {
    ANSWERS[name]: _without_evidence_in_schema(ANSWERS[name])
    for name in ("faithfulness", "agent_behavior_failure")
}
"""Shape with evidence → the same shape for turns whose evidence another answer gives."""


_WITH_EVIDENCE = ("faithfulness", "agent_behavior_failure")
_EXCLUDED_BY = {Evidence.CONTRADICTED: (5,), Evidence.UNSUPPORTED: (5,), Evidence.SUPPORTED: (1, 2)}
_OF_MANNER = {"repetition", "asked again", "wrong language", "wrong order", "repeated tool call"} | {
    "unnecessary tool call"
}
_OF_WORTH = ("helpfulness", "relevance", "coherence", "faithfulness")
"""Metrics that cannot all be 1 in every turn if the goal was reached."""


def exclusions(answers: Mapping[JudgeQuestion, Any]) -> dict[JudgeQuestion, str]:
    """Return the questions whose answers exclude each other, each with a text that names the answers.

    Only contradictions of definitions count. A harsh or generous answer is not one.

    Args:
        answers: answers or scores, about turns, about the conversation, or both. Anything else is ignored.
    """
    sets: dict[int | None, dict[str, Any]] = {}
    for question, answer in answers.items():
        if hasattr(answer, "reason"):
            sets.setdefault(question.turn, {})[question.name] = answer
    found: dict[tuple[int | None, str], str] = {}
    for turn, given in sets.items():
        if not any(map(str.isalnum, chain.from_iterable(answer.reason for answer in given.values()))):
            found |= {(turn, name): "every reason is empty" for name in given}
        if text := _excluded_evidence(given):
            found |= {(turn, name): text for name in _WITH_EVIDENCE}
    whole = sets.pop(None, {})
    if text := excluded_goal(whole.get(GOAL), sets):
        found[None, GOAL] = text
    return {q: found[q.turn, q.name] for q in answers if (q.turn, q.name) in found}


def _excluded_evidence(given: Mapping[str, Any]) -> str:
    score, behavior = (given.get(name) for name in _WITH_EVIDENCE)
    labels = [label for answer in given.values() for label in getattr(answer, "labels", ())]
    value, evidence = (score.value, score.evidence) if score else (None, None)
    contradicted = evidence is Evidence.CONTRADICTED
    if evidence and value in _EXCLUDED_BY[evidence]:
        pair = f"faithfulness {value}", f"the evidence {str(evidence)!r}"
    elif behavior and FALSE_INFORMATION in labels and behavior.evidence is Evidence.SUPPORTED:
        pair = f"the label {FALSE_INFORMATION!r}", "the evidence 'supported'"
    elif behavior and (value == 1 or (value == 2 and contradicted)) and _OF_MANNER.issuperset(labels):
        shown = f"faithfulness {value}" + (f" ({evidence})" if evidence else "")
        pair = shown, f"the label {(*labels, NO_FAILURE)[0]!r}"
    else:
        return ""
    return " and ".join(pair) + " exclude each other"


def excluded_goal(goal: Any, turns: Mapping[Any, Mapping[str, Any]]) -> str:
    """Return which answers, or scores, about the goal and about all turns exclude each other, or ""."""
    outcome = getattr(goal, "outcome", None)
    if not (outcome and outcome.value_of_goal) or sorted(turns) != list(range(len(turns))):
        return ""
    given = [(name, getattr(turn.get(name), "value", None)) for turn in turns.values() for name in _OF_WORTH]
    names = dict.fromkeys(name for name, value in given if value is not None)
    if len(names) < 2 or any(value not in (1, None) for _, value in given):
        return ""
    return f"goal_completion {str(outcome)!r} and 1 for {', '.join(names)} in every turn exclude each other"


def score_of(metric: str, answers: Sequence[Any], requested: int) -> Score | Unscored:
    """Combine several answers to a built-in metric's question into one score.

    Numbers are combined by their median, labels by majority. The result is Unscored if as many answers report
    a failure as report none.

    Args:
        requested: number of answers requested; if more than one, the score lists all values.
    """
    if isinstance(answers[0], GoalAnswer):
        return _goal_score(answers, requested)
    if isinstance(answers[0], LabelsAnswer):
        return _labels_score(BUILTIN[metric], answers, requested)
    value = median_low([answer.value for answer in answers])
    first = next(answer for answer in answers if answer.value == value)
    evidence = first.evidence if isinstance(first, EvidencedAnswer) else None
    return Score(value, first.reason, _all_values([a.value for a in answers], requested), evidence=evidence)


def criterion_result(
    criterion: Criterion, answers: Sequence[CriterionAnswer], requested: int, turns: int
) -> CriterionResult:
    """Combine several answers about a criterion: the majority result, else `cannot tell`."""
    results = [answer.result for answer in answers]
    most, times = Counter(results).most_common(1)[0]
    agreed = 2 * times > len(results)
    first = next(answer for answer in answers if answer.result is most)
    turn = first.turn - 1 if first.turn is not None and 1 <= first.turn <= turns else None
    # Mark a reason that equals a text reserved for criteria that were not judged.
    is_reserved = first.reason in (DECIDED, NO_MODEL)
    reason = f"the judge says: {first.reason}" if is_reserved else first.reason
    return CriterionResult(
        text=criterion.text,
        required=criterion.required,
        result=most if agreed else CriterionOutcome.CANNOT_TELL,
        turn_index=turn if agreed else None,
        reason=reason if agreed else _disagreement(answers),
        samples=_all_values(results, requested),
    )


def _disagreement(answers: Sequence[CriterionAnswer]) -> str:
    reasons = {answer.result: answer.reason for answer in reversed(answers)}
    return "the answers differ: " + "; ".join(
        f"{result}: {reason}" for result, reason in sorted(reasons.items())
    )


def _majority_missing(answers: Sequence[str]) -> str:
    counted = ", ".join(f"{answer} ({times})" for answer, times in Counter(answers).items())
    return f"the judge's {len(answers)} answers differ, and none has a majority: {counted}"


_OPEN = GoalOutcome.LEFT_OPEN
_LEFT_OPEN = (
    "left open: the script ended while the agent was waiting for an answer. Add a turn, or state in "
    "`expected_outcome` that the agent waits"
)


def _goal_score(answers: Sequence[GoalAnswer], requested: int) -> Score | Unscored:
    sides = [each.outcome.value_of_goal if each.outcome is not _OPEN else _OPEN for each in answers]
    [(side, times)] = Counter(sides).most_common(1)
    if 2 * times <= len(answers):
        return Unscored(_majority_missing([answer.outcome for answer in answers]))
    agreeing = [answer for answer, each in zip(answers, sides, strict=True) if each == side]
    [(outcome, _)] = Counter(answer.outcome for answer in agreeing).most_common(1)
    first = next(answer for answer in agreeing if answer.outcome is outcome)
    if outcome is _OPEN:
        return Unscored(f"{_LEFT_OPEN}: {first.reason}", outcome=outcome)
    values = [answer.outcome.value_of_goal for answer in answers]
    return Score(first.outcome.value_of_goal, first.reason, _all_values(values, requested), outcome=outcome)


def _labels_score(
    metric: MetricDefinition, answers: Sequence[LabelsAnswer], requested: int
) -> Score | Unscored:
    values = [answer.value for answer in answers]
    failing = [answer for answer in answers if answer.value != NO_FAILURE]
    if 2 * len(failing) == len(answers):
        return Unscored(_majority_missing(values))
    if 2 * len(failing) < len(answers):
        first = next(answer for answer in answers if answer.value == NO_FAILURE)
        return Score(NO_FAILURE, first.reason, _all_values(values, requested))
    named = Counter(label for answer in failing for label in answer.labels)
    [(most, _)] = Counter(answer.value for answer in failing).most_common(1)
    chosen = {most, *(label for label, times in named.items() if 2 * times > len(failing))}
    labels = tuple(label for label in metric.labels if label in chosen)
    first = next((answer for answer in failing if answer.value == labels[0]), failing[0])
    of_falsehoods = [answer.evidence for answer in failing if FALSE_INFORMATION in answer.labels]
    evidence = next((each for each in of_falsehoods if each and each is not Evidence.SUPPORTED), None)
    severities = [Severity.of(answer.severity) for answer in failing if answer.severity]
    return Score(
        labels[0],
        first.reason,
        _all_values(values, requested),
        labels=labels,
        evidence=evidence if FALSE_INFORMATION in labels else None,
        severity=median_high(severities) if len(severities) == len(failing) else None,
    )


def _all_values(values: Sequence[Any], requested: int) -> tuple[Any, ...]:
    return tuple(values) if requested > 1 else ()
