"""`agentest.mocks.wrap`: functions that ask the mocks, in a server that a run starts and in the run."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from project import Project

from agentest import TurnContext, call, mocks, scenario
from agentest.plugins.frameworks.function_tools import wrap
from agentest.testing import run_scenarios

AGENT = '''
import asyncio, json, sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from agentest import mocks


def ran(name):
    with open("real", "a") as log:
        log.write(name + " ")
    return {"real": name}


@mocks.wrap
def find_table(time: str, guests: int = 2, context=None):
    """Find a table."""
    return ran("find_table")


@mocks.wrap
async def note(text: str):
    return ran("note")


class Agent(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_POST(self):
        message = json.loads(self.rfile.read(int(self.headers["content-length"])))["message"]
        if message == "book":
            said = [find_table("19:00", context=object()), asyncio.run(note(text="seven"))]
        else:
            said = [find_table("19:00", guests=message)]
        body = json.dumps({"reply": json.dumps(said)}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


ThreadingHTTPServer(("127.0.0.1", int(sys.argv[1])), Agent).serve_forever()
'''
SCENARIOS = """
from agentest import ToolError

scenario(
    "both are mocked",
    turns=["book"],
    tools={"find_table": {"table": 4}, "note": "noted"},
    trajectory={"expected": [call("find_table", time="19:00"), call("note", text="seven")]},
)
scenario("one is real", turns=["book"], tools={"find_table": {"table": 5}})
scenario("the tool fails", turns=["book"], tools={"find_table": ToolError("we are closed"), "note": 1})
"""


def test_a_server_that_a_run_starts_asks_its_mocks(tmp_path: Path) -> None:
    project = Project(tmp_path)
    project.write("agent.py", AGENT)
    agent = {
        "type": "http",
        "endpoint": "http://127.0.0.1:{port}/chat",
        "body": {"message": "{{message}}"},
        "reply": "reply",
        "mcp_mock": True,
        "tool_visibility": "reported",
        "server": {"command": [sys.executable, "agent.py", "{port}"], "ready": "tcp://127.0.0.1:{port}"},
    }
    project.config("", agent=agent, metrics=[], unmocked_tools="passthrough")
    project.scenario(SCENARIOS)
    done = project.run()

    assert done.returncode == 0, done.stdout + done.stderr
    turns = [each["conversations"][0]["turns"][0] for each in project.results["scenarios"]]
    assert [turn["agentMessage"] for turn in turns] == [
        '[{"table": 4}, "noted"]',
        '[{"table": 5}, {"real": "note"}]',
        '[{"error": "we are closed"}, 1]',
    ]
    assert [
        [(each["name"], each["args"], each["mocked"]) for each in turn["toolCalls"]] for turn in turns[:2]
    ] == [
        [("find_table", {"time": "19:00"}, True), ("note", {"text": "seven"}, True)],
        [("find_table", {"time": "19:00"}, True), ("note", {"text": "seven"}, False)],
    ]
    assert turns[1]["toolCalls"][1]["result"] == {"real": "note"}
    assert (tmp_path / "real").read_text(encoding="utf-8") == "note "


def test_in_the_process_of_a_run_the_mocks_of_the_conversation_answer() -> None:
    real: list[str] = []

    @wrap
    def find_table(time: str) -> dict[str, Any]:
        real.append(time)
        return {}

    @wrap
    async def note(text: str) -> str:
        real.append(text)
        return f"really noted {text}"

    async def handler(messages: list[dict[str, Any]], ctx: TurnContext) -> str:
        return f"{find_table('19:00')} {await note(text='seven')}"

    result = run_scenarios(
        [
            scenario(
                "books",
                turns=["book"],
                tools={"find_table": {"table": 4}, "note": "noted"},
                trajectory={"expected": [call("find_table", time="19:00"), call("note", text="seven")]},
            )
        ],
        agent={"type": "custom", "handler": handler},
    )
    result.check()
    turn = result.scenarios[0].conversations[0].conversation.turns[0]
    assert turn.agent_message == "{'table': 4} noted"
    assert real == []
    assert find_table("20:00") == {}
    assert real == ["20:00"]


def test_a_tool_without_a_mock_does_not_run() -> None:
    real: list[str] = []

    @wrap
    def find_table(time: str) -> None:
        real.append(time)

    def handler(messages: list[dict[str, Any]], ctx: TurnContext) -> str:
        return str(find_table("19:00"))

    result = run_scenarios(
        [scenario("books", turns=["book"], tools={"note": 1})], agent={"type": "custom", "handler": handler}
    )
    failure = result.scenarios[0].conversations[0].conversation.failure
    assert failure is not None
    assert "called tool 'find_table', which has no mock" in failure.message
    assert real == []


def test_without_a_run_nothing_is_wrapped_and_little_is_imported() -> None:
    """Beside the standard library: the door, what is handed in there, and the one module."""
    program = """
import sys
before = set(sys.modules)
from agentest import mocks

def tool(): pass

assert mocks.wrap(tool) is tool
new = {name.partition(".")[0] for name in sys.modules.keys() - before} - sys.stdlib_module_names
print(new, *(name for name in sys.modules if name.startswith("agentest.")))
"""
    done = subprocess.run(
        [sys.executable, "-c", program], env={}, capture_output=True, text=True, timeout=60, check=True
    )
    new, *ours = done.stdout.split()
    assert new == "{'agentest'}"
    handed_in = re.compile(r"agentest\.plugins(\.\w+){0,2}")
    door = ("core", "mocks", "plugin", "support", "version")
    rest = {name for name in ours if not handed_in.fullmatch(name) and name.split(".")[1] not in door}
    assert rest == set()
    assert "agentest.support.calling" not in ours
    assert {name for name in ours if name.startswith("agentest.plugins.frameworks.")} == {
        "agentest.plugins.frameworks.plugin",
        "agentest.plugins.frameworks.function_tools",
    }


def test_the_file_is_printed() -> None:
    """`python -m agentest.mocks.function_tools` prints it for agents without Agentest."""
    command = [sys.executable, "-m", "agentest.mocks.function_tools"]
    printed = subprocess.run(command, capture_output=True, text=True, check=True)
    assert printed.stdout == Path(inspect.getfile(wrap)).read_text(encoding="utf-8")


def test_signature_and_docstring_stay() -> None:
    def find_table(time: str, guests: int = 2) -> str:
        """Find a table."""
        return ""

    wrapped = mocks.wrap(find_table)
    assert wrapped is not find_table
    assert inspect.signature(wrapped) == inspect.signature(find_table)
    assert (wrapped.__name__, wrapped.__doc__) == ("find_table", "Find a table.")
    with pytest.raises(TypeError, match="takes a function, not a int"):
        mocks.wrap(3)  # type: ignore[type-var]
