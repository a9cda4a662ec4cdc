"""What reports want of a comparison: with an earlier run, or of agents; who compares knows more of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from agentest.support.json_text import Json


@dataclass(frozen=True, slots=True, kw_only=True)
class Regression:
    """A scenario that is worse than before."""

    name: str
    agent: str
    file: str
    line: int
    message: str
    """How it is worse."""

    @property
    def place(self) -> tuple[str, str, str]:
        return self.name, self.agent, self.file


class ComparedRun(Protocol):
    """A run that has been compared when its end is reported."""

    def markdown(self) -> Sequence[str]:
        """The comparisons, for a job's summary."""
        ...

    def pages(self) -> Sequence[Json]:
        """The comparisons as the page shows them: `analysis.comparison.for_page`."""
        ...

    def regressions(self) -> Sequence[Regression]:
        """The scenarios that regressed against a baseline."""
        ...
