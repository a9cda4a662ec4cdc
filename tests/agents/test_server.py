"""The agent's server process: start, readiness, output, and cleanup of all its children."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import anyio
import hurrying
import pytest
from anyio.abc import TaskGroup
from hurrying import has_text
from project import DEADLINE_S, wait_until
from wire import closed_port, http, wire

from agentest.agents.server_process import ServerCallbacks, running_server
from agentest.config.agents.server import Server
from agentest.support.errors import ServerError
from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.client import Client, open_client

SERVE = """
import http.server, os, pathlib, signal, subprocess, sys, time

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(STATUS)
        self.send_header("content-length", "2")
        self.end_headers()
        self.wfile.write(b"ok")
    def log_message(self, *args):
        pass

def serve():
    pathlib.Path("pid").write_text(str(os.getpid()))
    http.server.HTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
"""


class Folder:
    """The folder of a test's server."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.port = closed_port()
        self.dead: list[str] = []
        self.grace_s = 5.0
        self.children_grace_s = 1.0

    def server(self, body: str = "serve()", status: int = 200, **options: Any) -> Server:
        """A server of a few lines of Python."""
        program = self.path / "server.py"
        program.write_text(f"STATUS, PORT = {status}, {self.port}\n{SERVE}\n{body}\n")
        given = {
            "command": [sys.executable, "-u", "server.py"],
            "ready": f"http://127.0.0.1:{self.port}/health",
            "timeout_s": 60,
            **options,
        }
        return Server(**given)

    @asynccontextmanager
    async def running(self, config: Server, secret: str = "hunter2") -> AsyncIterator[Client]:
        """Run the server during the block; its tasks must end without cancellation."""
        problem: ServerError | None = None
        async with anyio.create_task_group() as tasks, open_client(AddressGuard()) as client:
            try:
                async with self._opened(config, client, tasks, secret):
                    yield client
            except ServerError as error:
                problem = error
        if problem:
            raise problem

    def _opened(self, config: Server, client: Client, tasks: TaskGroup, secret: str) -> Any:
        def redact(text: str) -> str:
            return text.replace(secret, "***")

        graces = self.grace_s, self.children_grace_s
        callbacks = ServerCallbacks(redact, self.dead.append)
        return running_server(config, self.path, client, tasks, callbacks, graces_s=graces)

    def run(self, config: Server, inside: Callable[[], Awaitable[None]] | None = None) -> None:
        async def go() -> None:
            with anyio.fail_after(DEADLINE_S):
                async with self.running(config):
                    if inside:
                        await inside()

        anyio.run(go)

    def refused(self, config: Server) -> str:
        """Return the error about a server that does not become ready."""
        with pytest.raises(ServerError) as caught:
            self.run(config)
        return str(caught.value)

    def pid(self, name: str = "pid") -> int:
        return int((self.path / name).read_text())


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Folder]:
    """A folder for one server; any process that wrote its pid there is killed after the test."""
    made = Folder(tmp_path)
    yield made
    for path in tmp_path.glob("pid*"):
        with suppress(ProcessLookupError, ValueError):
            os.kill(int(path.read_text()), signal.SIGKILL)


