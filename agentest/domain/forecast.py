"""Forecast the duration and the cost of a run from an earlier run. Unknown values stay unknown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from heapq import heapify, heapreplace

from agentest.support.lazy_dataclasses import dataclass
from agentest.support.text import about, count


@dataclass(frozen=True, slots=True, kw_only=True)
class ScenarioResources:
    """The resources that one scenario used against one agent, in total over its conversations."""

    conversations: int
    talking_s: float
    """Seconds from the first message to the last, without judging."""
    judging_s: float
    """Seconds that judging took after the last turn."""
    cost: float | None
    """USD; None if the price of a model is not known."""
    calls: int = 0
    """Model calls in all roles."""

    def __add__(self, other: ScenarioResources) -> ScenarioResources:
        return ScenarioResources(
            conversations=self.conversations + other.conversations,
            talking_s=self.talking_s + other.talking_s,
            judging_s=self.judging_s + other.judging_s,
            cost=None if self.cost is None or other.cost is None else self.cost + other.cost,
            calls=self.calls + other.calls,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class PastRun:
    """An earlier run, as the basis of a forecast."""

    started_at: str
    """ISO 8601."""
    models: Mapping[str, str | None]
    took: Mapping[tuple[str, str], ScenarioResources]
    """By scenario and agent. Only those that ran a conversation are included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedUnit:
    """A scenario that is going to run against an agent."""

    name: str
    agent: str
    conversations: int
    in_turn: bool = False
    """True if its conversations run one after another."""
    queue: str | None = None
    """Units with the same queue run one after another as well."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """The expected resources of a run, based on an earlier run."""

    seconds: float
    cost: float | None
    """USD; None if not known."""
    started_at: str
    """The start of the earlier run."""
    scenarios: int
    new: int
    """The number of scenarios that the earlier run does not have.

    They count with the average of the others.
    """
    other_models: bool
    """True if the earlier run used other models, so that its cost does not apply."""
    calls: int = 0
    """Model calls."""
    conversations: int = 0


def forecast(
    planned: Sequence[PlannedUnit], earlier: PastRun, concurrency: int, models: Mapping[str, str | None]
) -> Forecast | None:
    """Forecast the planned run; None if the earlier run has no conversations.

    Args:
        concurrency: the number of conversations that run at the same time.
        models: role → model of the planned run; None if the role is offline.
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
    return Forecast(
        seconds=_seconds(planned, took, concurrency),
        cost=sum(costs) if is_priced else None,
        started_at=earlier.started_at,
        scenarios=len(planned),
        new=sum((each.name, each.agent) not in earlier.took for each in planned),
        other_models=other_models,
        calls=round(sum(each.calls / each.conversations * unit.conversations for unit, each in pairs)),
        conversations=sum(each.conversations for each in planned),
    )


def _seconds(planned: Sequence[PlannedUnit], took: Iterable[ScenarioResources], concurrency: int) -> float:
    """Simulate the schedule and return when the last conversation is judged, in seconds."""
    places = [0.0] * max(1, concurrency)
    heapify(places)
    queues: dict[str, float] = {}
    last_judged = 0.0
    for each, known in zip(planned, took, strict=True):
        talk, judged = known.talking_s / known.conversations, known.judging_s / known.conversations
        if each.queue is not None:  # a queue takes one place for all of its units
            begins = queues.get(each.queue, 0.0)
            ends = queues[each.queue] = begins + talk * each.conversations
        else:
            lengths = [talk * each.conversations] if each.in_turn else [talk] * each.conversations
            ends = 0.0
            for length in lengths:  # each takes the slot that is free first
                begins = places[0]
                heapreplace(places, begins + length)
                ends = max(ends, begins + length)
        last_judged = max(last_judged, ends + judged)
    return last_judged


def format_forecast(prediction: Forecast, now: datetime) -> str:
    """Format a forecast as one line: "about 3 min and 0.12 USD, by the run of yesterday 14:03"."""
    then, cost = format_relative_moment(prediction.started_at, now), prediction.cost
    money = (f" and {cost:.2f} USD" if cost >= 1 else f" and {cost:.2g} USD") if cost else ""
    words = [f"about {about(prediction.seconds)}{money}, by the run of {then}"]
    if prediction.other_models:
        words.append("its models were others, so the cost is not known")
    elif prediction.cost is None:
        words.append("the cost is not known: a model has no known price")
    if prediction.new == prediction.scenarios:
        words.append("none of these scenarios was in it: all are taken as its average")
    elif prediction.new:
        verb, total = "is" if prediction.new == 1 else "are", count(prediction.scenarios, "scenario")
        words.append(f"{prediction.new:,} of {total} {verb} new: taken as the average")
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
