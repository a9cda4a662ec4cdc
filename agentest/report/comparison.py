"""The view of a comparison that reports need, with an earlier run or between agents."""

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
    """A description of the change."""

    @property
    def place(self) -> tuple[str, str, str]:
        return self.name, self.agent, self.file


class ComparedRun(Protocol):
    """A run that has been compared by the time its end is reported."""

    def markdown(self) -> Sequence[str]:
        """Return the comparisons as Markdown, for a job's summary."""
        ...

    def pages(self) -> Sequence[Json]:
        """Return the comparisons in the page's format: `history.comparison_data.for_page`."""
        ...

    def regressions(self) -> Sequence[Regression]:
        """Return the scenarios that regressed against a baseline."""
        ...