def alive(pid: int) -> bool:
    """Return whether a process still runs; a zombie does not."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    status = Path(f"/proc/{pid}/stat")
    if not status.parent.parent.joinpath("self").exists():
        return True
    try:
        return status.read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    except (FileNotFoundError, ProcessLookupError):
        return False


async def until(condition: Callable[[], bool]) -> None:
    with anyio.fail_after(DEADLINE_S):
        while not condition():  # noqa: ASYNC110 - files and lists tell nobody
            await anyio.sleep(0.01)


def gone(pid: int) -> None:
    wait_until(lambda: not alive(pid))


# Getting ready


@pytest.mark.parametrize("status", [200, 404, 401])
def test_a_server_gets_ready(folder: Folder, status: int) -> None:
    """The server is awaited until its URL answers below 500, and is gone after the run."""

    async def inside() -> None:
        assert alive(folder.pid())

    folder.run(folder.server(status=status), inside)
    gone(folder.pid())
    assert folder.dead == []


def test_a_port_gets_ready(folder: Folder) -> None:
    """`tcp://host:port` is ready when it accepts a connection."""

    async def inside() -> None:
        with socket.create_connection(("127.0.0.1", folder.port), 5):
            pass

    folder.run(folder.server(ready=f"tcp://127.0.0.1:{folder.port}"), inside)
    gone(folder.pid())


def test_a_slow_start(folder: Folder) -> None:
    """A server that first refuses connections and then answers 503 is awaited."""
    body = (
        "calls = []\n"
        "original = Handler.do_GET\n"
        "def do_GET(self):\n"
        "    global STATUS\n"
        "    calls.append(1)\n"
        "    STATUS = 503 if len(calls) < 3 else 200\n"
        "    pathlib.Path('calls').write_text(str(len(calls)))\n"
        "    original(self)\n"
        "Handler.do_GET = do_GET\n"
        "serve()"
    )
    folder.run(folder.server(body))
    assert int((folder.path / "calls").read_text()) >= 3


def test_an_endless_health_page(folder: Folder) -> None:
    """The status is enough for readiness: an endless body is not read."""
    body = (
        "Handler.do_GET = lambda self: (self.send_response(200), self.end_headers(), time.sleep(600))\n"
        "serve()"
    )
    folder.run(folder.server(body))


def test_never_ready(folder: Folder) -> None:
    """A server that never becomes ready is an error with the URL and its last output."""
    command = "echo starting up; printf 'waiting for hunter2'; echo $$ > pid; exec sleep 600"

    async def go() -> str:
        async with wire(http(b"no", "503 Service Unavailable")) as opened, anyio.create_task_group() as tasks:
            folder.port = opened.port

            async def time_is_up() -> None:
                await until(lambda: has_text(folder.path / "pid"))
                asked = len(opened.requests)
                await until(lambda: len(opened.requests) > asked + 1)  # so an answer has been read
                hurrying.leap(60)

            tasks.start_soon(time_is_up)
            with pytest.raises(ServerError) as caught:
                async with folder.running(folder.server(command=command, timeout_s=60)):
                    raise AssertionError("unreachable")
            return str(caught.value)

    found = hurrying.run(go)
    assert "exec sleep 600" in found
    assert "was not ready within 60 s" in found
    assert f"http://127.0.0.1:{folder.port}/health: answers 503" in found
    assert found.endswith("Its last output:\nstarting up\nwaiting for ***")
    gone(folder.pid())


def test_a_server_without_port_or_output(folder: Folder) -> None:
    """A server that neither listens nor prints is an error that says so."""

    async def go() -> str:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(hurrying.hurry_when, lambda: has_text(folder.path / "pid"))
            with pytest.raises(ServerError) as caught:
                async with folder.running(folder.server(command="echo $$ > pid; exec sleep 600")):
                    raise AssertionError("unreachable")
            return str(caught.value)

    found = hurrying.run(go)
    assert "connection refused" in found
    assert found.endswith("; it printed nothing")
    gone(folder.pid())


def test_death_before_ready(folder: Folder) -> None:
    """A server that exits before it is ready is an error at once, with status and last output."""
    found = folder.refused(
        folder.server("print('loading')\nsys.exit('no configuration; key hunter2')", timeout_s=60)
    )
    assert "exited with status 1 before it was ready" in found
    assert found.endswith("Its last output:\nloading\nno configuration; key ***")


@pytest.mark.slow
def test_long_output_before_death(folder: Folder) -> None:
    """The error has at most the last 30 lines and 4000 characters."""
    found = folder.refused(folder.server("for i in range(100_000): print('line', i)\nsys.exit(3)"))
    tail = found.partition("Its last output:\n")[2].splitlines()
    assert tail[-1] == "line 99999"
    assert len(tail) <= 30
    found = folder.refused(folder.server("print('x' * 1_000_000 + 'end')\nsys.exit(3)"))
    assert found.endswith("xend")
    assert len(found) < 5_000


def test_output_that_is_not_utf_8(folder: Folder) -> None:
    """Invalid bytes in the output are replaced."""
    assert "bad \ufffd byte" in folder.refused(
        folder.server("sys.stdout.buffer.write(b'bad \\xff byte')\nsys.exit(1)")
    )


def test_a_command_that_does_not_exist(folder: Folder) -> None:
    """A command that cannot be started is an error that names it."""
    assert "['no-such-program'] cannot be started" in folder.refused(
        folder.server(command=["no-such-program"])
    )
    assert "exited with status 127" in folder.refused(folder.server(command="no-such-program --x"))
    assert "cannot be started" in folder.refused(folder.server(command=["a\0b"]))


def test_a_folder_that_does_not_exist(folder: Folder) -> None:
    """A working folder that does not exist is an error that names it."""
    assert f"server.cwd: the folder {folder.path / 'nowhere'} does not exist" in folder.refused(
        folder.server(cwd="nowhere")
    )


@pytest.mark.parametrize(
    "ready",
    [
        "http://169.254.169.254/",
        "http://0xa9fea9fe/health",
        "tcp://169.254.169.254:80",
        "tcp://2852039166:80",
        "tcp://[::ffff:a9fe:a9fe]:80",
    ],
)
def test_metadata_addresses(folder: Folder, ready: str) -> None:
    """The readiness check refuses a metadata address."""
    assert "link-local or cloud-metadata" in folder.refused(folder.server(ready=ready))
    assert not (folder.path / "pid").exists()


# Reuse


def test_reuse(folder: Folder) -> None:
    """If a server already answers, none is started, and the existing one keeps running."""

    async def go() -> None:
        async with wire(http(b"ok", "404 Not Found")) as opened:
            ready = f"http://127.0.0.1:{opened.port}/health"
            for _ in range(2):
                async with folder.running(folder.server(ready=ready)):
                    assert not (folder.path / "pid").exists()
            assert len(opened.requests) == 2

    anyio.run(go)


def test_no_reuse(folder: Folder) -> None:
    """With reuse off, an existing server is an error."""

    async def go() -> None:
        async with wire(http(b"ok")) as opened:
            ready = f"http://127.0.0.1:{opened.port}/health"
            async with folder.running(folder.server(ready=ready, reuse=False)):
                raise AssertionError("unreachable")

    with pytest.raises(ServerError, match=r"answers at .* already, and reuse is off"):
        anyio.run(go)
    assert not (folder.path / "pid").exists()


def test_something_broken_is_not_reused(folder: Folder) -> None:
    """A server that answers 500 is not reused; the new one fails because the port is taken."""

    async def go() -> None:
        async with wire(http(b"no", "500 Oops")) as opened:
            folder.port = opened.port
            async with folder.running(folder.server()):
                raise AssertionError("unreachable")

    with pytest.raises(ServerError, match=r"(?s)exited with status 1.*Address already in use"):
        anyio.run(go)


# While it runs


def test_noisy_output(folder: Folder) -> None:
    """Output is read continuously, so that a server never blocks on a full pipe."""
    body = "for _ in range(100): print('x' * 100_000)\nsys.stderr.write('y' * 1_000_000)\nserve()"
    folder.run(folder.server(body))


def test_death_during_the_run(folder: Folder) -> None:
    """A server that exits during the run is reported once, with its last output."""

    async def inside() -> None:
        os.kill(folder.pid(), signal.SIGKILL)
        await until(lambda: bool(folder.dead))

    folder.run(folder.server("print('working on hunter2', flush=True)\nserve()"), inside)
    (told,) = folder.dead
    assert "exited with status -9 during the run" in told
    assert told.endswith("working on ***")


def test_environment_and_folder(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The command runs in `cwd` with our `python`, and `env` overrides the environment."""
    monkeypatch.setenv("FROM_OUTSIDE", "outside")
    monkeypatch.setenv("BOTH", "outside")
    (folder.path / "inner").mkdir()
    body = (
        "seen = [os.environ['FROM_OUTSIDE'], os.environ['BOTH'], os.getcwd()]\n"
        "pathlib.Path('seen').write_text(' '.join(seen))\n"
        "serve()"
    )
    for command in ("python ../server.py", ["python", "../server.py"], "X=1 python ../server.py"):
        folder.run(folder.server(body, command=command, cwd="inner", env={"BOTH": "inside"}))
        outside, both, cwd = (folder.path / "inner/seen").read_text().split(" ")
        assert (outside, both, cwd) == ("outside", "inside", str(folder.path / "inner"))
        gone(folder.pid("inner/pid"))


