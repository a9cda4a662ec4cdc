"""Exit statuses: 1 means only that a scenario failed."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from project import COMMAND, DEADLINE_S, Project, clean_environment

from agentest.testing import ScriptedAgent, tool_call

full_disk = pytest.mark.skipif(not Path("/dev/full").exists(), reason="this system has no /dev/full")


def many_scenarios(project: Project) -> None:
    project.scenario(
        "for n in range(2_000):\n    scenario(f'a long name of a scenario, number {n}', turns=['x'])"
    )
    project.config("http://127.0.0.1:9/")


@pytest.mark.parametrize("command", ["run --list", "run --dry-run"])
@pytest.mark.slow
def test_a_closed_pipe_is_not_an_error(project: Project, command: str) -> None:
    """A reader that stops early, as `head` does, causes status 0 and no message."""
    many_scenarios(project)
    process = project.start(*command.split()[1:], command=command.split()[0])
    with process:
        assert process.stdout is not None
        assert process.stdout.readline()
        process.stdout.close()
        assert process.stderr is not None
        assert (process.stderr.read(), process.wait(DEADLINE_S)) == ("", 0)


def without_reader(project: Project, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command that writes to a pipe without a reader."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as pipe:
        return project.agentest(*arguments, stdout=pipe.fileno())


@pytest.mark.parametrize("command", ["--help", "run --help", "--version"])
def test_help_into_a_closed_pipe(project: Project, command: str) -> None:
    """A reader that is gone before the first line is not an error."""
    done = without_reader(project, *command.split())
    assert (done.returncode, done.stderr) == (0, "")


def test_a_run_goes_on_without_its_reader(project: Project) -> None:
    """A run without a reader of its console still ends with its verdict and results."""
    project.scenario('scenario("s", turns=[{"user_message": "x", "expect": {"contains": "never"}}])')
    with ScriptedAgent(["fine"]) as agent:
        project.config(agent.endpoint)
        done = without_reader(project, "run", "--verbose")
    assert (done.returncode, done.stderr) == (1, "")
    assert project.scenario_result("s")["status"] == "failed"


@full_disk
@pytest.mark.parametrize(
    "command",
    ["run --list", "run --dry-run", "--help", "run"],
)
def test_output_that_cannot_be_written_is_status_2(project: Project, command: str) -> None:
    """A message explains it, because the output is incomplete."""
    project.scenario('scenario("s", turns=["x"])')
    with ScriptedAgent(["fine"]) as agent:
        project.config(agent.endpoint)
        with Path("/dev/full").open("wb") as full:
            done = project.agentest(*command.split(), stdout=full.fileno())
    assert done.returncode == 2
    told, *more = done.stderr.strip().splitlines()
    assert "standard output cannot be written to: No space left on device" in told
    # How the run ended, which the console could not say.
    assert more == (["agentest: passed: 1 passed; .agentest/results.json"] if command == "run" else [])


@full_disk
def test_messages_that_cannot_be_written_are_ignored(project: Project) -> None:
    """The status does not change."""
    project.scenario('scenario("s", turns=["x"])')
    project.config("http://127.0.0.1:9/")
    with Path("/dev/full").open("wb") as full:
        assert project.run("--list", stderr=full.fileno()).returncode == 0
        assert project.run(stderr=full.fileno()).returncode == 2
        assert project.run(stdout=full.fileno(), stderr=full.fileno()).returncode == 2


UNEXPECTED = {
    "RuntimeError('Bearer abcdefgh-zq')": "RuntimeError: Bearer [redacted]",
    "SystemExit(1)": "SystemExit: 1",
    "SystemExit(0)": "SystemExit: 0",
    "MemoryError()": "MemoryError",
    "BrokenPipeError(32, 'gone')": "BrokenPipeError: [Errno 32] gone",
    "BaseExceptionGroup('g', [KeyError('k')])": "KeyError: 'k'",
}


@pytest.mark.parametrize("error", UNEXPECTED)
def test_an_unexpected_error_is_status_2(project: Project, error: str) -> None:
    """The message has the error and its place; status 1 would blame the agent."""
    project.scenario('scenario("s", turns=["x"])')
    # The configuration's own type breaks where no user's code is expected to run.
    project.write(
        "agentest.config.py",
        "from collections.abc import Mapping\n"
        "class Breaks(Mapping):\n"
        f"    def __iter__(self): raise {error}\n"
        "    def __len__(self): return 1\n"
        "    def __getitem__(self, key): return None\n"
        "config = Breaks()\n",
    )
    done = project.run()
    assert done.returncode == 2
    first, *rows = done.stderr.strip().splitlines()
    assert first == f"agentest: an unexpected error ended the program: {UNEXPECTED[error]}"
    assert any("agentest.config.py" in row for row in rows)
    assert "Traceback" not in done.stderr
    assert "zq" not in done.stderr


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--no-such-option",), "No such option"),
        (("no-such-command",), "No such command"),
        (("test",), "No such command 'test': use `agentest run`."),
        (("run", "-x"), "No such option '-x': use `--fail-fast`."),
        (("run", "--cwd", "no-such-folder"), "--cwd: the folder no-such-folder does not exist"),
        (("run", "--conversations", "0"), "0 is not in the range"),
        (("run", "--watch", "--list"), "exclude each other"),
    ],
)
def test_bad_usage_is_status_2(project: Project, arguments: tuple[str, ...], expected: str) -> None:
    """A message explains it."""
    done = project.agentest(*arguments)
    assert (done.returncode, done.stdout) == (2, "")
    assert expected in done.stderr
    assert "Traceback" not in done.stderr


def damaged(good: str) -> dict[str, bytes]:
    data = json.loads(good)
    scenario = data["scenarios"][0]
    return {
        "empty": b"",
        "binary": bytes(range(256)) * 40,
        "truncated": good.encode()[:-300],
        "a number": b"17",
        "too many digits": b'{"a": ' + b"9" * 10_000 + b"}",
        "deep": b"[" * 100_000,
        "another shape": b'{"hello": ["world"]}',
        "no scenarios": json.dumps({**data, "scenarios": None}).encode(),
        "unknown status": json.dumps({**data, "scenarios": [{**scenario, "status": "fine"}]}).encode(),
        "no conversations": json.dumps({**data, "scenarios": [{**scenario, "conversations": 3}]}).encode(),
        "null bytes": good.encode("utf-16"),
        "journal": b'{"type": "run"}\n{"type": "end", "run": 3}\n',
        "journal without a head": b'{"type": "run"}\n{"type": "end", "run": {}}\n',
        "journal of nothing": b'{"type": "run"}\n',
        "journal with bytes": b'{"type": "run"}\n\xff\xfe\n',
        "journal of a conversation": (
            b'{"type": "run", "agents": 3}\n'
            b'{"type": "conversation", "scenario": "s", "agent": "a", "number": 1, "conversation": {}}\n'
        ),
    }


@pytest.mark.slow
def test_damaged_results_are_refused(project: Project) -> None:
    """Every command that reads results refuses a file that no run wrote, with a message."""
    project.scenario('scenario("s", turns=["x"])')
    with ScriptedAgent(["fine"]) as agent:
        project.config(agent.endpoint)
        project.run()
    good = (project.root / ".agentest" / "results.json").read_text()
    (project.root / "folder").mkdir()
    for name, content in damaged(good).items():
        (project.root / name).write_bytes(content)
    script = project.write("read_all.py", READ_ALL)
    done = subprocess.run(
        [COMMAND[0], str(script), *damaged(good), "folder", "not there"],
        cwd=project.root,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    told = json.loads(done.stdout)
    assert len(told) == 18 * 3
    for where, (status, message) in told.items():
        assert status == 2, (where, message)
        assert "unexpected error" not in message, (where, message)
        assert where.partition(": ")[2] in message


READ_ALL = """
import contextlib, io, json, sys
from agentest.cli.main import main

