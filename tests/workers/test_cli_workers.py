"""`--workers` on the command line: same results, shared limits, and no process left behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from model_server import ModelServer, best, model_keys
from project import DEADLINE_S, Project, answers, free_port, wait_until
from timeless import timeless

from agentest.testing import ScriptedAgent, tool_call

HANDLER = """
import os, threading
from pathlib import Path

async def handler(messages, ctx):
    said = messages[-1]["content"]
    if said == "die":
        os.kill(os.getpid(), 9)
    if said == "hang":
        Path(f"pid.{os.getpid()}").touch()
        await __import__("anyio").sleep_forever()
    if said == "block":
        Path(f"pid.{os.getpid()}").touch()
        threading.Event().wait()
    if said == "compute":
        Path(f"pid.{os.getpid()}").touch()
        sum(range(10**14))
    if said == "call":
        await ctx.resolve_tool("t", ARGS)
    return REPLY
"""
DIE_ONCE = """
def died(*killing):
    Path("died").touch()
    os.kill(*killing)
"""
CONFIG = """
config = {
    "agent": {"type": "custom", "name": "h", "handler": handler},
    "reporters": ["console", "json"],
    "strict": False,
}
"""


def handled(project: Project, args: str = "{}", reply: str = "'fine'", more: str = "") -> None:
    """Configure a Python function as the agent, which runs in the workers."""
    project.write("agentest.config.py", f"{HANDLER}\nARGS = {args}\nREPLY = {reply}\n{CONFIG}\n{more}\n")


def scenarios(project: Project, **turns: str) -> None:
    """Write scripted scenarios: name → the only user message."""
    lines = [f'scenario("{name}", turns=["{said}"], tools=tools)' for name, said in turns.items()]
    project.scenario("\n".join(['tools = {"t": lambda args: {"ok": True}}', *lines]))


def one_and_three(project: Project, *arguments: str) -> tuple[Any, Any]:
    """The results of one worker and of three, without times; their exit statuses must be equal."""
    one = project.run(*arguments)
    alone = timeless(project.results)
    three = project.run("--workers", "3", *arguments)
    assert three.returncode == one.returncode, three.stdout + three.stderr
    assert three.stderr == one.stderr
    return alone, timeless(project.results)


def alive(process: int) -> bool:
    """Return whether a process runs; a zombie does not."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state not in "ZX"


def hanging(project: Project) -> list[int]:
    """The workers in which a handler hangs or hung."""
    return [int(path.suffix[1:]) for path in project.root.glob("pid.*")]


def two_hanging(project: Project) -> list[int]:
    """Wait for two workers in which a handler hangs, and return them."""
    wait_until(lambda: len(hanging(project)) == 2)
    return hanging(project)


def test_results_are_those_of_one_process(project: Project) -> None:
    """Judged, failing, errored, skipped and broken scenarios have equal results in the same order."""
    project.write(
        "metrics.py",
        "from agentest import QuantitativeMetric\n"
        "class Length(QuantitativeMetric):\n    def score(self, input):\n"
        "        return len(input.agent_message)\n",
    )
    project.scenario(
        "def broken(args):\n    raise RuntimeError('no')\n"
        "for n in range(7):\n    scenario(f's{n}', goal='Get help.')\n"
        "scenario('fails', turns=['x'], trajectory={'expected': ['t'], 'match_mode': 'contains'})\n"
        "scenario('errs', turns=['call'], tools={'t': lambda args: open})\n"
        "scenario('later', turns=['x'], skip='not yet')"
    )
    project.scenario("1 / 0", name="b.sim.py")

    def agent_says(body: dict[str, Any]) -> Any:
        last = body["messages"][-1]
        return tool_call("t") if last["content"] == "call" else "sure"

    with ScriptedAgent(agent_says) as agent, ModelServer(script=best) as model:
        project.config(
            agent.endpoint, custom_metrics=["metrics:Length"], compare=[{"name": "b"}], **model_keys(model)
        )
        alone, three = one_and_three(project, "--conversations", "2")
    assert alone == three
    names = [scenario["name"] for scenario in three["scenarios"]]
    assert [name for name in names if name.startswith("s")] == [f"s{n}" for n in range(7)]


def test_values_of_every_kind_are_sent(project: Project) -> None:
    """Objects without JSON form, deep nesting, cycles and megabytes work."""
    handled(
        project,
        args='{"object": Odd(), "deep": deep, "loop": loop, "number": float("nan"), "pair": (1, 2)}',
        reply='"x" * 3_000_000',
    )
    config = project.root / "agentest.config.py"
    config.write_text(
        "class Odd:\n    def __str__(self): return 'an odd one'\n"
        "deep = []\nfor _ in range(400): deep = [deep]\nloop = []\nloop.append(loop)\n" + config.read_text()
    )
    scenarios(project, a="call", b="call", c="call")
    alone, three = one_and_three(project, "--verbose")
    assert alone == three
    call = three["scenarios"][0]["conversations"][0]["turns"][0]["toolCalls"][0]
    assert call["args"]["object"] == "an odd one"
    assert call["args"]["pair"] == [1, 2]


