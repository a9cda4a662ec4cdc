"""Connect to the real MCP server of the configuration, and record its tools to a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from agentest.config.agents.mock_servers import McpMock
from agentest.domain.messages import ToolSpec
from agentest.mock_servers.listener import ServerInputs
from agentest.mock_servers.mcp.methods import Methods
from agentest.mock_servers.mcp.recorded_tools import Tools, checked_tools, read_tools, write_tools
from agentest.mock_servers.mcp.tool_catalog import Catalog, Entry, catalog
from agentest.mock_servers.mcp.upstream import Upstream, UpstreamError
from agentest.mock_servers.mcp.upstream_transports import HttpTransport, StdioTransport
from agentest.support.errors import ConfigError
from agentest.support.files import shown_path
from agentest.support.http.client import Client

RECORD = "agentest mcp-tools"
"""The command that records the real server's tools to the file."""

Place = Callable[[str], str]
"""Returns the location of a key of the configuration: `mcp_mock.tools of agent 'shop'`."""


def open_upstream(settings: McpMock, client: Client, root: Path, place: Place) -> Upstream | None:
    """Create the connection to the real server, which starts on first use; None if it is not configured.

    Args:
        place: returns the location of a key, for errors.

    Raises ConfigError.
    """
    upstream = settings.upstream
    if upstream is None:
        return None
    if settings.upstream_url:
        return Upstream(HttpTransport(client, settings.upstream_url, settings.upstream_headers))
    try:
        return Upstream(StdioTransport(upstream, root))
    except ValueError as error:
        raise ConfigError(f"{place('mcp_mock.upstream')}: {upstream!r} is no command: {error}") from None


async def tools_of(upstream: Upstream, place: Place) -> Tools:
    """Return the current tools of the real server. Raises ConfigError."""
    try:
        return checked_tools(await upstream.list_tools())
    except UpstreamError as error:
        raise ConfigError(
            f"{place('mcp_mock.upstream')}: {error}. Start it, or correct the key; where its tools are in a "
            f"file (`mcp_mock.tools`, which `{RECORD}` writes), no run needs it"
        ) from None
    except ValueError as error:
        raise ConfigError(f"{place('mcp_mock.upstream')}: what {upstream.shown} lists {error}") from None


def kept_tools(settings: McpMock, root: Path, place: Place) -> Tools:
    """Read the tools from the file. Raises ConfigError."""
    path = tools_path(settings, root)
    try:
        return read_tools(path)
    except ValueError as error:
        raise ConfigError(
            f"{place('mcp_mock.tools')}: {shown_path(path, root)} {error}; {_way(settings)}"
        ) from None


def tools_path(settings: McpMock, root: Path) -> Path:
    assert settings.tools is not None
    return root / settings.tools


def _way(settings: McpMock) -> str:
    if settings.upstream:
        return f"write it anew with `{RECORD}`"
    return f"write there what the real server answers to `tools/list`, or add `upstream` and run `{RECORD}`"


def keep_tools(settings: McpMock, root: Path, place: Place, tools: Tools) -> str:
    """Write tools to the file. Returns its path for display. Raises ConfigError."""
    path = tools_path(settings, root)
    shown = shown_path(path, root)
    try:
        write_tools(path, tools)
    except OSError as error:
        raise ConfigError(
            f"{place('mcp_mock.tools')}: {shown} cannot be written: {error.strerror or error}"
        ) from None
    return shown


async def recorded_tools(
    settings: McpMock, upstream: Upstream | None, root: Path, place: Place, on_note: Callable[[str], None]
) -> Tools | None:
    """Return the real server's tools from the file, or else from the server, recording them to the file.

    None if neither is configured. Raises ConfigError.
    """
    if settings.tools and (upstream is None or tools_path(settings, root).exists()):
        return kept_tools(settings, root, place)
    if upstream is None:
        return None
    tools = await tools_of(upstream, place)
    if settings.tools:
        shown = keep_tools(settings, root, place, tools)
        on_note(
            f"{shown} was not there: the tools of {upstream.shown} were written to it. Keep it in the "
            f"repository; `{RECORD} --check` compares it"
        )
    return tools


async def opened_methods(settings: McpMock, opening: ServerInputs) -> Methods:
    """Create the server's methods with all dependencies. Raises ConfigError."""
    upstream = open_upstream(settings, opening.client, opening.root, opening.place)
    if upstream:
        opening.stack.push_async_callback(upstream.close)
    recorded = await recorded_tools(settings, upstream, opening.root, opening.place, opening.on_note)
    # If the real server's tools are known, other mocks belong to other tools of the agent.
    tools = _catalog(recorded or (), opening.tools if recorded is None else (), opening)
    opening.group.tools |= tools.names
    return Methods(
        registry=opening.registry,
        group=opening.group,
        catalog=tools,
        upstream=upstream if opening.passthrough else None,
        has_real=upstream is not None,
    )


def _catalog(recorded: Sequence[Entry], mocks: Sequence[ToolSpec], opening: ServerInputs) -> Catalog:
    try:
        return catalog(recorded, mocks, opening.on_note)
    except ValueError as error:
        raise ConfigError(
            f"{opening.place('mcp_mock.tools')}: {error}; correct it, or leave that tool out"
        ) from None
