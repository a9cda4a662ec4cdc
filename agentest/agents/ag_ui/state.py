"""The state of an AG-UI thread: sent with every run, and changed by the agent's events."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agentest.support.json_patch import BadPatch, Copies, patched

_MESSAGES = "messages"


@dataclass(slots=True)
class State:
    """It belongs to one conversation."""

    begun: Mapping[str, Any]
    """With which the session began."""
    value: Any = field(init=False)
    """What is sent back: the agent's own value, whatever that is."""
    told: bool = False
    """Whether the agent tells of it."""
    problem: str | None = None
    _copies: Copies = field(default_factory=Copies)

    def __post_init__(self) -> None:
        self.value = dict(self.begun)

    def take_snapshot(self, value: Any) -> None:
        self.value, self.told, self.problem = value, True, None

    def take_delta(self, patch: Any) -> None:
        """Change it by a JSON Patch. One that does not fit leaves it unknown until the next snapshot."""
        self.told = True
        try:
            self.value = patched(self.value, patch, self._copies)
        except BadPatch as error:
            self.problem = f"a STATE_DELTA of the agent could not be applied: {error}"

    @property
    def error(self) -> str | None:
        """Why the state is not known, of an agent that tells of it."""
        if self.told and self.problem is None and not isinstance(self.value, Mapping):
            return f"the agent's state is not a JSON object but a {type(self.value).__name__}"
        return self.problem

    @property
    def shown(self) -> Mapping[str, Any] | None:
        """The state as it is judged; None where it is not known."""
        if not self.told or self.error is not None:
            return None
        return {key: value for key, value in self.value.items() if not _is_transcript(key, value)}


def _is_transcript(key: str, value: Any) -> bool:
    """Whether a part of the state is the conversation itself, as graphs of LangGraph have it."""
    return (
        key == _MESSAGES
        and isinstance(value, list)
        and all(isinstance(item, Mapping) and "content" in item for item in value)
    )
