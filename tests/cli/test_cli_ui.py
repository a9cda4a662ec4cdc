"""`agentest ui` as a process: what it prints, and how it ends."""

from __future__ import annotations

import re
import socket
from http import HTTPStatus
from pathlib import Path
from urllib.request import urlopen

from project import DEADLINE_S, Project, free_port, interrupt

from agentest.support.errors import ExitCode


def test_the_page_is_served_until_it_is_interrupted(tmp_path: Path) -> None:
    """The address is printed, also where nobody reads a terminal; Ctrl-C ends it without words of alarm."""
    project, port = Project(tmp_path), free_port()
    process = project.start("--port", str(port), command="ui")
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(3)]
    assert re.fullmatch(rf"  http://127\.0\.0\.1:{port}/\?token=[\w-]{{43}}\n", lines[1])
    assert urlopen(lines[1].strip(), timeout=DEADLINE_S).status == HTTPStatus.OK  # earlier it is starting yet
    status, _, err = interrupt(process)
    assert (status, err) == (ExitCode.INTERRUPTED, "\nagentest: stopping; once more ends at once\n")


def test_a_used_port_is_an_error(tmp_path: Path) -> None:
    """One message, and exit status 2."""
    with socket.create_server(("127.0.0.1", free_port())) as taken:
        port = taken.getsockname()[1]
        ended = Project(tmp_path).agentest("ui", "--port", str(port))
    assert ended.returncode == ExitCode.ERRORED
    assert f"--port {port}: cannot listen there" in ended.stderr
