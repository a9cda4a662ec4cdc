"""What shows that conversations with an agent are kept, and kept apart."""

from __future__ import annotations

from typing import Any

import pytest
from project import Project
from stand_ins import standing_in
from team_agents import cookies, forgetful, own_events, shared

REMEMBERS = 'scenario("knows", turns=["Hi."], expect={"says": "Hi"})\n'
ONE_THREAD = {
    "body": {"userInput": "{{message}}", "threadId": "th_1"},
    "delta": "event == 'token' && content",
}
KEPT = "✓ conversations: two conversations at once, each given a code word: each repeated its own"


@pytest.mark.parametrize(
    ("make", "path", "more", "arguments", "said", "status"),
    [
        (cookies, "/chat", {"body": {"question": "{{message}}"}}, ["--interleave"], KEPT, 0),
        (shared, "/chat", {}, ["--interleave"], "✗ conversations: two conversations at once share state", 2),
        (
            own_events,
            "/api/assistant/stream",
            ONE_THREAD,
            ["--interleave"],
            "at once share state: a reply repeats",
            2,
        ),
        (
            forgetful,
            "/",
            {},
            ["--interleave"],
            "– conversations: Conversation field unknown: every message",
            0,
        ),
        (forgetful, "/", {}, [], "– conversations: its requests name no conversation: without a cookie", 0),
    ],
    ids=["kept", "shared", "one-thread", "forgetful", "not-tried"],
)
def test_doctor_shows_what_keeps_a_conversation(
    make: Any, path: str, more: dict[str, Any], arguments: list[str], said: str, status: int, project: Project
) -> None:
    """Two conversations with a word each show it, and what nothing shows is not called ready."""
    with standing_in(make()) as url:
        agent = {"type": "http", "endpoint": f"{url}{path}", "body": {"message": "{{message}}"}, **more}
        project.config("", agent=agent)
        project.scenario(REMEMBERS)
        done = project.agentest("doctor", "--offline", *arguments)
    shown = " ".join(done.stdout.split())
    assert said in shown, shown
    assert done.returncode == status, shown
    assert ("No problem was found, but see 'conversations'" in shown) == (make is forgetful)
