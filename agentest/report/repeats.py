"""Whether a verdict was decided, in words, where conversations were added until it was (`repeat`)."""

from __future__ import annotations

from agentest.domain.results import ReasonKind, ScenarioResult, Status


def decided(result: ScenarioResult) -> str:
    """After how many conversations the verdict was decided, or that it was not; "": nobody asked for that."""
    repeat, held = result.repeat, result.totals.conversations
    if repeat is None or _ended(result):
        return ""
    of = f"{held} of at most {repeat.max}"
    if result.decided_after is not None:
        return f"decided after {of}"
    if result.verdict.status is Status.ERRORED:
        return f"{of} held"
    if result.verdict.passed and not result.thresholds:
        return f"none failed in {of}"
    return f"not decided after {of}" + (
        ": the others could neither decide nor change it" if held < repeat.max else ""
    )


def _ended(result: ScenarioResult) -> bool:
    """Whether the run was ended before: its reason says after how many."""
    return any(reason.kind is ReasonKind.INTERRUPTED for reason in result.verdict.reasons)
