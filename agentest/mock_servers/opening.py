"""What a server that stands beside an agent is opened with."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from agentest.domain.messages import ToolSpec
from agentest.mock_servers.registry import Group, Registry
from agentest.support.http.client import Client


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What the servers of one group are opened with."""

    registry: Registry
    group: Group
    tools: tuple[ToolSpec, ...]
    """The mocks of all scenarios with these agents: clients ask for tools once, at their start."""
    only_way: bool
    """Whether mocks reach the tools of these agents by one mock server alone: all are its tools then."""
    passthrough: bool
    """Whether a tool that nobody mocks may run."""
    root: Path
    """The folder of the configuration."""
    client: Client
    stack: AsyncExitStack
    """Closes, at the end of the run, what is opened."""
    on_note: Callable[[str], None]
    """Receives what the user should know at the end."""
    redact: Callable[[str], str]
    mocked_in: Mapping[str, str] = field(default_factory=dict)
    """Where a tool's mock stands, to be put behind its name in errors."""
    spoken: frozenset[str] = frozenset()
    """The tools that trajectories name."""
    left_out: frozenset[str] | None = frozenset()
    """Names of mocks that are left out, as real tools are recorded; None: nobody has named any tool yet."""
    keep_span: Callable[[bytes], object] | None = None
    """Receives each span that belongs to a conversation, as a line of JSON; None: they are not kept."""

    def place(self, key: str) -> str:
        """Where a key stands, for errors."""
        return f"{key} of agent {self.group.agents[0]!r}"
