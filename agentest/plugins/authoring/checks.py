"""The lines of `agentest doctor`: what was checked, what was found and what to do."""

from __future__ import annotations

from collections.abc import Callable, MutableMapping
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING

from agentest.support.lazy_dataclasses import dataclass

if TYPE_CHECKING:
    from agentest.config.file import LoadedConfig
    from agentest.runner.plan import Plan
    from agentest.runner.prepare import Prepared, RunRequest


class CheckOutcome(Enum):
    """The outcome of a check."""

    GOOD = "good"
    BAD = "bad"  # a run would not start, or would be errored
    OPEN = "open"  # the check was skipped or is inconclusive


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the doctor's output."""

    mark: CheckOutcome
    name: str  # the subject, in one or two words
    text: str  # the finding
    advice: str = ""  # the next step, in rows; "" if there is nothing to do
    leaves_doubt: bool = False  # True if a run cannot be called ready before this is known


good = partial(Check, CheckOutcome.GOOD)
bad = partial(Check, CheckOutcome.BAD)
left_open = partial(Check, CheckOutcome.OPEN)
Tell = Callable[[Check], None]  # receives each check as soon as it is complete


@dataclass(slots=True, kw_only=True)
class Examination:
    """The subjects of the checks of one `agentest doctor`, and where they report."""

    request: RunRequest
    loaded: LoadedConfig
    environ: MutableMapping[str, str]
    tell: Tell
    say: Callable[[str], object]  # receives a message about each long wait
    expected: Callable[[Prepared], str]
    """Returns the expected usage of a run, estimated from an earlier one, in words; "" if unknown."""
    interleave: bool  # True to run two conversations at once with agents that were running already, too
    plan: Plan | None = None  # what a run would do; None if no plan is possible


def subject(what: str, agent: str) -> str:
    """Return the name of a check about an agent, which names the agent unless it is the only one."""
    return f"{what} {agent}" if agent != "agent" else what
