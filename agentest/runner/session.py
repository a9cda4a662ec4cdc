"""One run under way: what it runs, how, and where its events, notes and stops go."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from agentest.domain.events import Emit, Noted
from agentest.domain.results import RunResult
from agentest.runner.prepare import CONFIRM, Prepared
from agentest.runner.settings import Settings
from agentest.runner.stop import Stop

if TYPE_CHECKING:  # imported when models are opened
    from agentest.domain.forecast import Took
    from agentest.models.open import Models
    from agentest.models.port import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class Spending:
    """What a run with a budget knows of its costs, and where it keeps what it has paid for."""

    took: Mapping[tuple[str, str], Took] = field(default_factory=dict)
    """Scenario and agent → what an earlier run took."""
    answers: Path | None = None
    """The folder for answers of conversations that are left unfinished; None: they are not kept."""
    earlier_answers: Path | None = None
    """That of the run that this one goes on with."""
    resumed_by: str = ""
    """The command that runs what is left; "": there is none."""


@dataclass(frozen=True, slots=True)
class Session:
    """One run under way."""

    prepared: Prepared
    settings: Settings
    emit: Emit
    """Receives every event, in order."""
    stop: Stop
    """Ends the run early."""
    on_note: Callable[[str], None]
    """Receives what the user should know at the end."""
    given: tuple[Models, Ledger] | None = None
    """Models that are open already, and the ledger of their calls, in place of those that were prepared."""

    has_workers: bool = False
    """Whether workers hold the conversations, and start the agents of which each has its own."""
    spending: Spending = Spending()

    def say(self, text: str) -> None:
        """Say something to the user at once."""
        self.emit(Noted(self.prepared.loaded.redact(text)))

    @property
    def model_names(self) -> dict[str, str | None]:
        """Role → model; None is offline."""
        if self.given is None:
            return self.prepared.model_names
        models, _ = self.given
        roles = {role: m.name if m else None for role, m in (("user", models.user), ("judge", models.judge))}
        return roles | ({CONFIRM: models.confirm.name} if models.confirm else {})


@dataclass(slots=True)
class Outcome:
    """How a run ended: without a result when it was interrupted before it began."""

    result: RunResult | None = None
    interrupted: bool = False
    """Whether a signal came, even if too late to stop anything."""
    incomplete: bool = False
    """Whether something failed after the result was made: the recording could not be written."""
    notes: list[str] = field(default_factory=list)
    """What the user should know besides the result."""
