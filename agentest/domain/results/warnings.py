"""Warnings that question a verdict: the scenario may not have passed or failed for the reason it seems."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum


class WarningCode(StrEnum):
    """What questions a verdict."""

    ONLY_REPLIES = "only-replies"
    """The only check was that the agent replied."""
    ERROR_REPLY = "error-reply"
    """A reply reads like an error, and nothing checked its text."""
    VACUOUS_CHECK = "vacuous-check"
    """A check holds whatever the agent does."""
    UNKNOWN_TOOL = "unknown-tool"
    """A ban, limit or expectation names a tool that no mock, schema or call of the run knows."""
    MOCK_NEVER_CALLED = "mock-never-called"
    MOCK_MISFIT = "mock-misfit"
    """No call of a tool had arguments that its mock takes."""
    MOCK_RAISED = "mock-raised"
    """A mock's own code raised by mistake."""
    PARTIAL_VISIBILITY = "partial-visibility"
    """Only some of the agent's tool calls can be seen."""
    NO_CALL_SEEN = "no-call-seen"
    """No tool call of the agent was seen in the whole run, though its scenarios are about calls."""


@dataclass(frozen=True, slots=True, kw_only=True)
class VerdictWarning:
    """One reason to question the verdict of a scenario. In strict mode it makes the scenario errored."""

    code: WarningCode
    scenario: str
    """The scenario's name."""
    message: str
    agent: str = ""
    file: str = ""
    line: int = 0
    tools: tuple[str, ...] = ()
    """The tools that it is about."""

    @property
    def text(self) -> str:
        """The message with the code in front."""
        return f"{self.code}: {self.message}"


def by_code(warnings: Iterable[VerdictWarning]) -> dict[WarningCode, list[VerdictWarning]]:
    """The warnings of each code, in the order of the codes."""
    groups: dict[WarningCode, list[VerdictWarning]] = {code: [] for code in WarningCode}
    for warning in warnings:
        groups[warning.code].append(warning)
    return {code: group for code, group in groups.items() if group}
