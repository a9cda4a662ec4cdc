"""`agentest mcp` as a coding agent starts it: a process, messages on its pipes, and nothing else there."""

from __future__ import annotations

import json
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from project import COMMAND, DEADLINE_S, Project, clean_environment

from agentest.plugins.authoring.commands.inspection import check_source
from agentest.runner.plan import Options
from agentest.runner.prepare import RunRequest
from agentest.store.runs.folder import list_stored_runs
from agentest.testing import ScriptedAgent


class Client:
    """The smallest client there is."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.notes: list[Any] = []
        self._number = 0

    def send(self, method: str, number: int | None = None, **params: Any) -> None:
        id = {} if number is None else {"id": number}
        self.write(json.dumps({"jsonrpc": "2.0", **id, "method": method, "params": params}))

    def write(self, line: str) -> None:
        assert self.process.stdin
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()

    def read(self) -> Any:
        assert self.process.stdout
        return json.loads(self.process.stdout.readline())

    def request(self, method: str, **params: Any) -> Any:
        self._number += 1
        self.send(method, self._number, **params)
        while (message := self.read()).get("id") != self._number:
            self.notes.append(message)
        return message

    def tool(self, name: str, **arguments: Any) -> tuple[str, Any, bool]:
        """Text, structured content, and whether the call failed."""
        params = {"name": name, "arguments": arguments, "_meta": {"progressToken": name}}
        result = self.request("tools/call", **params)["result"]
        (part,) = result["content"]
        return part["text"], result["structuredContent"], result["isError"]


@contextmanager
def server(project: Project) -> Iterator[Client]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    words = [*COMMAND, "mcp"]
    with subprocess.Popen(words, cwd=project.root, env=clean_environment(), **pipes) as process:
        try:
            yield Client(process)
            assert process.stdin
            process.stdin.close()
            assert process.wait(DEADLINE_S) == 0
        finally:
            process.kill()


def files(project: Project) -> set[str]:
    return {path.relative_to(project.root).as_posix() for path in project.root.rglob("*")}


SCENARIOS = """
print("noise on standard output")
scenario("good", turns=[{"user_message": "When?", "expect": {"contains": "nine"}}], tags=["hours"])
scenario("bad", turns=[{"user_message": "When?", "expect": {"contains": "ten"}}])
"""


def test_a_run_and_its_failures(project: Project) -> None:
    """A run without a model, its failure and its transcript; mistakes get answers with advice."""
    project.scenario(SCENARIOS)
    with ScriptedAgent(lambda body: "We open at nine.") as agent, server(project) as client:
        project.config(agent.endpoint, model="openai/no-such-model", reporters=["console"])
        begun = client.request("initialize", protocolVersion="2025-06-18")["result"]
        assert begun["protocolVersion"] == "2025-06-18"
        assert "Never weaken a check" in begun["instructions"]
        client.send("notifications/initialized")
        tools = {tool["name"]: tool for tool in client.request("tools/list")["result"]["tools"]}
        assert list(tools) == [
            *("list_scenarios", "validate_scenario", "run", "results"),
            *("conversation", "compare", "talk", "explain_config"),
        ]
        writing = [name for name, tool in tools.items() if not tool["annotations"]["readOnlyHint"]]
        assert writing == ["run", "talk"]

        text, ran, failed = client.tool("run")
        assert (failed, ran["status"], ran["offline"], ran["exitStatus"]) == (False, "failed", True, 1)
        assert text.startswith("failed: 1 failed, 1 passed\n\nFAILED a.sim.py:")
        assert "No model was called" in text
        assert client.notes[-1]["params"] == {
            "progressToken": "run",
            "progress": 2,
            "total": 2,
            "message": "2 of 2 conversations finished",
        }
        (failure,) = ran["failures"]
        assert failure["command"].startswith("agentest run a.sim.py:")
        assert client.tool("results")[1] == {
            key: value for key, value in ran.items() if key not in ("offline", "exitStatus")
        }
        text, found, _ = client.tool("conversation", scenario="bad")
        assert "We open at nine." in text
        assert (found["passed"], found["turns"]) == (False, 1)
        assert client.tool("conversation", id=found["conversationId"])[:2] == (text, found)
        text, talk, failed = client.tool("talk", message="When?", scenario="=good")
        assert (failed, text, talk["ended"]) == (False, "agent  We open at nine.", None)
        ended = client.tool("talk", message="/quit", conversation=talk["conversation"])
        assert ended[0] == "ended: satisfied"

        for name, arguments, problem in (
            ("run", {"max_cost": 1.0}, "set `spend` to true as well"),
            ("run", {"scenarioz": []}, "unknown argument `scenarioz`; did you mean `scenarios`?"),
            ("run", {"paths": ["/etc/passwd"]}, "not in the project's folder"),
            ("results", {"run": "zzz"}, "found no run, file or folder 'zzz'"),
            ("results", {"run": "/etc/passwd"}, "not in the project's folder"),
            ("conversation", {"scenario": "goood"}, "did you mean `good`?"),
            ("conversation", {}, "name `scenario` or `id`"),
            ("conversation", {"id": "bad-9"}, "the run has no conversation 'bad-9'; "),
            ("talk", {"message": "x", "scenario": "goood"}, "goood"),
            ("talk", {"message": "x", "conversation": "y"}, "the conversation y does not go on"),
            ("compare", {}, "one run is kept"),
            ("validate_scenario", {"source": "x", "path": "../b.sim.py"}, "not in the project's folder"),
            ("validate_scenario", {}, "the argument `source` is missing"),
        ):
            text, _, failed = client.tool(name, **arguments)
            assert failed
            assert problem in text
        unknown = client.request("tools/call", name="runn", arguments={})
        assert "did you mean `run`?" in unknown["error"]["message"]
        for line in ("not JSON", "[]", '{"id": 1e999, "method": "ping"}', '{"id": true, "method": "ping"}'):
            client.write(line)
            assert client.read()["id"] is None, line


@pytest.mark.slow
def test_reading_tools_write_nothing(project: Project) -> None:
    """Each call loads the project's code again, in its own process."""
    project.scenario(SCENARIOS)
    with ScriptedAgent(lambda body: "We open at nine.") as agent, server(project) as client:
        project.config(agent.endpoint, model="openai/no-such-model")
        before = files(project)
        text, config, _ = client.tool("explain_config")
        assert config["settings"]["model"] == "openai/no-such-model"
        assert "OPENAI_API_KEY" in text, "what keeps a run with models from starting"
        explained = client.tool("explain_config", key="max_turns")[0]
        assert explained.startswith("max_turns: 8 (default)\ndocumentation: ")
        _, listed, _ = client.tool("list_scenarios", contains="hours")
        assert [each["name"] for each in listed["scenarios"]] == ["good"]
        source = 'from agentest import scenario\nscenario("good", turns=["hi"])\nscenario("x", turnz=[])\n'
        text, checked, failed = client.tool("validate_scenario", source=source, path="new/b.sim.py")
        assert (failed, checked["valid"]) == (False, False)
        assert "new/b.sim.py:3: scenario 'x': unknown option `turnz`; did you mean `turns`?" in text
        assert files(project) == before
        assert "no scenario matches" in client.tool("run", scenarios=["nothing"])[0]
        for _ in range(2):
            client.tool("run", paths=["a.sim.py::good"])
        text, compared, _ = client.tool("compare")
        assert compared["regressed"] is False
        assert "The pass rate is the same in both runs" in text