def test_a_value_that_cannot_be_shown_is_an_error(project: Project) -> None:
    """If a value cannot be converted to text, the run reports it and ends."""
    handled(project, args='{"object": Hostile()}')
    config = project.root / "agentest.config.py"
    hostile = "class Hostile:\n    def __str__(self): raise ValueError('not me')\n    __repr__ = __str__\n"
    config.write_text(hostile + config.read_text())
    scenarios(project, a="call", b="hello")
    done = project.run("--workers", "2")
    assert done.returncode == 2
    assert "conversation a-1 cannot be written: ValueError: not me" in done.stdout
    assert project.scenario_result("a")["status"] == "errored"
    assert project.scenario_result("b")["status"] == "passed"
    assert "Traceback" not in done.stderr


def test_a_conversation_that_kills_its_workers_is_errored(project: Project) -> None:
    """It runs in three workers one after another; all others run and count once."""
    handled(project)
    project.scenario(
        'for n in range(6):\n    scenario(f"s{n}", turns=["hello"], conversations_per_scenario=5)\n'
        'scenario("c", turns=["die"])'
    )
    done = project.run("--workers", "2")
    assert done.returncode == 2, done.stdout + done.stderr
    assert "a worker process was killed by SIGKILL while it ran the conversation, 3 times" in done.stdout
    found = {scenario["name"]: scenario for scenario in project.results["scenarios"]}
    assert found.pop("c")["status"] == "errored"
    assert {each["status"] for each in found.values()} == {"passed"}
    assert [len(each["conversations"]) for each in found.values()] == [5] * 6


def test_conversations_of_a_killed_worker_run_again(project: Project) -> None:
    """Another worker runs them with new ids: the run passes and reports what was lost."""
    handled(project)
    config = project.root / "agentest.config.py"
    config.write_text(config.read_text().replace("os.kill(", "Path('died').exists() or died(", 1) + DIE_ONCE)
    scenarios(project, a="hello", b="die")
    done = project.run("--workers", "2")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 unfinished conversation will run again" in done.stderr + done.stdout
    (held,) = project.scenario_result("b")["conversations"]
    assert held["conversationId"] == "b-1-retry1"
    assert not list(project.root.glob("pid.*"))


