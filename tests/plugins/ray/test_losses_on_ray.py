"""`--engine ray` when something ends early: nothing is left running, and finished work is kept."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from project import DEADLINE_S, Project, wait_until
from ray_cluster import RayCluster, ray_cluster

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not os.environ.get("AGENTEST_RAY"), reason="AGENTEST_RAY is not set"),
]

SERVER = """
import json, os, sys, threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        said = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"][-1]["content"]
        if said == "hang":
            Path(f"{sys.argv[2]}/hangs-{os.getpid()}-{os.getppid()}").touch()
            threading.Event().wait()
        out = json.dumps({"choices": [{"message": {"role": "assistant", "content": "fine"}}]}).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(out)))
        self.end_headers()
        self.wfile.write(out)
    def log_message(self, *a): pass

ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def is_gone(pid: str | int) -> bool:
    """Whether a process has ended."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("Z", "X")
    except FileNotFoundError:
        return True


def hanging(project: Project) -> list[list[str]]:
    """Process of each agent that hangs, and of the worker that has started it."""
    return [path.name.split("-")[1:] for path in project.root.glob("hangs-*")]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM], ids=["killed", "terminated"])
def test_agents_of_workers_end_with_the_run(project: Project, number: signal.Signals) -> None:
    project.write("agent.py", SERVER)
    server = {
        "command": [sys.executable, "agent.py", "{port}", str(project.root)],
        "ready": "tcp://127.0.0.1:{port}",
        "per_worker": True,
    }
    project.config("", agent={"endpoint": "http://127.0.0.1:{port}/v1", "retries": 0, "server": server})
    project.scenario("for n in range(2):\n    scenario(f's{n}', turns=['hang'])")
    process = project.start("--engine", "ray", "--workers", "2")
    wait_until(lambda: bool(hanging(project)))
    found = [pid for each in hanging(project) for pid in each]
    process.send_signal(number)
    _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == (130 if number == signal.SIGTERM else -number), err
    assert "Traceback" not in err
    wait_until(lambda: all(map(is_gone, found)))


WAITING = """
import os
from pathlib import Path
import anyio

async def handler(messages, ctx):
    if messages[-1]["content"] == "quick":
        return "fine"
    Path(f"{WHERE}/at-{os.getpid()}-{os.getppid()}").touch()
    while not Path(f"{WHERE}/go").exists():
        await anyio.sleep(0.05)
    return "fine"

AGENT = {"type": "custom", "name": "h", "handler": handler}
config = {"agent": AGENT, "reporters": ["console", "json"], "strict": False}
"""


def waiting(project: Project, *turns: str) -> None:
    """A project whose agent waits for a file, but for messages that are `quick`."""
    project.write("agentest.config.py", f"WHERE = {str(project.root)!r}\n{WAITING}")
    lines = [f"scenario('s{n}', turns=[{said!r}])" for n, said in enumerate(turns)]
    project.scenario("\n".join(lines))


def at_work(project: Project) -> list[tuple[int, int]]:
    """Process of each worker in which the agent waits, or has waited, and of its raylet."""
    found = [path.name.split("-")[1:] for path in project.root.glob("at-*")]
    return [(int(worker), int(raylet)) for worker, raylet in found]


def counts(project: Project) -> list[int]:
    """How many conversations each scenario has in the results."""
    return [len(each["conversations"]) for each in project.results["scenarios"]]


@pytest.fixture
def nodes() -> Iterator[RayCluster]:
    """A cluster with a head and two nodes."""
    with ray_cluster(2) as cluster:
        yield cluster


def test_what_a_node_was_at_that_dies_is_held_by_another_and_counted_once(
    project: Project, nodes: RayCluster
) -> None:
    waiting(project, *["hello"] * 4)
    process = project.start("--engine", "ray", "--ray-address", nodes.address, "--workers", "2")
    wait_until(lambda: bool(at_work(project)))
    worker, raylet = at_work(project)[0]
    os.kill(raylet, signal.SIGKILL)
    with suppress(ProcessLookupError):  # it ends by itself, too, when it misses the other
        os.kill(worker, signal.SIGKILL)  # and this is all that there is of a node
    wait_until(lambda: is_gone(worker))
    project.write("go", "")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, out + err
    assert "will run again" in out + err
    assert "Traceback" not in err
    assert counts(project) == [1, 1, 1, 1]
    assert len(project.finished) == 4


@pytest.fixture
def two_nodes() -> Iterator[RayCluster]:
    """A cluster of a head and one node, with a CPU each."""
    with ray_cluster(1, head_cpus=1) as cluster:
        yield cluster


def test_a_killed_worker_is_replaced_on_a_cluster_of_two_nodes(
    project: Project, two_nodes: RayCluster
) -> None:
    waiting(project, *["hello"] * 4)
    process = project.start("--engine", "ray", "--ray-address", two_nodes.address, "--workers", "2")
    wait_until(lambda: bool(at_work(project)))
    worker, _ = at_work(project)[0]
    os.kill(worker, signal.SIGKILL)
    wait_until(lambda: is_gone(worker))
    project.write("go", "")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, out + err
    assert "will run again" in err
    assert counts(project) == [1, 1, 1, 1]
    assert len(project.finished) == 4


def test_a_run_whose_own_node_dies_ends_and_is_resumed(project: Project, two_nodes: RayCluster) -> None:
    """The raylet of the run's own process is killed; head process and another node live on."""
    waiting(project, "quick", "quick", *["hello"] * 4)
    process = project.start("--engine", "ray", "--ray-address", two_nodes.address, "--workers", "2")
    wait_until(lambda: len(project.finished) == 2 and bool(at_work(project)))
    os.kill(two_nodes.head_raylet, signal.SIGKILL)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2, out + err
    assert "the Ray cluster regards this process as dead, because the node it was connected to died" in err
    assert "Traceback" not in err
    assert counts(project) == [1, 1, 0, 0, 0, 0]
    project.write("go", "")
    done = project.run("--resume", "--engine", "local")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 of 6 conversations of run" in done.stderr
    assert counts(project) == [1] * 6
