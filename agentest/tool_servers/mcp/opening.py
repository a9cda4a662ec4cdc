"""What an MCP server is made of, according to the configuration: recorded tools, mocks, the real server."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from agentest.config.agents.mock_servers import McpMock
from agentest.errors import ConfigError
from agentest.messages import ToolSpec
from agentest.support.spelling import nearest
from agentest.tool_servers.mcp.catalog import Catalog, Entry, catalog
from agentest.tool_servers.mcp.methods import Methods
from agentest.tool_servers.mcp.real import RECORD, open_upstream, recorded_tools
from agentest.tool_servers.opening import Opening


async def opened_methods(settings: McpMock, opening: Opening) -> Methods:
    """The server's methods, with all that they need. Raises ConfigError."""
    upstream = open_upstream(settings, opening.client, opening.root, opening.place)
    if upstream:
        opening.stack.push_async_callback(upstream.close)
    recorded = await recorded_tools(settings, upstream, opening.root, opening.place, opening.on_note)
    mocks = opening.tools
    if recorded is not None and not opening.only_way:
        mocks = ()  # the real server does not have the others: they are for the agent's other tools
    for note in _unknown(recorded or (), mocks if recorded is not None else (), opening):
        opening.on_note(note)
    tools = _catalog(recorded or (), mocks, opening)
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


def _unknown(recorded: Sequence[Entry], mocks: Sequence[ToolSpec], opening: Opening) -> Iterator[str]:
    """What to say of mocks that the real server does not have."""
    names = [entry["name"] for entry in recorded]
    for mock in mocks:
        if mock.name in names:
            continue
        near = nearest(mock.name, names)
        guess = f"Did you mean `{near}`? Else record" if near else "Record"
        yield (
            f"tool {mock.name!r} has a mock, and is not among the recorded tools of the real server "
            f"({opening.place('mcp_mock.tools')}); it was served beside them. "
            f"{guess} them again: `{RECORD}`"
        )