def test_a_run_whose_workers_parent_is_killed_says_so(project: Project) -> None:
    """The message is on standard error, since standard output may be a report; nothing runs again."""
    handled(project)
    scenarios(project, a="hello", b="hang", c="hang")
    process = project.start("--workers", "2", "--reporter", "json")
    worker = two_hanging(project)[0]
    parent = int(Path(f"/proc/{worker}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(parent, signal.SIGKILL)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 2, out + err
    assert err.count("the process that starts workers was killed, by somebody or for lack of memory") == 1
    assert "run again" not in out + err
    assert "Traceback" not in err


@pytest.mark.parametrize("said", ["hang", "block", "compute"])
def test_no_worker_survives_its_parent(project: Project, said: str) -> None:
    """A killed run leaves no process that waits, blocks or runs C code."""
    handled(project)
    scenarios(project, a=said, b=said)
    process = project.start("--workers", "2", "--concurrency", "2")
    workers = two_hanging(project)
    process.kill()
    process.communicate(timeout=DEADLINE_S)
    wait_until(lambda: not any(alive(pid) for pid in workers))


def test_ctrl_c_of_a_terminal_reaches_all_processes(project: Project) -> None:
    """Workers ignore the signal: finished scenarios are reported, with one message, no traceback."""
    handled(project)
    scenarios(project, a="hello", b="hang", c="hang")
    process = project.start("--workers", "3", "--concurrency", "3")
    workers = two_hanging(project)
    wait_until(lambda: project.finished == ["a"])
    for pid in (*workers, process.pid):
        os.kill(pid, signal.SIGINT)
    out, err = process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130, out + err
    assert err.count("stopping") == 1
    assert "Traceback" not in err + out
    assert project.scenario_result("a")["status"] == "passed"
    assert project.scenario_result("b")["status"] == "errored"
    assert project.results["interrupted"] is True
    assert not any(alive(pid) for pid in workers)


def test_a_second_signal_ends_at_once(project: Project) -> None:
    """A second SIGTERM ends a run whose workers are blocked, and the workers."""
    handled(project)
    scenarios(project, a="block", b="block")
    process = project.start("--workers", "2", "--concurrency", "2")
    workers = two_hanging(project)
    assert process.stderr is not None
    process.terminate()
    while "once more ends at once" not in process.stderr.readline():
        pass
    process.terminate()
    process.communicate(timeout=DEADLINE_S)
    assert process.returncode == 130
    wait_until(lambda: not any(alive(pid) for pid in workers))


def test_programs_of_a_handler_receive_signals(project: Project) -> None:
    """A program started in a worker does not inherit that Ctrl-C is ignored."""
    shown = "import signal; print(signal.getsignal(signal.SIGINT) is signal.default_int_handler)"
    reply = f"subprocess.run([{sys.executable!r}, '-c', {shown!r}], capture_output=True, text=True).stdout"
    project.write(
        "agentest.config.py",
        f"import subprocess\nasync def handler(messages, ctx):\n    return {reply}\n{CONFIG}",
    )
    scenarios(project, a="x", b="y")
    assert project.run("--workers", "2").returncode == 0
    turn = project.results["scenarios"][0]["conversations"][0]["turns"][0]
    assert turn["agentMessage"].strip() == "True"


def test_fail_fast_stops_all_workers(project: Project) -> None:
    """A failed scenario in one worker stops the others."""
    handled(project)
    project.scenario(
        'scenario("fails", turns=["x"], trajectory={"expected": ["t"], "match_mode": "contains"})\n'
        'scenario("waits", turns=["hang"])'
    )
    done = project.run("--workers", "2", "--fail-fast")
    assert done.returncode == 1, done.stdout + done.stderr
    assert project.scenario_result("waits")["status"] == "skipped"
    assert project.results["stopped"] == "stopped by --fail-fast"


def test_a_budget_is_shared_by_all_workers(project: Project) -> None:
    """All processes share --max-llm-calls, with one message."""
    # A judge is asked many things at a time, a user one.
    project.scenario("for n in range(8):\n    scenario(f's{n}', goal='Get help.', metrics=[])")
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=best) as model:
        project.config(agent.endpoint, **model_keys(model))
        done = project.run("--workers", "3", "--max-llm-calls", "25", "--concurrency", "3")
        assert 23 <= len(model.received) <= 25
    assert done.returncode == 2
    assert done.stderr.count("--max-llm-calls") == 1


def test_recordings_are_made_and_replayed(project: Project) -> None:
    """Workers and a single process both replay what workers recorded, without a model."""
    project.scenario("for n in range(5):\n    scenario(f's{n}', goal='Get help.')")
    with ScriptedAgent(["sure"]) as agent:
        with ModelServer(script=best) as model:
            project.config(agent.endpoint, **model_keys(model))
            assert project.run("--workers", "3", "--record").returncode == 0
        recorded = timeless(project.results)
        project.config(agent.endpoint)
        replayed = one_and_three(project, "--replay")
    assert replayed == (recorded, recorded)
    folder = project.root / ".agentest" / "cassettes"
    assert len(list(folder.glob("*.jsonl"))) == 5
    assert not list(folder.glob("*.partial"))


@pytest.mark.slow
def test_an_unfinished_recording_replaces_nothing(project: Project) -> None:
    """Old recordings also remain for a worker that finished before another one was stopped."""
    project.scenario("for n in range(4):\n    scenario(f's{n}', goal='Get help.')")
    folder = project.root / ".agentest" / "cassettes"
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=best) as model:
        project.config(agent.endpoint, **model_keys(model))
        assert project.run("--workers", "2", "--record").returncode == 0
        before = {path.name: path.read_bytes() for path in folder.glob("*.jsonl")}
        assert project.run("--workers", "2", "--record", "--max-llm-calls", "60").returncode == 2
        assert {path.name: path.read_bytes() for path in folder.glob("*.jsonl")} == before
        assert list(folder.glob("*.partial"))
        # Another server: what the stopped run has asked may still arrive at its own.
        with ModelServer(script=best) as unasked:
            project.config(agent.endpoint, **model_keys(unasked))
            assert project.run("--workers", "2", "--replay-or-record").returncode == 0
        assert not unasked.received  # all of it stood in the old recordings
    assert not list(folder.glob("*.partial"))


def test_a_damaged_recording_is_refused_before_the_run(project: Project) -> None:
    """All workers together give one message and exit status 2."""
    project.scenario("for n in range(3):\n    scenario(f's{n}', goal='Get help.')")
    with ScriptedAgent(["sure"]) as agent, ModelServer(script=best) as model:
        project.config(agent.endpoint, **model_keys(model))
        project.run("--record")
        damaged = sorted((project.root / ".agentest" / "cassettes").glob("*.jsonl"))[1]
        damaged.write_bytes(damaged.read_bytes()[:-20])
        done = project.run("--workers", "3", "--replay-or-record")
    assert done.returncode == 2
    assert done.stderr.count(damaged.name) == 1
    assert "Traceback" not in done.stderr


