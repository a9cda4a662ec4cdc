"""`--engine ray`, with a Ray of this machine: the same results, nothing left behind, no key in its files."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from evalset_documents import case, eval_set, invocation, text
from project import DEADLINE_S, Project, free_port, interrupt, wait_until
from ray_cluster import RayCluster, ray_cluster
from spelt import files_with, spellings
from timeless import timeless

from agentest.testing import ScriptedAgent

pytestmark = [
    pytest.mark.ray,
    pytest.mark.skipif(not os.environ.get("AGENTEST_RAY"), reason="AGENTEST_RAY is not set"),
]

KEY = "sk-never-to-be-seen-0123456789"
OTHER = "in/the+environment=9876543210"
HANDLER = """
import json, os, subprocess
from pathlib import Path
from urllib.parse import quote

async def handler(messages, ctx):
    said = messages[-1]["content"]
    Path(f"{WHERE}/pid.{os.getpid()}").touch()
    print("the key is", os.environ["MY_API_KEY"], os.environ["OTHER_TOKEN"], flush=True)
    print("in a URL", quote(os.environ["OTHER_TOKEN"], safe=""), json.dumps(dict(os.environ)), flush=True)
    subprocess.run(["sh", "-c", "echo $MY_API_KEY $OTHER_TOKEN; echo $OTHER_TOKEN >&2"])
    if said == "die" and not Path(f"{WHERE}/died").exists():
        Path(f"{WHERE}/died").touch()
        os.kill(os.getpid(), 9)
    if said == "hang":
        await __import__("anyio").sleep_forever()
    if said == "raise":
        raise RuntimeError(f"no such key: {os.environ['MY_API_KEY']} {os.environ['OTHER_TOKEN']}")
    return "fine"

AGENT = {"type": "custom", "name": "h", "handler": handler}
config = {"agent": AGENT, "reporters": ["console", "json"], "strict": False, "request_timeout_ms": 300_000}
"""


def handled(project: Project, *turns: str) -> None:
    """A project whose agent is a Python function, with a key in `.env`."""
    project.write("agentest.config.py", f"WHERE = {str(project.root)!r}\n{HANDLER}")
    project.write(".env", f"MY_API_KEY={KEY}\n")
    lines = [f"scenario('s{n}', turns=[{said!r}])" for n, said in enumerate(turns)]
    project.scenario("\n".join(lines))


def ray_files() -> set[Path]:
    """The folders of Ray's sessions."""
    return set(Path("/tmp/ray").glob("session_2*"))


def processes_of_ray() -> set[str]:
    """The ids of all Ray processes, whoever started them."""
    found = set()
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if "gcs_server" in line or "raylet" in line:
            found.add(path.parent.name)
    return found


def commands(pids: list[int]) -> str:
    files = [Path(f"/proc/{pid}/cmdline") for pid in pids]
    return " ".join(file.read_text() for file in files if file.exists())


def children_of(pid: int) -> list[int]:
    found = subprocess.run(["pgrep", "-P", str(pid)], capture_output=True, text=True)
    return [int(line) for line in found.stdout.split()]


def test_results_are_those_of_one_process_and_no_key_is_anywhere(project: Project) -> None:
    others = processes_of_ray()
    handled(project, "hello", "hello", "raise")
    env = {"OTHER_TOKEN": OTHER}
    one = project.run("--conversations", "3", env=env)
    alone, before = timeless(project.results), ray_files()
    command = ("--conversations", "3", "--engine", "ray", "--workers", "2")
    process = project.start(*command, env=env)
    forms = [form.encode() for secret in (KEY, OTHER) for form in spellings(secret)]
    while process.poll() is None:
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                text = path.read_bytes()
            except OSError:
                continue
            assert not [form for form in forms if form in text]
        try:
            process.wait(0.5)
        except subprocess.TimeoutExpired:
            continue
    out, err = process.communicate()
    assert process.returncode == one.returncode == 1, out + err
    assert timeless(project.results) == alone
    assert len(list(project.root.glob("pid.*"))) >= 2  # this process, and workers
    (session,) = ray_files() - before
    assert files_with([KEY, OTHER], session) == []
    assert files_with([KEY, OTHER], project.root) == [str(project.root / ".env")]
    printed = "".join(path.read_text() for path in session.glob("logs/worker*.out"))
    assert "the key is [redacted] [redacted]" in printed  # and not that nothing was printed
    assert "in a URL [redacted]" in printed
    wait_until(lambda: processes_of_ray() <= others)


