"""A run that is suspended for longer than its timeouts, in its own process, against a real server."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

PROGRAM = """
import json, sys
from agentest import scenario
from agentest.testing import run_scenarios

checks = {"expect": {"says": "Hello"}}
made = [scenario(f"{said} {n}", turns=[said], **checks) for said in ("whole", "cut") for n in (1, 2)]
result = run_scenarios(made, agent=sys.argv[1], concurrency=4, request_timeout_ms=3000)
print(json.dumps([
    (found.name, found.verdict.status,
     found.conversations[0].conversation.turns[0].latency_ms if found.verdict.passed
     else found.conversations[0].conversation.failure.message)
    for found in result.scenarios
]))
"""


class Stopping(ThreadingHTTPServer):
    """An agent that suspends its client for longer than its timeout and then answers, or closes the
    connection within the answer if the user message asks for that."""

    daemon_threads = True

    def __init__(self) -> None:
        self.asked = threading.Barrier(4, action=self._stop)
        self.stopped = threading.Event()
        self.client: subprocess.Popen[str] | None = None
        self.known = threading.Event()
        super().__init__(("127.0.0.1", 0), Handler)

    def _stop(self) -> None:
        self.known.wait(60)
        assert self.client
        os.kill(self.client.pid, signal.SIGSTOP)
        threading.Event().wait(3.5)  # longer than the time-out
        self.stopped.set()
        threading.Timer(0.2, self.client.send_signal, [signal.SIGCONT]).start()


class Handler(BaseHTTPRequestHandler):
    server: Stopping

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        hangs_up = asked["messages"][-1]["content"] == "cut"
        if not self.server.stopped.is_set():
            self.server.asked.wait(60)
        body = json.dumps({"choices": [{"message": {"role": "assistant", "content": "Hello."}}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[:20] if hangs_up else body)
        self.close_connection = hangs_up

    def log_message(self, format: str, *args: Any) -> None: ...


@pytest.fixture(scope="module")
def told() -> dict[str, tuple[str, Any]]:
    """Scenarios of a suspended run, with their status, and latency in ms or failure."""
    server = Stopping()
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    command = [sys.executable, "-c", PROGRAM, f"http://127.0.0.1:{server.server_address[1]}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server.client:
        server.known.set()
        output, _ = server.client.communicate(timeout=60)
    server.shutdown()
    server.server_close()
    return {name: (status, said) for name, status, said in json.loads(output)}


pytestmark = pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="nobody can be stopped here")


@pytest.mark.slow
def test_a_stopped_run_blames_nobody(told: dict[str, tuple[str, Any]]) -> None:
    """Agents that answer in time pass, even if the run was suspended for longer."""
    found = [told[f"whole {n}"] for n in (1, 2)]
    assert [status for status, _ in found] == ["passed"] * 2, found
    assert all(latency < 3000 for _, latency in found)


def test_a_connection_that_is_lost_while_the_run_was_stopped(told: dict[str, tuple[str, Any]]) -> None:
    """An answer cut during a suspension blames nobody: errored, with the reason."""
    found = [told[f"cut {n}"] for n in (1, 2)]
    assert [status for status, _ in found] == ["errored"] * 2, found
    held_up = [re.search(r"this program itself did not run for (\d+)\.\d+ s", said) for _, said in found]
    assert all(match and int(match[1]) >= 3 for match in held_up), found  # a busy machine holds it up longer
