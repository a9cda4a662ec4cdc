"""The last question of a run: which judged groups of different scenarios have one root cause."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import anyio

from agentest.domain.results import CauseJoin, ModelUsage, ScenarioResult
from agentest.domain.root_causes import judged_causes
from agentest.judging.joining import MOST_GROUPS, Joining, worth_joining
from agentest.runner.connections import Connections
from agentest.runner.pulse import awaited
from agentest.runner.session import Session
from agentest.support.errors import ModelError

JOINING_SCOPE = "root causes of the run"
"""What its calls are accounted and recorded under. The scope of a scenario names it in quotes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinedCauses:
    """What a model joined, and what that took by role."""

    joins: tuple[CauseJoin, ...] = ()
    used: Mapping[str, ModelUsage] = field(default_factory=dict)


NOT_JOINED = JoinedCauses()


async def joined_causes(
    scenarios: Iterable[ScenarioResult], session: Session, connections: Connections
) -> JoinedCauses:
    """Join the judged groups of all scenarios; never raises for what a model does.

    Nothing is asked of a run that was stopped. A call that fails changes no verdict: its groups stay apart,
    and a note says why.
    """
    model, stop = connections.models.judge, session.stop
    if model is None or stop.reason is not None:
        return NOT_JOINED
    # In an order of their own: a replay finds a question by its words, whichever scenario ends first.
    causes = judged_causes(sorted(scenarios, key=lambda each: (each.name, each.agent)))
    if not worth_joining(causes):
        return NOT_JOINED
    if len(causes) > MOST_GROUPS:
        session.on_note(
            f"only the worst {MOST_GROUPS} of {len(causes)} groups of judged failures were compared"
        )
    joining = Joining(causes, model, JOINING_SCOPE)
    stop.over = True  # a budget that is used up here, or an answer that is not recorded, stops nothing
    try:
        async with anyio.create_task_group() as tasks, awaited("for the root causes", session.say):
            tasks.start_soon(_cancel_when_stopped, session, tasks.cancel_scope)
            try:
                await joining.run()
            except Exception as error:  # noqa: BLE001 - the boundary of the step: no group is lost by it
                known = isinstance(error, ModelError)
                why = connections.redact.error(str(error) if known else f"{type(error).__name__}: {error}")
                session.on_note(f"judged failures of different scenarios were not all compared: {why}")
            tasks.cancel_scope.cancel()
    finally:
        stop.over = False
    return JoinedCauses(joins=joining.joins, used=connections.ledger.of(JOINING_SCOPE))


async def _cancel_when_stopped(session: Session, scope: anyio.CancelScope) -> None:
    await session.stop.called.wait()
    scope.cancel()
