"""A scenario's result: to the shape that is stored, and back."""

from __future__ import annotations

from collections.abc import Sequence

from agentest.domain.confidence import with_figures
from agentest.domain.results import Reason, ScenarioResult, Status, Verdict
from agentest.domain.root_causes import scenario_causes
from agentest.domain.scenario_stats import totals_of
from agentest.domain.verdict import metric_verdicts, with_severe_failures
from agentest.store.adk_case import case_json
from agentest.store.conversations import result_of
from agentest.store.layouts import CODECS
from agentest.store.shapes import AdkCase, Repeated, StoredEntry, StoredScenario


def stored_scenario(result: ScenarioResult) -> StoredScenario:
    """A scenario as it is stored, without its conversations."""
    return StoredScenario(
        agent=result.agent,
        name=result.name,
        file=result.file,
        line=result.line,
        tags=result.tags,
        goal=result.goal,
        profile=result.profile,
        status=result.verdict.status,
        passed=result.verdict.passed,
        duration_ms=result.duration_ms,
        planned_conversations=result.planned,
        averages=result.averages,
        thresholds=result.thresholds,
        skipped_metrics=result.skipped_metrics,
        information=result.information,
        errors=result.errors,
        severity_unknown=result.severity_unknown,
        causes=scenario_causes(result),
        failures=_messages(result.verdict.reasons),
        reasons=result.verdict.reasons,
        warnings=result.warnings,
        verdict_warnings=result.verdict_warnings,
        usage=result.usage,
        intervals=result.intervals,
        pass_rate=result.pass_rate,
        pass_hat_k={str(k): value for k, value in result.pass_hat_k.items()},
        flaky=result.flaky if result.pass_rate else None,
        repeated=Repeated(repeat=result.repeat, decided_after=result.decided_after)
        if result.repeat
        else None,
        adk=CODECS.read(AdkCase, case_json(result)) if result.case else None,
    )


def _messages(reasons: Sequence[Reason]) -> tuple[str, ...]:
    """The messages of the failing reasons first, then those of the rest."""
    failing_first = sorted(reasons, key=lambda reason: reason.status is not Status.FAILED)
    return tuple(reason.message for reason in failing_first)


def scenario_of(entry: StoredEntry) -> ScenarioResult:
    """A stored scenario with its conversations."""
    stored = entry.scenario
    conversations = with_severe_failures(
        tuple(map(result_of, entry.conversations)), stored.errors, graded=not stored.severity_unknown
    )
    result = ScenarioResult(
        name=stored.name,
        agent=stored.agent,
        file=stored.file,
        line=stored.line,
        verdict=Verdict(stored.status, stored.reasons),
        conversations=conversations,
        averages=stored.averages,
        thresholds=stored.thresholds,
        metric_verdicts=metric_verdicts(stored.averages, stored.thresholds, exact=stored.adk is not None),
        errors=stored.errors,
        severity_unknown=stored.severity_unknown,
        causes=stored.causes,
        skipped_metrics=stored.skipped_metrics,
        information=stored.information,
        tags=stored.tags,
        goal=stored.goal,
        profile=stored.profile,
        duration_ms=stored.duration_ms,
        usage=stored.usage,
        case=stored.adk.case if stored.adk else None,
        totals=totals_of(conversations),
        planned=stored.planned_conversations,
        warnings=stored.warnings,
        verdict_warnings=stored.verdict_warnings,
        intervals=stored.intervals,
        pass_rate=stored.pass_rate,
        pass_hat_k={int(k): value for k, value in stored.pass_hat_k.items()},
        flaky=bool(stored.flaky),
        repeat=stored.repeated.repeat if stored.repeated else None,
        decided_after=stored.repeated.decided_after if stored.repeated else None,
    )
    # Files of older versions have none.
    has_figures = stored.pass_rate is not None or stored.intervals
    return result if has_figures else with_figures(result, conversations)
