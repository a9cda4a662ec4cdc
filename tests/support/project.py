"""A user's project in a temporary folder, and the command line in it."""

from __future__ import annotations

import atexit
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from fork_server import Forked, forkable

from agentest.support.locking import free_ports

COMMAND = [sys.executable, "-m", "agentest"]
DEADLINE_S = 150
"""For a command that hangs. A real model takes most of a minute where nothing else is at work."""
_PROVIDERS = ("ANTHROPIC_", "DEEPSEEK_", "GEMINI_", "GOOGLE_", "GROQ_", "OPENAI_")
_DROPPED = ("AGENTEST_", "GITHUB_", "CI", "NO_COLOR", "FORCE_COLOR", *_PROVIDERS)


def clean_environment(extra: dict[str, str] | None = None) -> dict[str, str]:
    """The environment without variables that affect a run, plus those of the test."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(_DROPPED)}
    return {**kept, "PYTHONDONTWRITEBYTECODE": "1", **(extra or {})}


class Project:
    """Files in a folder, and commands of `agentest` in it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.deadline_s = DEADLINE_S

    def write(self, name: str, text: str) -> Path:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def config(self, endpoint: str, **keys: Any) -> Path:
        """Write a configuration for one agent; values as JSON, which is YAML.

        Not strict: scenarios of tests check only what the test is about.
        """
        basic = {"agent": {"endpoint": endpoint}, "reporters": ["console", "json"], "cache": False}
        settings = {**basic, **keys, "strict": keys.get("strict", False)}
        text = "\n".join(f"{key}: {json.dumps(value)}" for key, value in settings.items())
        return self.write("agentest.config.yaml", text + "\n")

    def scenario(self, text: str, name: str = "a.sim.py") -> Path:
        return self.write(name, "from agentest import call, scenario, sequence\n" + text)

    def run(
        self, *arguments: str, env: dict[str, str] | None = None, **streams: int
    ) -> subprocess.CompletedProcess[str]:
        """Run `agentest run` to its end."""
        return self.agentest("run", *arguments, env=env, **streams)

    def agentest(
        self,
        *arguments: str,
        env: dict[str, str] | None = None,
        typed: str = "",
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command to its end; `typed` is its input, `stdout` and `stderr` may be open files."""
        stdin = subprocess.PIPE if typed else subprocess.DEVNULL
        process = self._popen(list(arguments), env, stdin, stdout, stderr)
        with process:
            try:
                out, err = process.communicate(typed or None, timeout=self.deadline_s)
            except BaseException:
                process.kill()
                raise
        return subprocess.CompletedProcess([*COMMAND, *arguments], process.returncode, out, err)

    def start(
        self, *arguments: str, command: str = "run", env: dict[str, str] | None = None
    ) -> subprocess.Popen[str]:
        """Start a command and return its process."""
        return self._popen([command, *arguments], env, subprocess.DEVNULL)

    def _popen(
        self,
        arguments: list[str],
        extra: dict[str, str] | None,
        stdin: int,
        stdout: int = subprocess.PIPE,
        stderr: int = subprocess.PIPE,
    ) -> subprocess.Popen[str]:
        env = clean_environment(extra)
        if forkable(env):
            return Forked(arguments, cwd=self.root, env=env, stdin=stdin, stdout=stdout, stderr=stderr)
        return subprocess.Popen(
            [*COMMAND, *arguments],
            cwd=self.root,
            env=env,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            text=True,
        )

    @property
    def results(self) -> dict[str, Any]:
        text = (self.root / ".agentest" / "results.json").read_text(encoding="utf-8")
        found: dict[str, Any] = json.loads(text)
        return found

    @property
    def finished(self) -> list[str]:
        """The scenarios that the journal lists as finished while the run goes on."""
        try:
            text = (self.root / ".agentest" / "journal.jsonl").read_text(encoding="utf-8")
        except FileNotFoundError:
            return []
        whole = [json.loads(line) for line in text.splitlines(keepends=True) if line.endswith("\n")]
        return [line["scenario"]["name"] for line in whole if line["type"] == "scenario"]

    def scenario_result(self, name: str) -> dict[str, Any]:
        return next(s for s in self.results["scenarios"] if s["name"] == name)


def interrupt(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    """Send Ctrl-C and return exit status, output and error output."""
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    return process.returncode, out, err


def wait_until(condition: Callable[[], bool]) -> None:
    """Wait for a condition, up to a time limit."""
    pause = threading.Event()
    for _ in range(int(DEADLINE_S / 0.02)):
        if condition():
            return
        pause.wait(0.02)
    raise AssertionError("it never came to pass")


def free_port() -> int:
    """Reserve a free port that no other test, and no agent started by a run, gets meanwhile.

    One that the system chose could be taken by any connection or server before it is used.
    """
    (port,) = _claims.enter_context(free_ports(1))
    return port


_claims = ExitStack()
"""What keeps the ports that were given away from others, as long as this process lasts."""
atexit.register(_claims.close)


@contextmanager
def taken(port: int) -> Iterator[None]:
    """Let another program listen on a port during the block."""
    with socket.create_server(("127.0.0.1", port)):
        yield


def answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0
