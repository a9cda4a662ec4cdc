"""What the units of a run ask besides agents: models with limits, budget and recordings."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.models.budget import Budget
from agentest.models.gates import Gates, LocalGates
from agentest.models.open import Models, ModelTerms
from agentest.models.open import open_models as open_llm
from agentest.models.port import Ledger
from agentest.models.recording.answers import MeasuringLedger
from agentest.models.recording.cassette import Cassettes
from agentest.models.recording.tape import CassetteError, Mode, Tape
from agentest.runner.plan import Plan
from agentest.runner.prepare import Prepared, cassette_folder
from agentest.runner.session import Session
from agentest.runner.stop import Stop
from agentest.support.errors import ConfigError
from agentest.support.redact import Redactor

if TYPE_CHECKING:  # imported where a run has a budget
    from agentest.runner.allowance import Allowance


@dataclass(frozen=True, slots=True)
class Connections:
    """What units ask, and who counts it and hides secrets; tests pass in their own."""

    models: Models = field(default_factory=Models)
    ledger: Ledger = field(default_factory=Ledger)
    redact: Redactor = field(default_factory=Redactor)
    allowance: Allowance | None = None
    """Which conversations may start; None: all, as the run has no budget."""


async def open_models(
    session: Session,
    tape: Tape | None,
    stack: AsyncExitStack,
    gates: Gates | None = None,
    ledger: MeasuringLedger | None = None,
) -> tuple[Models, Ledger]:
    """The models of a run, ready to answer, and the ledger of their calls. The stack closes them.

    Args:
        gates: of the models, where others share them; None: made here.
        ledger: where calls are counted; None: in a new one.

    Raises UsageError.
    """
    if session.given:
        return session.given
    prepared = session.prepared
    terms = ModelTerms(
        tape=tape,
        ledger=ledger or new_ledger(session),
        gates=gates or local_gates(session),
        hide=prepared.loaded.redact.transcript,
    )
    if not (prepared.user or prepared.judge):
        return Models(), terms.ledger
    stack.callback(_close, tape, session.stop)
    models = await stack.enter_async_context(
        open_llm(prepared.user, prepared.judge, terms, prepared.named, prepared.confirm)
    )
    return models, terms.ledger


def local_gates(session: Session) -> LocalGates:
    """The limits, the circuits and the budget of a run, for the process that has them."""
    options = session.prepared.request.options
    budget = None
    if options.has_budget:
        budget = Budget(options.max_cost, options.max_llm_calls, stopping(session))
    return LocalGates(session.prepared.concurrency, budget, session.say)


def new_ledger(session: Session) -> MeasuringLedger:
    """Where the calls of a run are counted."""
    if not session.prepared.request.options.has_budget:
        return MeasuringLedger()
    from agentest.runner.allowance import PaidLedger

    return PaidLedger()


def allowance_of(
    session: Session, budget: Budget | None, ledger: Ledger, recordings: Cassettes | None
) -> Allowance | None:
    """What lets conversations start as the budget can finish them; None where nothing limits that."""
    prepared = session.prepared
    asks_models = bool(prepared.user or prepared.judge or prepared.named)
    if budget is None or not asks_models or prepared.request.options.tape == Mode.REPLAY:
        return None
    from agentest.runner.allowance import Allowance, PaidLedger
    from agentest.runner.estimate import estimate_of

    if not isinstance(ledger, PaidLedger):
        return None
    units, spending = prepared.plan.units, session.spending
    most = dict(zip([unit.scope for unit in units], estimate_of(prepared, units), strict=False))
    return Allowance(budget, ledger, most, spending.took, recordings, stopping(session), spending.resumed_by)


def stopping(session: Session) -> Callable[[object], None]:
    """What stops the run for a reason, or an error, that the user also reads in a note: once."""
    noted: set[str] = set()

    def stop(reason: object) -> None:
        text = str(reason)
        if text not in noted:
            noted.add(text)
            session.on_note(text)
        session.stop(text)

    return stop


def open_recordings(session: Session) -> Cassettes | None:
    """The recorded answers of this run; None where nothing is recorded or replayed.

    What is missing of them, or cannot be written, stops the run.
    """
    prepared = session.prepared
    options, config = prepared.request.options, prepared.loaded.config
    if prepared.tape_mode is None:
        return None
    if options.tape is None:
        folder = _folder_of_answers(session)
    else:
        folder = cassette_folder(config, options, prepared.request.root)
    if folder is None:
        return None
    models = {"user": prepared.user, "judge": prepared.judge}
    return Cassettes(
        folder,
        Mode(prepared.tape_mode),
        prepared.loaded.redact,
        names=scenario_names(prepared),
        models={role: spec.name for role, spec in models.items() if spec},
        named={role: _names(prepared, role) for role in models},
        on_failure=stopping(session),
    )


def _folder_of_answers(session: Session) -> Path | None:
    """Where answers of unfinished conversations are kept, with those of the run that this one resumes."""
    spending = session.spending
    if spending.answers and spending.earlier_answers and spending.earlier_answers.is_dir():
        try:
            shutil.copytree(spending.earlier_answers, spending.answers, dirs_exist_ok=True)
        except OSError as error:
            session.say(
                f"answers that an earlier run has paid for cannot be used, and are asked again: {error}"
            )
    return spending.answers


def scenario_names(prepared: Prepared) -> dict[str, str]:
    """Scope of a unit → what its scenario is called."""
    return {unit.scope: unit.scenario.name for unit in prepared.plan.units}


def _names(prepared: Prepared, role: str) -> set[str]:
    names = {spec.name for wish, spec in prepared.named.items() if wish.role == role}
    return names | ({prepared.confirm.name} if prepared.confirm and role == "judge" else set())


def check_recordings(recordings: Cassettes | None, plan: Plan) -> None:
    """Raise ConfigError for a damaged recording."""
    if recordings is None or recordings.mode is Mode.KEEP:  # what is damaged is asked again
        return
    try:
        recordings.check(unit.scope for unit in plan.units)
    except CassetteError as error:
        raise ConfigError(str(error)) from None


def _close(tape: Tape | None, stop: Stop) -> None:
    if tape:
        with suppress(CassetteError):  # its `on_failure` has reported it
            tape.close(finished=stop.reason is None)
