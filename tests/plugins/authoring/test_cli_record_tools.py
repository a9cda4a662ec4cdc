"""`agentest record-tools` from outside: real tools answer once, and mocks answer from then on."""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from project import DEADLINE_S, Project, answers, free_port, interrupt, wait_until

from agentest.config.config import Config
from agentest.plugins.servers.start import check_recordable
from agentest.support.errors import ConfigError

ROOT = Path(__file__).parents[3]
EXAMPLE = ROOT / "examples" / "booking_with_mcp"
PAGE = ROOT / "docs" / "record-tools.md"

AGENT = """
import threading

async def bot(messages, ctx):
    said = messages[-1]["content"]
    if said == "hi":
        return "hello"
    if said == "boom":
        ctx.record_tool("lookup", {"q": "boom"}, 1)
        raise RuntimeError("broken")
    if said == "hang":
        ctx.record_tool("lookup", {"q": "hang"}, 1)
        print("HANGING", flush=True)
        await __import__("asyncio").sleep(60)
    if said == "hand":
        return str(await ctx.resolve_tool("mine", {}))
    ctx.record_tool("lookup", {"q": said}, {"found": said})
    return "found " + said

config = {"agent": {"type": "custom", "handler": bot}}
"""


@pytest.fixture
def in_process(project: Project) -> Project:
    """An agent in this process that runs its own tool, and reports it."""
    project.write("agentest.config.py", AGENT)
    return project


@contextmanager
def salon(root: Path, port: int) -> Iterator[Path]:
    """The real MCP server of the example; gives the log of what was booked."""
    log = root / "booked.log"
    with (
        log.open("w") as out,
        subprocess.Popen([sys.executable, "booking_mcp.py", str(port)], cwd=root, stdout=out) as real,
    ):
        try:
            wait_until(lambda: answers(port))
            yield log
        finally:
            real.terminate()
            real.wait(DEADLINE_S)


