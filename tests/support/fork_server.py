"""`python -m agentest` without half a second of imports.

A process that has imported the package forks a real process for each command, with its own working directory,
environment, streams, signals and exit status, as one from `subprocess` has. Run as a script, this module is
that process; imported, it is the tests' side of it.
"""

from __future__ import annotations

import functools
import json
import os
import select
import socket
import subprocess
import sys
from collections.abc import Mapping
from os import _exit  # the command line guards os._exit
from pathlib import Path
from typing import Any

_REQUEST_BYTES = 1 << 20
_READ_AT_START = ("PYTHON", "LC_", "LANG")
"""Variables that an interpreter reads when it starts: a fork cannot follow a change of them."""


def forkable(environment: Mapping[str, str]) -> bool:
    """Return whether a fork can replace a fresh interpreter here. `AGENTEST_FRESH=1` prevents it."""
    return "AGENTEST_FRESH" not in os.environ and _at_start(environment) == _at_start(_environment())


def _at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {k: v for k, v in environment.items() if k.startswith(_READ_AT_START)}


def _environment() -> dict[str, str]:
    return {**os.environ, "PYTHONDONTWRITEBYTECODE": "1"}


class Forked(subprocess.Popen[str]):
    """`python -m agentest`, forked; the fork server's child stands where a child of ours would."""

    def __init__(
        self,
        arguments: list[str],
        cwd: Path,
        env: Mapping[str, str],
        stdin: int,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
    ) -> None:
        self._request = {"arguments": arguments, "cwd": str(cwd), "env": dict(env)}
        super().__init__(arguments, stdin=stdin, stdout=stdout, stderr=stderr, text=True)

    def _execute_child(self, *values: Any) -> None:
        """In place of fork and execute. The last parameters are the pipes' ends, and then options."""
        pipes = values[-_OPTIONS - 6 : -_OPTIONS]
        p2cread, _, _, c2pwrite, _, errwrite = pipes
        self._status, remote = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with remote:
            streams = [p2cread, c2pwrite, errwrite, remote.fileno()]
            socket.send_fds(_server(), [json.dumps(self._request).encode()], streams)
        self.pid = int(self._status.recv(32))
        self._child_created = True
        self._close_pipe_fds(*pipes)  # type: ignore[attr-defined]

    def _ended(self, flags: int) -> tuple[int, int]:
        """Work like `os.waitpid`: return the process id, or 0, and the status."""
        if flags & os.WNOHANG and not select.select([self._status], [], [], 0)[0]:
            return 0, 0
        status = self._status.recv(32)
        self._status.close()
        return self.pid, int(status)

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        return self._ended(wait_flags)

    def _internal_poll(self, *_: Any, **__: Any) -> int | None:
        if self.returncode is None:
            pid, status = self._ended(os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


_OPTIONS = 7
"""How many parameters of `Popen._execute_child` follow the pipes: restore_signals to process_group."""


@functools.cache
def _server() -> socket.socket:
    """The fork server of this test process. It ends when this socket closes."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    for end in (ours, theirs):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _REQUEST_BYTES)
    with theirs:
        subprocess.Popen(
            [sys.executable, __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            env=_environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        ).returncode = 0  # nobody waits for it
    return ours


# --- the server's side


def _import_all() -> None:
    """Import what commands import, except litellm, which would cost more than it saves."""
    import importlib

    import agentest

    folder = Path(agentest.__path__[0])
    for path in sorted(folder.rglob("*.py")):
        if path.relative_to(folder).parts[0] == "docs":  # in a wheel, with the scripts that build the site
            continue
        if path.stem not in ("__main__", "reaper") and path.parent.name not in ("on_path", "templates"):
            name = ".".join(("agentest", *path.relative_to(folder).with_suffix("").parts))
            importlib.import_module(name.removesuffix(".__init__"))


def _build_all() -> None:
    """Create what every command needs at first: modules of an event loop, the configuration's schema."""
    import anyio

    from agentest.config.config import Config

    anyio.run(anyio.sleep, 0)
    Config.model_validate({"agent": {"endpoint": "http://localhost"}})


def _be_patient() -> None:
    """Turn off messages about long waits, which would appear in a test's output on a slow machine."""
    from agentest.support import terminal

    terminal.FIRST_S = 3600.0


def _serve(requests: socket.socket) -> None:
    """Fork a keeper for each request: it forks the command, and sends its process id and its exit status."""
    import gc
    import signal

    _import_all()
    _build_all()
    _be_patient()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # keepers are not waited for
    while True:
        message, fds, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 4)
        if not message:
            return
        if os.fork() == 0:
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            requests.close()
            return _keep(json.loads(message), fds)
        for fd in fds:
            os.close(fd)


def _keep(request: dict[str, Any], fds: list[int]) -> None:
    *streams, status = fds
    pid = os.fork()
    if pid == 0:
        os.close(status)
        return _become(request, streams)
    for fd in streams:
        os.close(fd)
    os.write(status, str(pid).encode())
    _, ended = os.waitpid(pid, 0)
    os.write(status, str(ended).encode())
    _exit(0)


def _become(request: dict[str, Any], streams: list[int]) -> None:
    """Turn this process into the command."""
    import runpy

    for number, fd in enumerate(streams):
        os.dup2(fd, number)
        os.close(fd)
    os.environ.clear()
    os.environ.update(request["env"])
    os.chdir(request["cwd"])
    sys.path[0] = request["cwd"]
    sys.argv = ["agentest", *request["arguments"]]
    try:
        runpy.run_module("agentest", run_name="__main__", alter_sys=True)
    except SystemExit as error:
        _end(error.code)


def _end(status: object) -> None:
    """End as an interpreter does, but for taking the package apart: that is half of what a command costs.

    Threads that are no daemons are waited for, what was registered for the end is called, and what cannot be
    printed any more is the exit status 120.
    """
    import atexit
    import threading

    if not isinstance(status, int):
        sys.exit(status)  # type: ignore[arg-type] # None, or a text to be printed
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            if stream and not stream.closed:
                stream.flush()
        except OSError:
            status = 120
    _exit(status & 0xFF)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
