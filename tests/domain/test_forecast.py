"""Forecasting time and cost of a run from an earlier one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from agentest.domain.figures import (
    Forecast,
    PastRun,
    PlannedUnit,
    RateLimit,
    ScenarioResources,
    forecast,
    format_forecast,
    format_relative_moment,
)
from agentest.domain.results import QuotaUse

MODEL = "openai/gpt-5-mini"
MODELS = {"user": MODEL, "judge": MODEL}
NOW = datetime(2026, 3, 5, 12, 0, tzinfo=UTC)


def took(
    conversations: int = 2, talking_s: float = 20.0, judging_s: float = 4.0, cost: float | None = 0.1
) -> ScenarioResources:
    """Ten seconds of conversation, two of judging and 5 cents per conversation."""
    return ScenarioResources(conversations=conversations, talking_s=talking_s, judging_s=judging_s, cost=cost)


def earlier(**scenarios: ScenarioResources) -> PastRun:
    by_place = {(name, "shop"): each for name, each in scenarios.items()}
    return PastRun(started_at="2026-03-04T14:03:00+00:00", models=MODELS, took=by_place)


def planned(name: str = "a", conversations: int = 4, **more: object) -> PlannedUnit:
    return PlannedUnit(name=name, agent="shop", conversations=conversations, **more)  # type: ignore[arg-type]


def found(*units: PlannedUnit, by: PastRun, concurrency: int = 2) -> Forecast:
    result = forecast(units, by, concurrency, MODELS)
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("units", "seconds"),
    [
        pytest.param([planned()], 22.0, id="two at once, twice"),
        pytest.param([planned(in_turn=True)], 42.0, id="one after another"),
        pytest.param([planned(in_turn=True), planned("b", 1)], 42.0, id="others go on beside it"),
        pytest.param([planned(queue="x"), planned("b", queue="x")], 82.0, id="a line of an exclusive agent"),
        pytest.param([planned(queue="x"), planned("b", 8)], 62.0, id="a line and others beside it"),
        pytest.param([planned("b"), planned(queue="x")], 62.0, id="a line that waits for a place"),
        pytest.param([planned("a", 3)], 22.0, id="the last one alone"),
    ],
)
def test_time_depends_on_concurrency(units: list[PlannedUnit], seconds: float) -> None:
    """Each conversation starts when a place is free; judging comes last."""
    assert found(*units, by=earlier(a=took(), b=took())).seconds == seconds


def test_cost_scales_with_conversations() -> None:
    """A scenario costs what it did before; a new one takes the average, and the text says so."""
    by = earlier(a=took(), b=took(1, 40.0, 2.0, 0.25))
    result = found(planned("a", 4), planned("b", 2), planned("new", 3), by=by)
    assert result.cost == pytest.approx(0.2 + 0.5 + 3 * 0.35 / 3)
    assert (result.scenarios, result.new) == (3, 1)
    assert format_forecast(result, NOW) == (
        "about 2 min and 1.05 USD, by the run of yesterday 14:03; "
        "1 of 3 scenarios is new: estimated from the average"
    )


def test_unknown_costs_are_reported() -> None:
    """Without a price, or with other models, there is no cost; without conversations, no forecast."""
    unpriced = found(planned(), by=earlier(a=took(cost=None)))
    assert "the cost is unknown: a model has no known price" in format_forecast(unpriced, NOW)
    other = forecast([planned()], earlier(a=took()), 2, {"user": None, "judge": None})
    assert other is not None
    assert other.cost is None
    assert "it used other models, so the cost is unknown" in format_forecast(other, NOW)
    strange = found(planned("z"), by=earlier(a=took()))
    assert "all scenarios are new" in format_forecast(strange, NOW)
    assert forecast([planned()], earlier(), 2, MODELS) is None


@pytest.mark.parametrize(
    ("limit", "rates", "seconds"),
    [
        pytest.param((MODEL, None, None), (), None, id="no limit"),
        pytest.param((MODEL, 60, None), (), 160, id="80 requests for each of two conversations"),
        pytest.param((MODEL, None, 1000), (), 240, id="tokens"),
        pytest.param((MODEL, 6000, None), (120.0,), 80, id="what 429s showed is less than configured"),
        pytest.param((MODEL, 60, None), (120.0,), 160, id="what is configured is less"),
        pytest.param((MODEL, 480, None), (), 22, id="the earlier run may have waited for it"),
        pytest.param((MODEL, 4800, None), (), None, id="slower than the quota"),
        pytest.param((MODEL, None, None), (None, 120, None), 80, id="requests that headers say"),
        pytest.param((MODEL, None, None), (None, 240, 1000), 240, id="tokens that headers say"),
        pytest.param(("openai/other", 1, None), (), None, id="a model that is not in the run"),
    ],
)
def test_a_quota_may_bound_a_run(
    limit: RateLimit, rates: Sequence[float | None], seconds: float | None
) -> None:
    """A run takes at least as long as its requests and tokens do at the rate that a quota allows."""
    used = QuotaUse(MODEL, 80, 2000, 0, 0.0, *rates)
    by = replace(earlier(a=took()), quotas=[used])
    result = forecast([planned()], by, 2, MODELS, [limit])
    assert result is not None
    assert (result.seconds, result.rate_bound) == (seconds or 22, seconds is not None)
    assert format_forecast(result, NOW).startswith("rate-bound: about " if seconds else "about ")


def test_relative_moments() -> None:
    """Today, yesterday, or the date; any other text is unchanged."""
    assert format_relative_moment("2026-03-05T08:00:00+00:00", NOW) == "today 08:00"
    assert format_relative_moment("2026-01-02T08:00:00.123+00:00", NOW) == "2026-01-02 08:00"
    assert format_relative_moment("then", NOW) == "then"
