"""The warnings that question verdicts, grouped for reports: what a hundred scenarios share is said once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agentest.domain.results import RunResult, VerdictWarning, WarningCode, by_code
from agentest.support.text import count

_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """One message, and the warnings that have it."""

    warnings: tuple[VerdictWarning, ...]

    @property
    def first(self) -> VerdictWarning:
        return self.warnings[0]

    @property
    def text(self) -> str:
        """Whose verdict it questions, and why."""
        return f"{_whose(self.warnings)}: {self.first.message}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Questions:
    """All warnings of one code."""

    code: WarningCode
    each: tuple[Question, ...]

    @property
    def head(self) -> str:
        """The code, and how many scenarios are in question."""
        places = {(w.scenario, w.agent) for question in self.each for w in question.warnings}
        return f"{self.code} ({count(len(places), 'scenario')})"

    def rows(self, most: int = _SHOWN) -> list[str]:
        """The first few in a row each, and how many more there are."""
        left = len(self.each) - most
        more = [f"… {count(left, 'more warning')} in results.json (`summary.warnings`)"] if left > 0 else []
        return [*(question.text for question in self.each[:most]), *more]


def questions(result: RunResult) -> list[Questions]:
    """What questions the verdicts of a run, by code."""
    return [
        Questions(code=code, each=_by_message(warnings))
        for code, warnings in by_code(result.verdict_warnings).items()
    ]


def _by_message(warnings: Sequence[VerdictWarning]) -> tuple[Question, ...]:
    found: dict[str, list[VerdictWarning]] = {}
    for warning in warnings:
        found.setdefault(warning.message, []).append(warning)
    return tuple(Question(warnings=tuple(each)) for each in found.values())


def _whose(warnings: Sequence[VerdictWarning]) -> str:
    names = list(dict.fromkeys(warning.scenario for warning in warnings))
    if len(names) == 1:
        return repr(names[0])
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(map(repr, names[:_SHOWN]))}{more}"
