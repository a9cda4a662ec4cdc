"""What a JUnit report says of a run and of a scenario beside its outcome: names and values of properties."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from agentest.domain.results import Figure, ModelUsage, RunResult, ScenarioResult
from agentest.domain.root_causes import root_causes_of
from agentest.report.causes import cause_badness

Property = tuple[str, str]

_SHOWN_K = 10
_MOST_CAUSES = 20


def suite_properties(result: RunResult, scenarios: Sequence[ScenarioResult]) -> Iterator[Property]:
    """The models of the run, what the scenarios of one file have cost, and why they did not pass."""
    yield "agentest.version", result.version
    for role, model in result.models.items():
        yield f"model.{role}", model or "none"
    yield from _used(sum((used for s in scenarios for used in s.usage.values()), ModelUsage()))
    for number, cause in enumerate(root_causes_of(scenarios, result.joins)[:_MOST_CAUSES], start=1):
        yield f"root_cause.{number}", f"{cause.scenarios:,} × {cause.title} ({cause_badness(cause)})"


def case_properties(scenario: ScenarioResult) -> Iterator[Property]:
    """A scenario in numbers."""
    totals = scenario.totals
    if scenario.agent:
        yield "agent", scenario.agent
    if scenario.tags:
        yield "tags", ", ".join(scenario.tags)
    if scenario.case:
        yield "eval_set", scenario.case.eval_set_id
        yield "eval_case", scenario.case.eval_id
    if totals.conversations:
        yield "conversations", str(totals.conversations)
        yield "conversations.passed", str(totals.passed)
        yield "turns", str(totals.turns)
        yield "tool_calls", str(totals.tool_calls)
    yield from ((f"warning.{each.code}", each.message) for each in scenario.verdict_warnings)
    yield from _reliability(scenario)
    yield from _averages(scenario)
    yield from ((f"threshold.{name}", _number(least)) for name, least in scenario.thresholds.items())
    yield from _used(sum(scenario.usage.values(), ModelUsage()))
    if totals.agent_tokens.total_tokens:
        yield "agent_tokens", str(totals.agent_tokens.total_tokens)


def _reliability(scenario: ScenarioResult) -> Iterator[Property]:
    """How often the scenario passes, and how likely it does several times in a row."""
    if scenario.pass_rate:
        yield from _figure("pass_rate", scenario.pass_rate)
    for k, value in islice(scenario.pass_hat_k.items(), _SHOWN_K):
        yield f"pass_hat_k.{k}", _number(value)
    if scenario.flaky:
        yield "flaky", "true"
    if scenario.decided_after is not None:
        yield "decided_after", str(scenario.decided_after)


def _averages(scenario: ScenarioResult) -> Iterator[Property]:
    for name, value in scenario.averages.items():
        figure = scenario.intervals.get(name)
        yield from _figure(f"average.{name}", figure) if figure else ((f"average.{name}", _number(value)),)


def _figure(name: str, figure: Figure) -> Iterable[Property]:
    """A value with its n and 95 % interval."""
    yield name, _number(figure.value)
    yield f"{name}.n", str(figure.n)
    if figure.low is not None and figure.high is not None:
        yield f"{name}.low", _number(figure.low)
        yield f"{name}.high", _number(figure.high)


def _used(used: ModelUsage) -> Iterable[Property]:
    if used.calls:
        yield "model_calls", str(used.calls)
        yield "model_tokens", str(used.tokens.total_tokens)
        yield "cost_usd", "unknown" if used.cost is None else f"{used.cost:.6f}"


def _number(value: float) -> str:
    return f"{round(value, 6):g}" if abs(value) < 1e5 else str(value)
