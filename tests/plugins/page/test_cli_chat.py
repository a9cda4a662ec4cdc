"""`agentest chat` from outside."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import suppress
from typing import Any

import pytest
from project import Project, free_port
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


def test_a_project_without_scenarios_needs_none(project: Project) -> None:
    with ScriptedAgent([tool_call("book", day="Friday"), "Booked."]) as agent:
        project.config(agent.endpoint)
        done = chat(project, "Book Friday\n")
    assert done.returncode == 0, done.stderr
    assert "book(day='Friday') → None" in done.stdout
    assert "agent  Booked." in done.stdout


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


def sent(project: Project, text: str, *arguments: str, status: int = 0) -> Any:
    done = project.agentest("chat", f"--send={text}", "--json", *arguments)
    assert done.returncode == status, done.stderr
    return json.loads(done.stdout)


def test_a_conversation_goes_on_between_two_calls(project: Project) -> None:
    """Each call sends one message; the mocks of the scenario advance, and nothing else is printed as JSON."""
    project.scenario(
        'print("noise")\nscenario("books", goal="Book.", tools={"book": sequence({"id": 1}, {"id": 2})})'
    )
    booking = [tool_call("book"), "Booked 1.", tool_call("book"), "Booked 2.", tool_call("refund")]
    with ScriptedAgent(booking) as agent:
        project.config(agent.endpoint)
        begun = sent(project, "Book it")
        assert (begun["reply"], begun["calls"][0]["result"], begun["ended"]) == ("Booked 1.", {"id": 1}, None)
        going_on = f"--conversation={begun['conversation']}"
        done = project.agentest("chat", "--send", "again", going_on)
        assert done.stdout == "tool   book() → {'id': 2}\nagent  Booked 2.\n"
        assert f"go on with agentest chat {going_on.replace('=', ' ')} --send TEXT" in done.stderr
        failed = sent(project, "Give it back", going_on, status=1)
    said = [m["content"] for m in agent.requests[-1]["messages"] if m["role"] == "user"]
    assert said == ["Book it", "again", "Give it back"]
    assert failed["ended"] == "error"
    assert "'refund', which has no mock" in failed["error"]
    over = project.agentest("chat", "--send", "more", going_on)
    assert over.returncode == 2
    assert f"the conversation {begun['conversation']} does not go on" in over.stderr
    assert not list((project.root / ".agentest" / "talks").iterdir())


def test_two_conversations_at_once(project: Project) -> None:
    """Each has its own id, and ends with /quit; the address of its process is for its user alone."""
    project.scenario('scenario("one", turns=["Hi."])')
    with ScriptedAgent(lambda body: str(len(body["messages"]))) as agent:
        project.config(agent.endpoint)
        ids = [sent(project, "Hi.")["conversation"] for _ in range(2)]
        assert len(set(ids)) == 2
        assert (project.root / ".agentest" / "talks").stat().st_mode & 0o077 == 0
        for id in ids:
            assert sent(project, "More.", f"--conversation={id}")["reply"] == "3"
            assert sent(project, "/quit", f"--conversation={id}")["ended"] == "satisfied"


@pytest.mark.parametrize("scenarios", ["", 'scenario("one", goal="g")\nscenario("two", goal="g")'])
def test_a_message_needs_no_scenario(project: Project, scenarios: str) -> None:
    """With none, or several and no choice, calls are answered with null and the conversation goes on."""
    if scenarios:
        project.scenario(scenarios)
    with ScriptedAgent([tool_call("book", day="Friday"), "Booked.", "You are welcome."]) as agent:
        project.config(agent.endpoint)
        begun = sent(project, "Book Friday")
        going_on = f"--conversation={begun['conversation']}"
        assert [(call["args"], call["result"]) for call in begun["calls"]] == [({"day": "Friday"}, None)]
        assert sent(project, "Thanks", going_on)["reply"] == "You are welcome."
        sent(project, "/quit", going_on)


def booking(body: Any) -> Any:
    """Book once, and then only confirm."""
    answered = any(message["role"] == "tool" for message in body["messages"])
    return "Booked as B1." if answered else tool_call("book", day="friday")


def books(project: Project, endpoint: str) -> None:
    project.write("tests/books.sim.py", BOOKS)
    project.config(endpoint)


BOOKS = 'from agentest import scenario\nscenario("books", goal="Book.", tools={"book": {"id": "B1"}})\n'


@pytest.mark.parametrize(
    ("name", "command"),
    [
        ("friday by hand", ["run", "tests/friday_by_hand.sim.py"]),
        ("tests/own.sim.py::friday by hand", ["run", "tests/own.sim.py"]),
        ("sets/talks.evalset.json::friday", ["eval", "sets/talks.evalset.json"]),
    ],
    ids=["scenario", "scenario in a file", "case"],
)
def test_a_conversation_becomes_a_test(project: Project, name: str, command: list[str]) -> None:
    """The agent that had it passes; one that calls no tool any more fails. The name is taken from then on."""
    with ScriptedAgent(booking) as agent:
        books(project, agent.endpoint)
        saved = chat(project, "Friday please\nthanks\n", "--save", name)
        assert saved.returncode == 0, saved.stderr
        assert f"the conversation is saved: agentest {' '.join(command)}" in saved.stderr
        assert project.agentest(*command, "--offline").returncode == 0
        requests = len(agent.requests)
        again = chat(project, "Friday please\n", "--scenario", "=books", "--save", name)
        assert again.returncode == 2
        assert " already" in again.stderr
        assert len(agent.requests) == requests
    with ScriptedAgent(lambda _: "Booked as B1.") as agent:
        project.config(agent.endpoint)
        failed = project.agentest(*command, "--offline")
    assert failed.returncode == 1
    assert "book(day='friday'" in failed.stdout


@pytest.mark.parametrize(
    ("name", "typed", "problem"),
    [
        ("", "hello\n", "give it a name"),
        ("a.evalset.json::", "hello\n", "give the case an id"),
        ("out/a.txt::new", "hello\n", "the name must end in .sim.py"),
        ("../a.sim.py::new", "hello\n", "is outside of the project"),
        ("tests/books.sim.py::new", "hello\n", "is there already, and is not overwritten"),
        ("new", "/quit\n", "there is no turn to save yet"),
    ],
)
def test_what_cannot_be_saved(project: Project, name: str, typed: str, problem: str) -> None:
    """A place that is not possible is refused before the conversation begins. Nothing is written."""
    with ScriptedAgent(booking) as agent:
        books(project, agent.endpoint)
        done = chat(project, typed, "--save", name)
        assert not agent.requests
    assert done.returncode == 2
    assert problem in done.stderr
    assert [path.name for path in project.root.rglob("*.sim.py")] == ["books.sim.py"]


def test_messages_that_were_sent_are_saved(project: Project) -> None:
    """All turns so far. After a name that is taken, the conversation goes on, for another name."""
    with ScriptedAgent(booking) as agent:
        books(project, agent.endpoint)
        begun = sent(project, "Friday please")
        going_on = f"--conversation={begun['conversation']}"
        taken = sent(project, "thanks", going_on, "--save=books", status=2)
        assert (taken["reply"], taken["ended"]) == ("Booked as B1.", None)
        assert taken["notes"][0].startswith(
            "the conversation is not saved: there is a scenario 'books' already"
        )
        assert sent(project, "/quit", going_on, "--save=books", status=2)["ended"] is None
        ended = sent(project, "/quit", going_on, "--save=friday")
        assert ended["notes"] == ["the conversation is saved: agentest run tests/friday.sim.py"]
        assert ended["ended"] == "satisfied"
        assert 'turns=["Friday please", "thanks"]' in (project.root / "tests/friday.sim.py").read_text()
        assert project.agentest("run", "tests/friday.sim.py", "--offline").returncode == 0


def test_a_terminal_offers_to_save(project: Project) -> None:
    """At the end it asks for a name, again after one that is taken, and an empty line saves nothing."""
    for names, files in ((["books", "friday"], ["books.sim.py", "friday.sim.py"]), ([""], ["books.sim.py"])):
        with ScriptedAgent(booking) as agent:
            books(project, agent.endpoint)
            shown = typed_in_terminal(project, ["Friday please", "/quit", *names])
        assert shown.count("Save it? ") == len(names)
        assert ("there is a scenario 'books' already" in shown) is (len(names) > 1)
        assert sorted(path.name for path in project.root.rglob("*.sim.py")) == files
        (project.root / "tests/friday.sim.py").unlink(missing_ok=True)


def typed_in_terminal(project: Project, lines: list[str]) -> str:
    """Return what `agentest chat` prints in a pseudo-terminal in which a person types these lines."""
    near, far = os.openpty()
    command = [sys.executable, "-m", "agentest", "chat"]
    with subprocess.Popen(command, cwd=project.root, stdin=far, stdout=far, stderr=far) as process:
        os.close(far)
        os.write(near, "".join(f"{line}\n" for line in lines).encode())
        shown = b""
        with suppress(OSError):  # the other side is closed
            while piece := os.read(near, 65536):
                shown += piece
    os.close(near)
    assert process.returncode == 0, shown.decode()
    return shown.decode()


CRASHING = """
import http.server, sys
class Agent(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        print("Traceback: it went boom", flush=True)
        self.send_error(500)
    do_GET = do_POST
    def log_message(self, *_):
        pass
http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Agent).serve_forever()
"""


def test_what_the_agents_server_printed_is_among_the_notes(project: Project) -> None:
    """A conversation that fails shows it, as the dialogue of `agentest chat` does."""
    project.write("agent.py", CRASHING)
    project.scenario('scenario("one", turns=["Hi."])')
    port = free_port()
    command = f"{sys.executable} agent.py {port}"
    server = {"command": command, "ready": f"tcp://127.0.0.1:{port}"}
    project.config("", agent={"endpoint": f"http://127.0.0.1:{port}/v1", "server": server, "retries": 0})
    answer = sent(project, "Hi.", status=1)
    assert "500" in answer["error"]
    assert "Traceback: it went boom" in answer["notes"][-1]


def test_what_cannot_be_sent(project: Project) -> None:
    """An agent that is not there, an id that is none, and options that need a message, say so."""
    project.scenario('scenario("one", turns=["Hi."])')
    project.config("http://127.0.0.1:9/v1/chat/completions")
    for arguments, problem in (
        (["--send", "Hi."], "127.0.0.1:9"),
        (["--send", "Hi.", "--conversation", "../a"], "is not an id that --send has printed"),
        (["--send", "Hi.", "--conversation", "a"], "does not go on (those that do: none)"),
        (["--json"], "--conversation and --json go with --send TEXT"),
    ):
        done = project.agentest("chat", *arguments)
        assert done.returncode == 2, done.stdout
        assert problem in done.stderr
