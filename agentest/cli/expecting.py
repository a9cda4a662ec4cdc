"""What a run may take: by the latest run of its kind, and before there is one, what is known of prices."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime

from agentest.forecast import Forecast, Planned, forecast, forecast_words
from agentest.run.outputs import output_dir
from agentest.run.plan import Unit
from agentest.run.prepare import Prepared
from agentest.store.earlier import earlier_run
from agentest.store.kept.finding import latest_run
from agentest.store.kept.record import RunKind

_TAKING_TIME = (RunKind.RUN, RunKind.EVAL)
"""The kinds of runs that talk with agents."""


def forecast_of(prepared: Prepared, kind: RunKind) -> Forecast | None:
    """What the run may take, by the latest one of its kind; None where that is not known."""
    latest = latest_run(output_dir(prepared), [kind]) if kind in _TAKING_TIME else None
    earlier = earlier_run(latest.file) if latest and latest.file else None
    if earlier is None:
        return None
    parallel = prepared.loaded.config.parallel
    planned = [_planned(unit, parallel) for unit in prepared.plan.units]
    return forecast(planned, earlier, prepared.concurrency, prepared.model_names)


def _planned(unit: Unit, parallel: bool) -> Planned:
    return Planned(
        name=unit.scenario.name,
        agent=unit.agent,
        conversations=unit.conversations,
        in_turn=not unit.is_parallel(parallel),
        line=unit.about.line,
    )


def expectation(prepared: Prepared, most_calls: int) -> Iterator[str]:
    """What the run may take in time and money, as lines.

    Args:
        most_calls: model calls that it makes at most.
    """
    evaluated = any(unit.scenario.case for unit in prepared.plan.units)
    found = forecast_of(prepared, RunKind.EVAL if evaluated else RunKind.RUN)
    if found:
        yield f"expected: {forecast_words(found, datetime.now().astimezone())}"
        return
    yield "expected: how long it takes is not known before a first run has been kept"
    if most_calls:
        yield f"cost: not known either, as nobody knows how many tokens {most_calls:,} calls at most take"
        yield from _prices(prepared)


def _prices(prepared: Prepared) -> Iterator[str]:
    from agentest.llm.prices import price_of

    for name in dict.fromkeys(filter(None, prepared.model_names.values())):
        price = price_of(name)
        if price is None:
            yield f"  {name}: its price is not known"
        else:
            each = (
                f"{price.prompt * 1e6:g} USD a million prompt tokens, {price.completion * 1e6:g} completion"
            )
            yield f"  {name}: {each}"
