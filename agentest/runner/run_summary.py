"""The summary of a run: reports its start and end, and makes the result of the whole run.

`RunResultBuilder` does both. `joined_causes` lets a model join root causes across scenarios,
`scenario_result` makes the result of one unit, and `known_agent` describes an agent for judges.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import UTC, datetime
from time import perf_counter
from typing import Any

import anyio

from agentest.config.agent_types import AgentConfig, visibility_of_agent
from agentest.domain.events import (
    Noted,
    RunFinished,
    RunStarted,
    ScenarioAmended,
    ScenarioFinished,
)
from agentest.domain.results import (
    CauseJoin,
    ModelUsage,
    Reason,
    ReasonKind,
    RunResult,
    RunWarning,
    ScenarioResult,
    Verdict,
    VerdictWarning,
)
from agentest.domain.root_causes import judged_causes
from agentest.domain.tool_visibility import ToolVisibility
from agentest.domain.verdict import metric_verdicts
from agentest.judging.judge_input import AgentBackground, CallVisibility
from agentest.runner.agents import agents_without_calls, tool_visibility_of_run
from agentest.runner.notes import unanswered
from agentest.runner.plan import Plan, Unit
from agentest.runner.session import RunSession, Stop, UnitConnections, report_wait
from agentest.runner.tools import NOTHING_KNOWN, KnownTools, agent_traits, known_tools
from agentest.runner.warnings import RunEvidence, amended, run_warnings
from agentest.support.errors import ModelError
from agentest.support.lazy_dataclasses import dataclass
from agentest.version import __version__


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedCauses:
    """The root causes that a model joined, and the model usage by role."""

    joins: tuple[CauseJoin, ...] = ()
    used: Mapping[str, ModelUsage] = field(default_factory=dict)


NOT_JOINED = JoinedCauses()


class RunResultBuilder:
    """Reports the start and the end of a run, and makes the run's result."""

    def __init__(self, session: RunSession) -> None:
        prepared = session.prepared
        self._session = session
        self._prepared = prepared
        self._plan = prepared.plan
        self._redact = prepared.loaded.redact
        self._emit = session.emit
        self._stop = session.stop
        self._models = session.model_names
        self._visibilities = {name: visibility_of_agent(agent) for name, agent in self._plan.agents.items()}
        self._addresses = {name: self._redact(agent.address) for name, agent in self._plan.agents.items()}
        self._start = 0.0
        self._started_at = ""

    def report_start(self) -> None:
        """Report the start of the run, and every scenario that will not run."""
        self._start, self._started_at = perf_counter(), datetime.now(UTC).isoformat(timespec="milliseconds")
        self._emit(
            RunStarted(
                version=__version__,
                started_at=self._started_at,
                agents=self._addresses,
                scenarios=len(self._plan.entries),
                conversations=sum(
                    unit.conversations - len(unit.finished_part.conversations)
                    for unit in self._plan.remaining
                ),
                at_most=any(unit.repeat for unit in self._plan.remaining),
                concurrency=self._prepared.concurrency,
                models=self._models,
                comparison=self._plan.comparison,
                planned=tuple((unit.scenario.name, unit.agent, unit.planned) for unit in self._plan.units),
                fingerprints={_scenario_and_agent(unit): unit.fingerprint for unit in self._plan.units},
                used={
                    _scenario_and_agent(unit): unit.finished_part.usage
                    for unit in self._plan.units
                    if unit.finished_part.usage
                },
                kept=self._prepared.resumed_run.conversations if self._prepared.resumed_run else (),
                visibilities=self._visibilities,
                servers=_observing_servers(self._plan, self._visibilities),
                calibrations=self._prepared.calibrations,
            )
        )
        if any(unit.repeat for unit in self._plan.units):
            from agentest.runner.schedule import undecidable

            for text in undecidable((u.scenario.name, u.repeat, u.thresholds) for u in self._plan.units):
                self._emit(Noted(text))
        for entry in self._plan.entries:
            if isinstance(entry, ScenarioResult):
                self._emit(ScenarioFinished(entry))

    def report_end(
        self,
        results: Mapping[str, ScenarioResult],
        unclaimed: tuple[RunWarning, ...] = (),
        joined: JoinedCauses = NOT_JOINED,
    ) -> RunResult:
        """Report and return the result. `results`: by scope; a unit without a result never began."""
        visibilities = tool_visibility_of_run(self._plan, results)
        silent = agents_without_calls(self._plan, results, visibilities)
        evidence = RunEvidence(plan=self._plan, results=results, visibilities=visibilities, silent=silent)
        results = self._with_late_warnings(results, run_warnings(evidence))
        scenarios = tuple(
            entry
            if isinstance(entry, ScenarioResult)
            else results.get(entry.scope) or self._unstarted_result(entry)
            for entry in self._plan.entries
        )
        result = RunResult(
            scenarios=scenarios,
            agents=tuple(self._plan.agents),
            comparison=self._plan.comparison,
            started_at=self._started_at,
            duration_ms=(perf_counter() - self._start) * 1000,
            version=__version__,
            models=self._models,
            calibrations=self._prepared.calibrations,
            interrupted=self._stop.interrupted,
            stopped=self._stop.reason,
            real_tool_ran=self._stop.real_tool_ran,
            visibilities=visibilities,
            addresses=self._addresses,
            silent=tuple(silent),
            unanswered=unanswered(self._plan, results),
            unclaimed=unclaimed,
            shard=str(self._prepared.part.shard) if self._prepared.part else None,
            joins=joined.joins,
            joining=joined.used,
        )
        self._emit(RunFinished(result))
        return result

    def _with_late_warnings(
        self, results: Mapping[str, ScenarioResult], late: Mapping[str, Sequence[VerdictWarning]]
    ) -> dict[str, ScenarioResult]:
        """Add the warnings that only the whole run shows, and report the results that they change."""
        now = {
            scope: amended(result, late.get(scope, ()), strict=self._session.settings.strict)
            for scope, result in results.items()
        }
        for scope, result in now.items():
            if result is not results[scope] and result != results[scope]:
                self._emit(ScenarioAmended(result, results[scope].verdict.status))
        return now

    def _unstarted_result(self, unit: Unit) -> ScenarioResult:
        reason = stop_reason(self._stop, 0, unit)
        result = scenario_result(unit, Verdict(self._stop.status, (reason,)))
        result = with_goal_and_profile(result, unit, self._redact)
        self._emit(ScenarioFinished(result))
        return result


