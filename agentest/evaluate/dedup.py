"""Grouping a scenario's failures by root cause, without ever losing one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

from pydantic import BaseModel

from agentest.errors import ModelError
from agentest.evaluate.dedup_prompts import chosen, dedup_messages
from agentest.llm.port import CallKey, Model
from agentest.llm.schema import UNDESCRIBED
from agentest.results import ConversationResult, Deduplication, ErrorGroup, LabelledFailure, Severity
from agentest.scenarios.model import Scenario


class Group(BaseModel):
    """One group as the model gives it."""

    model_config = UNDESCRIBED

    label: str
    severity: Literal["low", "medium", "high", "critical"]
    occurrences: list[str]
    explanation: str


class Groups(BaseModel):
    """The model's answer."""

    model_config = UNDESCRIBED

    groups: list[Group]


async def deduplicate(
    failures: Sequence[LabelledFailure],
    scenario: Scenario,
    model: Model | None,
    scope: str,
    conversations: Sequence[ConversationResult] = (),
    *,
    instructions: str = "",
) -> Deduplication:
    """The failures in groups; each failure is in exactly one. No failure, no call.

    Args:
        conversations: those in which the failures occurred, for what became of them.
        instructions: what the agent was told, where that is known.
    """
    if not failures:
        return Deduplication()
    if model is None:
        return group_by_label(failures)
    shown, unshown = chosen(failures)
    messages = dedup_messages(scenario, shown, conversations, instructions=instructions)
    try:
        answer = await model.ask(messages, Groups, CallKey("dedup", scope))
    except ModelError as error:
        return replace(group_by_label(failures), error=str(error))
    except Exception as error:  # noqa: BLE001 - the boundary of the stage: no failure is lost by it
        return replace(group_by_label(failures), error=f"internal error: {type(error).__name__}: {error}")
    return Deduplication(_with_unshown(settle(answer.groups, shown), shown, unshown))


def settle(groups: Iterable[Group], failures: Sequence[LabelledFailure]) -> tuple[ErrorGroup, ...]:
    """The model's groups made to add up.

    Ids that are no failure's are dropped; one that is in several groups stays in the most severe; those that
    the model left out come back in a group of their own.
    """
    left = {failure.id: failure for failure in failures}
    settled = []
    for group in sorted(groups, key=lambda g: Severity.of(g.severity), reverse=True):
        ids = tuple(dict.fromkeys(id for id in group.occurrences if id in left))
        for id in ids:
            del left[id]
        if ids:
            settled.append(ErrorGroup(group.label, Severity.of(group.severity), ids, group.explanation))
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
