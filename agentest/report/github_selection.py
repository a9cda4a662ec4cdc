"""Select the parts of a run's result that the annotations and the summary for GitHub share."""

from __future__ import annotations

from collections.abc import Iterator

from agentest.domain.results import Reason, ReasonKind, RunResult, ScenarioResult, Status, UniqueError

UNDONE = (Status.FAILED, Status.ERRORED)
WORST_FIRST = (Status.FAILED, Status.ERRORED, Status.PASSED, Status.SKIPPED)
VIOLATIONS = (ReasonKind.THRESHOLD, ReasonKind.PASS_RATE)


def label(scenario: ScenarioResult, several: bool) -> str:
    # A file that did not load belongs to no agent.
    return f"{scenario.name} ({scenario.agent})" if several and scenario.agent else scenario.name


def scenario_badness(scenario: ScenarioResult) -> int:
    return WORST_FIRST.index(scenario.verdict.status)


def with_status(result: RunResult, status: Status) -> int:
    """Return the number of scenarios with this status as a verdict of their own."""
    return sum(scenario.verdict.status is status for scenario in result.finished)


def errors(result: RunResult) -> Iterator[tuple[ScenarioResult, UniqueError]]:
    return ((scenario, group) for scenario in result.scenarios for group in scenario.errors)


def violations(result: RunResult) -> Iterator[tuple[ScenarioResult, Reason]]:
    return (
        (scenario, reason)
        for scenario in result.scenarios
        for reason in scenario.verdict.reasons
        if reason.kind in VIOLATIONS
    )


def warnings(result: RunResult) -> Iterator[tuple[ScenarioResult, str]]:
    return ((scenario, text) for scenario in result.scenarios for text in scenario.warnings)
