"""What is told before a run's first scenario and after its last."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

from agentest.config.agent_types import sight_of
from agentest.events import (
    Emit,
    RunFinished,
    RunStarted,
    ScenarioFinished,
)
from agentest.llm.open import Models
from agentest.results import (
    Reason,
    ReasonKind,
    RunResult,
    ScenarioResult,
    Verdict,
)
from agentest.run.plan import Plan, Unit, endpoint
from agentest.run.seeing import silence
from agentest.run.settings import Settings
from agentest.run.stop import Stop
from agentest.support.redact import Redactor
from agentest.verdict import metric_verdicts
from agentest.version import __version__


class RunOrder:
    """The frame around a run's units: what is told before the first and after the last."""

    def __init__(
        self,
        plan: Plan,
        settings: Settings,
        models: Mapping[str, str | None],
        emit: Emit,
        stop: Stop,
        redact: Redactor,
    ) -> None:
        self._plan = plan
        self._redact = redact
        self._settings = settings
        self._models = models
        self._emit = emit
        self._stop = stop
        self._sights = {name: sight_of(agent) for name, agent in plan.agents.items()}
        self._began = 0.0
        self._started_at = ""

    def begin(self) -> None:
        """Tell that the run begins, and of what is not run at all."""
        self._began, self._started_at = perf_counter(), datetime.now(UTC).isoformat(timespec="milliseconds")
        agents = {name: self._redact(endpoint(agent)) for name, agent in self._plan.agents.items()}
        conversations = sum(unit.conversations for unit in self._plan.units)
        self._emit(
            RunStarted(
                version=__version__,
                started_at=self._started_at,
                agents=agents,
                scenarios=len(self._plan.entries),
                conversations=conversations,
                concurrency=self._settings.concurrency,
                models=self._models,
                comparison=self._plan.comparison,
                planned=tuple((unit.scenario.name, unit.agent, unit.planned) for unit in self._plan.units),
                sights=self._sights,
            )
        )
        for entry in self._plan.entries:
            if isinstance(entry, ScenarioResult):
                self._emit(ScenarioFinished(entry))

    def conclude(self, results: Mapping[str, ScenarioResult]) -> RunResult:
        """The whole run from its units' results, by scope; units without one were never begun."""
        scenarios = tuple(
            entry if isinstance(entry, ScenarioResult) else results.get(entry.scope) or self._unbegun(entry)
            for entry in self._plan.entries
        )
        result = RunResult(
            scenarios=scenarios,
            agents=tuple(self._plan.agents),
            comparison=self._plan.comparison,
            started_at=self._started_at,
            duration_ms=(perf_counter() - self._began) * 1000,
            version=__version__,
            models=self._models,
            interrupted=self._stop.interrupted,
            stopped=self._stop.reason,
            sights=self._sights,
            silent=silence(self._plan, results),
        )
        self._emit(RunFinished(result))
        return result

    def _unbegun(self, unit: Unit) -> ScenarioResult:
        reason = stop_reason(self._stop, 0, unit)
        result = scenario_result(unit, Verdict(self._stop.status, (reason,)))
        self._emit(ScenarioFinished(result))
        return result


def model_names(models: Models) -> dict[str, str | None]:
    """Role → model; None is offline."""
    return {
        "user": models.user.name if models.user else None,
        "judge": models.judge.name if models.judge else None,
    }


def scenario_result(unit: Unit, verdict: Verdict, **found: Any) -> ScenarioResult:
    """A unit's result: what it was, and what was found out."""
    scenario = unit.scenario
    return ScenarioResult(
        name=scenario.name,
        agent=unit.agent,
        file=unit.file,
        line=scenario.line,
        verdict=verdict,
        thresholds=unit.thresholds,
        metric_verdicts=metric_verdicts(
            found.get("averages", {}), unit.thresholds, exact=scenario.case is not None
        ),
        tags=scenario.tags,
        case=scenario.case,
        planned=unit.planned,
        **found,
    )


def stop_reason(stop: Stop, finished: int, unit: Unit) -> Reason:
    done = f"after {finished} of {unit.conversations} conversations"
    return Reason(stop.status, ReasonKind.INTERRUPTED, f"{stop.reason}: {done}")
