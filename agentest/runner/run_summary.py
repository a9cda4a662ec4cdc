"""The summary of a run: reports its start and end, makes the result of the whole run, and adds notes.

`RunResultBuilder` reports and makes the result. `joined_causes` lets a model join root causes across
scenarios, `scenario_result` makes the result of one unit, and `known_agent` describes an agent for judges.
Notes about a unit or the run inform, and question no verdict.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from functools import partial
from time import perf_counter
from typing import TYPE_CHECKING, Any

import anyio

from agentest.config.agent_types import visibility_of_agent
from agentest.domain.events import Noted, RunFinished, RunStarted, ScenarioAmended, ScenarioFinished
from agentest.domain.metrics import ABOUT_CALLS, BUILTIN, GOAL
from agentest.domain.reasons import goal_outcome, goal_reason
from agentest.domain.results import (
    CauseJoin,
    ConversationResult,
    GoalOutcome,
    ModelUsage,
    Reason,
    ReasonKind,
    RunResult,
    RunWarning,
    ScenarioResult,
    Verdict,
    VerdictWarning,
)
from agentest.domain.tool_visibility import ToolVisibility
from agentest.domain.transcript import ModelBriefing
from agentest.domain.verdict import changes_since, undecisive_problems
from agentest.judging.judgement import AgentBackground, CallVisibility
from agentest.runner.agents import agents_without_calls, tool_visibility_of_run
from agentest.runner.known_tools import NOTHING_KNOWN, agent_traits, known_tools
from agentest.runner.plan import Plan, Unit
from agentest.runner.session import RunSession, Stop, UnitConnections, report_wait
from agentest.runner.verdict_warnings import RunEvidence, amended, run_warnings
from agentest.scenarios.model import Scenario
from agentest.support.errors import ModelError
from agentest.support.lazy_dataclasses import dataclass, replace
from agentest.support.text import quoted_names
from agentest.version import __version__

if TYPE_CHECKING:
    from agentest.domain.results.exploration import Explored


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
        self._addresses = {
            name: prepared.loaded.redact(agent.address) for name, agent in self._plan.agents.items()
        }
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
                fingerprints={(u.scenario.name, u.agent): u.fingerprint for u in self._plan.units},
                used={
                    (unit.scenario.name, unit.agent): unit.finished_part.usage
                    for unit in self._plan.units
                    if unit.finished_part.usage
                },
                kept=self._prepared.resumed_run.conversations if self._prepared.resumed_run else (),
                visibilities=self._visibilities,
                servers=_observing_servers(self._plan, self._visibilities),
                model_tapes=self._prepared.model_tapes,
                calibrations=self._prepared.calibrations,
            )
        )
        if any(unit.repeat for unit in self._plan.units):
            from agentest.runner.repetition import undecidable

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
        explored: Explored | None = None,
    ) -> RunResult:
        """Report and return the result. `results`: by scope; a unit without a result never began."""
        visibilities = tool_visibility_of_run(self._plan, results)
        silent = agents_without_calls(self._plan, results, visibilities)
        evidence = RunEvidence(self._plan, results, visibilities, silent, self._prepared.picked)
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
            quotas=tuple(quota.use for quota in self._session.quotas),
            explored=explored,
        )
        if self._prepared.earlier:
            result = replace(result, changes=changes_since(self._prepared.earlier, result))
        self._emit(RunFinished(result))
        return result

    def _with_late_warnings(
        self, results: Mapping[str, ScenarioResult], late: Mapping[str, Sequence[VerdictWarning]]
    ) -> dict[str, ScenarioResult]:
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
        result = scenario_result(unit, Verdict(self._stop.status, (reason,)), self._redact)
        self._emit(ScenarioFinished(result))
        return result


def known_agent(unit: Unit, redact: Callable[[str], str], *, is_judged: bool = True) -> AgentBackground:
    """Return what judges may know of the unit's agent, without secrets. Reads tools only if `is_judged`."""
    scenario, traits = unit.scenario, unit.traits
    named = scenario.named_tools
    tools = known_tools(traits.tools, scenario.tools, named) if is_judged else NOTHING_KNOWN
    return AgentBackground(
        instructions=redact(traits.instructions) if is_judged else "",
        tools=redact(tools.text),
        visibility=CallVisibility(
            agent=unit.agent,
            blind=traits.blind,
            replies_show_calls=traits.replies_show_calls,
            has_tools=tools.some or scenario.speaks_of_calls,
            has_none=bool(tools.text) and not tools.some,
            reports_calls=traits.visibility is ToolVisibility.REPORTED,
            partial=traits.visibility is ToolVisibility.PARTIAL,
            unreported=traits.unreported,
            listed=traits.tools.mock_servers.listed() if traits.mock_servers else frozenset(),
        ),
        briefed=partial(_briefed_agent, unit, redact) if is_judged else None,
    )


def _briefed_agent(unit: Unit, redact: Callable[[str], str], briefing: ModelBriefing) -> AgentBackground:
    traits = replace(
        unit.traits,
        instructions=unit.traits.instructions or briefing.instructions,
        tools=replace(unit.traits.tools, told=briefing.tools),
    )
    return known_agent(replace(unit, traits=traits), redact)


