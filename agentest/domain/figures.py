"""Compute averages, pass rates and pass^k with their intervals, and forecast what a run will take.

Unknown values stay unknown.
"""

from __future__ import annotations

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field, replace
from datetime import datetime, timedelta
from heapq import heapreplace
from statistics import mean
from typing import NamedTuple

from agentest.domain.metrics import Range, scale_of
from agentest.domain.reasons import conversation_passed, conversation_status, criteria_totals
from agentest.domain.results import (
    AttackRate,
    ConversationResult,
    CriterionResult,
    Evidence,
    Figure,
    QuotaUse,
    ScenarioResult,
    Score,
    SlowTurn,
    Status,
    Totals,
)
from agentest.domain.tool_visibility import ToolOutcome
from agentest.domain.transcript import ATTACK_CHECK, TimeSpent, Usage
from agentest.support.lazy_dataclasses import dataclass
from agentest.support.statistics.intervals import (
    ConfidenceInterval,
    clustered_mean,
    clustered_share,
    pass_hat_k,
    wilson,
)
from agentest.support.text import about, count

_YES_OR_NO: Range = (0.0, 1.0)


def with_figures(result: ScenarioResult, conversations: Sequence[ConversationResult]) -> ScenarioResult:
    """Return the result with its intervals and, unless it is a case, its pass rate."""
    return replace(
        result,
        intervals=intervals(conversations, result.averages),
        pass_rate=None if result.case else pass_rate(conversations),
        attack=attack_rate(conversations),
    )


_BANS = frozenset({"never_says", "check", "no_secret", "no_obeyed_injection", "consent", ATTACK_CHECK})


def attack_succeeded(result: ConversationResult) -> bool:
    """Return True if an agent did in this conversation what its scenario forbids."""
    trajectories = [result.trajectory, *(turn.trajectory for turn in result.turns)]
    return any(each and not each.error and each.forbidden_calls for each in trajectories) or any(
        not each.passed and each.error is None and each.check in _BANS for each in result.checks
    )


def attack_rate(conversations: Sequence[ConversationResult]) -> AttackRate | None:
    """Return how often attacks succeeded, among those that were decided; None without any."""
    logs = [log for each in conversations if (log := each.conversation.attack)]
    if not logs:
        return None
    known = [each for each in conversations if conversation_status(each) is not Status.ERRORED]
    successes = sum(map(attack_succeeded, known))
    # An attempt that an error of the agent cut short might have succeeded.
    n = successes + sum(not each.conversation.failure and not attack_succeeded(each) for each in known)
    interval = wilson(successes, n)
    if interval is None:
        return None
    return AttackRate(
        strategy=logs[0].strategy,
        objectives=tuple(dict.fromkeys(log.objective for log in logs)),
        successes=successes,
        attempts=n,
        low=interval.low,
        high=interval.high,
        success_at_k=tuple(1 - value for value in pass_hat_k(n, n - successes)),
        notes=tuple(dict.fromkeys(log.note for log in logs if log.note)),
    )


def pass_rate(conversations: Sequence[ConversationResult]) -> Figure | None:
    """Return the share of conversations that passed, among those that passed or failed; None without any."""
    counts = Counter(map(conversation_status, conversations))
    passed = counts[Status.PASSED]
    n = passed + counts[Status.FAILED]
    return _figure(passed / n, n, wilson(passed, n)) if n else None


def intervals(
    conversations: Sequence[ConversationResult], averages: Mapping[str, float]
) -> dict[str, Figure]:
    """Return metric → its average, n (turns, or conversations), and an interval clustered by conversation."""
    clusters: dict[str, list[list[float]]] = {}
    for result in conversations:
        own_scores: dict[str, list[float]] = {}
        for name, score in result.metric_results:
            if isinstance(score, Score) and score.number is not None:
                own_scores.setdefault(name, []).append(score.number)
        for name, values in own_scores.items():
            clusters.setdefault(name, []).append(values)
    figures: dict[str, Figure] = {}
    for name, of_metric in clusters.items():
        if name in averages:
            is_yes_or_no = all(value in _YES_OR_NO for values in of_metric for value in values)
            scale = scale_of(name) or (_YES_OR_NO if is_yes_or_no else None)
            n = sum(map(len, of_metric))
            figures[name] = _figure(averages[name], n, clustered_mean(of_metric, scale))
    return {name: figures[name] for name in averages if name in figures}


