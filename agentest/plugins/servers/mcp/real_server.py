"""Connect to the real MCP server of the configuration, and record its tools to a file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentest.config.agents.companion_servers import McpMock
from agentest.plugins.servers.active_conversations import ServerInputs
from agentest.plugins.servers.mcp.methods import Methods
from agentest.plugins.servers.mcp.tool_catalog import catalog
from agentest.plugins.servers.mcp.upstream import HttpTransport, StdioTransport, Upstream, UpstreamError
from agentest.support.errors import ConfigError, errors_as
from agentest.support.files import read_text_file, shown_path, write_atomically
from agentest.support.http.client import Client
from agentest.support.json_text import json_text, json_value
from agentest.support.text import shortened

RECORD = "agentest mock-server tools"  # the command that records the real server's tools to the file

Place = Callable[[str], str]
"""Returns the location of a key of the configuration: `mcp_mock.tools of agent 'shop'`."""


def open_upstream(settings: McpMock, client: Client, root: Path, locate: Place) -> Upstream | None:
    """Create the connection to the real server, which starts on first use; None if it is not configured.

    Raises ConfigError.
    """
    upstream = settings.upstream
    if upstream is None:
        return None
    if settings.upstream_url:
        return Upstream(HttpTransport(client, settings.upstream_url, settings.upstream_headers))
    with errors_as(ConfigError, f"{locate('mcp_mock.upstream')}: {upstream!r} is not a command: "):
        return Upstream(StdioTransport(upstream, root))


async def tools_of(upstream: Upstream, locate: Place) -> Tools:
    """Return the current tools of the real server. Raises ConfigError."""
    try:
        return checked_tools(await upstream.list_tools())
    except UpstreamError as error:
        raise ConfigError(
            f"{locate('mcp_mock.upstream')}: {error}. Start it, or correct the key; where its tools are in a "
            f"file (`mcp_mock.tools`, which `{RECORD}` writes), no run needs it"
        ) from None
    except ValueError as error:
        raise ConfigError(
            f"{locate('mcp_mock.upstream')}: what {upstream.description} lists {error}"
        ) from None


def stored_tools(settings: McpMock, root: Path, locate: Place) -> Tools:
    """Read the tools from the file. Raises ConfigError."""
    path = tools_path(settings, root)
    try:
        return read_tools(path)
    except ValueError as error:
        how = (
            f"write there what the real server answers to `tools/list`, or add `upstream` and run `{RECORD}`"
        )
        if settings.upstream:
            how = f"write it anew with `{RECORD}`"
        raise ConfigError(f"{locate('mcp_mock.tools')}: {shown_path(path, root)} {error}; {how}") from None


def tools_path(settings: McpMock, root: Path) -> Path:
    assert settings.tools is not None
    return root / settings.tools


def store_tools(settings: McpMock, root: Path, locate: Place, tools: Tools) -> str:
    """Write tools to the file. Returns its path for display. Raises ConfigError."""
    path = tools_path(settings, root)
    relative_path = shown_path(path, root)
    with errors_as(ConfigError, f"{locate('mcp_mock.tools')}: {relative_path} cannot be written: ", OSError):
        # Sorted by name, so that the file changes only if the tools do.
        content = {"tools": sorted(tools, key=lambda tool: str(tool["name"]))}
        write_atomically(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
    return relative_path


async def recorded_tools(
    settings: McpMock, upstream: Upstream | None, root: Path, locate: Place, on_note: Callable[[str], None]
) -> Tools | None:
    """Return the real server's tools from the file, or else from the server, recording them to the file.

    None if neither is configured. Raises ConfigError.
    """
    if settings.tools and (upstream is None or tools_path(settings, root).exists()):
        return stored_tools(settings, root, locate)
    if upstream is None:
        return None
    tools = await tools_of(upstream, locate)
    if settings.tools:
        file_name = store_tools(settings, root, locate, tools)
        on_note(
            f"{file_name} was not there: the tools of {upstream.description} were written to it. Keep it in "
            f"the repository; `{RECORD} --check` compares it"
        )
    return tools


async def opened_methods(settings: McpMock, opening: ServerInputs) -> Methods:
    """Create the server's methods with all dependencies. Raises ConfigError."""
    upstream = open_upstream(settings, opening.client, opening.root, opening.key_location)
    if upstream:
        opening.stack.push_async_callback(upstream.close)
    recorded = await recorded_tools(settings, upstream, opening.root, opening.key_location, opening.on_note)
    # If the real server's tools are known, other mocks belong to other tools of the agent.
    mocks = opening.tools if recorded is None else ()
    try:
        tools = catalog(recorded or (), mocks, opening.on_note)
    except ValueError as error:
        raise ConfigError(
            f"{opening.key_location('mcp_mock.tools')}: {error}; correct it, or leave that tool out"
        ) from None
    opening.group.tools |= tools.names
    return Methods(
        registry=opening.registry,
        group=opening.group,
        catalog=tools,
        upstream=upstream if opening.passthrough else None,
        has_real=upstream is not None,
    )