told = {}
for name in sys.argv[1:]:
    for command in (["coverage", "--results", name], ["judge", name], ["export", name, "--to", "scenario"]):
        sys.argv = ["agentest", *command]
        out, err = io.StringIO(), io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            try:
                main()
            except SystemExit as end:
                told[f"{command[0]}: {name}"] = (end.code, err.getvalue())
print(json.dumps(told))
"""


MOCK = "def pay():\n    {call}\n\n\nscenario('two', turns=['pay'], tools={{'pay': pay}})"
MODULE = "{call}\nscenario('two', turns=['pay'])"
CALLS = (
    "os._exit(0)",
    "posix._exit(0)",
    "os.abort()",
    "os.execv('/bin/true', ['true'])",
    "os.kill(os.getpid(), 9)",
    "os.killpg(0, 9)",
    "signal.raise_signal(9)",
)


@pytest.mark.parametrize("source", [MOCK, MODULE], ids=["mock", "module"])
@pytest.mark.parametrize("call", CALLS)
def test_user_code_cannot_end_the_run(project: Project, source: str, call: str) -> None:
    """The status is 2, the message says where, and everything else ran and was reported."""
    project.scenario("scenario('one', turns=['hi'])")
    project.write(
        "scenarios/ends.sim.py",
        "import os, posix, signal\nfrom agentest import scenario\n" + source.format(call=call),
    )

    def answer(body: Mapping[str, Any]) -> Any:
        pays = body["messages"][-1]["content"] == "pay"
        return tool_call("pay") if pays else "fine"

    with ScriptedAgent(answer) as agent:
        project.config(agent.endpoint)
        done = project.agentest("run")
    assert done.returncode == 2
    assert "ends.sim.py:" in done.stderr
    assert f"agentest: {call.partition('(')[0]}(" in done.stderr
    statuses = {each["name"]: each["status"] for each in project.results["scenarios"]}
    assert statuses.pop("one") == "passed"
    assert list(statuses.values()) == ["errored"]


def test_user_code_may_signal_other_processes(project: Project) -> None:
    """A mock that checks its own process or ends a child does not stop the run."""
    project.scenario(
        """
import os, signal, subprocess, sys

def pay():
    os.kill(os.getpid(), 0)
    os.kill(os.getpid(), signal.SIGCHLD)
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    os.kill(child.pid, signal.SIGKILL)
    return child.wait()

scenario("pays", turns=["pay"], tools={"pay": pay}, trajectory={"expected": ["pay"]})
"""
    )
    with ScriptedAgent([tool_call("pay"), "fine"]) as agent:
        project.config(agent.endpoint)
        done = project.agentest("run")
    [call] = project.results["scenarios"][0]["conversations"][0]["turns"][0]["toolCalls"]
    assert (done.returncode, done.stderr, call["result"]) == (0, "", -9)