def shown_commands() -> list[list[str]]:
    """The commands of the page, in order."""
    blocks = re.findall(r"^```console\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)
    return [shlex.split(line)[1:] for block in blocks for line in block.splitlines()]


def test_the_walk_through_of_the_page(tmp_path: Path) -> None:
    """The page's commands, one after another: the real tools run once, then mocks answer and all passes.

    With the list of the server's tools in the configuration, the real server need not be there.
    """
    root = tmp_path / "salon"
    shutil.copytree(EXAMPLE, root, ignore=shutil.ignore_patterns("__pycache__", ".agentest"))
    project, port = Project(root), free_port()
    config = root / "agentest.config.yaml"
    text = config.read_text(encoding="utf-8").replace("command: python ", f"command: {sys.executable} ")
    config.write_text(text, encoding="utf-8")
    env = {"MCP_PORT": str(port), "AGENT_PORT": str(free_port())}
    record, run = shown_commands()
    with salon(root, port) as log:
        done = project.agentest(*record, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        assert "recorded_tools.py: mocks of 2 tools, from 2 calls" in done.stdout
        assert "mcp_mock.tools: recorded_tools.mcp.json" in done.stdout
        written = (root / "first.sim.py").read_text()
        assert "import call, scenario\n\nfrom recorded_tools import tools\n\nscenario(" in written
        done = project.agentest(*run, env=env)
        assert done.returncode == 0, done.stdout + done.stderr
        assert log.read_text().splitlines() == ["BOOKED haircut friday 16:00"]
    listed = (root / "recorded_tools.mcp.json").read_text()
    again = project.agentest(*record, "--force", env=env)
    assert "cannot be reached" in again.stderr
    assert (root / "recorded_tools.mcp.json").read_text() == listed  # nothing came in its place
    assert (
        "day: str,\n    time: str,\n    note: str | None = None," in (root / "recorded_tools.py").read_text()
    )
    config.write_text(text.replace("mcp_mock:", "mcp_mock:\n    tools: recorded_tools.mcp.json"))
    done = project.agentest(*run, "--reporter", "json", env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    calls = [
        call
        for turn in project.results["scenarios"][0]["conversations"][0]["turns"]
        for call in turn["toolCalls"]
    ]
    assert [(call["name"], call["mocked"], call["seenBy"]) for call in calls] == [
        ("check_availability", True, "mock-server"),
        ("create_booking", True, "mock-server"),
    ]


def test_a_server_in_front_of_the_real_tools_alone(tmp_path: Path) -> None:
    """--serve shows the addresses and passes calls on; Ctrl-C ends it, and what came is written."""
    import httpx

    shutil.copytree(EXAMPLE, root := tmp_path / "salon")
    port = free_port()
    with salon(root, port):
        process = Project(root).start("--serve", command="record-tools", env={"MCP_PORT": str(port)})
        assert process.stdout is not None
        url = process.stdout.readline().split()[-1]
        params = {"name": "check_availability", "arguments": {"service": "cut", "day": "tuesday"}}
        call = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
        told = httpx.post(url, json=call).json()["result"]
        code, out, err = interrupt(process)
    assert "10:30" in told["content"][0]["text"]
    assert code == 0, out + err
    assert "10:30" in (root / "recorded_tools.py").read_text()


def test_a_conversation_that_is_typed(in_process: Project) -> None:
    """Without --say the user types; existing recordings are overwritten only with --force."""
    typed = in_process.agentest("record-tools", typed="red\nhand\n/quit\n")
    assert typed.returncode == 0, typed.stdout + typed.stderr
    assert "agent  found red" in typed.stdout
    assert "left out 1 call of 'mine': the agent handed it to Agentest" in typed.stderr
    refused = in_process.agentest("record-tools", "--say", "blue")
    assert refused.returncode == 2
    assert "recorded_tools.py exists already" in refused.stderr
    assert "found" not in refused.stdout  # nobody was talked to
    forced = in_process.agentest("record-tools", "--say", "blue", "--force")
    assert forced.returncode == 0, forced.stderr
    assert '"found": "blue"' in (in_process.root / "recorded_tools.py").read_text()


def test_scenarios_are_recorded(in_process: Project) -> None:
    """`run --record-tools` leaves the mocks out, and writes what all conversations made the agent call."""
    in_process.scenario(
        'scenario("one", turns=["red"], tools={"lookup": {"found": "nothing"}}, check=print)\n'
        'scenario("two", turns=["blue", "red"], check=print)'
    )
    done = in_process.run("--record-tools")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "the mocks of the scenario are not used, and the real tools run" in done.stderr
    assert "mocks of 1 tool, from 3 calls" in done.stdout
    source = (in_process.root / "recorded_tools.py").read_text()
    assert 'case "blue":' in source
    assert 'case "red":' in source
    again = in_process.run("--record-tools")
    assert again.returncode == 2
    assert "recorded_tools.py exists already" in again.stderr
    assert "--force" not in again.stderr, "`run` has no such option"
    assert "--output" not in again.stderr
    (in_process.root / "recorded_tools.py").unlink()
    many = in_process.run("--record-tools", "--workers", "2")
    assert many.returncode == 2
    assert "remove --engine and --workers" in many.stderr


def test_what_was_recorded_before_the_end_is_written(in_process: Project) -> None:
    """An agent that fails, and Ctrl-C in the middle of a turn: the calls until then are there."""
    failed = in_process.agentest("record-tools", "--say", "red", "--say", "boom", "--output", "f.py")
    assert failed.returncode == 1
    assert "the conversation ended early: the handler raised RuntimeError: broken" in failed.stderr
    assert 'case "boom":' in (in_process.root / "f.py").read_text()
    process = in_process.start("--say", "red", "--say", "hang", command="record-tools")
    assert process.stdout is not None
    while "HANGING" not in process.stdout.readline():
        pass
    code, out, err = interrupt(process)
    assert code == 130, out + err
    assert 'case "hang":' in (in_process.root / "recorded_tools.py").read_text()


def test_nothing_to_record(in_process: Project) -> None:
    """Without any call nothing is written, and the message says why."""
    done = in_process.agentest("record-tools", "--say", "hi")
    assert done.returncode == 2
    assert "nothing was called: agent 'agent' answered without a tool" in done.stderr
    assert not (in_process.root / "recorded_tools.py").exists()


BAD = {
    "--say ''": "--say is empty",
    "--serve --say x": "remove --say or --serve",
    "--serve --scenario a.sim.py": "remove --scenario or --serve",
    "--say x --scenario a.py": "its name must end in .sim.py",
    "--say x --scenario no/a.sim.py": "the folder no does not exist",
    "--say x --output my-tools.py": "cannot be imported",
    "--say x --output sub/t.py --scenario a.sim.py": "from another folder",
    "--say x --agent nobody": "there is no agent 'nobody'",
    "--serve": "has no mock server in front of its real tools",
}


def test_wrong_options_of_recording_are_refused(in_process: Project) -> None:
    """Each is one message and exit status 2, before any conversation."""
    for arguments, message in BAD.items():
        done = in_process.agentest("record-tools", *shlex.split(arguments))
        assert (done.returncode, done.stdout) == (2, ""), arguments
        assert message in done.stderr, arguments


HTTP = "type: http\n  body: {m: '{{message}}'}"
UNRECORDABLE = {
    "type: chat_completions": "hands its tool calls to Agentest, which has no real tools to call",
    HTTP: "calls of agent 'agent' cannot be seen",
    f"{HTTP}\n  mcp_mock: {{port: 9}}": "mcp_mock.upstream of agent 'agent' is missing",
    f"{HTTP}\n  mcp_mock: {{port: PORT, upstream: 'http://127.0.0.1:9/mcp'}}": "cannot be reached",
}


def test_agents_whose_tools_cannot_be_recorded(project: Project) -> None:
    """The error comes before any message, with the keys that would help."""
    for keys, message in UNRECORDABLE.items():
        keys = keys.replace("PORT", str(free_port()))
        project.write("agentest.config.yaml", f"agent:\n  endpoint: http://127.0.0.1:9/x\n  {keys}\n")
        done = project.agentest("record-tools", "--say", "x")
        assert (done.returncode, done.stdout) == (2, ""), keys
        assert message in done.stderr, keys


def test_an_agent_whose_answers_tell_of_its_calls(project: Project) -> None:
    """Its calls are recorded; as no mock reaches its tools, the scenario has none, and the ways are named."""
    agent = """
import json
async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    await receive()
    calls = [{"name": "lookup", "args": {"city": "Rome"}, "result": {"sunny": True}}]
    body = json.dumps({"reply": "Sunny.", "calls": calls}).encode()
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})
"""
    project.write("weather.py", agent)
    project.write(
        "agentest.config.yaml",
        "agent: {type: http, app: 'weather:app', body: {m: '{{message}}', s: '{{session_id}}'}, reply: reply,"
        " tool_calls: calls}\n",
    )
    done = project.agentest("record-tools", "--say", "Rome?", "--scenario", "first.sim.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"lookup": {"sunny": True},' in (project.root / "recorded_tools.py").read_text()
    assert "it has no mocks yet, as none reach the agent's tools" in done.stdout
    assert "mcp_mock: true" in done.stdout
    scenario = (project.root / "first.sim.py").read_text()
    assert "tools=" not in scenario
    assert 'call("lookup", city="Rome")' in scenario
    assert project.run().returncode == 0


def test_an_agent_of_adk_with_the_plugin_has_its_real_tools_itself() -> None:
    """Its mock server needs no `upstream` to be recorded; that of any other agent does."""

    def agent(**settings: Any) -> Any:
        return Config.model_validate({"agent": {"endpoint": "http://localhost:1", **settings}}).agent

    check_recordable("shop", agent(type="adk", app_name="shop", mcp_mock={"port": 9}))
    with pytest.raises(ConfigError, match=re.escape("mcp_mock.upstream of agent 'desk' is missing")):
        check_recordable("desk", agent(type="langgraph", mcp_mock={"port": 9}))
