"""`agentest chat` from outside."""

from __future__ import annotations

import re
import subprocess

from project import Project
from steering_texts import GITHUB, harmless, say_hostile_texts, write_scenarios

from agentest.testing import ScriptedAgent, tool_call


def chat(project: Project, typed: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return project.agentest("chat", *arguments, typed=typed)


def test_a_person_talks_through_the_mocks(project: Project) -> None:
    """Typed messages go to the agent, mocks answer its calls, and all of it is printed."""
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


def test_an_agent_that_reports_no_calls(project: Project) -> None:
    """A ban on calls, which no run could judge, does not prevent a chat."""
    project.scenario('scenario("one", turns=["x"], trajectory={"forbidden": ["pay"]})')
    with ScriptedAgent(["You said: Hello"]) as agent:
        http = {"type": "http", "body": {"messages": "{{messages}}"}, "reply": "choices[0].message.content"}
        project.config(agent.endpoint, agent={"endpoint": agent.endpoint, **http})
        assert "calls of agent 'agent' cannot be seen" in project.run().stdout
        assert "agent  You said: Hello" in chat(project, "Hello\n/quit\n").stdout


def test_who_chats_plays_the_user_without_the_users_tools(project: Project) -> None:
    project.scenario('scenario("s", goal="g", user_tools={"look": lambda: "off", "switch": lambda: "done"})')
    with ScriptedAgent(["Hello."]) as agent:
        project.config(agent.endpoint)
        told = " ".join(chat(project, "Hi.\n/quit\n").stdout.split())
    assert "simulated user tools of its own (look, switch)" in told


def test_a_person_has_a_session(project: Project) -> None:
    """The agent gets a new session id."""
    project.write(
        "agentest.config.py",
        "async def handler(messages, ctx):\n    return ctx.session_id\n\n"
        'config = {"agent": {"type": "custom", "handler": handler}}\n',
    )
    project.scenario('scenario("one", turns=["Hi."])')
    assert re.search(r"agent  agentest-one-chat-[0-9a-f]{16}\n", chat(project, "Hi.\n/quit\n").stdout)


def test_nothing_said_steers_the_terminal(project: Project) -> None:
    """An agent forms no command, and cannot pass for the person."""
    write_scenarios(project)
    with ScriptedAgent(say_hostile_texts) as agent:
        project.config(agent.endpoint)
        done = project.agentest("chat", "--scenario", "calls", env=GITHUB, typed="hello\ncall\nunknown\n")
    assert "\n       ##\\[stop-commands]quiet" in harmless(done)
