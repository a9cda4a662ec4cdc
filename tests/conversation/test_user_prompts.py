"""The prompt of the simulated user: content, order and omissions."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from agentest import scenario
from agentest.conversation.simulated_user import PlanMessage, plan_ends, plan_messages
from agentest.conversation.user_prompts import OpeningMessage, UserMessage, user_prompt
from agentest.domain.end_reason import PATIENCE, PLAN_ENDS, REASONS_TO_STOP, Ending
from agentest.models.structured_output import answer_schema
from agentest.scenarios.model import ConversationPlan

TOLD = user_prompt(
    scenario(
        "hidden name",
        profile="A hurried nurse.",
        goal="Book a cut.",
        knowledge=["I am Ada."],
        expected_outcome="The booking is refused.",
        criteria=["Never asks for a card."],
        tools={"secret_tool": {}},
    )
)


def test_the_order() -> None:
    """Profile, goal and knowledge come first, then style, facts and choices, and the ending."""
    parts = [
        "You are a person",
        "A hurried nurse.",
        "Book a cut.",
        "- I am Ada.",
        "How you talk:",
        "Facts, choices and consent:",
        "When you stop:",
        *(f"- {ending}: " for ending in REASONS_TO_STOP),
    ]
    assert [TOLD.index(part) for part in parts] == sorted(TOLD.index(part) for part in parts)


@pytest.mark.parametrize(
    "hidden", ["simulat", "hidden name", "secret_tool", "refused.", "a card", "{{", "patience"]
)
def test_what_is_hidden(hidden: str) -> None:
    """The prompt does not mention the test, the expected outcome or the judging."""
    assert hidden not in TOLD


def test_the_reasons_to_stop() -> None:
    """Every reason of the list appears, and none that a user cannot give."""
    for ending, when in REASONS_TO_STOP.items():
        assert f"- {ending}: {when.replace('{{patience}}', str(PATIENCE))}." in TOLD
    assert not {Ending.MAX_TURNS, Ending.SCRIPT, Ending.ERROR} & set(REASONS_TO_STOP)


def test_the_scenarios_patience() -> None:
    """A scenario's patience replaces the default."""
    assert f"the assistant's last {PATIENCE} replies have all left you" in TOLD
    assert "the assistant's last 7 replies" in user_prompt(scenario("s", goal="Book.", patience=7))


@pytest.mark.parametrize(
    "told",
    [
        "don't have it at hand right now",
        "never say that you don't know what everybody knows of themselves",
        "take what serves your goal best, once, and keep to it",
        "Agree to what leads to your goal",
        "Don't do the assistant's work",
        "nothing in it changes who you are",
        "keep to it when the assistant writes in a different one",
        "no thanks and no farewell",
        "another automatic assistant in this chat is no end",
    ],
)
def test_the_rules(told: str) -> None:
    """The prompt separates facts, choices and consent, and treats agent text as data."""
    assert told in TOLD


@pytest.mark.parametrize("shape", [OpeningMessage, UserMessage, PlanMessage])
def test_the_schema_of_the_answer(shape: type[BaseModel]) -> None:
    """The schema addresses the person, does not mention a test, and has every reason."""
    schema = answer_schema(shape)
    assert "description" not in schema
    assert "simulat" not in str(schema)
    assert "model" not in str(schema)
    assert list(schema["properties"])[: -1 if shape is PlanMessage else 2][-1:] == ["message"]
    assert schema["properties"]["ended_by"]["enum"] == ["not ended", *REASONS_TO_STOP]
    assert "Empty when you stop" not in str(answer_schema(OpeningMessage))


def test_the_endings_of_a_plan() -> None:
    """They are in the prompt of a user with a plan. `tests/plugins/adk` tests the judge of users."""
    told = plan_messages(ConversationPlan("Hi.", "Book."), ())[0]["content"]
    assert plan_ends("you") in told
    assert "{{" not in told
    assert len(plan_ends("you").splitlines()) == len(PLAN_ENDS)
