"""Jobs started from the page: their command lines, their end, and their runs."""

from __future__ import annotations

import asyncio
import re
import signal
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import builders
import httpx
import page_at
import pytest
from project import DEADLINE_S, wait_until
from project import Project as Folder
from ui_server import Client, with_server

from agentest.domain.results import Status
from agentest.plugins.page.server.commands import JobCommand, requested_command
from agentest.plugins.page.server.jobs import MOST_OUTPUT, Job, Jobs, JobState
from agentest.plugins.page.server.json_routes import WebProject
from agentest.plugins.page.server.run_index import WebRuns
from agentest.store.runs.folder import list_stored_runs
from agentest.support.errors import UsageError
from agentest.support.process_groups import OutputTail


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.sim.py").write_text("")
    (tmp_path / "-x.sim.py").write_text("")
    (tmp_path / "s.evalset.json").write_text("{}")
    (tmp_path / "out.sim.py").symlink_to("/etc/hostname")
    return tmp_path


def words(folder: Path, **given: Any) -> list[str]:
    project = WebProject(root=folder, config=None, output_dir=folder / ".agentest")
    with closing(WebRuns(project)) as runs:
        return requested_command(given, project, runs).words()


def test_command_lines_of_jobs(folder: Path) -> None:
    """Options use = and files follow --, so that no name can become an option."""
    assert words(folder, kind="run", paths=["a.sim.py::--offline"]) == ["run", "--", "a.sim.py::--offline"]
    assert words(folder, kind="run", paths=["-x.sim.py"], names=["--x"], conversations=3, offline=True) == [
        "run",
        "--conversations=3",
        "--offline",
        "--scenario==--x",
        "--",
        "-x.sim.py",
    ]
    assert words(folder, kind="eval", file="s.evalset.json", cases=["a", "b"], agent="one") == [
        "eval",
        "--agent=one",
        "--",
        "s.evalset.json:a,b",
    ]


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({}, "`kind` must be"),
        ({"kind": "run", "env": {}}, "'env' is not a key"),
        ({"kind": "run", "paths": ["../a.sim.py"]}, "not in the project"),
        ({"kind": "run", "paths": ["/etc/passwd"]}, "not in the project"),
        ({"kind": "run", "paths": ["out.sim.py"]}, "not in the project"),
        ({"kind": "run", "paths": ["--config=x.py"]}, "not a file of the project"),
        ({"kind": "run", "paths": "a.sim.py"}, "`paths` must be a list"),
        ({"kind": "run", "paths": ["a.sim.py"] * 501}, "too much"),
        ({"kind": "run", "conversations": True}, "`conversations` must be"),
        ({"kind": "run", "conversations": 0}, "`conversations` must be"),
        ({"kind": "run", "offline": "yes"}, "`offline` must be"),
        ({"kind": "eval", "file": "s.evalset.json", "agent": "http://evil"}, "`agent` must be"),
        ({"kind": "eval", "file": "s.evalset.json", "cases": ["a,b"]}, "run its file"),
        ({"kind": "eval"}, "`file` must name"),
        ({"kind": "rerun"}, "`run` must be"),
        ({"kind": "rerun", "run": "../x"}, "is not a run"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_jobs_that_cannot_start_have_a_reason(folder: Path, given: dict[str, Any], says: str) -> None:
    """Each mistake names its key or file."""
    with pytest.raises(UsageError, match=says):
        words(folder, **given)


def test_recorded_sessions_cannot_run_again(folder: Path) -> None:
    """No scenario is behind them: the message names the command that judges them."""
    session = builders.scenario_result("s1", file="traces.jsonl", line=0)
    session = replace(session, verdict=replace(session.verdict, status=Status.FAILED))
    (id,) = page_at.keep_runs(folder, [builders.run_result(session)])
    with pytest.raises(UsageError, match=r"'s1' was recorded, .* agentest judge traces\.jsonl"):
        words(folder, kind="rerun", run=id)


async def ended(client: Client, job: str) -> Any:
    while True:
        _, found = await client.ask("GET", f"/api/jobs/{job}")
        if found["state"] == "ended":
            return found
        await asyncio.sleep(0.05)


def project_in(root: Path) -> Folder:
    """A project whose agent answers at once, or never if it has to wait."""
    project = Folder(root)
    project.write(
        "agent.py",
        "import asyncio\n\n\nasync def answer(messages, ctx):\n"
        "    if 'Wait' in messages[-1]['content']:\n"
        "        open('waits', 'w').close()\n"
        "        await asyncio.sleep(3600)\n"
        "    return 'Hi.'\n",
    )
    project.write(
        "agentest.config.yaml",
        'agent: {type: custom, handler: "agent:answer"}\nreporters: [json]\nrequest_timeout_ms: 3600000\n',
    )
    project.scenario(
        'expected = [call("never")]\n'
        'scenario("fails", turns=["Hello."], trajectory={"match_mode": "strict", "expected": expected})\n'
        'scenario("greets", turns=["Hello."], expect={"says": "Hi"})\n'
    )
    project.scenario('scenario("waits", turns=["Wait."])\n', "waits.sim.py")
    return project


def test_a_run_is_started_and_what_failed_runs_again(tmp_path: Path) -> None:
    """The job names its run; only failed scenarios are repeated."""
    project_in(tmp_path)

    async def work(client: Client) -> None:
        _, found = await client.ask("GET", "/api/scenarios")
        assert [(each["file"], each["name"]) for each in found["scenarios"]] == [
            ("a.sim.py", "fails"),
            ("a.sim.py", "greets"),
            ("waits.sim.py", "waits"),
        ]
        status, job = await client.ask("POST", "/api/jobs", kind="run", paths=["a.sim.py"])
        assert status == 201
        first = await ended(client, job["id"])
        assert (first["status"], first["exitStatus"]) == ("failed", 1)
        _, overview = await client.ask("GET", f"/api/runs/{first['run']}")
        assert overview["run"]["job"] == job["id"]
        _, again = await client.ask("POST", "/api/jobs", kind="rerun", run=first["run"])
        second = await ended(client, again["id"])
        _, overview = await client.ask("GET", f"/api/runs/{second['run']}")
        assert [(row["name"], row["status"]) for row in overview["scenarios"]] == [("fails", "failed")]

    with_server(tmp_path, work)


async def until(condition: Callable[[], bool]) -> None:
    await asyncio.to_thread(wait_until, condition)


@pytest.mark.slow
def test_a_run_is_stopped_and_others_wait_in_line(tmp_path: Path) -> None:
    """Two run at once. A stopped one keeps finished scenarios; a waiting one never starts."""
    project_in(tmp_path)

    async def work(client: Client) -> None:
        jobs = [(await client.ask("POST", "/api/jobs", kind="run"))[1]["id"] for _ in range(3)]
        await until((tmp_path / "waits").exists)
        assert (await client.ask("GET", f"/api/jobs/{jobs[2]}"))[1]["state"] == "waiting"
        for job in reversed(jobs):
            assert (await client.ask("POST", f"/api/jobs/{job}/stop"))[0] == 200
        stopped = [await ended(client, job) for job in jobs]
        assert [job["status"] for job in stopped] == ["interrupted"] * 3
        assert [job["run"] is None for job in stopped][2]

    with_server(tmp_path, work)


def test_a_job_is_stopped_while_its_process_is_being_made(tmp_path: Path) -> None:
    """Stopping between waiting and running takes effect."""
    project_in(tmp_path)

    async def go() -> Job:
        jobs = Jobs(tmp_path, None, tmp_path / ".agentest")
        job = jobs.start(JobCommand(command="run", options=(), about=("waits.sim.py",), title=""))
        try:
            await asyncio.sleep(0)  # its task has begun, and waits for the process
            assert (job.state, job.process) == (JobState.WAITING, None)
            jobs.stop(job)
            assert job.task
            await job.task
        finally:
            await jobs.close()
        return job

    job = asyncio.run(go())
    assert (job.state, job.summary()["status"]) == (JobState.ENDED, "interrupted")


def test_the_end_of_what_is_printed_is_kept() -> None:
    """A character that comes in two pieces is one; of very much that is printed, the end is there."""
    output = OutputTail(MOST_OUTPUT)
    for byte in "naïve ✓".encode():
        output.data_received(bytes([byte]))
    assert (output.text, output.is_cut) == ("naïve ✓", False)
    for _ in range(300):
        output.data_received(b"x" * 1_000)
    assert (len(output.text), output.is_cut) == (100_000, True)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP], ids=["terminated", "hung-up"])
