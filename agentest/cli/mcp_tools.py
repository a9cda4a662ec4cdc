"""`agentest mcp-tools`: the tools of the real MCP server, kept in a file and compared with it."""

from __future__ import annotations

from agentest.runner.prepare import Request, configure
from agentest.runner.real_tools import RealTools, look_at_real_tools
from agentest.support.errors import ExitCode
from agentest.support.interrupts import in_event_loop
from agentest.support.terminal import clean, say
from agentest.support.text import count


def mcp_tools(request: Request, *, check: bool) -> ExitCode:
    """Bring the files up to date, or say what they lack. Raises UsageError."""
    loaded = configure(request)

    async def look() -> list[RealTools]:
        return await look_at_real_tools(loaded, request.root, request.options.agent, write=not check)

    found = in_event_loop(look)
    for tools in found:
        for line in _lines(tools, check=check):
            say(clean(loaded.redact(line)))
    return ExitCode.FAILED if check and any(tools.changes for tools in found) else ExitCode.PASSED


def _lines(tools: RealTools, *, check: bool) -> list[str]:
    head = f"{tools.file}: {count(tools.number, 'tool')} of {tools.server}"
    changes = tools.changes or ()
    if tools.changes is None:
        return [f"{head}, written"]
    if not changes:
        return [f"{head}, as recorded"]
    told = [f"  the real server's {change}" for change in changes]
    changed = count(len(changes), "difference")
    if check:
        return [f"{head}, {changed}:", *told, "agentest mcp-tools writes the file anew"]
    return [f"{head}, written anew, {changed}:", *told]