def test_a_source_is_checked_as_if_it_were_saved(tmp_path: Path) -> None:
    """Every mistake has its line; names of other files are taken, and modules next to the path importable."""
    project = Project(tmp_path)
    project.config("http://127.0.0.1:9/v1")
    project.scenario('scenario("good", turns=["hi"])\n')
    project.write("new/name_next_to_it.py", 'NAME = "from a module"\n')
    request = RunRequest(tmp_path, options=Options(offline=True))

    def lines(source: str) -> list[int]:
        found = check_source(request, tmp_path / "new" / "b.sim.py", source)
        assert found["valid"] is not bool(found["problems"])
        return [each["line"] for each in found["problems"]]

    begin = "from agentest import scenario\n"
    assert lines(begin + 'scenario("good", turns=["hi"])\nscenario("x", turnz=[])\n') == [2, 3]
    assert lines(begin + 'from name_next_to_it import NAME\nscenario(NAME, turns=["hi"])\n') == []
    assert lines(begin + 'scenario("y", turns=["hi"], agent="nobody")\n1 / 0\n') == [2, 3]
    assert lines(begin + 'scenario("x", turnz=["hi"], trajektory={})\n') == [2, 2], "each mistake, once"
    assert lines("scenario(\n") == [1]
    assert lines("# nothing\n") == [1]


@pytest.mark.slow
def test_a_run_that_is_cancelled_stops_and_gets_no_answer(project: Project) -> None:
    """Other calls are answered meanwhile, what was under way is stored as interrupted, and nothing stays."""
    waiting, go = threading.Event(), threading.Event()

    def slow(_: object) -> str:
        waiting.set()
        go.wait(DEADLINE_S)
        return "late"

    project.scenario('scenario("slow", turns=["hi"])\n')
    try:
        with ScriptedAgent(slow) as agent, server(project) as client:
            project.config(agent.endpoint)
            client.send("tools/call", 100, name="run", _meta={"progressToken": 7})
            progress = client.read()
            assert (progress["method"], progress["params"]["progress"]) == ("notifications/progress", 0)
            assert waiting.wait(DEADLINE_S)
            assert client.request("ping")["result"] == {}
            client.send("notifications/cancelled", requestId=100, reason="changed my mind")
            assert client.tool("list_scenarios")[1]["scenarios"][0]["name"] == "slow"
        (run,) = list_stored_runs(project.root / ".agentest")
        assert run.state == "interrupted"
        assert not client.notes, "no answer to the cancelled request"
    finally:
        go.set()


@pytest.mark.slow
def test_without_a_configuration_every_call_says_what_to_do(project: Project) -> None:
    """The server starts in any folder, and the first call says how to begin."""
    with server(project) as client:
        for name in ("explain_config", "list_scenarios", "run"):
            text, _, failed = client.tool(name)
            assert failed
            assert "agentest init" in text