def known_agent(unit: Unit, redact: Callable[[str], str]) -> AgentBackground:
    """Return what judges may know of the unit's agent and its tools, without secrets."""
    scenario, traits = unit.scenario, unit.traits
    tools = known_tools(traits.tools, scenario.tools, scenario.named_tools)
    return AgentBackground(
        instructions=redact(traits.instructions),
        tools=redact(tools.text),
        visibility=_visibility(unit, tools),
    )


def agent_without_judge(unit: Unit) -> AgentBackground:
    """Return the known facts about the unit's agent if no model judges, without reading its tools."""
    return AgentBackground(visibility=_visibility(unit, NOTHING_KNOWN))


def _visibility(unit: Unit, tools: KnownTools) -> CallVisibility:
    return CallVisibility(
        agent=unit.agent,
        blind=unit.traits.blind,
        replies_show_calls=unit.traits.replies_show_calls,
        has_tools=tools.some or unit.scenario.speaks_of_calls,
        has_none=bool(tools.text) and not tools.some,
        reports_calls=unit.traits.visibility is ToolVisibility.REPORTED,
        partial=unit.traits.visibility is ToolVisibility.PARTIAL,
        unreported=unit.traits.unreported,
        listed=unit.traits.tools.listed if unit.traits.mock_servers else frozenset(),
    )


JOINING_SCOPE = "root causes of the run"
"""The scope of these calls in the ledger and in recordings. Scopes of scenarios begin with a quote."""