JOINING_SCOPE = "root causes of the run"
"""The scope of these calls in the ledger and in recordings. Scopes of scenarios begin with a quote."""


async def joined_causes(
    scenarios: Iterable[ScenarioResult], session: RunSession, connections: UnitConnections
) -> JoinedCauses:
    """Join the judged failure groups of all scenarios, unless stopped. Never raises for model errors."""
    model, stop = connections.models.judge, session.stop
    if model is None or stop.reason is not None:
        return NOT_JOINED
    from agentest.domain.root_causes import judged_causes
    from agentest.judging.cause_joining import MOST_GROUPS, CauseJoiner, can_join

    # Sort for replays, which find a recorded response by its prompt.
    causes = judged_causes(sorted(scenarios, key=lambda each: (each.name, each.agent)))
    if not can_join(causes):
        return NOT_JOINED
    if len(causes) > MOST_GROUPS:
        session.on_note(
            f"only the worst {MOST_GROUPS} of {len(causes)} groups of judged failures were compared"
        )

    async def cancel_when_stopped(scope: anyio.CancelScope) -> None:
        await stop.called.wait()
        scope.cancel()

    joining = CauseJoiner(causes, model, JOINING_SCOPE)
    stop.over = True  # an exhausted budget or a missing recording stops nothing here
    try:
        async with anyio.create_task_group() as tasks, report_wait("for the root causes", session.say):
            tasks.start_soon(cancel_when_stopped, tasks.cancel_scope)
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


def scenario_result(
    unit: Unit, verdict: Verdict, redact: Callable[[str], str], **values: Any
) -> ScenarioResult:
    """Return a unit's result: the plan, its verdict, and further fields of the result."""
    scenario = unit.scenario
    return ScenarioResult(
        name=scenario.name,
        agent=unit.agent,
        file=unit.file,
        line=scenario.line,
        verdict=verdict,
        thresholds=unit.thresholds,
        information=unit.information,
        tags=scenario.tags,
        case=scenario.case,
        goal=redact(scenario.goal),
        profile=redact(scenario.profile),
        **{"planned": unit.planned, "repeat": unit.repeat, **values},
    )


def stop_reason(stop: Stop, finished: int, unit: Unit) -> Reason:
    """Return why a unit did not run to its end."""
    at_most = "at most " if unit.repeat else ""
    done = f"after {finished} of {at_most}{unit.conversations} conversations"
    return Reason(stop.status, ReasonKind.INTERRUPTED, f"{stop.reason}: {done}")


def _observing_servers(plan: Plan, visibilities: Mapping[str, ToolVisibility]) -> dict[str, tuple[str, ...]]:
    observed: dict[str, tuple[str, ...]] = {}
    for name, agent in plan.agents.items():
        if agent.beside and visibilities[name] in (ToolVisibility.REPORTED, ToolVisibility.PARTIAL):
            by_spans = agent_traits(name, agent).visible_by_spans_only
            observed[name] = tuple(agent.beside) if by_spans else agent.call_servers
    return observed


_SHOWN = 3


def unit_notes(
    unit: Unit,
    conversations: Sequence[ConversationResult],
    thresholds: Mapping[str, float],
    *,
    has_user_model: bool,
) -> tuple[str, ...]:
    """Return the notes about a unit, in the order in which they are shown."""
    idle = None if has_user_model else idle_user(unit.scenario)
    has_user_calls = any(each.conversation.user_calls for each in conversations)
    return (
        *disagreements(unit.scenario, conversations),
        *_criteria_not_judged(unit.scenario, unit.metrics),
        *undecisive_problems(conversations, thresholds),
        *_calls_not_judged(unit.scenario, conversations),
        *([idle] if idle and not has_user_calls else []),
    )


def disagreements(scenario: Scenario, conversations: Sequence[ConversationResult]) -> tuple[str, ...]:
    """Warn if the judge contradicts required calls or a final state, once per direction."""
    # `within` makes every expected call optional.
    requires_call = any(each.expected and each.match_mode != "within" for each in scenario.trajectory)
    state = scenario.final_session_state is not None or scenario.final_state is not None
    if not (state or (requires_call and not scenario.expected_outcome)):
        return ()
    outcomes = [(each, _reached(each), goal_outcome(each)) for each in conversations]
    missed = [
        each for each, is_met, judged in outcomes if is_met is True and judged is GoalOutcome.NOT_REACHED
    ]
    reached = [each for each, is_met, judged in outcomes if is_met is False and judged is GoalOutcome.REACHED]
    return (*_goals_warning(missed, _GOAL_MISSED), *_goals_warning(reached, _GOAL_REACHED))