def test_a_worker_that_dies_is_replaced_and_its_conversations_are_held_again(project: Project) -> None:
    handled(project, "die", "hello")
    done = project.run("--engine", "ray", "--workers", "1", env={"OTHER_TOKEN": OTHER})
    assert done.returncode == 0, done.stdout + done.stderr
    assert "has died" in done.stdout + done.stderr
    assert [each["status"] for each in project.results["scenarios"]] == ["passed", "passed"]


def test_a_ray_of_the_run_leaves_no_token_in_the_home_folder(project: Project, tmp_path: Path) -> None:
    """Ray would make one there, and change how the user's other programs join clusters."""
    home = tmp_path / "home"
    home.mkdir()
    handled(project, "hello")
    env = {"OTHER_TOKEN": OTHER, "HOME": str(home)}
    done = project.run("--engine", "ray", "--workers", "1", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    assert not (home / ".ray").exists()


def test_an_interrupt_ends_the_run_and_ray(project: Project) -> None:
    others = processes_of_ray()
    handled(project, "hello", "hang")
    process = project.start("--engine", "ray", "--workers", "1", env={"OTHER_TOKEN": OTHER})
    wait_until(lambda: bool(project.finished))
    status, _, err = interrupt(process)
    assert status == 130
    assert "stopping" in err
    wait_until(lambda: processes_of_ray() <= others)


def test_a_killed_driver_leaves_no_ray_and_a_journal(project: Project) -> None:
    others = processes_of_ray()
    handled(project, "hello", "hang")
    process = project.start("--engine", "ray", "--workers", "1", env={"OTHER_TOKEN": OTHER})
    wait_until(lambda: bool(project.finished))
    process.send_signal(signal.SIGKILL)
    process.communicate(timeout=DEADLINE_S)
    wait_until(lambda: processes_of_ray() <= others)
    assert project.finished == ["s0"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_ray_starts_is_no_problem_of_ray(project: Project, number: signal.Signals) -> None:
    """In the midst of its start Ray could hang for ever: it is ended when it has started."""
    handled(project, "hang")  # so that it does not end by itself, should the signal be late
    process = project.start("--engine", "ray", "--workers", "1", env={"OTHER_TOKEN": OTHER})
    wait_until(lambda: "raylet" in commands(children_of(process.pid)))
    begun = children_of(process.pid)
    process.send_signal(number)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, out + err
    assert "once more ends at once" in err
    assert "Traceback" not in err
    assert "could not be started" not in err
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in begun))


def test_an_address_at_which_nobody_answers(project: Project) -> None:
    handled(project, "hello")
    port = free_port()
    done = project.run("--engine", "ray", "--ray-address", f"127.0.0.1:{port}")
    assert done.returncode == 2
    assert f"nobody answers at 127.0.0.1, port {port}" in done.stderr


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """A cluster with a head and two nodes."""
    with ray_cluster(2) as cluster:
        yield cluster


def test_a_cluster_is_joined_gets_the_files_and_is_left_as_it_was(
    project: Project, cluster: RayCluster
) -> None:
    handled(project, "hello", "hello", "raise")
    project.write("kept/secret.txt", "x")
    project.write(".rayignore", "kept\n")
    env = {"OTHER_TOKEN": OTHER}
    project.run("--conversations", "3", env=env)
    alone = timeless(project.results)
    for _ in range(2):
        done = project.run(
            "--conversations", "3", "--engine", "ray", "--ray-address", cluster.address, env=env
        )
        assert done.returncode == 1, done.stdout + done.stderr
        assert timeless(project.results) == alone
    assert files_with([KEY, OTHER], cluster.folder) == []
    sent = [str(path) for path in cluster.folder.rglob("working_dir_files/*/*")]
    assert any(path.endswith("agentest.config.py") for path in sent)
    assert not any(path.endswith((".env", "kept", ".agentest")) for path in sent)


def test_an_ignored_file_is_named(project: Project, cluster: RayCluster) -> None:
    handled(project, "hello")
    project.write(".rayignore", "*.sim.py\n")
    done = project.run("--engine", "ray", "--ray-address", cluster.address, env={"OTHER_TOKEN": OTHER})
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


def test_a_workers_error_shows_no_key(project: Project) -> None:
    """The error is reported here, and Ray's files do not have it."""
    before = ray_files()
    handled(project, "hello")
    there = "sys.argv[0].endswith('default_worker.py')"
    broken = f"\nimport sys\nif {there}:\n    raise ValueError(str([*os.environ.values()]))\n"
    project.write("agentest.config.py", f"{HANDLER}{broken}")
    done = project.run("--engine", "ray", "--workers", "1", env={"OTHER_TOKEN": OTHER})
    assert done.returncode == 2, done.stdout + done.stderr
    assert "ValueError" in done.stderr
    assert "[redacted]" in done.stderr
    assert not [form for secret in (KEY, OTHER) for form in spellings(secret) if form in done.stderr]
    (session,) = ray_files() - before
    assert files_with([KEY, OTHER], session) == []


