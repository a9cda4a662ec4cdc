"""The tools that the server has: as clients are told of them, and what is checked of their calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agentest.messages import ToolSpec
from agentest.tool_servers.mcp.content import Misfit, is_ready, wraps_its_value
from agentest.tool_servers.mcp.schemas import Schema

Entry = Mapping[str, Any]
"""A tool as `tools/list` tells of it: `name`, `inputSchema`, and what there is besides."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedTool:
    """One tool."""

    entry: Entry
    arguments: Schema | None = None
    """None: nobody has recorded what they must be, and the mock itself checks them."""
    answer: Schema | None = None
    """What a client expects in `structuredContent`; None: nothing."""

    def structured(self, result: Any) -> Any:
        """The `structuredContent` of an answer; None: it has none to have.

        Raises Misfit where the real tool cannot answer that.
        """
        if self.answer is None or (is_ready(result) and result.get("isError")):
            return None
        if is_ready(result):
            value = result.get("structuredContent")
        elif self.answer.misfit(result) and wraps_its_value(self.answer.text):
            value = {"result": result}
        else:
            value = result
        if problem := self.answer.misfit(value):
            raise Misfit(problem)
        return value


class Catalog:
    """All tools by name, and their listing."""

    def __init__(self, tools: Iterable[ServedTool]) -> None:
        self._tools = {tool.entry["name"]: tool for tool in tools}
        self.listing = tuple(dict(tool.entry) for tool in self._tools.values())

    def get(self, name: str) -> ServedTool | None:
        return self._tools.get(name)

    def argument_problem(self, name: str, arguments: Any) -> str | None:
        """Why arguments do not fit what was recorded of the tool; None: they do, or nothing was."""
        tool = self._tools.get(name)
        return tool.arguments.misfit(arguments) if tool and tool.arguments else None

    def answer_problem(self, name: str) -> Callable[[Any], str | None] | None:
        """What tells why a mock's answer is none of the tool's; None: anything is one."""
        tool = self._tools.get(name)
        if tool is None or tool.answer is None:
            return None

        def problem(result: Any) -> str | None:
            try:
                tool.structured(result)
            except Misfit as error:
                return str(error)
            return None

        return problem


def catalog(recorded: Sequence[Entry], mocks: Sequence[ToolSpec], on_note: Callable[[str], None]) -> Catalog:
    """The tools of the real server, and mocks of which it does not tell.

    Clients ask for tools once, at their start, so they are told of those of all scenarios.

    Raises ValueError for a schema that is none.
    """
    known = {entry["name"] for entry in recorded}
    of_mocks = (ServedTool(entry=_told(mock)) for mock in mocks if mock.name not in known)
    return Catalog([*(_recorded(entry, on_note) for entry in recorded), *of_mocks])


def _recorded(entry: Entry, on_note: Callable[[str], None]) -> ServedTool:
    answer = entry.get("outputSchema")
    return ServedTool(
        entry=entry,
        arguments=_schema(entry, "inputSchema", on_note),
        answer=None if answer is None else _schema(entry, "outputSchema", on_note),
    )


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
