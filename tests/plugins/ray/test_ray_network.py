"""`--engine ray` on a cluster whose nodes have different addresses, and no loopback interface in common."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from project import COMMAND, DEADLINE_S, Project, clean_environment, wait_until
from timeless import timeless
from two_networks import Network, two_networks

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not os.environ.get("AGENTEST_RAY"), reason="AGENTEST_RAY is not set"),
]
RAY = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
ENVIRONMENT = {"RAY_AUTH_MODE": "disabled", "RAY_USAGE_STATS_ENABLED": "0"}
AGENT = """
import json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        json.loads(self.rfile.read(int(self.headers["content-length"])))
        words = "I saw " + self.client_address[0]
        out = json.dumps({"choices": [{"message": {"role": "assistant", "content": words}}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)
    def log_message(self, *a): pass

ThreadingHTTPServer(("0.0.0.0", 8000), Handler).serve_forever()
"""


@pytest.fixture(scope="module")
def networks() -> Iterator[tuple[Network, Network]]:
    """A head without CPUs for workers, with an agent, and a node in another network with two."""
    with ExitStack() as stack:
        east, west = stack.enter_context(two_networks())
        folder = tempfile.mkdtemp(prefix="ray-", dir="/tmp")  # short: for sockets
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        start = [*RAY, "start", "--block", "--num-cpus"]
        head = ["0", "--head", "--port=6379", f"--temp-dir={folder}", "--include-dashboard=false"]
        begun = partial(beginning, stack, Path(folder))
        begun("agent", east.inside(sys.executable, "-c", AGENT))
        begun("head", east.inside(*start, *head, f"--node-ip-address={east.address}"))
        wait_until(lambda: "Ray runtime started" in Path(folder, "head.log").read_text())
        node = ["2", f"--address={east.address}:6379", f"--node-ip-address={west.address}"]
        begun("node", west.inside(*start, *node))
        yield east, west


def beginning(stack: ExitStack, folder: Path, name: str, command: list[str]) -> None:
    """Start a command that ends with the stack, and everything that it starts."""
    with (folder / f"{name}.log").open("w") as log:
        environment = {**os.environ, **ENVIRONMENT}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    stack.callback(process.wait, DEADLINE_S)
    stack.callback(process.terminate)


def run(project: Project, network: Network, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `agentest run` in a network."""
    return subprocess.run(
        network.inside(*COMMAND, "run", *arguments),
        cwd=project.root,
        env=clean_environment(ENVIRONMENT),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )


def test_workers_in_another_network(project: Project, networks: tuple[Network, Network]) -> None:
    """They reach the agent by its address in the network, never by their own loopback interface."""
    east, west = networks
    project.scenario("for n in range(4):\n    scenario(f's{n}', turns=['hello', 'again'])")
    on_ray = ("--engine", "ray", "--ray-address", f"{east.address}:6379", "--workers", "2")

    project.config("http://127.0.0.1:8000/v1")
    alone = run(project, east)
    assert alone.returncode == 0, alone.stdout + alone.stderr
    expected = str(timeless(project.results["scenarios"])).replace("127.0.0.1", west.address)
    refused = run(project, east, *on_ray)
    assert refused.returncode == 2
    assert west.address in refused.stderr
    assert "127.0.0.1" in refused.stderr

    project.config(f"http://{east.address}:8000/v1")
    done = run(project, east, *on_ray)
    assert done.returncode == 0, done.stdout + done.stderr
    assert str(timeless(project.results["scenarios"])) == expected
