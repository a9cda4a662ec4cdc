"""The `adk` agent type against ADK's real server, with the example agent, which needs no model.

Skipped unless AGENTEST_ADK names the folder of a virtual environment in which google-adk is installed.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from project import DEADLINE_S, Project, answers, free_port, wait_until

from agentest.agents.port import AgentReply, NoReply, TurnContext
from agentest.conversation.turn_loop import new_session_id
from agentest.domain.messages import Attachment, Session, UserText
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Remark, ToolCall
from agentest.plugins.protocols.adk_server.client import AdkClient, read_run
from agentest.plugins.protocols.adk_server.settings import AdkAgent
from agentest.support.http.address_guard import AddressGuard
from agentest.support.http.client import open_client

EXAMPLE = Path(__file__).parents[3] / "examples" / "adk_agent"
PIPELINE = Path(__file__).parents[2] / "support" / "adk_pipeline"
ENVIRONMENT = os.environ.get("AGENTEST_ADK")

pytestmark = [
    pytest.mark.adk,
    pytest.mark.skipif(ENVIRONMENT is None, reason="AGENTEST_ADK names no environment with google-adk"),
]

BOTH = pytest.mark.parametrize("streaming", [False, True], ids=["run", "run_sse"])


@contextmanager
def adk_server(folder: Path, *options: str, agent: Path = EXAMPLE) -> Iterator[str]:
    """`adk api_server` on a copy of an agent: its address."""
    shutil.copytree(agent, folder / agent.name, ignore=shutil.ignore_patterns(".adk", "__pycache__"))
    port = free_port()
    command = [str(Path(ENVIRONMENT or "") / "bin" / "adk"), "api_server", str(folder / agent.name)]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [*command, "--port", str(port), *options], cwd=folder, stdout=log, stderr=subprocess.STDOUT
        )
    try:
        wait_until(lambda: answers(port) or process.poll() is not None)
        assert process.poll() is None, (folder / "log").read_text()
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with sessions in memory."""
    with adk_server(tmp_path_factory.mktemp("agents"), "--session_service_uri", "memory://") as url:
        yield url


def say(url: str, *texts: str | UserText, session: Session | None = None, **config: Any) -> list[AgentReply]:
    """One conversation."""

    async def go() -> list[AgentReply]:
        settings = {"endpoint": url, "app_name": "adk_agent", **config}
        session_id = (session and session.session_id) or new_session_id("c-1")
        async with open_client(AddressGuard()) as client:
            agent = AdkClient(AdkAgent(type="adk", **settings), client, 30)
            return [
                await agent.reply(
                    [text if isinstance(text, UserText) else UserText(text)],
                    TurnContext("c-1", "s", turn, print, session, session_id=session_id),
                )
                for turn, text in enumerate(texts)
            ]

    return anyio.run(go)


def free(day: str, *times: str, turn: int = 0) -> ToolCall:
    answer = {"day": day, "times": list(times)}
    return ToolCall("check_availability", {"day": day}, answer, False, turn, seen_by=SeenBy.AGENT)


def booked(n: int, customer: str, turn: int) -> ToolCall:
    args = {"day": "friday", "time": "15:00"}
    answer = {"customer": customer, **args, "n": n}
    return ToolCall("create_booking", args, answer, False, turn, seen_by=SeenBy.AGENT)


@BOTH
def test_a_conversation(server: str, streaming: bool) -> None:
    """Replies, remarks, calls in parallel with their results, usage and state over several turns."""
    state = {"customer": "Zoë", "bookings": 4, "nothing": None}
    texts = ("Free on Tuesday or Friday?", "Book Friday at 15:00", "Book Friday at 15:00 again")
    first, second, third = say(server, *texts, session=Session(state=state), streaming=streaming)
    assert first.text == "Free on tuesday: 09:00, 10:30. Free on friday: 15:00."
    assert first.observed == (free("tuesday", "09:00", "10:30"), free("friday", "15:00"))
    assert first.remarks == (Remark("salon", "Let me look."),)
    assert (first.usage.prompt_tokens, first.usage.completion_tokens) == (14, 6)
    assert second.observed == (booked(5, "Zoë", turn=1),)
    assert (third.text, third.remarks) == ("Zoë, friday at 15:00 is yours (booking 6).", ())


