"""`--engine ray`, with a Ray of this machine: the same results, nothing left behind, no key in its files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from project import DEADLINE_S, Project, free_port, interrupt, wait_until

from agentest.testing import ScriptedAgent

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not os.environ.get("AGENTEST_RAY"), reason="AGENTEST_RAY is not set"),
]

KEY = "sk-never-to-be-seen-0123456789"
OTHER = "in-the-environment-9876543210"
HANDLER = """
import os, subprocess
from pathlib import Path

async def handler(messages, ctx):
    said = messages[-1]["content"]
    Path(f"{WHERE}/pid.{os.getpid()}").touch()
    print("the key is", os.environ["MY_API_KEY"], os.environ["OTHER_TOKEN"], flush=True)
    subprocess.run(["sh", "-c", "echo $MY_API_KEY $OTHER_TOKEN"])
    if said == "die" and not Path(f"{WHERE}/died").exists():
        Path(f"{WHERE}/died").touch()
        os.kill(os.getpid(), 9)
    if said == "hang":
        await __import__("anyio").sleep_forever()
    if said == "raise":
        raise RuntimeError(f"no such key: {os.environ['MY_API_KEY']}")
    return "fine"

config = {"agent": {"type": "custom", "name": "h", "handler": handler}, "reporters": ["console", "json"]}
"""
TIMES = {"startedAt", "time", "slowestTurns", "sessionId"}


def handled(project: Project, *turns: str) -> None:
    """A project whose agent is a Python function, and whose `.env` holds a key."""
    project.write("agentest.config.py", f"WHERE = {str(project.root)!r}\n{HANDLER}")
    project.write(".env", f"MY_API_KEY={KEY}\n")
    lines = [f"scenario('s{n}', turns=[{said!r}])" for n, said in enumerate(turns)]
    project.scenario("\n".join(lines))


def timeless(value: Any) -> Any:
    """A document without what differs from run to run."""
    if isinstance(value, dict):
        kept = {key: item for key, item in value.items() if key not in TIMES and not key.endswith("Ms")}
        return {key: timeless(item) for key, item in kept.items()}
    return [timeless(item) for item in value] if isinstance(value, list) else value


def ray_files() -> set[Path]:
    """The folders of Ray's sessions."""
    return set(Path("/tmp/ray").glob("session_2*"))


def processes_of_ray() -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "gcs_server" in line or "raylet" in line:
            found.append(line)
    return found


def commands(pids: list[int]) -> str:
    files = [Path(f"/proc/{pid}/cmdline") for pid in pids]
    return " ".join(file.read_text() for file in files if file.exists())


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


def test_results_are_those_of_one_process_and_no_key_is_anywhere(project: Project) -> None:
    handled(project, "hello", "hello", "raise")
    env = {"OTHER_TOKEN": OTHER}
    one = project.run("--conversations", "3", env=env)
    alone, before = timeless(project.results), ray_files()
    command = ("--conversations", "3", "--engine", "ray", "--workers", "2")
    process = project.start(*command, env=env)
    while process.poll() is None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                text = path.read_bytes()
            except OSError:
                continue
            assert KEY.encode() not in text
            assert OTHER.encode() not in text
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
    out, err = process.communicate()
    assert process.returncode == one.returncode == 1, out + err
    assert timeless(project.results) == alone
    assert len(list(project.root.glob("pid.*"))) >= 2  # this process, and workers
    (session,) = ray_files() - before
    found = subprocess.run(["grep", "-rlE", f"{KEY}|{OTHER}", str(session)], capture_output=True, text=True)
    assert found.stdout == ""
    printed = "".join(path.read_text() for path in session.glob("logs/worker*.out"))
    assert "the key is [redacted] [redacted]" in printed  # and not that nothing was printed
    assert not processes_of_ray()


def test_a_worker_that_dies_is_replaced_and_its_conversations_are_held_again(project: Project) -> None:
    handled(project, "die", "hello")
    done = project.run("--engine", "ray", "--workers", "1", env={"OTHER_TOKEN": OTHER})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has died" in done.stdout + done.stderr
    assert [each["status"] for each in project.results["scenarios"]] == ["passed", "passed"]


