"""The tools of an agent's mock servers, as their files describe them."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentest.config.agents.base import AnyAgent
from agentest.config.agents.companion_servers import McpMock, RestMock
from agentest.runner.known_tools import NO_SERVED_TOOLS, KnownTool, ServedTools, known_tool
from agentest.support.errors import ConfigError, errors_as
from agentest.support.files import modified_ns
from agentest.support.lazy_dataclasses import dataclass

if TYPE_CHECKING:
    from agentest.plugins.servers.rest.operations import Api

_FILES = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class MockServerTools(ServedTools):
    """The mock servers of an agent, as far as files describe their tools."""

    servers: tuple[McpMock | RestMock, ...] = ()
    root: Path = Path()  # paths of files are relative to this folder
    outputs: Path = Path()  # the folder of the stored runs
    mocked: frozenset[str] = frozenset()
    """Tools that any scenario with this agent mocks. Operations are known by the names that mocks use."""
    in_trajectories: frozenset[str] = frozenset()

    def tools(self) -> tuple[KnownTool, ...]:
        return tuple(tool for server in self.servers for tool in self._of(server))

    def listed(self) -> frozenset[str]:
        """The names in the servers' own lists, whose every call is visible.

        A mock does not prove that a server has the tool, and the agent may run tools of its requests itself.
        """
        names = {tool.name for tool in self.known()}
        if any(isinstance(server, RestMock) for server in self.servers):
            names |= {name for name in self.mocked | self.in_trajectories if _is_request(name)}
        return frozenset(names)

    def keys_of(self, names: Collection[str]) -> frozenset[str]:
        if len(self.servers) == 1:
            return frozenset()
        lists = {
            "rest_mock" if isinstance(server, RestMock) else "mcp_mock": self._names(server, names)
            for server in self.servers
        }
        keys = {key for key, listed in lists.items() if not listed.isdisjoint(names)}
        # A tool that no list has may belong to an MCP server that lists its tools only on request.
        unlisted = self.mocked.intersection(names).difference(*lists.values())
        return frozenset(keys | {"mcp_mock"} if unlisted else keys)

    def _names(self, server: McpMock | RestMock, names: Collection[str]) -> set[str]:
        try:
            listed = {tool.name for tool in self._of(server)}
        except ConfigError:
            listed = set()
        return listed | {name for name in names if isinstance(server, RestMock) and _is_request(name)}

    def _of(self, server: McpMock | RestMock) -> Iterator[KnownTool]:
        if isinstance(server, RestMock):
            from agentest.plugins.servers.rest.operations import open_api

            path = self.root / Path(server.openapi).expanduser()
            yield from _operations(open_api(path, self.outputs), self.mocked, self.in_trajectories)
        elif server.tools and ((path := self.root / server.tools).exists() or not server.upstream):
            yield from _recorded(path, modified_ns(path))


def tools_of_servers(
    agent: AnyAgent, root: Path, outputs: str, mocked: frozenset[str], in_trajectories: frozenset[str]
) -> ServedTools:
    """Return the mock servers of an agent with the tools that its scenarios name."""
    if not agent.mock_servers:
        return NO_SERVED_TOOLS
    return MockServerTools(
        servers=agent.mock_servers,
        root=root,
        outputs=root / outputs,
        mocked=mocked,
        in_trajectories=in_trajectories,
    )


def _is_request(name: str) -> bool:
    method, _, path = name.partition(" ")
    return method.isupper() and path.startswith("/")


@lru_cache(maxsize=_FILES)
def _operations(api: Api, mocked: frozenset[str], in_trajectories: frozenset[str]) -> tuple[KnownTool, ...]:
    from agentest.plugins.servers.rest.operations import operation_specs

    api.check(mocked | in_trajectories)
    reads = {each.tool: each.method == "GET" for each in api.named_as(mocked, in_trajectories).operations}
    specs = operation_specs(api, mocked, in_trajectories)
    return tuple(replace(known_tool(each), read_only=reads.get(each.name)) for each in specs)


@lru_cache(maxsize=_FILES)
def _recorded(path: Path, _: int) -> tuple[KnownTool, ...]:
    from agentest.plugins.servers.mcp.real_server import read_tools

    with errors_as(ConfigError, f"{path} "):
        return tuple(map(_listed, read_tools(path)))


def _listed(entry: Mapping[str, Any]) -> KnownTool:
    description = entry.get("description")
    text = description if isinstance(description, str) else ""
    annotations = entry.get("annotations")
    hint = annotations.get("readOnlyHint") if isinstance(annotations, Mapping) else None
    returns = entry.get("outputSchema")
    return KnownTool(
        name=entry["name"],
        description=text,
        parameters=entry["inputSchema"],
        returns=returns if isinstance(returns, Mapping) else None,
        read_only=hint if isinstance(hint, bool) else None,
    )
