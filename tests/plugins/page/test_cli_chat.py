"""`agentest chat` from outside."""

from __future__ import annotations

import subprocess

from project import Project

from agentest.testing import ScriptedAgent, tool_call


def chat(project: Project, typed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return project.agentest("chat", *arguments, typed=typed)


def test_a_person_talks_through_the_mocks(project: Project) -> None:
    """What is typed goes to the agent, its tool calls are answered by the mocks, and all of it is shown."""
    project.scenario('scenario("books", goal="Book.", tools={"book": {"id": "B1"}})')
    with ScriptedAgent([tool_call("book", day="friday"), "Booked as B1.", "Bye."]) as agent:
        project.config(agent.endpoint)
        done = chat(project, "Friday please\n\nthanks\n/quit\n")
    assert done.returncode == 0, done.stderr
    assert "book(day='friday') → {'id': 'B1'}" in done.stdout
    assert "agent  Booked as B1." in done.stdout
    said = [m["content"] for m in agent.requests[-1]["messages"] if m["role"] == "user"]
    assert said == ["Friday please", "thanks"]


def test_chat_needs_one_scenario(project: Project) -> None:
    """With several scenarios chat lists them; an agent's error ends it with a message."""
    project.scenario('scenario("one", goal="g")\nscenario("two", goal="g")')
    with ScriptedAgent([tool_call("unknown")]) as agent:
        project.config(agent.endpoint)
        assert "choose with --scenario" in chat(project, "").stderr
        failed = chat(project, "hello\n", "--scenario", "two")
    assert failed.returncode == 1
    assert "no mock" in failed.stdout


def test_an_agent_whose_calls_nobody_tells(project: Project) -> None:
    """A ban on calls, which no run could judge, keeps nobody from talking."""
    project.scenario('scenario("one", turns=["x"], trajectory={"forbidden": ["pay"]})')
    with ScriptedAgent(["You said: Hello"]) as agent:
        http = {"type": "http", "body": {"messages": "{{messages}}"}, "reply": "choices[0].message.content"}
        project.config(agent.endpoint, agent={"endpoint": agent.endpoint, **http})
        assert "calls of agent 'agent' cannot be seen" in project.run().stdout
        assert "agent  You said: Hello" in chat(project, "Hello\n/quit\n").stdout