def _criteria_not_judged(scenario: Scenario, metrics: Collection[str]) -> Iterator[str]:
    named = [name for name in scenario.metrics or () if name in BUILTIN]
    for_nothing = [name for name in named if name != GOAL or not scenario.expected_outcome]
    if for_nothing and not scenario.goal and scenario.case is None:
        yield f"{', '.join(for_nothing)}: not judged, as the scenario has no `goal`"
    if scenario.expected_outcome and GOAL not in metrics:
        yield f"the `expected_outcome` is not judged, because {GOAL} is not among the metrics"


def _calls_not_judged(scenario: Scenario, conversations: Sequence[ConversationResult]) -> Iterator[str]:
    turns = [turn for each in conversations for turn in each.turns]
    for name in ABOUT_CALLS.intersection(scenario.metrics or ()):
        if scenario.goal and turns and not any(name in turn.metrics for turn in turns):
            yield (
                f"{name}: judged in no turn, because no tool call was seen and no tool is known: "
                "add them to `tools` of the agent or of the scenario"
            )


_GOAL_MISSED = (
    "the judge says that the goal was not reached{where}, but the required calls and the final state are as "
    "expected: {why}"
)
_GOAL_REACHED = (
    "the judge says that the goal was reached{where}, but the required calls or the final state are not as "
    "expected: {why}"
)


def _reached(result: ConversationResult) -> bool | None:
    trajectory = result.trajectory
    checks = (*(check for turn in result.turns for check in turn.checks), *result.checks)
    state = [check for check in checks if check.check in ("final_session_state", "final_state")]
    if result.conversation.failure or any(each.error for each in (*state, trajectory) if each):
        return None
    if trajectory is not None and trajectory.missing_calls:
        return False
    if any(not check.passed for check in state):
        return False
    # Extra calls, or calls in another order, say nothing about the goal.
    return True if trajectory is None or trajectory.matched else None


def _goals_warning(conversations: Sequence[ConversationResult], text: str) -> Iterator[str]:
    if conversations:
        first, more = conversations[0], len(conversations) - 1
        where = f" in {first.conversation.conversation_id}" + (f" and {more} more" if more else "")
        yield text.format(where=where, why=goal_reason(first) or "it gives no reason")


def idle_user(scenario: Scenario) -> str | None:
    """Return why a user without a model uses none of its tools, with a remedy; None if it has none."""
    if not scenario.user_tools:
        return None
    tools = ", ".join(scenario.user_tools)
    return (
        f"the simulated user used none of its tools ({tools}): offline it only states its facts: "
        "configure a model, or name one with --model, to have it use them"
    )


def rerun_notes(slug: str, reasons: Mapping[int, str]) -> tuple[str, ...]:
    """Return a text about conversations that ran again. `reasons`: by number; `slug` begins their ids."""
    if not reasons:
        return ()
    examples = "; ".join(
        f"{slug}-{number}, as {reasons[number].rstrip('.')}" for number in sorted(reasons)[:_SHOWN]
    )
    more = f"; and {len(reasons) - _SHOWN} more" if len(reasons) > _SHOWN else ""
    what = "1 conversation was" if len(reasons) == 1 else f"{len(reasons)} conversations were"
    return (f"{what} repeated, because the first attempt did not count: {examples}{more}",)


def unanswered(plan: Plan, results: Mapping[str, ScenarioResult]) -> tuple[RunWarning, ...]:
    """Return a warning for each tool whose calls were answered with null."""
    finished = [(unit, results[unit.scope]) for unit in plan.units if unit.scope in results]
    tools = dict.fromkeys(tool for _, result in finished for tool in result.totals.unanswered)
    return tuple(
        _unanswered_warning(tool, [each for each in finished if tool in each[1].totals.unanswered])
        for tool in tools
    )


def _unanswered_warning(tool: str, finished: Sequence[tuple[Unit, ScenarioResult]]) -> RunWarning:
    units = [unit for unit, _ in finished]
    calls = sum(result.totals.unanswered[tool] for _, result in finished)
    of_cases = units[0].scenario.case is not None
    recorded = any(answer.name == tool for unit in units for answer in unit.scenario.recorded or ())
    recorded_hint = ": what the set recorded answers calls with other arguments"
    remedy = (
        f'To answer them: tools={{"{tool}": …}} in the scenario; to have them fail it: --unmocked-tools error'
    )
    if of_cases:
        remedy = (
            f'To answer them: --mocks FILE with tools = {{"{tool}": …}}, or `tool_responses` in the set; to '
            "have them fail their cases: --unmocked-tools error"
        )
    message = (
        f"{calls} call{'s' * (calls != 1)} of tool {tool!r} {'was' if calls == 1 else 'were'} answered with "
        f"null, because no mock answers {'it' if calls == 1 else 'them'} ({_scenario_list(units, of_cases)})"
        f"{recorded_hint if recorded else ''}. {remedy}"
    )
    first = units[0]
    return RunWarning(message, first.agent, first.file, first.scenario.line)


def _scenario_list(units: Iterable[Unit], of_cases: bool) -> str:
    names = {unit.scenario.name: None for unit in units}
    what = ("case" if of_cases else "scenario") + "s" * (len(names) != 1)
    return f"{what} {quoted_names(names, _SHOWN)}"
