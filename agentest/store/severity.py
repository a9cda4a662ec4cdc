"""The severity of a conversation's failures, which is known only when its scenario has ended.

A conversation is stored before that, so what grouping found is added to its stored form afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

from agentest.domain.results import ErrorGroup
from agentest.support.json_text import Json


def severe_failures(groups: Iterable[ErrorGroup]) -> frozenset[str]:
    """Ids of the failures in groups that fail their scenario."""
    return frozenset(id for group in groups if group.fails for id in group.occurrences)


def with_severity(conversation: Json, severe: Collection[str], *, unknown: bool) -> Json:
    """The conversation as stored, with the severity of its failures.

    Args:
        severe: ids of the failures that fail the scenario.
        unknown: True if the severity of the scenario's failures is not known.
    """
    failures = [failure["id"] for failure in conversation["labelledFailures"]]
    found = [id for id in failures if id in severe]
    unknown = unknown and bool(failures)
    if not found and not unknown:
        return conversation
    marks = {"severeFailures": found} if found else {}
    return {**conversation, "passed": False, **marks, **({"severityUnknown": True} if unknown else {})}