async def joined_causes(
    scenarios: Iterable[ScenarioResult], session: RunSession, connections: UnitConnections
) -> JoinedCauses:
    """Join the judged failure groups of all scenarios, unless stopped. Never raises for model errors."""
    model, stop = connections.models.judge, session.stop
    if model is None or stop.reason is not None:
        return NOT_JOINED
    from agentest.judging.cause_joining import MOST_GROUPS, CauseJoiner, can_join

    # Sort for replays, which find a recorded response by its prompt.
    causes = judged_causes(sorted(scenarios, key=lambda each: (each.name, each.agent)))
    if not can_join(causes):
        return NOT_JOINED
    if len(causes) > MOST_GROUPS:
        session.on_note(
            f"only the worst {MOST_GROUPS} of {len(causes)} groups of judged failures were compared"
        )
    joining = CauseJoiner(causes, model, JOINING_SCOPE)
    stop.over = True  # an exhausted budget or a missing recording stops nothing here
    try:
        async with anyio.create_task_group() as tasks, report_wait("for the root causes", session.say):
            tasks.start_soon(_cancel_when_stopped, session, tasks.cancel_scope)
            try:
                await joining.run()
            except Exception as error:  # noqa: BLE001 - any error only leaves groups separate
                known = isinstance(error, ModelError)
                why = connections.redact.error(str(error) if known else f"{type(error).__name__}: {error}")
                session.on_note(f"judged failures of different scenarios were not all compared: {why}")
            tasks.cancel_scope.cancel()
    finally:
        stop.over = False
    return JoinedCauses(joins=joining.joins, used=connections.ledger.of(JOINING_SCOPE))


async def _cancel_when_stopped(session: RunSession, scope: anyio.CancelScope) -> None:
    await session.stop.called.wait()
    scope.cancel()


def _scenario_and_agent(unit: Unit) -> tuple[str, str]:
    return unit.scenario.name, unit.agent


def scenario_result(unit: Unit, verdict: Verdict, **values: Any) -> ScenarioResult:
    """Return a unit's result: the plan, its verdict, and further fields of the result."""
    scenario = unit.scenario
    return ScenarioResult(
        name=scenario.name,
        agent=unit.agent,
        file=unit.file,
        line=scenario.line,
        verdict=verdict,
        thresholds=unit.thresholds,
        metric_verdicts=metric_verdicts(
            values.get("averages", {}), unit.thresholds, exact=scenario.case is not None
        ),
        information=unit.information,
        tags=scenario.tags,
        case=scenario.case,
        **{"planned": unit.planned, "repeat": unit.repeat, **values},
    )


def with_goal_and_profile(result: ScenarioResult, unit: Unit, redact: Callable[[str], str]) -> ScenarioResult:
    """Add the user's goal and profile to the result."""
    return replace(result, goal=redact(unit.scenario.goal), profile=redact(unit.scenario.profile))


def stop_reason(stop: Stop, finished: int, unit: Unit) -> Reason:
    """Return why a unit did not run to its end."""
    at_most = "at most " if unit.repeat else ""
    done = f"after {finished} of {at_most}{unit.conversations} conversations"
    return Reason(stop.status, ReasonKind.INTERRUPTED, f"{stop.reason}: {done}")


def _observing_servers(plan: Plan, visibilities: Mapping[str, ToolVisibility]) -> dict[str, tuple[str, ...]]:
    """Return the servers that see an agent's calls if it does not hand them over."""
    by_servers = (ToolVisibility.REPORTED, ToolVisibility.PARTIAL)
    observed = {name: agent for name, agent in plan.agents.items() if visibilities[name] in by_servers}
    return {name: _observing_keys(name, agent) for name, agent in observed.items() if agent.beside}


def _observing_keys(name: str, agent: AgentConfig) -> tuple[str, ...]:
    by_traces = agent_traits(name, agent).visible_by_spans_only
    return tuple(key for key in agent.beside if key != "traces" or by_traces)
