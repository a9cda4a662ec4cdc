"""The file with the real server's tools, as its `tools/list` tells of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from agentest.support.files import text_file, write_atomically
from agentest.support.json_text import json_value

Tools = list[dict[str, Any]]


def read_tools(path: Path) -> Tools:
    """The tools in a file: a list, an object with a list `tools`, or a whole answer to `tools/list`.

    Raises ValueError with what is wrong with the file, without its path.
    """
    text = text_file(path)
    try:
        content = json_value(text)
    except ValueError as error:
        raise ValueError(f"is not JSON: {error}") from None
    return checked_tools(_listed(content))


def _listed(content: Any) -> Any:
    if isinstance(content, dict) and isinstance(content.get("result"), dict):
        content = content["result"]
    if isinstance(content, dict):
        if content.get("nextCursor"):
            raise ValueError("has the first page of the tools alone (`nextCursor` names the next)")
        if "tools" not in content:
            raise ValueError("has no list `tools`; expected what the server answers to `tools/list`")
        content = content["tools"]
    return content


def checked_tools(tools: Any) -> Tools:
    """Tools as a server lists them. Raises ValueError for what is none."""
    if not isinstance(tools, list):
        raise ValueError("has no list of tools; expected what the server answers to `tools/list`")
    seen: set[str] = set()
    for number, tool in enumerate(tools, 1):
        name = _checked_name(tool, number)
        if name in seen:
            raise ValueError(f"has the tool {name!r} twice")
        seen.add(name)
    return tools


def _checked_name(tool: Any, number: int) -> str:
    name = tool.get("name") if isinstance(tool, dict) else None
    if not isinstance(name, str) or not name:
        raise ValueError(f"tool {number} has no `name`")
    for key in ("inputSchema", "outputSchema"):
        if not isinstance(tool.get(key, {}), dict):
            raise ValueError(f"the {key} of tool {name!r} is not an object")
    if "inputSchema" not in tool:
        raise ValueError(f"tool {name!r} has no `inputSchema`, the JSON Schema of its arguments")
    return name


def write_tools(path: Path, tools: Sequence[dict[str, Any]]) -> None:
    """Write tools by name, so that the file changes where they do. Raises OSError."""
    content = {"tools": sorted(tools, key=lambda tool: str(tool["name"]))}
    write_atomically(path, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())
