"""A run as a job of a Ray cluster: files of `ray job submit`, results, and the job's end."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.request import urlopen

import pytest
from project import DEADLINE_S, answers, free_port, wait_until
from spelt import files_with, spellings

EXAMPLE = Path(__file__).parents[3] / "examples" / "ray"
KEY = "sk-in-a-file-that-stays-here"
OF_HEAD = "in/the+environment=of-the-head"
PRINTS = """
import os
told = answer

def answer(messages, ctx):
    print("the key is", os.environ["DESK_TOKEN"], flush=True)
    return told(messages, ctx)
"""
SHOWN = ("actors", "tasks", "workers", "jobs", "nodes", "runtime_envs", "objects", "cluster_events")
"""What the dashboard's own API reports."""
AGENTEST = [sys.executable, "-m", "agentest"]
RAY = [sys.executable, "-c", "from ray.scripts.scripts import main; main()"]
ENVIRONMENT = {
    "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    "RAY_AUTH_MODE": "disabled",  # else it depends on whether this user has a token
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # listens on loopback alone
}

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not os.environ.get("AGENTEST_RAY"), reason="AGENTEST_RAY is not set"),
]


@pytest.fixture(scope="module")
def folder() -> Iterator[str]:
    """The folder with the cluster's files."""
    folder = tempfile.mkdtemp(prefix="ray-")  # short, as sockets are in it
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="module")
def dashboard(folder: str) -> Iterator[str]:
    """A cluster of one node, with what takes jobs; its address."""
    ports = {name: free_port() for name in ("port", "dashboard-port", "ray-client-server-port")}
    ports["dashboard-agent-listen-port"] = free_port()
    words = [*(f"--{name}={port}" for name, port in ports.items()), "--num-cpus=2", f"--temp-dir={folder}"]
    head = subprocess.Popen(
        [*RAY, "start", "--head", "--block", "--node-ip-address=127.0.0.1", "--disable-usage-stats", *words],
        env={**os.environ, **ENVIRONMENT, "DESK_TOKEN": OF_HEAD},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        for port in ("dashboard-port", "dashboard-agent-listen-port"):  # takes jobs, and begins them
            wait_until(partial(answers, ports[port]))
        yield f"http://127.0.0.1:{ports['dashboard-port']}"
    finally:
        head.terminate()  # and with it all that it has started
        try:
            head.wait(DEADLINE_S)
        finally:
            with_group(head.pid)


def with_group(process: int) -> None:
    """End what is left of a process's group."""
    try:
        os.killpg(process, signal.SIGKILL)
    except ProcessLookupError:
        return


def submitted(dashboard: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """The documented command, with a folder for results of this test's own."""
    settings = (folder / "job.yaml").read_text(encoding="utf-8")
    results = re.sub(r"(RESULTS:).*", rf"\1 {folder.parent / 'results'}", settings)
    (folder / "job.yaml").write_text(results, encoding="utf-8")
    job = ["--address", dashboard, "--working-dir", ".", "--runtime-env", "job.yaml"]
    return subprocess.run(
        [
            *RAY,
            "job",
            "submit",
            *job,
            "--",
            sys.executable,
            "-m",
            "agentest",
            "run",
            "--engine",
            "ray",
            *arguments,
        ],
        cwd=folder,
        env={**os.environ, **ENVIRONMENT},
        capture_output=True,
        text=True,
        timeout=2 * DEADLINE_S,
    )


@pytest.fixture
def night(tmp_path: Path) -> Path:
    """A copy of the example, with a key next to it."""
    folder = tmp_path / "night"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns(".agentest"))
    (folder / ".env").write_text(f"OPENAI_API_KEY={KEY}\n", encoding="utf-8")
    return folder


def test_a_job_leaves_its_results_where_they_stay(dashboard: str, folder: str, night: Path) -> None:
    desk = night / "desk.py"
    desk.write_text(desk.read_text() + PRINTS, encoding="utf-8")
    done = submitted(dashboard, night, "--conversations", "10")
    assert done.returncode == 0, done.stdout + done.stderr
    results = night.parent / "results"
    assert len(json.loads((results / "results.json").read_text())["scenarios"][0]["conversations"]) == 10
    assert {"report.html", "junit.xml", "journal.jsonl"} <= {path.name for path in results.iterdir()}
    assert KEY not in done.stdout + done.stderr
    # Neither what the dashboard shows nor any file of Ray's has a key:
    pages = ["api/jobs/", *(f"api/v0/{what}?detail=1" for what in SHOWN)]
    told = "".join(shown(f"{dashboard}/{page}") for page in pages)
    assert '"WorkerActor"' in told
    assert not [form for secret in (KEY, OF_HEAD) for form in spellings(secret) if form in told]
    assert files_with([KEY, OF_HEAD], Path(folder)) == []
    printed = "".join(path.read_text() for path in Path(folder).glob("session_2*/logs/worker*.out"))
    assert "the key is [redacted]" in printed


def shown(url: str) -> str:
    """The response of that address."""
    with urlopen(url, timeout=DEADLINE_S) as answer:
        text: str = answer.read().decode()
        return text


def test_a_run_that_fails_is_a_job_that_fails(dashboard: str, night: Path) -> None:
    scenario = night / "night.sim.py"
    scenario.write_text(scenario.read_text().replace("five days", "one day"), encoding="utf-8")
    done = submitted(dashboard, night)
    assert done.returncode == 1
    assert "exit code 1" in done.stdout + done.stderr
    assert "✗ failed" in done.stdout
