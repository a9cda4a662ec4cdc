"""Grouping a scenario's failures by root cause, without ever losing one."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, create_model

from agentest.domain.results import ConversationResult, Deduplication, ErrorGroup, LabelledFailure, Severity
from agentest.judging.dedup_prompts import chosen, dedup_messages
from agentest.models.port import CallKey, Model
from agentest.models.schema import UNDESCRIBED
from agentest.scenarios.model import Scenario
from agentest.support.errors import ModelError


class Group(BaseModel):
    """One group as the model gives it."""

    model_config = UNDESCRIBED

    label: str
    explanation: str
    severity: Literal["low", "medium", "high", "critical"]
    occurrences: list[str]


class Groups(BaseModel):
    """The model's answer."""

    model_config = UNDESCRIBED

    groups: list[Group]


def groups_of(ids: Collection[str]) -> type[Groups]:
    """The shape of an answer about the failures with these ids.

    An answer that names another id, or groups none of them, is invalid: the model is asked again.
    """

    def checked(groups: list[Group]) -> list[Group]:
        named = [id for group in groups for id in group.occurrences]
        if unknown := [id for id in named if id not in ids]:
            raise ValueError(
                f"occurrences: {unknown[0]!r} is not the id of a failure; copy ids exactly as given"
            )
        if not named:
            raise ValueError("groups: put every failure into a group")
        return groups

    return create_model(
        "Groups", __base__=Groups, groups=(Annotated[list[Group], AfterValidator(checked)], ...)
    )


async def deduplicate(
    failures: Sequence[LabelledFailure],
    scenario: Scenario,
    model: Model | None,
    scope: str,
    conversations: Sequence[ConversationResult] = (),
    *,
    instructions: str = "",
) -> Deduplication:
    """The failures in groups; each failure is in exactly one.

    No failure needs no call, and neither does a single one whose severity is known.

    Args:
        conversations: those in which the failures occurred, for what became of them.
        instructions: what the agent was told, where that is known.
    """
    if not failures:
        return Deduplication()
    if model is None:
        return group_by_label(failures)
    if len(failures) == 1 and failures[0].severity is not None:
        return Deduplication((_alone(failures[0], failures[0].severity),))
    shown, unshown = chosen(failures)
    messages = dedup_messages(scenario, shown, conversations, instructions=instructions)
    try:
        shape = groups_of([failure.id for failure in shown])
        answer = await model.ask(messages, shape, CallKey("dedup", scope))
    except ModelError as error:
        return replace(group_by_label(failures), error=str(error), graded=False)
    except Exception as error:  # noqa: BLE001 - the boundary of the stage: no failure is lost by it
        problem = f"internal error: {type(error).__name__}: {error}"
        return replace(group_by_label(failures), error=problem, graded=False)
    return Deduplication(_with_unshown(settle(answer.groups, shown), shown, unshown))


def settle(groups: Iterable[Group], failures: Sequence[LabelledFailure]) -> tuple[ErrorGroup, ...]:
    """The model's groups, with each failure in exactly one.

    An id in several groups stays in the most severe one. Ids that the model left out come back in a group of
    their own.
    """
    left = {failure.id: failure for failure in failures}
    settled = []
    for group in sorted(groups, key=lambda g: Severity.of(g.severity), reverse=True):
        ids = tuple(dict.fromkeys(id for id in group.occurrences if id in left))
        members = [left.pop(id) for id in ids]
        if members:
            label = group.label if group.label.strip() else members[0].label
            settled.append(ErrorGroup(label, Severity.of(group.severity), ids, group.explanation))
    if left:
        settled.append(_ungrouped(tuple(left.values())))
    return tuple(settled)


def _with_unshown(
    groups: Sequence[ErrorGroup], shown: Sequence[LabelledFailure], unshown: Sequence[LabelledFailure]
) -> tuple[ErrorGroup, ...]:
    """The groups with the failures that were too many to show: each in the worst group that has its label."""
    kinds = {failure.id: (failure.metric, failure.label) for failure in shown}
    worst_last = sorted(enumerate(groups), key=lambda each: each[1].severity)
    group_of = {kinds[id]: n for n, group in worst_last for id in group.occurrences}
    added: dict[int, list[str]] = {}
    for failure in unshown:
        added.setdefault(group_of.get((failure.metric, failure.label), 0), []).append(failure.id)
    return tuple(_with_more(group, added.get(n, [])) for n, group in enumerate(groups))


def _with_more(group: ErrorGroup, ids: Sequence[str]) -> ErrorGroup:
    if not ids:
        return group
    note = (
        f"{len(ids)} of them were not shown to the model, as there were too many: they have the same labels"
    )
    return replace(
        group,
        occurrences=(*group.occurrences, *ids),
        explanation=f"{group.explanation} ({note}.)",
    )


def _alone(failure: LabelledFailure, severity: Severity) -> ErrorGroup:
    return ErrorGroup(failure.label, severity, (failure.id,), f"{failure.metric}: {failure.reason}")


def _ungrouped(failures: Sequence[LabelledFailure]) -> ErrorGroup:
    labels = ", ".join(dict.fromkeys(failure.label for failure in failures))
    return ErrorGroup(
        f"ungrouped: {labels}",
        Severity.MEDIUM,
        tuple(failure.id for failure in failures),
        "The model that groups failures left these out. " + failures[0].reason,
    )


def group_by_label(failures: Sequence[LabelledFailure]) -> Deduplication:
    """The failures grouped by metric and label, at severity `medium`: what is done without a model."""
    groups: dict[tuple[str, str], list[LabelledFailure]] = {}
    for failure in failures:
        groups.setdefault((failure.metric, failure.label), []).append(failure)
    return Deduplication(
        tuple(
            ErrorGroup(label, Severity.MEDIUM, tuple(f.id for f in members), f"{metric}: {members[0].reason}")
            for (metric, label), members in groups.items()
        )
    )