def test_an_interrupt_ends_the_run_and_ray(project: Project) -> None:
    handled(project, "hello", "hang")
    process = project.start("--engine", "ray", "--workers", "1", env={"OTHER_TOKEN": OTHER})
    wait_until(lambda: bool(project.finished))
    status, _, err = interrupt(process)
    assert status == 130
    assert "stopping" in err
    wait_until(lambda: not processes_of_ray())


def test_a_killed_driver_leaves_no_ray_and_a_journal(project: Project) -> None:
    handled(project, "hello", "hang")
    process = project.start("--engine", "ray", "--workers", "1", env={"OTHER_TOKEN": OTHER})
    wait_until(lambda: bool(project.finished))
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=DEADLINE_S)
    wait_until(lambda: not processes_of_ray())
    assert project.finished == ["s0"]


def test_a_signal_while_ray_starts_is_no_problem_of_ray(project: Project) -> None:
    handled(project, "hello")
    process = project.start("--engine", "ray", "--workers", "1", env={"OTHER_TOKEN": OTHER})
    wait_until(lambda: "raylet" in commands(children_of(process.pid)))
    begun = children_of(process.pid)
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    assert "could not be started" not in err
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in begun))


def test_an_address_at_which_nobody_answers(project: Project) -> None:
    handled(project, "hello")
    port = free_port()
    done = project.run("--engine", "ray", "--ray-address", f"127.0.0.1:{port}")
    assert done.returncode == 2
    assert f"nobody answers at 127.0.0.1, port {port}" in done.stderr


ON_LOOPBACK = {"RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0"}
"""Ray takes 127.0.0.1 for this machine's address in its network, unless it is told so."""
CLUSTER = """
import os, sys
os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
os.environ["RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"] = "0"
from ray.cluster_utils import Cluster
cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
for _ in range(2):
    cluster.add_node(num_cpus=1)
print(cluster.address, flush=True)
sys.stdin.read()
cluster.shutdown()
"""


@pytest.fixture
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A cluster of two nodes on this machine; its address."""
    folder = tmp_path_factory.mktemp("cluster")
    process = subprocess.Popen(
        [sys.executable, "-c", CLUSTER], cwd=folder, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        lines = iter(process.stdout.readline, "")
        yield next(line.strip() for line in lines if line.count(":") == 1 and line.strip()[-1:].isdigit())
    finally:
        process.communicate(timeout=60)


def test_a_cluster_is_joined_gets_the_files_and_is_left_as_it_was(project: Project, cluster: str) -> None:
    handled(project, "hello", "hello", "raise")
    project.write("kept/secret.txt", "x")
    project.write(".rayignore", "kept\n")
    env = {"OTHER_TOKEN": OTHER, **ON_LOOPBACK}
    project.run("--conversations", "3", env=env)
    alone = timeless(project.results)
    for _ in range(2):
        done = project.run("--conversations", "3", "--engine", "ray", "--ray-address", cluster, env=env)
        assert done.returncode == 1, done.stdout + done.stderr
        assert timeless(project.results) == alone
    sessions = max(ray_files(), key=lambda path: path.stat().st_mtime)
    found = subprocess.run(["grep", "-rlE", f"{KEY}|{OTHER}", str(sessions)], capture_output=True, text=True)
    assert found.stdout == ""
    sent = [str(path) for path in sessions.rglob("working_dir_files/*/*")]
    assert any(path.endswith("agentest.config.py") for path in sent)
    assert not any(path.endswith((".env", "kept", ".agentest")) for path in sent)


def test_an_ignored_file_is_named(project: Project, cluster: str) -> None:
    handled(project, "hello")
    project.write(".rayignore", "*.sim.py\n")
    done = project.run("--engine", "ray", "--ray-address", cluster, env={"OTHER_TOKEN": OTHER, **ON_LOOPBACK})
    assert done.returncode == 2
    assert ".rayignore" in done.stderr or "no scenario" in done.stderr


def test_the_agent_may_be_a_server(project: Project) -> None:
    project.scenario("for n in range(4):\n    scenario(f's{n}', turns=['hello'])")
    with ScriptedAgent(lambda body: "hi") as agent:
        project.config(agent.endpoint)
        one = project.run()
        alone = timeless(project.results)
        done = project.run("--engine", "ray", "--workers", "2")
    assert done.returncode == one.returncode == 0, done.stdout + done.stderr
    assert timeless(json.loads(json.dumps(project.results))) == alone
