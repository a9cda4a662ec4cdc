"""The commands for tools of MCP servers. They import nothing but click until they are called."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import click

from agentest.cli.ending import ended
from agentest.cli.options import where
from agentest.cli.requests import place_in, request_at
from agentest.support.errors import ExitCode, UsageError


@click.command("mcp-stdio")
@click.argument("url", required=False)
def mcp_stdio(url: str | None) -> int:
    """Be an MCP server on standard input and output: for agents that start theirs as programs.

    URL is that of the mock server (default: AGENTEST_MCP_URL of the environment).
    """

    def go() -> int:
        from agentest.cli.mcp_stdio import serve, url_of

        try:
            found = url_of(url)
        except ValueError as error:
            raise UsageError(str(error)) from None
        serve(found, os.environ, sys.stdin.buffer, sys.stdout.buffer)
        return ExitCode.PASSED

    return ended(go)


@click.command("mcp-tools")
@where
@click.option("--agent", metavar="NAME", help="Only the real server of this agent of the configuration.")
@click.option("--check", is_flag=True, help="Compare with the file, and write nothing.")
def mcp_tools(cwd: Path | None, check: bool, **options: Any) -> int:
    """Keep the tools of the real MCP server (mcp_mock.upstream) in the file mcp_mock.tools, for mocks.

    Exit status: 0; with --check 1 where the server has other tools than the file, 2 when it cannot be asked.
    """

    def go() -> int:
        from agentest.cli.mcp_tools import mcp_tools

        return mcp_tools(request_at(place_in(cwd, options["config"]), **options), check=check)

    return ended(go)
