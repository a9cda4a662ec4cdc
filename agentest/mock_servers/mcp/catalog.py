"""The tools that the server has: as clients are told of them, and what is checked of their calls."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentest.domain.messages import ToolSpec
from agentest.mock_servers.mcp.answers import Promised
from agentest.mock_servers.mcp.jsonrpc import INVALID_PARAMS, RpcError
from agentest.mock_servers.mcp.schemas import Schema
from agentest.support.function_threads import in_thread
from agentest.support.spelling import did_you_mean

Entry = Mapping[str, Any]
"""A tool as `tools/list` tells of it: `name`, `inputSchema`, and what there is besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTool:
    """One tool."""

    entry: Entry
    arguments: Schema | None = None
    """None: nobody has recorded what they must be, and the mock itself checks them."""
    answer: Promised | None = None
    """What a client expects in `structuredContent`; None: nothing."""


class Catalog:
    """All tools by name, and their listing."""

    def __init__(self, tools: Iterable[ServedTool]) -> None:
        self._tools = {tool.entry["name"]: tool for tool in tools}

    @property
    def names(self) -> frozenset[str]:
        return frozenset(self._tools)

    def listing(self, names: frozenset[str] | None = None) -> list[Entry]:
        """What `tools/list` tells. Raises RpcError for a name of no tool.

        Args:
            names: of those alone; None: of all.
        """
        for name in sorted((names or frozenset()) - self._tools.keys()):
            near = did_you_mean(name, self._tools)
            raise RpcError(
                INVALID_PARAMS, f"the address names the tool {name!r}, which is not served; {near}"
            )
        return [tool.entry for name, tool in self._tools.items() if names is None or name in names]

    async def argument_problem(self, name: str, arguments: Any) -> str | None:
        """Why arguments do not fit what was recorded of the tool; None: they do, or nothing was."""
        tool = self._tools.get(name)
        schema = tool.arguments if tool else None
        if schema is None:
            return None
        if schema.has_patterns:  # they may take long: the other conversations go on meanwhile
            problem: str | None = await in_thread(schema.misfit, arguments)
            return problem
        return schema.misfit(arguments)

    def promised(self, name: str) -> Promised | None:
        """What the tool has promised to answer; None: nothing."""
        tool = self._tools.get(name)
        return tool.answer if tool else None


def catalog(recorded: Sequence[Entry], mocks: Sequence[ToolSpec], on_note: Callable[[str], None]) -> Catalog:
    """The tools of the real server, and mocks of which it does not tell.

    Clients ask for tools once, at their start, so they are told of those of all scenarios.

    Raises ValueError for a schema that is none.
    """
    known = {entry["name"] for entry in recorded}
    of_mocks = (ServedTool(entry=_told(mock)) for mock in mocks if mock.name not in known)
    return Catalog([*(_recorded(entry, on_note) for entry in recorded), *of_mocks])


def _recorded(entry: Entry, on_note: Callable[[str], None]) -> ServedTool:
    arguments = _schema(entry, "inputSchema", on_note)
    if "outputSchema" not in entry:
        return ServedTool(entry=entry, arguments=arguments)
    answer = _schema(entry, "outputSchema", on_note)
    return ServedTool(entry=entry, arguments=arguments, answer=Promised(json.dumps(answer.text)))


def _schema(entry: Entry, key: str, on_note: Callable[[str], None]) -> Schema:
    def unread(pattern: str) -> None:
        on_note(
            f"the {key} of tool {entry['name']!r} has the pattern {pattern!r}, which Python cannot read: it "
            "was not checked"
        )

    try:
        return Schema(entry[key], unread)
    except ValueError as error:
        raise ValueError(f"the {key} of tool {entry['name']!r}: {error}") from None


def _told(mock: ToolSpec) -> dict[str, Any]:
    """A mock, told of by its signature."""
    described = {"description": mock.description} if mock.description else {}
    schema = {"properties": {}, **mock.parameters}  # models refuse an object without them
    return {"name": mock.name, **described, "inputSchema": schema}