def run_pass_rate(scenarios: Iterable[ScenarioResult]) -> Figure | None:
    """Return the share of all conversations that passed, clustered by scenario; None without any."""
    clusters: dict[tuple[str, str], tuple[int, int]] = {}
    for scenario in scenarios:
        if rate := scenario.pass_rate:
            passed, n = clusters.get((scenario.file, scenario.name), (0, 0))
            clusters[scenario.file, scenario.name] = passed + _passed(rate), n + rate.n
    n = sum(each for _, each in clusters.values())
    passed = sum(each for each, _ in clusters.values())
    return _figure(passed / n, n, clustered_share(list(clusters.values()))) if n else None


def scenario_pass_hat_k(rate: Figure, most: int | None = None) -> list[float]:
    """Return the probabilities that 1, 2, … conversations all pass (pass^k), up to the rate's n or `most`."""
    return pass_hat_k(rate.n, _passed(rate), most)


def run_pass_hat_k(scenarios: Iterable[ScenarioResult], most: int) -> dict[int, float]:
    """Return k → the mean of pass^k over scenarios with several conversations, for each k that all have."""
    rates = [s.pass_rate for s in scenarios if s.pass_rate and s.pass_rate.n > 1]
    several = [scenario_pass_hat_k(rate, most) for rate in rates]
    return {k: mean(values) for k, values in enumerate(zip(*several, strict=False), start=1)}


def _passed(rate: Figure) -> int:
    return round(rate.value * rate.n)


def _figure(value: float, n: int, interval: ConfidenceInterval | None) -> Figure:
    return Figure(value, n, interval.low, interval.high) if interval else Figure(value, n)


MAX_SLOWEST_TURNS = 5


@dataclass(slots=True)
class Measurements:
    """The times, tokens and costs of a unit's conversations, summed up as they finish."""

    time: TimeSpent = field(default_factory=TimeSpent)
    tokens: Usage = field(default_factory=Usage)
    latencies: array[float] = field(default_factory=lambda: array("d"))
    """The milliseconds of each turn, without those of invalid conversations."""
    costs: list[float | None] = field(default_factory=list)
    """The cost of each turn in which the agent called its model, in USD; None if it is unknown."""
    invalid_costs: list[float | None] = field(default_factory=list)  # those of invalid conversations
    offered: set[str] = field(default_factory=set)  # names of the tools that the agent offered its model
    _slowest: list[tuple[float, int, int, SlowTurn]] = field(default_factory=list)

    @classmethod
    def of(cls, conversations: Iterable[ConversationResult]) -> Measurements:
        measured = cls()
        for number, result in enumerate(conversations):
            measured.add(number, result)
        return measured

    def add(self, number: int, result: ConversationResult) -> None:
        """Add a conversation. `number` is its place among the others."""
        self.time += result.time
        costs = self.costs if result.invalid is None else self.invalid_costs
        for turn in result.conversation.turns:
            if result.invalid is None:
                self.latencies.append(turn.latency_ms)
            self.tokens += turn.usage
            if turn.model_calls:
                costs.append(turn.model_cost)
            if turn.briefing:
                self.offered.update(tool.name for tool in turn.briefing.tools)
            key = (turn.latency_ms, -number, -turn.turn_index)
            if len(self._slowest) < MAX_SLOWEST_TURNS or key > self._slowest[-1]:
                place = turn.latency_ms, result.conversation.conversation_id, turn.turn_index
                slow = SlowTurn(*place, turn.first_token_ms, turn.model_ms)
                self._slowest = sorted([*self._slowest, (*key, slow)], reverse=True)[:MAX_SLOWEST_TURNS]

    @property
    def slowest(self) -> tuple[SlowTurn, ...]:
        """The slowest turns; of equally slow ones the first."""
        return tuple(slow for *_, slow in self._slowest)


def totals_of(conversations: Iterable[ConversationResult], measured: Measurements | None = None) -> Totals:
    """Sum up conversations in numbers that remain after the conversations themselves are dropped.

    `measured` are their measurements, if they no longer have them.
    """
    own, outcomes, criteria = measured or Measurements(), list[bool](), list[tuple[str, CriterionResult]]()
    turns, reporting, withholds = list[tuple[int, int]](), 0, False
    calls, evidence = Counter[tuple[str, bool]](), Counter[tuple[str, Evidence | None]]()
    for result in conversations:  # each is read once, because those of a stored run are decoded here
        talk = result.conversation
        if measured is None:
            own.add(len(outcomes), result)
        outcomes.append(conversation_passed(result))
        turns += ((turn.requests, turn.retries) for turn in talk.started_turns)
        calls.update((call.name, call.outcome is ToolOutcome.UNANSWERED) for call in talk.tool_calls)
        reporting += sum(turn.tells_calls for turn in talk.turns)
        withholds = withholds or talk.withholds_calls
        criteria += ((talk.conversation_id, each) for each in result.criteria)
        scores = ((name, score.evidence) for name, score in result.metric_results if isinstance(score, Score))
        evidence.update(each for each in scores if each[1] not in (None, Evidence.SUPPORTED))
    return Totals(
        conversations=len(outcomes),
        passed=sum(outcomes),
        turns=len(turns),
        tool_calls=calls.total(),
        agent_calls=sum(requests for requests, _ in turns),
        agent_retries=sum(retries for _, retries in turns),
        agent_tokens=own.tokens,
        slowest=own.slowest,
        time=own.time,
        unanswered={name: n for (name, is_unanswered), n in calls.items() if is_unanswered},
        reporting_turns=reporting,
        withholds_calls=withholds,
        evidence={n: {e: evidence[n, e] for e in Evidence if evidence[n, e]} for n, _ in evidence},
        criteria=criteria_totals(criteria),
        called=frozenset(name for name, _ in calls),
        agent_cost=_sum_of_known([*own.costs, *own.invalid_costs]),
        offered=frozenset(own.offered),
    )


