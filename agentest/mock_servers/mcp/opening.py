"""What an MCP server is made of, according to the configuration: recorded tools, mocks, the real server."""

from __future__ import annotations

from collections.abc import Sequence

from agentest.config.agents.mock_servers import McpMock
from agentest.domain.messages import ToolSpec
from agentest.mock_servers.mcp.catalog import Catalog, Entry, catalog
from agentest.mock_servers.mcp.methods import Methods
from agentest.mock_servers.mcp.real import open_upstream, recorded_tools
from agentest.mock_servers.opening import Opening
from agentest.support.errors import ConfigError


async def opened_methods(settings: McpMock, opening: Opening) -> Methods:
    """The server's methods, with all that they need. Raises ConfigError."""
    upstream = open_upstream(settings, opening.client, opening.root, opening.place)
    if upstream:
        opening.stack.push_async_callback(upstream.close)
    recorded = await recorded_tools(settings, upstream, opening.root, opening.place, opening.on_note)
    # Where the real server's tools are known, other mocks are of other tools of the agent.
    tools = _catalog(recorded or (), opening.tools if recorded is None else (), opening)
    opening.group.tools |= tools.names
    return Methods(
        registry=opening.registry,
        group=opening.group,
        catalog=tools,
        upstream=upstream if opening.passthrough else None,
        has_real=upstream is not None,
    )


def _catalog(recorded: Sequence[Entry], mocks: Sequence[ToolSpec], opening: Opening) -> Catalog:
    try:
        return catalog(recorded, mocks, opening.on_note)
    except ValueError as error:
        raise ConfigError(
            f"{opening.place('mcp_mock.tools')}: {error}; correct it, or leave that tool out"
        ) from None
