"""Tool calls without a conversation, and servers that cannot get an address, on the command line."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator
from project import Project, free_port
from stock_agent import StockAgent

import agentest

SCHEMA = Path(agentest.__file__).parent / "schemas" / "results.schema.json"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.scenario("scenario('buys', turns=['tea stray'], tools={'stock': {'n': 1}})")
    return made


def test_a_stray_call_is_an_error_in_every_report(project: Project) -> None:
    """It is refused, its conversation goes on, and the run is errored: on the console, in results.json, as
    an annotation, in the line of a run without a console, when judged again, and in a chat."""
    with StockAgent() as agent:
        agent.configure(project)
        reporters = ["--reporter", "console", "--reporter", "json", "--reporter", "github-actions"]
        shown = project.run(*reporters)
        quiet = project.run("--reporter", "json")
        chat = project.agentest("chat", "--scenario", "buys", typed="stray\n")
    assert shown.returncode == quiet.returncode == 2, shown.stdout
    told = "1 call of tool 'stock' that came to the mock servers of agent 'agent' was refused"
    assert f"Error: {told}" in " ".join(shown.stdout.split())
    assert "names 'nobody'" in shown.stdout
    assert "::error file=a.sim.py,line=2,title=tool calls belonged to no conversation::" in shown.stdout
    assert told in quiet.stderr
    assert chat.returncode == 2, chat.stdout
    assert told in " ".join(chat.stdout.split())
    check_results(project.results, told)
    judged = project.agentest("judge", ".agentest/results.json")
    assert judged.returncode == 2, judged.stdout
    assert f"Error: {told}" in " ".join(judged.stdout.split())


def check_results(results: dict[str, Any], told: str) -> None:
    """The scenario has passed and the run has not, which the summary explains."""
    Draft202012Validator(json.loads(SCHEMA.read_text())).validate(results)
    summary = results["summary"]
    assert [summary["passed"], summary["passedScenarios"]] == [False, 1]
    assert summary["unclaimedCalls"][0]["message"].startswith(told)
    assert [each["agent"] for each in summary["unclaimedCalls"]] == ["agent"]
    calls = results["scenarios"][0]["conversations"][0]["turns"][0]["toolCalls"]
    assert [call["args"] for call in calls] == [{"item": "tea"}]


def test_servers_that_cannot_know_the_address(project: Project) -> None:
    """A running server cannot know a free port, one server not two addresses; a port may be taken."""
    with StockAgent() as agent, socket.socket() as taken:
        ready = {"command": "true", "ready": f"tcp://127.0.0.1:{agent.port}"}
        agent.configure(project, server=ready)
        running = project.run()
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        agent.configure(project, server=ready, mcp_mock={"port": port})
        in_use = project.run()
        other = {"name": "b", "mcp_mock": True}
        settings = json.loads(
            (project.root / "agentest.config.yaml").read_text().partition(": ")[2].split("\n")[0]
        )
        project.config(
            "", agent={**settings, "mcp_mock": {"tools": None}}, compare=[other | {"exclusive": True}]
        )
        same = project.run()
        project.config("", agent={**settings, "mcp_mock": {"port": free_port()}}, compare=[other])
        two = project.run()
    assert [each.returncode for each in (running, in_use, same, two)] == [2] * 4
    assert "it cannot know the address of `mcp_mock` of agent 'agent', at a free port" in running.stderr
    assert f"port {port} is taken by another program" in in_use.stderr
    assert "cannot know the address" in same.stderr
    assert "agents 'agent' and 'b' have the same `server`" in two.stderr