def test_nothing_to_read(folder: Folder) -> None:
    """The server's standard input is empty."""
    folder.run(folder.server("assert sys.stdin.read() == ''\nserve()"))


# Ending

CHILD = "subprocess.Popen([sys.executable, '-c', {code!r}])\nserve()"
IGNORES = "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN); "
WRITES_PID = "import os, time, pathlib; pathlib.Path('pid-child').write_text(str(os.getpid())); "


def test_children_are_ended(folder: Folder) -> None:
    """All descendants of a shell command are ended, even those that ignore SIGTERM."""
    stubborn = IGNORES + WRITES_PID + "time.sleep(600)"
    child = folder.path / "pid-child"

    async def inside() -> None:
        await until(lambda: has_text(child))

    command = f"{sys.executable} server.py & wait"
    folder.run(folder.server(CHILD.format(code=stubborn), command=command), inside)
    gone(folder.pid())
    gone(folder.pid("pid-child"))


def test_time_for_a_clean_exit(folder: Folder) -> None:
    """A server gets time for a clean exit even if its shell exits first."""
    body = (
        "def goodbye(*_):\n"
        "    time.sleep(0.2)\n"
        "    pathlib.Path('goodbye').write_text('done')\n"
        "    sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, goodbye)\n"
        "serve()"
    )
    folder.grace_s = folder.children_grace_s = 60.0
    folder.run(folder.server(body, command=f"{sys.executable} server.py & wait"))
    assert (folder.path / "goodbye").read_text() == "done"


