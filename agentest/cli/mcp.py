"""`agentest mcp-stdio` as a command. It imports nothing but click until it is called."""

from __future__ import annotations

import os
import sys

import click

from agentest.cli.ending import ended
from agentest.errors import ExitCode, UsageError


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