Tools = list[dict[str, Any]]


def read_tools(path: Path) -> Tools:
    """Read the tools in a file: a list, an object with a list `tools`, or a complete `tools/list` response.

    Raises ValueError that describes the problem, without the file's path.
    """
    text = read_text_file(path)
    with errors_as(ValueError, "is not JSON: "):
        content = json_value(text)
    if isinstance(content, dict) and isinstance(content.get("result"), dict):
        content = content["result"]
    if isinstance(content, dict):
        if content.get("nextCursor"):
            raise ValueError("has the first page of the tools alone (`nextCursor` names the next)")
        if "tools" not in content:
            raise ValueError("has no list `tools`; expected what the server answers to `tools/list`")
        content = content["tools"]
    return checked_tools(content)


def checked_tools(tools: Any) -> Tools:
    """Validate tools as listed by a server. Raises ValueError for an invalid tool."""
    if not isinstance(tools, list):
        raise ValueError("has no list of tools; expected what the server answers to `tools/list`")
    names: set[str] = set()
    for number, tool in enumerate(tools, 1):
        name = tool.get("name") if isinstance(tool, dict) else None
        if not isinstance(name, str) or not name:
            raise ValueError(f"tool {number} has no `name`")
        for key in ("inputSchema", "outputSchema"):
            if not isinstance(tool.get(key, {}), dict):
                raise ValueError(f"the {key} of tool {name!r} is not an object")
        if "inputSchema" not in tool:
            raise ValueError(f"tool {name!r} has no `inputSchema`, the JSON Schema of its arguments")
        if name in names:
            raise ValueError(f"has the tool {name!r} twice")
        names.add(name)
    return tools


Tool = Mapping[str, Any]

_SHOWN_CHARS = 100


def differences(recorded: Sequence[Tool], real: Sequence[Tool]) -> list[str]:
    """Describe each difference in words that follow "the real server's"; sorted by tool name."""
    old, new = ({tool["name"]: tool for tool in tools} for tools in (recorded, real))
    lines: list[str] = []
    for name in sorted(old.keys() | new.keys()):
        if name not in new:
            lines.append(f"`{name}` is gone")
        elif name not in old:
            lines.append(f"`{name}` is new")
        else:
            lines += (f"`{name}` has {change}" for change in _changes(old[name], new[name], ""))
    return lines


def _changes(old: Tool, new: Tool, at: str) -> Iterator[str]:
    for key in dict.fromkeys([*old, *new]):
        place = f"{at}{key}"
        before, now = (shortened(json_text(each.get(key)), _SHOWN_CHARS) for each in (old, new))
        if key not in new:
            yield f"no `{place}` any more"
        elif key not in old:
            yield f"a new `{place}`: {now}"
        elif isinstance(old[key], Mapping) and isinstance(new[key], Mapping):
            yield from _changes(old[key], new[key], f"{place}.")
        elif _in_order(key, old[key]) != _in_order(key, new[key]):
            yield f"another `{place}`: {now}, recorded as {before}"


def _in_order(key: str, value: Any) -> Any:
    return sorted(map(str, value)) if key == "required" and isinstance(value, list) else value