def test_a_server_that_ignores_sigterm(folder: Folder) -> None:
    """A server that ignores SIGTERM is killed after a while."""
    folder.grace_s = 0.2
    folder.run(folder.server("signal.signal(signal.SIGTERM, signal.SIG_IGN)\nserve()"))
    gone(folder.pid())


def test_a_child_that_left(folder: Folder) -> None:
    """A child in another process group that keeps the output open does not block the run's end."""
    code = "import os; os.setsid(); " + WRITES_PID + "time.sleep(600)"

    async def inside() -> None:
        await until(lambda: has_text(folder.path / "pid-child"))

    folder.run(folder.server(CHILD.format(code=code)), inside)
    gone(folder.pid())


@pytest.mark.parametrize("how", ["error", "cancel"])
def test_ended_with_the_run(folder: Folder, how: str) -> None:
    """A run that fails or is cancelled stops the server like one that finishes."""

    async def go() -> None:
        with anyio.CancelScope() as scope:
            async with folder.running(folder.server()):
                if how == "error":
                    raise ZeroDivisionError
                scope.cancel()
                await anyio.sleep_forever()

    with suppress(BaseExceptionGroup, ZeroDivisionError):
        anyio.run(go)
    gone(folder.pid())


def test_cancelled_while_starting(folder: Folder) -> None:
    """Cancelling a run that waits for its server stops the server."""

    async def go() -> None:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def start() -> None:
                    async with folder.running(folder.server(status=503, timeout_s=2 * DEADLINE_S)):
                        raise AssertionError("unreachable")

                tasks.start_soon(start)
                await until(lambda: has_text(folder.path / "pid"))
                scope.cancel()

    anyio.run(go)
    gone(folder.pid())


RUNNER = """
import sys, pathlib, anyio
from agentest.agents.server_process import ServerCallbacks, running_server
from agentest.config.agents.server import Server
from agentest.support.http.client import open_client
from agentest.support.http.address_guard import AddressGuard

async def main():
    server = Server(command=[sys.executable, "server.py"], ready=sys.argv[1])
    async with anyio.create_task_group() as tasks, open_client(AddressGuard()) as client:
        async with running_server(server, pathlib.Path("."), client, tasks, ServerCallbacks(str, print)):
            pathlib.Path("up").write_text("yes")
            await anyio.sleep_forever()

anyio.run(main)
"""


@pytest.mark.parametrize("stubborn", [False, True])
@pytest.mark.slow
def test_a_killed_run(folder: Folder, stubborn: bool) -> None:
    """After SIGKILL of the run, the server and its children are still ended."""
    ignore = IGNORES if stubborn else ""
    child = ignore + WRITES_PID + "time.sleep(600)"
    config = folder.server(ignore + "\n" + CHILD.format(code=child))
    (folder.path / "runner.py").write_text(RUNNER)
    run = subprocess.Popen([sys.executable, "runner.py", config.ready], cwd=folder.path)
    try:
        wait_until((folder.path / "up").exists)
        wait_until(lambda: has_text(folder.path / "pid-child"))
        assert alive(folder.pid())
    finally:
        run.kill()
        run.wait()
    gone(folder.pid())
    gone(folder.pid("pid-child"))


def test_one_reaper_for_all(folder: Folder) -> None:
    """All programs of a process share one watchdog."""
    for _ in range(2):
        folder.run(folder.server())
    listed = subprocess.run(
        ["ps", "-ww", "-o", "args=", "--ppid", str(os.getpid())], capture_output=True, text=True, check=False
    )
    assert sum("reaper.py" in line for line in listed.stdout.splitlines()) == 1
