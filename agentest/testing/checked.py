"""The result of a run in a test: `check()` raises unless everything passed."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import fields
from unittest import SkipTest

from agentest.domain.results import RunResult, ScenarioResult, Status
from agentest.domain.verdict import run_status
from agentest.report.console.block import block
from agentest.support.errors import AgentestError

_SHOWN = 20
"""How many scenarios an error shows whole."""


class ScenarioFailed(AgentestError, AssertionError):
    """A scenario failed. `result` is the whole run."""

    def __init__(self, message: str, result: RunResult) -> None:
        super().__init__(message)
        self.result = result


class ScenarioErrored(AgentestError):
    """Nothing failed, and something could not be judged: no AssertionError, as nothing was found out.

    `result` is the whole run.
    """

    def __init__(self, message: str, result: RunResult) -> None:
        super().__init__(message)
        self.result = result


class CheckedRun(RunResult):
    """The whole run, with a check."""

    __slots__ = ()

    def check(self) -> None:
        """Raise unless every scenario passed, with what the console says of those that did not.

        Raises ScenarioFailed, which is an AssertionError; ScenarioErrored where nothing failed; and
        unittest.SkipTest, which pytest knows, too, where every scenario is skipped.
        """
        __tracebackhide__ = True  # pytest shows the test's line instead
        status = run_status(self)
        if status is Status.PASSED:
            return
        skipped = self.with_status(Status.SKIPPED)
        if skipped and len(skipped) == len(self.scenarios) and not self.unclaimed:
            raise SkipTest("; ".join(reason.message for each in skipped for reason in each.verdict.reasons))
        kind = ScenarioFailed if status is Status.FAILED else ScenarioErrored
        raise kind(_told(self), self)


def as_checked(result: RunResult) -> CheckedRun:
    """The same result, with a check."""
    return CheckedRun(**{field.name: getattr(result, field.name) for field in fields(result)})


def _told(result: RunResult) -> str:
    """What the console says of the scenarios that did not pass."""
    short = [each for each in result.scenarios if each.verdict.status in (Status.FAILED, Status.ERRORED)]
    of = f"{len(short)} of {len(result.scenarios)} scenarios did not pass"
    rows = [of if result.scenarios else "no scenario was run"]
    rows += [warning.message for warning in result.unclaimed]
    rows += _blocks(short[:_SHOWN], several_agents=len(result.agents) > 1)
    rows += [f"… {len(short) - _SHOWN} more"] if len(short) > _SHOWN else []
    return "\n".join(rows)


def _blocks(results: Iterable[ScenarioResult], *, several_agents: bool) -> list[str]:
    return [block(result, several_agents=several_agents) for result in results]
