"""Results of a run, for tests of their readers. All defaults pass.

Verdicts, averages and skipped metrics are computed by the program unless given.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from agentest.domain.end_reason import Ending
from agentest.domain.events import ConversationFinished, Event, RunFinished, RunStarted, ScenarioFinished
from agentest.domain.figures import totals_of, with_figures
from agentest.domain.results import (
    ConversationResult,
    Deduplication,
    LabelledFailure,
    MetricResult,
    ModelUsage,
    Reason,
    ReasonKind,
    RunResult,
    ScenarioResult,
    Score,
    Severity,
    Status,
    TrajectoryResult,
    TurnEvaluation,
    UniqueError,
    Verdict,
)
from agentest.domain.tool_visibility import ToolVisibility
from agentest.domain.transcript import (
    Blame,
    Conversation,
    Failure,
    TimeSpent,
    ToolCall,
    Turn,
    UnfinishedTurn,
    Usage,
)
from agentest.domain.verdict import averages, decide, skipped_metrics

TIME = TimeSpent(total_ms=1000.0, agent_ms=120.5, user_ms=200.0, tools_ms=1.5, judges_ms=600.0)
"""Where the time of a conversation went; 78 ms were our own."""
MATCHED = TrajectoryResult(matched=True, summary="1 tool call, as expected (contains)")
MISSED = TrajectoryResult(
    matched=False,
    summary="expected calls are missing: create_booking",
    mode="contains",
    expected="create_booking",
    actual="no calls",
    missing_calls=("create_booking",),
)


def tool_call(
    name: str = "check_availability", args: Any = None, result: Any = None, **more: Any
) -> ToolCall:
    """A mocked call of turn 0: `check_availability(date="Tuesday")`."""
    args = {"date": "Tuesday"} if args is None else args
    return ToolCall(name, args, result, **{"mocked": True, "turn_index": 0, **more})


def turn(index: int = 0, user: str = "Is Tuesday free?", agent: str = "Yes, at 9:00.", **more: Any) -> Turn:
    """A closed turn of 120.5 ms, without tool calls."""
    return Turn(index, user, agent, **{"latency_ms": 120.5, "usage": Usage(10, 5, 2), **more})


def unfinished_turn(index: int = 0, user: str = "Book it.", *calls: ToolCall) -> UnfinishedTurn:
    """A turn that never got a reply, after one request."""
    return UnfinishedTurn(index, user, calls, requests=1)


def failure(blame: Blame = Blame.AGENT, message: str = "the agent answered with status 500") -> Failure:
    return Failure(blame, message)


def conversation(
    id: str = "c1",
    turns: Sequence[Turn] = (turn(),),
    failure: Failure | None = None,
    unfinished: UnfinishedTurn | None = None,
) -> Conversation:
    ending = Ending.ERROR if failure else Ending.SATISFIED
    return Conversation(id, tuple(turns), ending, failure, unfinished)


def scored(value: float | str = 5, reason: str = "It answers.", samples: Sequence[float | str] = ()) -> Score:
    return Score(value, reason, tuple(samples))


def turn_evaluation(
    index: int = 0, metrics: Mapping[str, MetricResult] | None = None, **more: Any
) -> TurnEvaluation:
    """One turn's evaluation; helpfulness is 5 by default."""
    return TurnEvaluation(index, {"helpfulness": scored()} if metrics is None else metrics, **more)


def labelled_failure(id: str = "c1-F1", label: str = "false information", **more: Any) -> LabelledFailure:
    more = {"turn_index": 0, "metric": "agent_behavior_failure", "reason": "It is closed then.", **more}
    return LabelledFailure(id, id.rpartition("-")[0], label=label, **more)


def conversation_result(
    id: str = "c1",
    turns: Sequence[TurnEvaluation] = (turn_evaluation(),),
    metrics: Mapping[str, MetricResult] | None = None,
    *,
    held: Conversation | None = None,
    trajectory: TrajectoryResult | None = None,
    failures: Sequence[LabelledFailure] = (),
) -> ConversationResult:
    """A conversation that achieved its goal in one turn; `held` is its transcript."""
    metrics = {"goal_completion": scored(1)} if metrics is None else metrics
    held = held or conversation(id)
    return ConversationResult(held, tuple(turns), metrics, trajectory, tuple(failures), TIME)