def test_a_session_of_ones_own(server: str) -> None:
    """A session id of the case is used, and a second conversation goes on in the session that exists."""
    session = Session("adk_agent", "u-1", {"customer": "Ann"}, "own-1")
    for n in (1, 2):
        (reply,) = say(server, "Book Friday at 15:00", session=session, app_name=None)
        assert reply.observed == (booked(n, "Ann", turn=0),)


def test_files_of_a_message(server: str) -> None:
    """An image's bytes and a file's address reach the agent unchanged, with the text."""
    files = (
        Attachment(mime_type="image/png", base64="iVBOR/8=", name="a.png"),
        Attachment(mime_type="application/pdf", uri="gs://bucket/bill.pdf"),
    )
    session = Session("adk_agent", "u-3", {}, "files-1")
    (reply,) = say(server, UserText("Free on Friday?", files), session=session)
    assert reply.text == "Free on friday: 15:00."
    address = f"{server}/apps/adk_agent/users/u-3/sessions/files-1"
    with urllib.request.urlopen(address) as answer:
        first = json.load(answer)["events"][0]
    assert first["content"]["parts"] == [
        {"text": "Free on Friday?"},
        {"inlineData": {"data": "iVBOR_8=", "displayName": "a.png", "mimeType": "image/png"}},
        {"fileData": {"fileUri": "gs://bucket/bill.pdf", "mimeType": "application/pdf"}},
    ]


def test_sessions_in_a_file(tmp_path: Path) -> None:
    """A server with its own default, sessions in a file, is spoken to alike."""
    session = Session(state={"customer": "Zoë", "bookings": 4, "nothing": None, "temp:x": 1})
    with adk_server(tmp_path) as url:
        (reply,) = say(url, "Book Friday at 15:00", session=session)
    assert reply.observed == (booked(5, "Zoë", turn=0),)


def test_state_of_the_user(server: str) -> None:
    """ADK stores user and app state separately and drops that of an invocation: no mismatch."""
    session = Session(
        "", "u-2", {"user:tier": "gold", "app:mode": 1, "temp:x": 2, "nested": {"a": [1, None]}}
    )
    assert say(server, "Hi", session=session)[0].text


@BOTH
def test_an_agent_that_raises(server: str, streaming: bool) -> None:
    """An exception in the agent is its answer and not retried."""
    said = "RuntimeError: the rules have" if streaming else "/run answered 500: Internal Server Error"
    with pytest.raises(NoReply, match=said) as caught:
        say(server, "Please crash", streaming=streaming)
    assert caught.value.retries == 0


@BOTH
def test_an_unknown_app(server: str, streaming: bool) -> None:
    """The server's error lists the available app."""
    with pytest.raises(NoReply, match=r"answered 404 .*: Agent not found: 'nope'.*only 'adk_agent'"):
        say(server, "Hi", app_name="nope", streaming=streaming)


SCENARIOS = """
scenario(
    "books",
    conversations_per_scenario=50,
    turns=[
        {"user_message": "Free on Tuesday or Friday?", "trajectory": {"match_mode": "strict", "expected": [
            call("check_availability", day="tuesday"), call("check_availability", day="friday")]}},
        {"user_message": "Book Friday at 15:00.", "expect": {"contains": "(booking 1)"}},
    ],
    trajectory={"match_mode": "strict", "max_calls": 3, "expected": [
        "check_availability", "check_availability", call("create_booking", day="friday", time="15:00")]},
)
scenario("crashes", turns=["Free on Tuesday?", "Please crash"])
"""


@BOTH
def test_a_run(server: str, streaming: bool, project: Project) -> None:
    """`agentest run`: fifty conversations at once, each with its own session, trajectory and verdict."""
    agent = {"type": "adk", "endpoint": server, "app_name": "adk_agent", "streaming": streaming}
    project.config("", agent=agent, concurrency=50)
    project.scenario(SCENARIOS)
    done = project.run("--offline")
    assert done.returncode == 1, done.stdout + done.stderr
    books, crashes = (project.scenario_result(name) for name in ("books", "crashes"))
    assert (books["status"], len(books["conversations"])) == ("passed", 50)
    for held in books["conversations"]:
        calls = [
            (c["name"], c["args"], c["mocked"], c["turnIndex"], c["result"])
            for turn in held["turns"]
            for c in turn["toolCalls"]
        ]
        slot = {"day": "friday", "time": "15:00"}
        assert calls == [
            (
                "check_availability",
                {"day": "tuesday"},
                False,
                0,
                {"day": "tuesday", "times": ["09:00", "10:30"]},
            ),
            ("check_availability", {"day": "friday"}, False, 0, {"day": "friday", "times": ["15:00"]}),
            ("create_booking", slot, False, 1, {"customer": "somebody", **slot, "n": 1}),
        ]
    (held,) = crashes["conversations"]
    assert crashes["status"] == "failed"
    assert ("RuntimeError" if streaming else "answered 500") in str(held["error"])
    assert len(held["turns"]) == 1