@pytest.mark.slow
def test_runs_end_with_the_server(tmp_path: Path, number: int) -> None:
    """However the server is ended, no run goes on, and each has its results; also while a file that it
    imports hangs."""
    process = project_in(tmp_path).start("--port", "0", command="ui")
    assert process.stdout is not None
    address = next(found[0] for line in process.stdout if (found := re.search(r"http://\S+", line)))
    origin, _, token = address.partition("/?token=")
    asked: dict[str, Any] = {"json": {"kind": "run"}, "headers": {"Authorization": f"Bearer {token}"}}
    assert httpx.post(f"{origin}/api/jobs", timeout=DEADLINE_S, **asked).status_code == 201
    wait_until((tmp_path / "waits").exists)
    (tmp_path / "hangs.sim.py").write_text("import time\nopen('hangs', 'w')\ntime.sleep(3600)\n")
    with suppress(httpx.TimeoutException):
        httpx.get(f"{origin}/api/labels", timeout=0.1, headers=asked["headers"])
    wait_until((tmp_path / "hangs").exists)
    process.send_signal(number)
    _, said = process.communicate(timeout=DEADLINE_S)
    assert (process.returncode, "once more ends at once" in said) == (130, True), said
    (run,) = list_stored_runs(tmp_path / ".agentest")
    assert run.state == "interrupted"


@pytest.mark.slow
def test_failures_before_a_run_are_shown(tmp_path: Path) -> None:
    """List and job show the error of a missing configuration, or of a file that exits."""
    (tmp_path / "a.sim.py").write_text("")

    async def work(client: Client) -> None:
        _, found = await client.ask("GET", "/api/scenarios")
        assert "no configuration found" in found["error"]
        _, job = await client.ask("POST", "/api/jobs", kind="run")
        failed = await ended(client, job["id"])
        assert (failed["status"], failed["run"]) == ("errored", None)
        assert "no configuration found" in failed["output"]
        project_in(tmp_path).write("ends.sim.py", "import os\nprint('}{', flush=True)\nos._exit(3)\n")
        _, found = await client.ask("GET", "/api/scenarios")
        assert "importing the scenario files ended the process (exit status 3)\n}{" in found["error"]
        (tmp_path / "ends.sim.py").unlink()
        _, found = await client.ask("GET", "/api/scenarios")
        assert (found["error"], len(found["scenarios"])) == ("", 3)
        assert (await client.ask("GET", "/api/scenarios"))[1] == found

    with_server(tmp_path, work)