def failing_conversation(id: str = "c1") -> ConversationResult:
    """One that missed its trajectory."""
    return conversation_result(id, trajectory=MISSED)


def error_group(
    label: str = "wrong hours", severity: Severity = Severity.HIGH, occurrences: Sequence[str] = ("c1-F1",)
) -> UniqueError:
    return UniqueError(label, severity, tuple(occurrences), "The agent invents opening hours.")


def verdict(status: Status, message: str = "why", kind: ReasonKind = ReasonKind.CONVERSATION) -> Verdict:
    """A verdict with one reason, or none if it passed."""
    return Verdict(status, () if status is Status.PASSED else (Reason(status, kind, message),))


def scenario_result(
    name: str = "user books a morning slot",
    conversations: Sequence[ConversationResult] = (conversation_result(),),
    *,
    errors: Sequence[UniqueError] = (),
    thresholds: Mapping[str, float] | None = None,
    fail_on: Severity = Severity.CRITICAL,
    **more: Any,
) -> ScenarioResult:
    """A scenario's result with the verdict that its conversations, errors and thresholds make."""
    given = {
        "agent": "booking",
        "file": "scenarios/booking.sim.py",
        "line": 7,
        "verdict": decide(conversations, Deduplication(tuple(errors)), thresholds or {}, fail_on),
        "averages": averages(conversations),
        "skipped_metrics": skipped_metrics(conversations),
        "totals": totals_of(conversations),
        "tags": ("booking",),
        "duration_ms": 1500.25,
        "usage": {"user": ModelUsage(2, Usage(100, 20)), "judge": ModelUsage(8, Usage(900, 90, 50), 1)},
        **more,
    }
    result = ScenarioResult(
        name, conversations=tuple(conversations), errors=tuple(errors), thresholds=thresholds or {}, **given
    )
    return replace(with_figures(result, conversations), **more)


def broken_file(file: str = "scenarios/broken.sim.py", message: str = "SyntaxError") -> ScenarioResult:
    """A file that did not load."""
    why = verdict(Status.ERRORED, message, ReasonKind.FILE)
    return ScenarioResult(file, "", file, 1, why)


def skipped_scenario(name: str = "later") -> ScenarioResult:
    return ScenarioResult(name, "booking", "scenarios/later.sim.py", 3, Verdict(Status.SKIPPED))


def run_result(*scenarios: ScenarioResult, **more: Any) -> RunResult:
    """A run of 3.2 s with one agent, by default with one passed scenario."""
    given = {
        "agents": tuple(dict.fromkeys(s.agent for s in scenarios if s.agent)) or ("booking",),
        "comparison": False,
        "started_at": "2026-01-02T03:04:05Z",
        "duration_ms": 3200.0,
        "version": "0.1.0",
        "models": {"user": "ollama/llama3.2", "judge": None},
        **more,
    }
    given.setdefault("visibilities", dict.fromkeys(given["agents"], ToolVisibility.RETURNED))
    return RunResult(scenarios or (scenario_result(),), **given)


def let_go(result: RunResult) -> RunResult:
    """The run without its conversations, as at the end of a run on the command line."""
    return replace(result, scenarios=tuple(replace(s, conversations=()) for s in result.scenarios))


def events(result: RunResult) -> Iterator[Event]:
    """The events of a run with this result; all conversations come before their scenario's end."""
    agents = dict.fromkeys(result.agents, "http://127.0.0.1:8080/")
    yield RunStarted(
        result.version,
        agents,
        len(result.scenarios),
        result.conversations,
        20,
        result.models,
        result.comparison,
        result.started_at,
        visibilities=result.visibilities,
    )
    for scenario in result.scenarios:
        for number, found in enumerate(scenario.conversations, start=1):
            yield ConversationFinished(
                scenario.name, scenario.agent, found, number, scenario.case, scenario.thresholds
            )
        yield ScenarioFinished(scenario)
    yield RunFinished(let_go(result))