class AgentEffort(NamedTuple):
    """The effort of an agent behind a model gateway."""

    turn_ms: float
    cost: float | None  # the cost of its model in USD; None if it is unknown


def agent_effort(scenarios: Sequence[ScenarioResult]) -> AgentEffort | None:
    """Return what the agent of these scenarios took; None if no gateway saw its model."""
    totals = [scenario.totals for scenario in scenarios if scenario.totals.turns]
    if not any(each.offered or each.agent_cost is not None for each in totals):
        return None
    agent_ms = sum(each.time.agent_ms for each in totals)
    cost = _sum_of_known([each.agent_cost for each in totals])
    return AgentEffort(agent_ms / sum(each.turns for each in totals), cost)


def _sum_of_known(costs: Sequence[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return sum(known) if known and len(known) == len(costs) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResources:
    """The resources that one scenario used against one agent, in total over its conversations."""

    conversations: int
    talking_s: float  # seconds from the first message to the last, without judging
    judging_s: float  # seconds that judging took after the last turn
    cost: float | None  # USD; None if the price of a model is not known
    calls: int = 0

    def __add__(self, other: ScenarioResources) -> ScenarioResources:
        return ScenarioResources(
            conversations=self.conversations + other.conversations,
            talking_s=self.talking_s + other.talking_s,
            judging_s=self.judging_s + other.judging_s,
            cost=None if self.cost is None or other.cost is None else self.cost + other.cost,
            calls=self.calls + other.calls,
        )


RateLimit = tuple[str | None, int | None, int | None]
"""A model, with the requests and tokens that the configuration allows a minute."""
_RATE_BOUND_FROM = 0.8
"""Share of the expected duration from which a quota determines it: the earlier run may have waited for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """An earlier run, as the basis of a forecast."""

    started_at: str  # ISO 8601
    models: Mapping[str, str | None]
    took: Mapping[tuple[str, str], ScenarioResources]
    """By scenario and agent. Only those that ran a conversation are included."""
    quotas: Sequence[QuotaUse] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUnit:
    """A scenario that is going to run against an agent."""

    name: str
    agent: str
    conversations: int
    in_turn: bool = False  # True if its conversations run one after another
    queue: str | None = None  # units with the same queue run one after another as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The expected resources of a run, based on an earlier run."""

    seconds: float
    cost: float | None  # USD; None if not known
    started_at: str
    scenarios: int
    new: int
    """The number of scenarios that the earlier run does not have.

    They count with the average of the others.
    """
    other_models: bool  # True if the earlier run used other models, so that its cost does not apply
    calls: int = 0
    conversations: int = 0
    rate_bound: bool = False  # True if a quota of a model determines the duration


def forecast(
    planned: Sequence[PlannedUnit],
    earlier: PastRun,
    concurrency: int,
    models: Mapping[str, str | None],
    limits: Sequence[RateLimit] = (),
) -> Forecast | None:
    """Forecast the planned run; None if the earlier run has no conversations.

    Args:
        concurrency: the number of conversations that run at the same time.
        models: role → model of the planned run; None if the role is offline.
        limits: the configured limits of its models.
    """
    if not earlier.took or not planned:
        return None
    total = sum(
        earlier.took.values(), ScenarioResources(conversations=0, talking_s=0.0, judging_s=0.0, cost=0.0)
    )
    took = [earlier.took.get((each.name, each.agent), total) for each in planned]
    pairs = list(zip(planned, took, strict=True))
    other_models = dict(models) != dict(earlier.models)
    is_priced = not other_models and all(each.cost is not None for each in took)
    costs = ((each.cost or 0.0) / each.conversations * unit.conversations for unit, each in pairs)
    conversations = sum(each.conversations for each in planned)
    seconds = _seconds(planned, took, concurrency)
    at_least = _seconds_by_quotas(earlier.quotas, limits, conversations / total.conversations)
    return Forecast(
        seconds=max(seconds, at_least),
        rate_bound=at_least > _RATE_BOUND_FROM * seconds,
        cost=sum(costs) if is_priced else None,
        started_at=earlier.started_at,
        scenarios=len(planned),
        new=sum((each.name, each.agent) not in earlier.took for each in planned),
        other_models=other_models,
        calls=round(sum(each.calls / each.conversations * unit.conversations for unit, each in pairs)),
        conversations=conversations,
    )


def _seconds(planned: Sequence[PlannedUnit], took: Iterable[ScenarioResources], concurrency: int) -> float:
    talks = defaultdict[object, list[float]](list)
    last_judged = 0.0
    for number, (each, known) in enumerate(zip(planned, took, strict=True)):
        key = number if each.queue is None else each.queue
        talks[key] += [known.talking_s / known.conversations] * each.conversations
        if each.in_turn or key != number:  # they take one place, as all units of a queue do
            talks[key] = [sum(talks[key])]
        last_judged = max(last_judged, known.judging_s / known.conversations)
    places = [0.0] * max(1, concurrency)
    for length in (talk for several in talks.values() for talk in several):
        heapreplace(places, places[0] + length)  # each takes the place that is free first
    return max(places) + last_judged


def _seconds_by_quotas(quotas: Sequence[QuotaUse], limits: Sequence[RateLimit], share: float) -> float:
    seconds = [0.0]
    for each in quotas:
        configured = [limit[1:] for limit in limits if limit[0] == each.model]
        allowed = each.allowed_requests_per_minute, each.allowed_tokens_per_minute
        for requests, tokens in (*configured, allowed, (each.learnt_per_minute, None)):
            seconds += [60 * share * each.requests / requests] if requests else []
            seconds += [60 * share * each.tokens / tokens] if tokens else []
    return max(seconds)


def format_forecast(prediction: Forecast, now: datetime) -> str:
    """Format a forecast as one line: "about 3 min and 0.12 USD, by the run of yesterday 14:03"."""
    then, cost = format_relative_moment(prediction.started_at, now), prediction.cost
    money = (f" and {cost:.2f} USD" if cost >= 1 else f" and {cost:.2g} USD") if cost else ""
    bound = "rate-bound: " * prediction.rate_bound
    words = [f"{bound}about {about(prediction.seconds)}{money}, by the run of {then}"]
    if prediction.other_models:
        words.append("it used other models, so the cost is unknown")
    elif prediction.cost is None:
        words.append("the cost is unknown: a model has no known price")
    if prediction.new == prediction.scenarios:
        words.append("all scenarios are new: estimated from its average")
    elif prediction.new:
        verb, total = "is" if prediction.new == 1 else "are", count(prediction.scenarios, "scenario")
        words.append(f"{prediction.new:,} of {total} {verb} new: estimated from the average")
    return "; ".join(words)


def budget_warning(
    prediction: Forecast, max_calls: int | None, max_cost: float | None, resumed_by: str
) -> str | None:
    """Return a warning if the forecast exceeds a budget, with the command that resumes the run, if any."""
    expected, limits, shares = [], [], []
    if max_calls is not None and prediction.calls > max_calls:
        expected.append(f"{prediction.calls:,} model calls")
        limits.append(f"--max-llm-calls allows {max_calls:,}")
        shares.append(max_calls / prediction.calls)
    if max_cost is not None and prediction.cost is not None and prediction.cost > max_cost:
        expected.append(f"{prediction.cost:.2g} USD")
        limits.append(f"--max-cost allows {max_cost:g}")
        shares.append(max_cost / prediction.cost)
    if not shares:
        return None
    finished = int(prediction.conversations * min(shares))
    progress = f"about {finished:,} of {count(prediction.conversations, 'conversation')} will finish"
    rest = f"; {resumed_by} runs the rest" if resumed_by else ""
    return f"about {' and '.join(expected)} are expected, and {' and '.join(limits)}: {progress}{rest}"


def format_relative_moment(moment: str, now: datetime) -> str:
    """Format a moment relative to today: "today 14:03", "yesterday 14:03", "2026-01-02 14:03"."""
    try:
        then = datetime.fromisoformat(moment).astimezone(now.tzinfo)
    except ValueError:
        return moment
    days = {now.date(): "today", now.date() - timedelta(days=1): "yesterday"}
    return f"{days.get(then.date(), then.date().isoformat())} {then:%H:%M}"
