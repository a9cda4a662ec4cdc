"""Read the finished part of an interrupted run from its journal."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from agentest.domain.events import ConversationFinished
from agentest.domain.results import ConversationResult, ModelUsage, ReasonKind, RunWarning, ScenarioResult
from agentest.store.codec import CODECS, with_conversations
from agentest.store.journal import conversation_line_start
from agentest.store.reader import read_lines, unfinished
from agentest.store.shapes import (
    SCHEMA_VERSION,
    ConversationLine,
    EndLine,
    PlannedConversations,
    RunHead,
    RunLine,
    ScenarioLine,
)
from agentest.support.errors import UsageError
from agentest.support.json_text import encoded
from agentest.support.lazy_dataclasses import dataclass

Place = tuple[str, str]
"""Names of a scenario and its agent."""
_UNREADABLE = (LookupError, TypeError, ValueError, AttributeError, RecursionError)


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedPart:
    """The finished part of a scenario with an agent."""

    planned: PlannedConversations
    lines: dict[int, tuple[int, int]] = field(default_factory=dict)
    """Number of a conversation → start and length of its line in the journal."""
    scenario: ScenarioResult | None = None
    """The scenario without its conversations; None if there was no verdict, not even a partial one."""

    @property
    def decided(self) -> bool:
        """True if the verdict covers all conversations."""
        return self.scenario is not None and not any(
            reason.kind is ReasonKind.INTERRUPTED for reason in self.scenario.verdict.reasons
        )

    @property
    def lacks_conversations(self) -> bool:
        """True if the verdict is based on more conversations than the journal contains."""
        return self.decided and self.scenario is not None and len(self.lines) < self.scenario.planned

    @property
    def usage(self) -> Mapping[str, ModelUsage]:
        """The known model usage."""
        return self.scenario.usage if self.scenario else self.planned.usage


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedParts:
    """The finished part of a run."""

    path: Path
    """The path of its journal."""
    parts: Mapping[Place, FinishedPart]
    """One part for every planned scenario and agent."""
    run: RunLine
    """The first line of the journal."""
    end: RunHead | None = None
    """The last line; None if the run was killed."""
    not_run: Mapping[Place, ScenarioResult] = field(default_factory=dict)
    """Scenarios that needed no run: skipped ones, and files that did not load."""
    unclaimed: tuple[RunWarning, ...] = ()
    """Warnings about unclaimed calls, if the run came to its end."""

    def conversations(self, key: Place) -> dict[int, ConversationResult]:
        """Return number → result for all stored conversations. Raises UsageError."""
        lines = self.parts[key].lines
        return {number: self._conversation(lines[number]) for number in sorted(lines)}

    def result(self, key: Place) -> ScenarioResult | None:
        """Return the scenario's result with its conversations, if it has a verdict. Raises UsageError."""
        part = self.parts[key]
        return self.so_far(key) if part.scenario and part.decided else None

    def events(self, key: Place, numbers: Iterator[int]) -> Iterator[ConversationFinished]:
        """Yield conversations in their stored form. Raises UsageError."""
        name, agent = key
        with self.path.open("rb") as journal:
            for number in numbers:
                body = _body(_at(journal, self.parts[key].lines[number]), name, agent, number)
                yield ConversationFinished(name, agent, body, number)

    def so_far(self, key: Place) -> ScenarioResult:
        """Return the scenario's result so far with its conversations. Raises UsageError."""
        part = self.parts.get(key)
        if part is None:
            return self.not_run[key]
        conversations = self.conversations(key).values()
        planned = part.planned.conversations
        return with_conversations(
            part.scenario or unfinished(key, len(conversations), planned), conversations
        )

    def _conversation(self, line: tuple[int, int]) -> ConversationResult:
        try:
            with self.path.open("rb") as journal:
                return CODECS.read(ConversationResult, json.loads(_at(journal, line))["conversation"])
        except (OSError, *_UNREADABLE) as error:
            raise UsageError(f"{self.path} is damaged: a conversation cannot be read ({error})") from None


def _at(journal: Any, line: tuple[int, int]) -> bytes:
    start, length = line
    journal.seek(start)
    content: bytes = journal.read(length)
    return content


def _body(line: bytes, name: str, agent: str, number: int) -> bytes:
    """Return the bytes of the conversation in a line."""
    head = conversation_line_start(name, agent, number)
    if line.startswith(head) and line.endswith(b"}\n"):
        return line[len(head) : -2]
    return encoded(json.loads(line)["conversation"])


def read_finished(path: Path) -> FinishedParts:
    """Read the finished part of a journal's run. An incomplete last line is skipped.

    Raises UsageError if it is not a journal of this version.
    """
    run, end = None, None
    lines: dict[Place, dict[int, tuple[int, int]]] = {}
    scenarios: dict[Place, ScenarioResult] = {}
    try:
        with path.open("rb") as journal:
            for start, length, line in read_lines(journal):
                match line:
                    case RunLine():
                        run = line
                        if run.schema_version != SCHEMA_VERSION:
                            raise ValueError(
                                f"it has form {run.schema_version}, this version {SCHEMA_VERSION}"
                            )
                    case ConversationLine():
                        lines.setdefault((line.scenario, line.agent), {})[line.number] = start, length
                    case ScenarioLine():
                        result = CODECS.read(ScenarioResult, line.scenario)
                        scenarios[result.name, result.agent] = result
                    case EndLine():
                        end = CODECS.read(RunHead, line.run)
        if run is None:
            raise ValueError("its first line is not whole")
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {error.strerror}") from None
    except _UNREADABLE as error:
        raise UsageError(f"{path} is not a journal of this version of Agentest: {error}") from None
    parts = {
        (each.scenario, each.agent): FinishedPart(
            planned=each,
            lines=lines.get((each.scenario, each.agent), {}),
            scenario=scenarios.get((each.scenario, each.agent)),
        )
        for each in run.planned
    }
    return FinishedParts(
        path=path,
        parts=parts,
        run=run,
        end=end,
        not_run={key: each for key, each in scenarios.items() if key not in parts},
        unclaimed=end.summary.unclaimed_calls if end else (),
    )
