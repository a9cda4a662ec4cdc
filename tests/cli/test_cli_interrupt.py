"""Interrupting a run: reports of finished scenarios, exit status 130, no process left behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading

import pytest
from early_interrupt import check_early_interrupt
from project import COMMAND, DEADLINE_S, Project, answers, clean_environment, free_port, interrupt, wait_until

from agentest.store.runs.folder import list_stored_runs
from agentest.testing import ScriptedAgent

SLOW_SERVER = """
import http.server, sys, threading
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers()
    def do_POST(self): threading.Event().wait()
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


@pytest.mark.slow
def test_ctrl_c_before_there_is_an_event_loop(project: Project) -> None:
    """A partly created loop would print a traceback, so the interrupt waits for a complete one."""
    check_early_interrupt(project, "run", "--offline")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
@pytest.mark.parametrize("module", ["click", "agentest.cli.run_command", "agentest.runner.prepare"])
@pytest.mark.parametrize("wait", ["threading.Event().wait()", "exec('threading.Event().wait()')"])
def test_a_signal_during_imports(project: Project, number: signal.Signals, module: str, wait: str) -> None:
    """From the first import on, the exit status is 130, and no traceback is printed."""
    project.config("http://127.0.0.1:1/v1")
    code = (
        f"import runpy, sys, threading\n"
        f"class Finder:\n    def find_spec(name, *_):\n        if name == {module!r}:\n"
        f"            print('here', flush=True)\n            {wait}\n"
        f"sys.meta_path.insert(0, Finder)\nrunpy.run_module('agentest', run_name='__main__')"
    )
    project.write("hooked.py", code)
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen(
        [sys.executable, "-m", "hooked", "run"], cwd=project.root, env=clean_environment(), **pipes
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "here\n"
        process.send_signal(number)
        _, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, err
    assert err.strip() in ("", "agentest: interrupted")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_while_the_interpreter_exits(number: signal.Signals) -> None:
    """It is too late to change the exit status."""
    code = (
        f"import os, runpy\nclass Last:\n    def __del__(self, kill=os.kill, process=os.getpid()):\n"
        f"        kill(process, {number})\nlast = Last()\nrunpy.run_module('agentest', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", code, "--version"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_ctrl_c_writes_what_had_finished(project: Project) -> None:
    """After Ctrl-C reports have the finished scenario, and the unfinished one is not passed."""
    hanging = threading.Event()

    def answer(body: dict) -> str:
        if body["messages"][-1]["content"] == "wait":
            hanging.set()
            threading.Event().wait(DEADLINE_S)
        return "done"

    project.scenario('scenario("quick", turns=["go"])\nscenario("slow", turns=["go", "wait"])')
    with ScriptedAgent(answer) as agent:
        project.config(agent.endpoint)
        process = project.start("--config", "agentest.config.yaml")
        assert hanging.wait(DEADLINE_S)
        assert process.stdout is not None
        while "quick" not in process.stdout.readline():
            pass  # its line is printed when it has finished
        code, out, err = interrupt(process)
    assert code == 130, out + err
    assert "Traceback" not in err
    assert "agentest run --resume --config=agentest.config.yaml runs the rest." in out
    assert project.scenario_result("quick")["status"] == "passed"
    assert project.scenario_result("slow")["status"] == "errored"
    assert project.results["interrupted"] is True
    assert project.results["summary"]["passed"] is False


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_agents_server_ends_with_the_run(project: Project, number: signal.Signals) -> None:
    """However the run is killed, its server is gone afterwards."""
    port = free_port()
    project.write("server.py", SLOW_SERVER)
    project.write(
        "agentest.config.yaml",
        f"agent:\n  endpoint: http://127.0.0.1:{port}/v1\n  server:\n"
        f"    command: ['{sys.executable}', server.py, '{port}']\n    ready: 'http://127.0.0.1:{port}/'\n",
    )
    project.scenario('scenario("s", turns=["x"])')
    process = project.start()
    wait_until(lambda: answers(port))
    process.send_signal(number)
    process.communicate(timeout=DEADLINE_S)
    wait_until(lambda: not answers(port))
    assert process.returncode in (130, -signal.SIGKILL)


LINKS = """
import os
def handler(messages, ctx):
    open("links", "w").write(" ".join(os.readlink(f"/proc/self/fd/{n}") for n in range(3)))
    return "hi"
config = {"agent": {"type": "custom", "handler": handler}}
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_closed_streams_and_too_few_descriptors(project: Project) -> None:
    """No file of a run gets the number of a closed stream; a lack of descriptors is no mistake of ours."""
    project.write("agentest.config.py", LINKS)
    project.scenario('scenario("s", turns=["x"], expect={"says": "hi"})')

    def run(shell: str) -> subprocess.CompletedProcess[str]:
        words = ["/bin/sh", "-c", shell, *COMMAND, "run"]
        return subprocess.run(
            words, cwd=project.root, env=clean_environment(), capture_output=True, text=True
        )

    assert run('exec "$0" "$@" <&- >&- 2>&-').returncode == 0
    assert (project.root / "links").read_text() == " ".join(["/dev/null"] * 3)
    done = run('ulimit -n 6; exec "$0" "$@"')
    assert (done.returncode, "mistake" in done.stderr) == (2, False)
    assert "no file descriptors are left; allow more: ulimit -n 1024" in done.stderr
    few = {number: run(f'ulimit -n {number}; exec "$0" "$@"') for number in (9, 10, 12)}
    assert [done for done in few.values() if done.returncode not in (0, 2)] == [], "the agent is not to blame"
    assert few[12].returncode == 0


def test_a_server_that_was_running_is_left_running(project: Project) -> None:
    """With `reuse`, an existing server is used and not stopped."""
    with ScriptedAgent(["hi"]) as agent:
        project.write(
            "agentest.config.yaml",
            f"agent:\n  endpoint: {agent.endpoint}\n"
            f"  server: {{command: 'exit 1', ready: '{agent.endpoint}'}}\n",
        )
        project.scenario('scenario("s", turns=["x"], expect={"says": "hi"})')
        assert project.run().returncode == 0
        assert project.run().returncode == 0


def test_watch_runs_again_when_a_helper_changes(project: Project) -> None:
    """--watch runs again when a module that a scenario imports changes, and ends with Ctrl-C."""
    project.write("helper.py", 'TEXT = "one"\n')
    project.scenario('from helper import TEXT\nscenario("s", turns=[TEXT])')
    with ScriptedAgent(["y"]) as agent:
        project.config(agent.endpoint)
        process = project.start("--watch")
        try:
            wait_until(lambda: len(agent.requests) == 1)
            assert process.stderr is not None
            assert "waiting for changes" in process.stderr.readline()

            def changed() -> bool:
                # Written again until it is seen: the watcher may not have begun to look yet.
                project.write("helper.py", 'TEXT = "two"\n')
                return len(agent.requests) >= 2

            wait_until(changed)
        finally:
            code, _, _ = interrupt(process)
    assert code == 130
    assert [r["messages"][-1]["content"] for r in agent.requests][:2] == ["one", "two"]


SWALLOWS = """
from pathlib import Path
import threading
try:
    Path("here").touch()
    threading.Event().wait()
except BaseException:
    pass
scenario("s", turns=["x"])
"""


def test_watch_ends_while_it_prepares(project: Project) -> None:
    """Ctrl-C ends --watch even if a scenario file catches the exception."""
    project.scenario(SWALLOWS)
    with ScriptedAgent(["y"]) as agent:
        project.config(agent.endpoint)
        process = project.start("--watch")
        wait_until((project.root / "here").exists)
        code, out, err = interrupt(process)
    assert code == 130, out + err


def test_watch_ends_while_a_server_starts(project: Project) -> None:
    """Ctrl-C makes the server's start fail, which is not an error to wait on."""
    project.write("server.py", "import pathlib, time\npathlib.Path('here').touch()\ntime.sleep(1000)\n")
    server = {"command": [sys.executable, "server.py"], "ready": f"http://127.0.0.1:{free_port()}/"}
    project.config("http://127.0.0.1:9/v1", agent={"endpoint": "http://127.0.0.1:9/v1", "server": server})
    project.scenario('scenario("s", turns=["x"])')
    process = project.start("--watch")
    wait_until((project.root / "here").exists)
    code, out, err = interrupt(process)
    assert code == 130, out + err


BLOCKS = """
import asyncio, threading
from pathlib import Path
async def handler(messages, ctx):
    if messages[-1]["content"] == "block":
        while '"type": "scenario"' not in Path(".agentest/journal.jsonl").read_text():
            await asyncio.sleep(0.01)
        Path("here").touch()
        while True:
            threading.Event().wait()
    return "fine"
config = {"agent": {"type": "custom", "handler": handler}, "concurrency": 1}
"""


@pytest.mark.slow
def test_a_second_ctrl_c_leaves_everything_in_order(project: Project) -> None:
    """It ends a blocked run at once, with the cursor restored and results.json of what had finished."""
    project.write("agentest.config.py", BLOCKS)
    quick = '{"user_message": "go", "expect": {"says": "fine"}}'
    project.scenario(f'scenario("quick", turns=[{quick}])\nscenario("stuck", turns=["block"])')
    ours, theirs = os.openpty()
    process = subprocess.Popen(
        [*COMMAND, "run"],
        cwd=project.root,
        env=clean_environment({"TERM": "xterm"}),
        stdout=theirs,
        stderr=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
    )
    os.close(theirs)
    shown = bytearray()
    reader = threading.Thread(target=drain, args=(ours, shown), daemon=True)
    reader.start()
    wait_until((project.root / "here").exists)
    process.send_signal(signal.SIGINT)
    assert process.stderr is not None
    while b"once more ends at once" not in process.stderr.readline():
        pass
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=DEADLINE_S)
    reader.join(DEADLINE_S)
    assert process.returncode == 130
    assert shown.rindex(b"\x1b[?25h") > shown.rindex(b"\x1b[?25l")
    assert b"agentest: .agentest/results.json has 1 finished conversation; agentest run --resume" in err
    assert {s["name"]: s["status"] for s in project.results["scenarios"]} == {
        "quick": "passed",
        "stuck": "errored",
    }
    assert project.results["interrupted"]
    assert (project.results["summary"]["passedScenarios"], project.results["summary"]["passed"]) == (1, False)
    (run,) = list_stored_runs(project.root / ".agentest")
    assert run.state == "interrupted"


def drain(terminal: int, into: bytearray) -> None:
    """Read a terminal to its end."""
    with contextlib.suppress(OSError):  # how the end of a terminal is told
        while piece := os.read(terminal, 65536):
            into += piece


def test_no_process_is_left_after_a_normal_run(project: Project) -> None:
    """A server that the run started, and its children, end with the run."""
    port = free_port()
    project.write(
        "server.py",
        SLOW_SERVER.replace("threading.Event().wait()", "self.answer()").replace(
            "    def log_message",
            "    def answer(self):\n"
            '        body = b\'{"choices": [{"message": {"content": "hi"}}]}\'\n'
            "        self.send_response(200); self.send_header('content-length', str(len(body)))\n"
            "        self.end_headers(); self.wfile.write(body)\n"
            "    def log_message",
        ),
    )
    project.write("pids.txt", "")
    project.write(
        "agentest.config.yaml",
        f"agent:\n  endpoint: http://127.0.0.1:{port}/v1\n  server:\n"
        f"    command: sleep 1000 & echo $! > pids.txt; exec {sys.executable} server.py {port}\n"
        f"    ready: 'http://127.0.0.1:{port}/'\n",
    )
    project.scenario('scenario("s", turns=["x"], expect={"says": "hi"})')
    done = project.run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert not answers(port)
    child = int((project.root / "pids.txt").read_text())

    def state() -> str:
        shown = subprocess.run(["ps", "-o", "stat=", "-p", str(child)], capture_output=True, text=True)
        return shown.stdout.strip()

    wait_until(lambda: state()[:1] in ("", "Z"))  # killed, it still has to get to its end
