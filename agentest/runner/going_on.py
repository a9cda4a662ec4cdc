"""The part of a run that an earlier one had finished already: reported, and not run again."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from time import perf_counter

from agentest.domain.events import ScenarioFinished
from agentest.domain.results import ScenarioResult
from agentest.runner.connections import Connections
from agentest.runner.plan import Unit
from agentest.runner.session import Session
from agentest.runner.units import UnitDecision, UnitProgress


def report_finished(session: Session) -> dict[str, ScenarioResult]:
    """Report the units that had finished; their results by scope."""
    finished = ((unit.scope, unit.kept.result) for unit in session.prepared.plan.units)
    return {scope: _reported(session, result) for scope, result in finished if result}


def report_never_begun(session: Session, begun: Collection[str]) -> dict[str, ScenarioResult]:
    """Report what had finished of units that a stop has kept from going on; their results by scope.

    Args:
        begun: the scopes of the others.
    """
    left = [unit for unit in session.prepared.plan.units if unit.scope not in begun]
    return {
        unit.scope: _reported(session, _so_far(session, unit)) for unit in left if unit.kept.conversations
    }


def _so_far(session: Session, unit: Unit) -> ScenarioResult:
    connections = Connections(redact=session.prepared.loaded.redact)
    progress = UnitProgress(unit, perf_counter(), results=dict(unit.kept.conversations))
    return UnitDecision(session.settings, connections).decide_early(progress, session.stop)


def _reported(session: Session, result: ScenarioResult) -> ScenarioResult:
    session.emit(ScenarioFinished(result))
    return result if session.settings.keep_conversations else replace(result, conversations=())