SERVER = """
import http.server, os, pathlib, sys
pathlib.Path(f"server.{os.getpid()}").touch()
BODY = b'{"choices": [{"message": {"content": "hi"}}]}'
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.answer()
    def do_POST(self): self.answer()
    def answer(self):
        self.send_response(200)
        self.send_header("content-length", str(len(BODY)))
        self.end_headers()
        self.wfile.write(BODY)
    def log_message(self, *a): pass
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def serving(project: Project, port: int, script: str = SERVER) -> None:
    project.write("server.py", script)
    server = {
        "command": [sys.executable, "server.py", str(port)],
        "ready": f"http://127.0.0.1:{port}/",
    }
    agent = {"endpoint": f"http://127.0.0.1:{port}/v1", "server": server}
    project.write("agentest.config.yaml", json.dumps({"agent": agent, "strict": False}))


def test_the_agents_server_is_started_once(project: Project) -> None:
    """One server serves all workers, and ends with the run."""
    port = free_port()
    serving(project, port)
    scenarios(project, a="x", b="x", c="x")
    done = project.run("--workers", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(list(project.root.glob("server.*[0-9]"))) == 1
    wait_until(lambda: not answers(port))


@pytest.mark.parametrize("server", [True, False], ids=["server dies", "agent unreachable"])
def test_a_failed_start_is_reported_once(project: Project, server: bool) -> None:
    """A dead server or a missing agent gives one message and exit status 2."""
    port = free_port()
    if server:
        serving(project, port, "print('no database')\nraise SystemExit(3)")
    else:
        project.config(f"http://127.0.0.1:{port}/v1")
    scenarios(project, a="x", b="x")
    done = project.run("--workers", "2")
    assert done.returncode == 2
    assert done.stderr.count("agentest: ") == 1
    assert ("no database" if server else "cannot be reached") in done.stderr
    assert "Traceback" not in done.stderr


def test_what_a_file_prints_is_printed_once(project: Project) -> None:
    """Output buffered before workers are forked is not repeated by each of them."""
    handled(project)
    scenarios(project, a="x", b="y")
    project.scenario('print("loaded")\nscenario("c", turns=["x"])', name="c.sim.py")
    done = project.run("--workers", "3")
    assert done.stdout.count("loaded") == 1


def test_annotations_and_transcripts_are_those_of_one_process(project: Project) -> None:
    """The output about failed scenarios does not depend on workers."""
    handled(project)
    project.scenario(
        "for n in range(4):\n    scenario(f's{n}', turns=['x'], "
        "trajectory={'expected': ['t'], 'match_mode': 'contains'})"
    )
    shown = []
    for count in ("1", "2"):
        summary = project.root / f"summary{count}.md"
        done = project.run(
            "--workers",
            count,
            "--reporter",
            "github-actions",
            "--verbose",
            env={"GITHUB_STEP_SUMMARY": str(summary)},
        )
        assert done.returncode == 1
        shown.append((done.stdout, summary.read_text().count("fine")))
    assert shown[0] == shown[1]
    assert shown[0][0].count("::error") == 4


@pytest.mark.parametrize("wrong", ["0", "-1", "many", "1.5"])
def test_a_wrong_number_is_refused(project: Project, wrong: str) -> None:
    """The number of workers is `auto` or a whole number from 1."""
    done = project.run("--workers", wrong)
    assert done.returncode == 2
    assert f"{wrong!r} is neither a whole number of at least 1 nor auto" in done.stderr


def test_auto_runs_anywhere(project: Project) -> None:
    """`auto` is the number of cores, even on one core."""
    handled(project)
    scenarios(project, a="x", b="y")
    assert project.run("--workers", "auto").returncode == 0


def test_a_process_forked_by_a_killed_worker_does_not_hide_its_death(project: Project) -> None:
    """A user process that inherits the worker's socket is not waited for."""
    handled(project)
    config = project.root / "agentest.config.py"
    left = "Path('died').exists() or os.fork() == 0 and __import__('time').sleep(30) or died("
    config.write_text(config.read_text().replace("os.kill(", left, 1) + DIE_ONCE)
    scenarios(project, a="hello", b="die")
    done = project.run("--workers", "2", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    assert done.returncode == 0
    (held,) = project.scenario_result("b")["conversations"]
    assert held["conversationId"] == "b-1-retry1"
