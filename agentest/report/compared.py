"""What the report for GitHub wants of a comparison with an earlier run; who compares knows more of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol


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

    def regressions(self) -> Sequence[Regression]:
        """The scenarios that regressed against a baseline."""
        ...
