"""Session ids: new for every conversation of every run, and visible to agents and users."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from project import Project

from agentest.conversation.turn_loop import new_session_id

HANDLER = """
async def handler(messages, ctx):
    return ctx.session_id

config = {"agent": {"type": "custom", "handler": handler}, "reporters": ["json"], "strict": False}
"""


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path)
    made.write("agentest.config.py", HANDLER)
    made.scenario(
        'for name in ("one", "two"):\n    scenario(name, turns=["Hi.", "And?"], conversations_per_scenario=2)'
    )
    return made


@given(st.lists(st.text(max_size=80), max_size=30))
def test_the_form_of_an_id(conversations: list[str]) -> None:
    """Ids are unique, with at most 63 lowercase letters, digits and hyphens."""
    ids = [new_session_id(conversation) for conversation in conversations * 2]
    assert len(set(ids)) == len(ids)
    for identifier in ids:
        assert re.fullmatch(r"agentest(-[a-z0-9]+)+", identifier)
        assert len(identifier) <= 63


def test_an_id_belongs_to_one_conversation_of_one_run(project: Project) -> None:
    """A handler gets one id in all turns of a conversation, and a different one elsewhere."""
    seen: list[str] = []
    for arguments in ((), (), ("--workers", "2")):
        assert project.run("--offline", *arguments).returncode == 0
        for scenario in project.results["scenarios"]:
            for conversation in scenario["conversations"]:
                (said,) = {turn["agentMessage"] for turn in conversation["turns"]}
                seen.append(said)
    assert len(set(seen)) == len(seen) == 12


def test_transcripts_name_the_session(project: Project) -> None:
    """The transcript has the session id, for finding the conversation in the agent's logs."""
    done = project.run("--offline", "--verbose", "--reporter", "console", "--reporter", "json")
    for scenario in project.results["scenarios"]:
        for conversation in scenario["conversations"]:
            assert f"session {conversation['turns'][0]['agentMessage']}\n" in done.stdout
