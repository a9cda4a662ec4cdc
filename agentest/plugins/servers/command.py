"""`agentest mock-server`: `stdio` forwards from stdio to the mock server, `tools` records tool lists.

Agents start `mock-server stdio` instead of their own MCP server, and wait until it is ready.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Mapping
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from itertools import chain
from typing import Any, BinaryIO
from urllib.parse import urlsplit

import click

from agentest.cli.location import Location, request_of
from agentest.cli.options import exits, flag, option, where
from agentest.plugins.servers.start import compare_real_tools
from agentest.runner.plan import Options
from agentest.runner.prepare import configure
from agentest.support.errors import ExitCode, UsageError
from agentest.support.interrupts import run_event_loop
from agentest.support.terminal import clean, say, tell

VARIABLE = "AGENTEST_MCP_URL"
_CONTEXT = {"TRACEPARENT": "traceparent", "BAGGAGE": "baggage", "TRACESTATE": "tracestate"}
"""Maps an environment variable with the parent's trace context to an HTTP header."""
_GRACE_S = 10.0
_UNREACHABLE = -32000
_SHOWN_BYTES = 100

Send = Callable[[bytes], bytes]
"""Posts a message and returns the response; b"" if there is none. Raises OSError, HTTPException."""


def serve(url: str, environ: Mapping[str, str], lines: BinaryIO, out: BinaryIO) -> None:
    """Post each input line to the mock server and write its response, until the input ends.

    Each message has its own thread, so that a slow tool does not delay other messages.
    """
    send = trace_sender(url, environ)
    writing = threading.Lock()

    def pass_on(line: bytes) -> None:
        answer = _response(send, line, url)
        if answer:
            with writing:
                out.write(answer.replace(b"\n", b" ").strip() + b"\n")
                out.flush()

    threads: list[threading.Thread] = []
    for line in lines:
        if line.strip():
            threads = [thread for thread in threads if thread.is_alive()]
            threads.append(threading.Thread(target=pass_on, args=(line,), daemon=True))
            threads[-1].start()
    for thread in threads:  # answer pending requests even if the input ends right after them
        thread.join(_GRACE_S)


def trace_sender(url: str, environ: Mapping[str, str]) -> Send:
    """Return a function that posts to a URL with the trace context of this process."""
    parts = urlsplit(url)
    connect = HTTPSConnection if parts.scheme == "https" else HTTPConnection
    target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
    headers = {
        "content-type": "application/json",
        "accept": "application/json",
        **{header: environ[name] for name, header in _CONTEXT.items() if environ.get(name)},
    }

    def send(message: bytes) -> bytes:
        connection = connect(parts.hostname or "", parts.port)
        try:
            connection.request("POST", target, message, headers)
            return connection.getresponse().read()
        finally:
            connection.close()

    return send


@click.group("mock-server")
def mock_server() -> None:
    """Serve mocks over stdio, and store the tool lists of real MCP servers."""


@mock_server.command()
@click.argument("url", required=False)
@exits
def stdio(url: str | None) -> ExitCode:
    """Serve MCP on standard input and output, for agents that start their servers as programs.

    URL is that of the mock server (default: AGENTEST_MCP_URL of the environment).
    """
    serve(url_of(url), os.environ, sys.stdin.buffer, sys.stdout.buffer)
    return ExitCode.PASSED


def url_of(argument: str | None) -> str:
    """Return the mock server's URL, given or from the environment.

    Raises UsageError if it is not set or is not an HTTP URL.
    """
    url = argument or os.environ.get(VARIABLE)
    if not url:
        raise UsageError(
            f"the mock server's address is not known, because {VARIABLE} is not set. Agentest sets it for "
            "the agent's `server`: pass it on to this program, or name the URL: "
            "agentest mock-server stdio URL"
        )
    if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
        raise UsageError(
            f"{url!r} is not the URL of a mock server: it starts with http://, like {{{{mcp_url}}}}"
        )
    return url


@mock_server.command()
@where
@option("--agent", "NAME", "Read only the real server of this agent.")
@flag("--check", "Compare with the file, and write nothing.")
@exits
def tools(location: Location, options: Options, check: bool) -> ExitCode:
    """Store the tools of the real MCP server (mcp_mock.upstream) in the file mcp_mock.tools, for mocks.

    Exit status: 0; with --check, 1 if the server's tools differ from the file, 2 if it cannot be reached.
    """
    request = request_of(location.enter(), options)
    loaded = configure(request)

    async def look() -> list[list[str]]:
        return await compare_real_tools(loaded, request.root, request.options.agent, write=not check)

    results = run_event_loop(look)
    for line in chain.from_iterable(results):
        say(clean(loaded.redact(line)))
    return ExitCode.FAILED if check and any(len(lines) > 1 for lines in results) else ExitCode.PASSED


def _response(send: Send, line: bytes, url: str) -> bytes:
    try:
        answer = send(line)
    except (OSError, HTTPException) as error:
        problem = f"the mock server at {url} cannot be reached: {error}"
    else:
        if answer.lstrip()[:1] in (b"", b"{", b"["):
            return answer
        problem = f"at {url} is not a mock server: it answered {answer[:_SHOWN_BYTES]!r}"
    tell(f"agentest: {problem}")
    try:
        message: Any = json.loads(line)
    except ValueError:
        return b""
    errors = [
        {"jsonrpc": "2.0", "id": each["id"], "error": {"code": _UNREACHABLE, "message": problem}}
        for each in (message if isinstance(message, list) else [message])
        if isinstance(each, dict) and "id" in each and "method" in each
    ]
    if not errors:
        return b""
    return json.dumps(errors if isinstance(message, list) else errors[0]).encode()
