"""The tools of the real MCP servers behind mock servers: kept in files, and compared with them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from agentest.config.agent_types import AgentConfig
from agentest.config.agents.mock_servers import McpMock
from agentest.config.file import LoadedConfig
from agentest.mock_servers.mcp.differences import differences
from agentest.mock_servers.mcp.real import RECORD, keep_tools, kept_tools, open_upstream, tools_of, tools_path
from agentest.runner.plan import agents_under_test
from agentest.support.errors import ConfigError
from agentest.support.http.client import Client, open_client
from agentest.support.http.guard import AddressGuard

_KEYS = "mcp_mock: {upstream: <URL or command of the real server>, tools: <FILE>}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RealTools:
    """What one real server has, beside what its file says."""

    server: str
    """For people."""
    file: str
    number: int
    """How many tools it has now."""
    changes: tuple[str, ...] | None
    """Each difference, in words that go on after "the real server's"; None: there was no file yet."""


async def look_at_real_tools(
    loaded: LoadedConfig, root: Path, agent: str | None, *, write: bool
) -> list[RealTools]:
    """Ask each real server for its tools. Raises UsageError.

    Args:
        agent: ask that of this agent alone.
        write: whether the files are brought up to date.
    """
    _, agents = agents_under_test(loaded.config, agent)
    try:
        async with AsyncExitStack() as stack:
            client = await stack.enter_async_context(open_client(AddressGuard()))
            found = _to_look_at(agents, agent)
            return [await _looked_at(*one, root, client, stack, write=write) for one in found]
    except ConfigError as error:
        raise ConfigError(loaded.redact(str(error))) from None


def _to_look_at(agents: Mapping[str, AgentConfig], wanted: str | None) -> list[tuple[str, McpMock]]:
    """The settings of each server, once, with the name of an agent. Raises ConfigError."""
    chosen = {wanted: agents[wanted]} if wanted else agents
    if not any(agent.mcp_mock and agent.mcp_mock.upstream for agent in chosen.values()):
        who = f"agent {wanted!r}" if wanted else "no agent"
        raise ConfigError(
            f"{who} has {'no' if wanted else 'a'} real MCP server in its settings: write {_KEYS}"
        )
    return list(_each_once(chosen))


def _each_once(agents: Mapping[str, AgentConfig]) -> Iterator[tuple[str, McpMock]]:
    seen: list[McpMock] = []
    for name, agent in agents.items():
        settings = agent.mcp_mock
        if settings is None or settings.upstream is None or settings in seen:
            continue
        seen.append(settings)
        if settings.tools is None:
            raise ConfigError(
                f"mcp_mock of agent {name!r} does not say where its tools are kept: write {_KEYS}"
            )
        yield name, settings


async def _looked_at(
    agent: str, settings: McpMock, root: Path, client: Client, stack: AsyncExitStack, *, write: bool
) -> RealTools:
    def place(key: str) -> str:
        return f"{key} of agent {agent!r}"

    there = tools_path(settings, root).exists()
    if not there and not write:
        raise ConfigError(
            f"{place('mcp_mock.tools')}: {settings.tools} does not exist; write it with `{RECORD}`"
        )
    before = kept_tools(settings, root, place) if there else None
    upstream = open_upstream(settings, client, root, place)
    assert upstream is not None
    stack.push_async_callback(upstream.close)
    now = await tools_of(upstream, place)
    changes = None if before is None else tuple(differences(before, now))
    if write and changes != ():
        keep_tools(settings, root, place, now)
    return RealTools(server=upstream.shown, file=str(settings.tools), number=len(now), changes=changes)