PIPELINE_SCENARIOS = """
scenario(
    "pipeline",
    session={"state": {"customer": "Ann"}},
    conversations_per_scenario=5,
    turns=[
        {"user_message": "Redesign", "expect": {
            "session_state": {
                "project_plan": "plan for Ann: Redesign",
                "execution_plan": [
                    {"step": "design", "of": "plan for Ann: Redesign"}, {"step": "build", "done": None}],
                "review_result": {"approved": True, "rounds": 1},
                "customer": "Ann",
            },
            "remarks": [
                {"author": "planner", "equals": "project_plan is ready"},
                {"author": "executor", "contains": "ready"},
                {"author": "reviewer", "contains": "review_result"},
            ],
        }},
        {"user_message": "Again", "expect": {
            "session_state": {
                "project_plan": "plan for Ann: Again", "review_result": {"approved": True, "rounds": 2}},
        }},
    ],
    final_session_state={"rounds": 2},
)
scenario("fails", turns=["Redesign"], final_session_state={"project_plan": "another", "cart": []})
scenario("taken", session={"state": {"customer": "Bob"}, "session_id": "own"}, turns=["Redesign"])
scenario("first", session={"session_id": "own", "state": {"customer": "Ann"}}, turns=["Redesign"])
"""


@BOTH
def test_the_state_of_a_pipeline(streaming: bool, project: Project) -> None:
    """State is checked after every turn of a pipeline of three stages, each with remarks."""
    with adk_server(project.root, "--session_service_uri", "memory://", agent=PIPELINE) as url:
        agent = {"type": "adk", "endpoint": url, "app_name": PIPELINE.name, "streaming": streaming}
        project.config("", agent=agent)
        project.scenario(PIPELINE_SCENARIOS)
        first = project.run("--offline", "--scenario", "first")
        assert first.returncode == 0, first.stdout
        done = project.run(
            "--offline", "--scenario", "pipeline", "--scenario", "fails", "--scenario", "taken"
        )
    assert done.returncode == 1, done.stdout + done.stderr
    statuses = {s["name"]: s["status"] for s in project.results["scenarios"]}
    assert statuses == {"pipeline": "passed", "fails": "failed", "taken": "errored"}, done.stdout
    for held in project.scenario_result("pipeline")["conversations"]:
        assert held["initialState"] == {"customer": "Ann"}
        states = [turn["stateAfter"] for turn in held["turns"]]
        assert [state["rounds"] for state in states] == [1, 2]
        assert sorted(states[0]) == ["customer", "execution_plan", "project_plan", "review_result", "rounds"]
    assert "project_plan: expected 'another', got 'plan for somebody: Redesign'" in done.stdout
    assert "the session 'own' exists already and keeps its own state" in done.stdout


def test_events_read_as_google_adk_does() -> None:
    """For random events, reply, calls and remarks equal those of google-adk's evaluation."""
    probe = Path(__file__).parents[2] / "support" / "adk_events_probe.py"
    python = str(Path(ENVIRONMENT or "") / "bin" / "python")
    done = subprocess.run(
        [python, str(probe), "2000", "1"], capture_output=True, text=True, timeout=DEADLINE_S
    )
    assert done.returncode == 0, done.stderr
    for theirs in map(json.loads, done.stdout.splitlines()):
        ours, _ = read_run(theirs["events"], 0)
        # A reply without text is shown here by what else it has.
        assert (ours.text if theirs["text"] else "") == theirs["text"], theirs
        assert [[c.name, c.args] for c in ours.observed] == theirs["calls"]
        assert [[r.author, r.text] for r in ours.remarks] == theirs["remarks"], theirs
