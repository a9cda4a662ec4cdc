"""A conversation of a kept run, to be saved as one that a person has held on the page."""

from __future__ import annotations

from agentest.authoring.export.talk import Talk
from agentest.codegen.script import missing
from agentest.scenarios.model import Scenario
from agentest.scenarios.session import Session
from agentest.store.layouts import CODECS
from agentest.store.reading import usable
from agentest.store.shapes import StoredConversation
from agentest.support.errors import UsageError
from agentest.support.json_text import Json

DID_NOT_PASS = "it did not pass in its run: make sure that it shows what the agent should do"


def kept_talk(scenario: Json, agent: str, conversation: Json, began: float) -> Talk:
    """What is saved of a conversation. Raises UsageError where it did not finish, or lacks something.

    Args:
        scenario, conversation: as results.json has them.
        began: the run, in seconds since 1970.
    """
    stored = CODECS.read(StoredConversation, conversation)
    held = usable(stored)
    if why := missing(held):
        raise UsageError(f"this is a conversation {why}: it cannot be saved")
    state = held.initial_state
    about = Scenario(
        name=scenario["name"],
        file=scenario["file"],
        line=scenario["line"],
        profile=scenario.get("profile", ""),
        goal=scenario.get("goal", ""),
        session=Session(state=dict(state)) if state else None,
    )
    notes = () if stored.passed else (DID_NOT_PASS,)
    return Talk(conversation=held, scenario=about, agent=agent, began=began, notes=notes)
