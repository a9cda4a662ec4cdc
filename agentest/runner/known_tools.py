"""Which tools an agent has, as far as a run knows them: what judges are told of them.

Known are, the most trusted first: what the configuration names (`agent.tools`), what a mock server beside the
agent serves, what the agent's requests declare, and the scenario's mocks.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

from agentest.config.agents.mock_servers import McpMock, RestMock
from agentest.config.agents.tools import AgentTool, tools_shown
from agentest.domain.messages import ToolSpec
from agentest.mocks.binding import Mock
from agentest.mocks.schemas import ANY_ARGUMENTS, tool_specs
from agentest.runner.tool_lines import MAYBE_OTHERS, NONE, KnownTool, joined_tools, tool_lines
from agentest.scenarios.model import Scenario
from agentest.support.errors import ConfigError

_FILES = 32
"""Of how many files the tools are kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedBeside:
    """The mock servers beside an agent, as far as files tell of their tools."""

    servers: tuple[McpMock | RestMock, ...] = ()
    root: Path = Path()
    """What the files' paths are relative to."""
    mocked: frozenset[str] = frozenset()
    """The tools that any scenario with this agent mocks: operations are known by the names that mocks use."""
    spoken: frozenset[str] = frozenset()
    """The tools that trajectories name."""

    def tools(self) -> tuple[KnownTool, ...]:
        """The tools that they serve. Raises ConfigError for a file that cannot be read."""
        return tuple(tool for server in self.servers for tool in self._of(server))

    def known(self) -> tuple[KnownTool, ...]:
        """Those of files that can be read; of others a live run has said so when it opened its servers."""
        try:
            return self.tools()
        except ConfigError:
            return ()

    def listed(self) -> frozenset[str]:
        """The names that the servers' own lists have. A mock alone does not prove a tool to be theirs."""
        names = {tool.name for tool in self.known()}
        if any(isinstance(server, RestMock) for server in self.servers):
            names |= {name for name in self.mocked | self.spoken if _is_request(name)}
        return frozenset(names)

    def keys_of(self, names: Collection[str]) -> frozenset[str]:
        """The keys of the servers that have any of these tools, where there are several servers."""
        if len(self.servers) == 1:
            return frozenset()
        lists = {_key(server): self._names(server, names) for server in self.servers}
        found = {key for key, listed in lists.items() if not listed.isdisjoint(names)}
        # What no list has may be of an MCP server that tells its tools only when it is asked.
        unlisted = self.mocked.intersection(names).difference(*lists.values())
        return frozenset(found | {"mcp_mock"} if unlisted else found)

    def _names(self, server: McpMock | RestMock, names: Collection[str]) -> set[str]:
        try:
            listed = {tool.name for tool in self._of(server)}
        except ConfigError:
            listed = set()
        return listed | {name for name in names if isinstance(server, RestMock) and _is_request(name)}

    def _of(self, server: McpMock | RestMock) -> Iterator[KnownTool]:
        if isinstance(server, RestMock):
            path = self.root / Path(server.openapi).expanduser()
            yield from _operations(path, _changed(path), self.mocked, self.spoken)
        elif server.tools and ((path := self.root / server.tools).exists() or not server.upstream):
            yield from _recorded(path, _changed(path))


def served_beside(
    servers: tuple[McpMock | RestMock, ...], scenarios: Iterable[Scenario], root: Path
) -> ServedBeside:
    """The mock servers of an agent, and the tools that the scenarios with it name."""
    if not servers:
        return ServedBeside()
    held = list(scenarios)
    return ServedBeside(
        servers=servers,
        root=root,
        mocked=frozenset(tool for each in held for tool in each.tools),
        spoken=frozenset(tool for each in held for tool in each.named_tools),
    )


def _key(server: McpMock | RestMock) -> str:
    return "rest_mock" if isinstance(server, RestMock) else "mcp_mock"


def _is_request(name: str) -> bool:
    """Whether a name is a method and a path: every such call is a request to the server."""
    method, _, path = name.partition(" ")
    return method.isupper() and path.startswith("/")


@lru_cache(maxsize=_FILES)
def _operations(
    path: Path, changed: int, mocked: frozenset[str], spoken: frozenset[str]
) -> tuple[KnownTool, ...]:
    """The operations of a document; every unit asks for them."""
    del changed  # the file is read again when it has
    from agentest.mock_servers.rest.told import read_operations, told_operations

    return tuple(map(_known, told_operations(read_operations(path), mocked, spoken)))


@lru_cache(maxsize=_FILES)
def _recorded(path: Path, changed: int) -> tuple[KnownTool, ...]:
    del changed
    from agentest.mock_servers.mcp.recorded import read_tools

    try:
        return tuple(map(_listed, read_tools(path)))
    except ValueError as error:
        raise ConfigError(f"{path} {error}") from None


def _listed(entry: Mapping[str, Any]) -> KnownTool:
    description = entry.get("description")
    said = description if isinstance(description, str) else ""
    return KnownTool(name=entry["name"], description=said, parameters=entry["inputSchema"])


def _changed(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolsOfAgent:
    """What an agent's settings tell of its tools."""

    configured: tuple[AgentTool, ...] | None = None
    """None: the configuration does not say which it has."""
    sent: tuple[AgentTool, ...] = ()
    """Those that its requests declare."""
    beside: ServedBeside = ServedBeside()

    @property
    def listed(self) -> frozenset[str]:
        """The tools whose every call is seen, as a mock server's own list has them.

        What our requests declare proves nothing: the agent may run a tool of that name itself.
        """
        return self.beside.listed()


def read_beside(agents: Mapping[str, ToolsOfAgent]) -> Iterator[str]:
    """Read what mock servers beside agents serve, before the first conversation. Yields what to say of those
    whose files cannot be read: a live run has said it when it opened them."""
    for name, agent in agents.items():
        try:
            agent.beside.tools()
        except ConfigError as error:
            yield (
                f"judges are not told which tools the mock servers of agent {name!r} serve: {error}. Put the "
                "file back, or name the tools in the agent's `tools`"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownTools:
    """The tools of an agent for judges."""

    text: str = ""
    """A line each; "": none is known."""
    some: bool = False
    """Whether any is known."""


NOTHING_KNOWN = KnownTools()


def known_tools(agent: ToolsOfAgent, mocks: Mapping[str, Mock], named: Iterable[str] = ()) -> KnownTools:
    """What is known of an agent's tools in a scenario.

    Args:
        mocks: the scenario's, by name.
        named: the tools that the scenario names besides.
    """
    served = agent.beside.known()
    sources = (_configured(agent.configured or ()), served, map(_declared, agent.sent))
    tools = joined_tools((*sources, map(_known, tool_specs(mocks))))
    if not tools:
        return KnownTools(text=NONE) if agent.configured is not None else NOTHING_KNOWN
    complete = agent.configured or served or agent.sent
    lines = tool_lines(tools, {*mocks, *named})
    return KnownTools(text="\n".join([*lines, *([] if complete else [MAYBE_OTHERS])]), some=True)


def _configured(tools: Iterable[AgentTool]) -> Iterator[KnownTool]:
    for tool in tools:
        line = tools_shown([tool])
        yield KnownTool(name=tool.name, declared="" if line == tool.name else line)


def _declared(tool: AgentTool) -> KnownTool:
    return KnownTool(name=tool.name, description=tool.description or "", parameters=tool.parameters)


def _known(spec: ToolSpec) -> KnownTool:
    parameters = None if spec.parameters == ANY_ARGUMENTS else spec.parameters
    return KnownTool(name=spec.name, description=spec.description, parameters=parameters)