AUTO = ("--engine", "ray", "--ray-address", "auto", "--workers", "2")


def latest(cluster: RayCluster) -> dict[str, str]:
    """The environment of someone for whom this is the latest cluster of the machine."""
    return {"RAY_TMPDIR": str(cluster.folder), "RAY_AUTH_MODE": "disabled"}


def test_evaluation_sets_are_held_there_too(project: Project, cluster: RayCluster) -> None:
    cases = [case(f"c{n}", invocation(f"say {n}", f"say {n}")) for n in range(3)]
    cases.append(case("wrong", invocation("say", "something else")))
    project.write("sets/orders.test.json", text(eval_set("orders", *cases)))
    command = ("eval", "sets/orders.test.json", "--num-runs", "2")
    with ScriptedAgent(lambda body: body["messages"][-1]["content"]) as agent:
        project.config(agent.endpoint)
        one = project.agentest(*command)
        alone = timeless(project.results)
        done = project.agentest(*command, *AUTO, env=latest(cluster))
    assert done.returncode == one.returncode == 1, done.stdout + done.stderr
    assert timeless(project.results) == alone


def test_finished_conversations_are_judged_there_too(project: Project, cluster: RayCluster) -> None:
    """By what the files expect now."""
    wished = [
        f"scenario({name!r}, turns=[{{'user_message': 'hello', 'expect': {{'contains': 'hi'}}}}])"
        for name in "abc"
    ]
    with ScriptedAgent(lambda body: "hi") as agent:
        project.config(agent.endpoint)
        project.scenario("\n".join(wished))
        held = project.run()
    assert held.returncode == 0, held.stdout + held.stderr
    project.scenario("\n".join(wished).replace("'hi'", "'ho'"))
    judged = project.root / ".agentest" / "judged.json"
    one = project.agentest("judge", ".agentest/results.json")
    alone = timeless(json.loads(judged.read_text()))
    judged.unlink()
    done = project.agentest("judge", ".agentest/results.json", *AUTO, env=latest(cluster))
    assert done.returncode == one.returncode == 1, done.stdout + done.stderr
    assert timeless(json.loads(judged.read_text())) == alone


def test_nodes_that_are_still_to_come_are_waited_for(project: Project) -> None:
    project.config("http://127.0.0.1:9/v1", agent={"type": "custom", "name": "h", "handler": "beside:answer"})
    project.write("beside.py", "async def answer(messages, ctx):\n    return 'fine'\n")
    project.scenario("scenario('a', turns=['hello'])")
    with ray_cluster(0) as cluster:
        process = project.start("--engine", "ray", "--ray-address", cluster.address)
        assert process.stderr is not None
        told = "agentest: no node of the Ray cluster has a CPU for a worker yet: waiting for"
        # Before it may stand what has taken long, on a busy machine.
        assert any(line.startswith(told) for line in iter(process.stderr.readline, ""))
        cluster.add_node()
        out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, out + err
    assert project.finished == ["a"]


WAITS = """
from pathlib import Path
import anyio

async def handler(messages, ctx):
    while not Path(f"{WHERE}/go").exists():
        await anyio.sleep(0.05)
    return "fine"

AGENT = {"type": "custom", "name": "h", "handler": handler}
config = {"agent": AGENT, "reporters": ["console", "json"], "strict": False, "request_timeout_ms": 300_000}
"""


def test_a_worker_that_finds_no_cpu_waits_and_why_is_told(project: Project, cluster: RayCluster) -> None:
    project.write("agentest.config.py", f"WHERE = {str(project.root)!r}\n{WAITS}")
    project.scenario("for n in range(3):\n    scenario(f's{n}', turns=['hello'])")
    process = project.start("--engine", "ray", "--ray-address", cluster.address, "--workers", "3")
    assert process.stderr is not None
    # On a busy machine it is told before the first two have begun.
    waits = re.compile(r"for \d workers? to begin|to start \d worker")
    told = next(line for line in iter(process.stderr.readline, "") if waits.search(line))
    assert "1 worker to" not in told or "the Ray cluster has 2 on 2 nodes, none of them free" in told
    project.write("go", "")
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 0, out + err
    assert len(project.finished) == 3
