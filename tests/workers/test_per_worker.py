"""Agents that each worker starts on its own port (`agent.server.per_worker`)."""

from __future__ import annotations

import json
from pathlib import Path

from project import Project, answers, interrupt, wait_until
from worker_agents import AGENT, WORKERS, configure, turns


def logs(project: Project) -> dict[str, str]:
    (run,) = (project.root / ".agentest" / "runs").iterdir()
    return {path.name: path.read_text() for path in (run / "servers").iterdir()}


def is_gone(pid: str | int) -> bool:
    """Return whether a process has ended; a zombie has."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return True
    return state in ("Z", "X")


def test_each_worker_has_its_own(project: Project) -> None:
    """Each worker's agent has its own port, process and log, and ends with the run."""
    configure(project)
    project.scenario("for n in range(4):\n    scenario(f's{n}', turns=['meet', 'again'])")
    done = project.run(*WORKERS)
    assert done.returncode == 0, done.stdout + done.stderr
    found = {tuple(each) for each in turns(project)}
    for column in range(3):
        assert len({each[column] for each in found}) == 2, found
    assert "http://127.0.0.1:{port}/v1" in done.stdout
    for port, pid, _ in found:
        assert not answers(int(port))
        assert is_gone(pid)
    assert logs(project).keys() == {"bot-worker-1.log", "bot-worker-2.log"}
    assert set(logs(project).values()) == {f"up {pid}\n" for _, pid, _ in found}


def test_one_for_all_workers(project: Project) -> None:
    """Without `per_worker`, `{port}` is one port for all workers."""
    project.scenario("for n in range(4):\n    scenario(f's{n}', turns=['hi'])")
    configure(project)
    config = project.root / "agentest.config.yaml"
    config.write_text(config.read_text().replace('"per_worker": true', '"per_worker": false'))
    done = project.run(*WORKERS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len({tuple(each) for each in turns(project)}) == 1
    assert logs(project).keys() == {"bot.log"}


def test_both_kinds(project: Project) -> None:
    """One run can have both: an agent per worker, and one for all."""
    configure(project)
    config = project.root / "agentest.config.yaml"
    shared = json.loads(config.read_text().splitlines()[0].removeprefix("agent: "))
    shared["server"] |= {"name": "shared", "per_worker": False}
    config.write_text(f"{config.read_text()}agents: {json.dumps({'other': shared})}\n")
    project.scenario(
        "for n in range(4):\n"
        "    scenario(f's{n}', turns=['meet', 'again'])\n"
        "    scenario(f'o{n}', turns=['hi'], agent='other')"
    )
    done = project.run(*WORKERS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert len({tuple(each) for each in turns(project)}) == 3
    assert logs(project).keys() == {"bot-worker-1.log", "bot-worker-2.log", "shared.log"}


def test_an_interrupt(project: Project) -> None:
    """Ctrl-C ends the agents of all workers."""
    configure(project)
    project.scenario("for n in range(4):\n    scenario(f's{n}', turns=['meet', 'hang'])")
    process = project.start(*WORKERS)
    wait_until(lambda: len(list(project.root.glob("hangs-*"))) == 2)
    pids = [path.name.removeprefix("hangs-") for path in project.root.glob("hangs-*")]
    assert not any(map(is_gone, pids))
    status, out, err = interrupt(process)
    assert status == 130, out + err
    assert all(map(is_gone, pids))


def test_an_interrupt_before_the_agents_are_ready(project: Project) -> None:
    """Ctrl-C ends agents that have started but not answered yet."""
    slow = "import os, threading\nopen(f'begun-{os.getpid()}', 'w').close()\nthreading.Event().wait()\n"
    configure(project, slow)
    project.scenario("scenario('s', turns=['hi'])\nscenario('t', turns=['hi'])")
    process = project.start(*WORKERS)
    wait_until(lambda: len(list(project.root.glob("begun-*"))) == 2)
    status, out, err = interrupt(process)
    assert status == 130, out + err
    assert "Traceback" not in err
    pids = [path.name.removeprefix("begun-") for path in project.root.glob("begun-*")]
    wait_until(lambda: all(map(is_gone, pids)))


def test_a_worker_that_is_killed(project: Project) -> None:
    """Its agent ends, and its conversations run again with other workers' agents."""
    configure(project)
    project.scenario("scenario('k', turns=['kill', 'hi'])\nscenario('s', turns=['hi'])")
    done = project.run(*WORKERS)
    assert done.returncode == 0, done.stdout + done.stderr
    killed = (project.root / "killed").read_text()
    assert all(pid != killed for _, pid, _ in turns(project))
    assert "was killed by SIGKILL" in done.stdout + done.stderr
    wait_until(lambda: is_gone(killed))
    pids = [text.split()[1] for text in logs(project).values()]
    assert killed in pids
    assert all(map(is_gone, pids))


def test_a_run_that_is_killed(project: Project) -> None:
    """Killing the run ends all agents."""
    configure(project)
    project.scenario("for n in range(4):\n    scenario(f's{n}', turns=['meet', 'hang'])")
    process = project.start(*WORKERS)
    wait_until(lambda: len(list(project.root.glob("hangs-*"))) == 2)
    process.kill()
    process.communicate()
    pids = [path.name.removeprefix("hangs-") for path in project.root.glob("hangs-*")]
    wait_until(lambda: all(map(is_gone, pids)))


FIRST_ALONE = """
import os, sys
try:
    os.symlink(str(os.getpid()), "first")  # with its text at once: the first may be killed at any moment
except FileExistsError:
    print("no disk")
    sys.exit(3)
"""


def test_an_agent_that_does_not_start(project: Project) -> None:
    """One error has the worker and the last lines of output; the other worker's agent ends."""
    configure(project, FIRST_ALONE + AGENT)
    project.scenario("scenario('s', turns=['hi'])\nscenario('t', turns=['hi'])")
    done = project.run(*WORKERS)
    assert done.returncode == 2, done.stdout + done.stderr
    assert done.stderr.count("before it was ready\nIts last output:\nno disk") == 1
    assert "agentest: worker " in done.stderr
    assert "Traceback" not in done.stderr
    wait_until(lambda: is_gone((project.root / "first").readlink().name))


def test_failed_turns_have_the_output_of_their_agent(project: Project) -> None:
    """A failed turn shows only output of its own worker's agent."""
    configure(project)
    project.scenario("for n in range(2):\n    scenario(f's{n}', turns=['meet', 'boom'])")
    done = project.run(*WORKERS)
    assert done.returncode == 1, done.stdout + done.stderr
    for scenario in project.results["scenarios"]:
        (held,) = scenario["conversations"]
        (output,) = held["unfinishedTurn"]["serverOutput"]
        pid = held["turns"][0]["agentMessage"].split()[1]
        assert (output["server"], output["lines"]) == ("bot", [f"{pid} went boom"])


def test_an_agent_that_dies(project: Project) -> None:
    """Its conversations fail, and its worker, which would fail all others, gets no more."""
    configure(project)
    config = project.root / "agentest.config.yaml"
    config.write_text(f"{config.read_text()}concurrency: 2\n")
    first = "scenario('a', turns=['die'])\nscenario('b', turns=['after'])\n"
    project.scenario(f"{first}for n in range(6):\n    scenario(f's{{n}}', turns=['hi'])")
    done = project.run(*WORKERS)
    assert done.returncode == 1, done.stdout + done.stderr
    statuses = [each["status"] for each in project.results["scenarios"]]
    assert statuses == ["failed", *["passed"] * 7]
    assert "(server 'bot' had exited with status 3)" in done.stdout
    assert "server 'bot' exited with status 3" in done.stderr
