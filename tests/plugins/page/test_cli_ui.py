"""`agentest ui` as a process: what it prints, and how it ends."""

from __future__ import annotations

import re
import socket
from http import HTTPStatus
from pathlib import Path
from urllib.request import urlopen

import pytest
from early_interrupt import check_early_interrupt
from project import DEADLINE_S, Project, free_port, interrupt
from terminal import Terminal

from agentest.support.errors import ExitCode
from agentest.testing import ScriptedAgent


def test_the_page_is_served_until_it_is_interrupted(tmp_path: Path) -> None:
    """The address is printed, also without a terminal; Ctrl-C ends it without an error message."""
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


def test_the_command_of_adk_names_ours(tmp_path: Path) -> None:
    done = Project(tmp_path).agentest("web", "my_agent")
    assert (done.returncode, done.stdout) == (ExitCode.ERRORED, "")
    assert "No such command 'web': use `agentest ui`" in done.stderr


def test_the_page_begins_with_the_latest_run_that_did_not_pass(tmp_path: Path) -> None:
    """After a failed run the address names it; after a passed one it does not. No browser opens in CI."""
    project = Project(tmp_path)
    project.scenario("scenario('greets', turns=['Hi'], expect={'says': 'Goodbye'})")
    replies = iter(("Hello.", "Goodbye."))
    with ScriptedAgent(lambda body: next(replies)) as agent:
        project.config(agent.endpoint)
        addresses = []
        for status in (ExitCode.FAILED, ExitCode.PASSED):
            assert project.run().returncode == status
            process = project.start("--port", "0", command="ui")
            assert process.stdout is not None
            addresses.append([process.stdout.readline() for _ in range(3)][1])
            interrupt(process)
    assert [bool(re.search(r"#/run\?of=\d{8}-", each)) for each in addresses] == [True, False]


def test_show_writes_the_page_of_a_run_and_names_it(tmp_path: Path) -> None:
    """`show --open` needs no html reporter; a part of a run never becomes the page of the whole."""
    project = Project(tmp_path)
    project.scenario("scenario('greets', turns=['Hi'], expect={'says': 'Hello'})")
    with ScriptedAgent(["Hello."]) as agent:
        project.config(agent.endpoint)
        assert project.run().returncode == 0
    whole, part = (
        project.agentest("show", "--open"),
        project.agentest("show", "--open", "--scenario", "greets"),
    )
    pages = [Path(each.stdout.strip()) for each in (whole, part)]
    assert [page.name for page in pages] == ["report.html"] * 2
    assert pages[0].parent.parent == tmp_path.resolve() / ".agentest" / "runs"
    assert pages[1].parent != pages[0].parent
    assert all("<html" in page.read_text("utf-8") for page in pages)


def test_a_key_of_watch_opens_the_page(project: Project) -> None:
    """`u` writes the page of the last run if the run did not, and opens it."""
    project.scenario("scenario('greets', turns=['Hi'])")
    with ScriptedAgent(["Hello."]) as agent:
        project.config(agent.endpoint)
        terminal = Terminal(project.root, "run", "--watch", env={"BROWSER": "echo opened %s"})
        try:
            terminal.wait_for("waiting for changes")
            terminal.press("u")
            terminal.wait_for("opened file://")
            terminal.wait_for("report.html")
            terminal.press("q")
            assert terminal.end() == ExitCode.PASSED
        finally:
            terminal.close()


@pytest.mark.slow
def test_ctrl_c_before_there_is_an_event_loop(project: Project) -> None:
    check_early_interrupt(project, "ui", "--port", "0")
