"""A run that was stored, as the events that it had: reporters make its reports again."""

from __future__ import annotations

from collections.abc import Iterator

from agentest.domain.events import (
    ConversationFinished,
    Event,
    RunFinished,
    RunStarted,
    ScenarioFinished,
    ScenarioStarted,
)
from agentest.domain.results import RunResult


def events_of(result: RunResult) -> Iterator[Event]:
    """The events of a run, scenario after scenario. How much it did at once is not stored: 0."""
    yield RunStarted(
        version=result.version,
        started_at=result.started_at,
        agents={name: result.addresses.get(name, "") for name in result.agents},
        scenarios=len(result.scenarios),
        conversations=sum(scenario.planned for scenario in result.scenarios),
        concurrency=0,
        models=result.models,
        comparison=result.comparison,
        planned=tuple((each.name, each.agent, each.planned) for each in result.scenarios),
        sights=result.sights,
        calibrations=result.calibrations,
    )
    for scenario in result.scenarios:
        yield ScenarioStarted(scenario.name, scenario.agent, scenario.planned)
        for number, conversation in enumerate(scenario.conversations, start=1):
            yield ConversationFinished(
                name=scenario.name,
                agent=scenario.agent,
                result=conversation,
                number=number,
                case=scenario.case,
                thresholds=scenario.thresholds,
            )
        yield ScenarioFinished(scenario)
    yield RunFinished(result)
