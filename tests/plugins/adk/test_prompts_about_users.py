"""Prompts of the judge of simulated users that follow a plan."""

from __future__ import annotations

from hostile_texts import long_turns, outside, texts, turns
from hypothesis import given, settings

from agentest.conversation.simulated_user import plan_ends
from agentest.models.port import Message
from agentest.plugins.adk.formats.eval_set import ConversationScenario
from agentest.plugins.adk.formats.personas import UserBehavior, UserPersona
from agentest.plugins.adk.metrics.prompts import user_messages


def planned(plan: str, persona: UserPersona | None = None) -> ConversationScenario:
    return ConversationScenario("Hello.", plan, persona)


def prompt(text: str) -> list[Message]:
    persona = UserPersona("p", text, (UserBehavior(text, text, (text,), (text,)),))
    return user_messages(planned(text, persona), turns(text), text, text)


@settings(max_examples=25, deadline=None)
@given(text=texts)
def test_texts_of_others_stay_in_blocks(text: str) -> None:
    assert outside(prompt(text)) == outside(prompt("plain"))


def test_prompts_are_bounded() -> None:
    asked = user_messages(planned("plan"), long_turns(), "x", "stop")
    assert sum(len(message["content"]) for message in asked) < 1_600_000


def test_users_are_judged_by_the_ends_of_a_plan() -> None:
    """They are those in the prompt of a user with a plan."""
    judged = user_messages(planned("Book."), (), "Bye.", "</finished>")[1]["content"]
    assert plan_ends("the user") in judged
    assert "{{" not in judged
