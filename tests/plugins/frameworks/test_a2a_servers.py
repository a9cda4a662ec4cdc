"""Agents behind A2A: of the project's own SDK, pydantic-ai, google-adk and LangGraph's server."""

from __future__ import annotations

from pathlib import Path

import pytest
from framework_lab import (
    MARKS,
    Served,
    assert_all_pass,
    assert_own_tools,
    calls_of,
    conversation,
    expected,
    run,
    statuses,
)

pytestmark = MARKS

SDK = ("a2a/bin/python", "a2a_server.py")
LANGGRAPH = ("langgraph/bin/langgraph", "dev", "--no-browser", "--no-reload", "--n-jobs-per-worker", "20")
SHOP = "d0519622-ebf6-5f53-8f40-87311efbb70e"  # the UUID that every LangGraph server gives to a graph "shop"
OLD_SDK = ("a2a_0_3/bin/python", "a2a_server.py", "--sdk", "0.3")
UNSEEN = {
    "sdk-1": SDK,
    "sdk-1-not-streaming": (*SDK, "--no-streaming"),
    "sdk-0.3": OLD_SDK,
    "pydantic-ai": ("pydantic_ai/bin/python", "pydantic_ai_server.py", "--protocol", "a2a"),
}


def served(name: str, command: tuple[str, ...], **agent: object) -> Served:
    return Served(id=name, type="a2a", page="agents/a2a", command=(*command, "--port", "{port}"), agent=agent)


@pytest.mark.parametrize("name", UNSEEN)
def test_replies_are_judged_and_calls_are_said_to_be_unseen(name: str, tmp_path: Path) -> None:
    """Replies come from messages, artifacts and tasks that were waited for; A2A has no place for calls."""
    assert_own_tools(run(served(name, UNSEEN[name]), tmp_path, "own_tools"), "unseen")


def test_calls_that_google_adk_reports_are_judged(tmp_path: Path) -> None:
    """google-adk reports its calls in separate parts."""
    command = ("google_adk/bin/python", "google_adk_server.py", "--protocol", "a2a")
    assert_own_tools(run(served("google-adk", command), tmp_path, "own_tools"), "reported")


def test_langgraph_reports_no_arguments(tmp_path: Path) -> None:
    """LangGraph's server reports only results: names are judged, and checks of arguments errored."""
    agent = Served(
        id="langgraph",
        type="a2a",
        page="agents/a2a",
        command=(*LANGGRAPH, "--port", "{port}"),
        ready="/ok",
        cwd="servers/langgraph_app",
        agent={"endpoint": f"http://localhost/a2a/{SHOP}"},
    )
    project = run(agent, tmp_path, "own_tools")
    needing_arguments = dict.fromkeys(("tells the stock", "reserves", "red lamps", "green sofas"), "errored")
    assert statuses(project) == {**expected("reported"), **needing_arguments}
    assert [call["name"] for call in calls_of(project, "breaks a ban")] == ["check_stock", "reserve_item"]


@pytest.mark.parametrize("command", [SDK, OLD_SDK], ids=["1", "0.3"])
@pytest.mark.parametrize("streaming", [False, True], ids=["whole", "streamed"])
def test_every_form_of_an_answer_is_read(command: tuple[str, ...], streaming: bool, tmp_path: Path) -> None:
    """Messages without a task, several artifacts, artifacts in pieces, questions that need an answer."""
    agent = served("forms", command, streaming=streaming)
    assert_all_pass(run(agent, tmp_path, "a2a_forms"))


@pytest.mark.parametrize("command", [SDK, OLD_SDK], ids=["1", "0.3"])
def test_bad_ends_are_the_agents_errors(command: tuple[str, ...], tmp_path: Path) -> None:
    """A task that failed, was rejected or wants a login ends the conversation with the agent's error."""
    project = run(served("bad-ends", command), tmp_path, "a2a_bad_ends")
    for name in ("failed", "reject", "auth"):
        ended = conversation(project, name)
        assert (ended["errorSource"], len(ended["turns"])) == ("agent", 1), ended
        assert "the shop is closed" in ended["error"]
