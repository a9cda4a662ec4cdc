"""Text of the model that plays the user: only the message reaches the agent."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentest import scenario
from agentest.conversation.user import UserLeftRole
from agentest.conversation.user_prompts import RULES, user_prompt
from agentest.conversation.user_text import Said, check_role, said_in, sentences_of
from agentest.domain.results import Status
from agentest.testing import ScriptedAgent, ScriptedModel, run_scenarios

REMOVED = {
    "reasoning before": ("<think>They want a date.</think>Book a table.", Said("Book a table.")),
    "reasoning behind": ("Book a table.\n<think>Good.</think>", Said("Book a table.")),
    "reasoning within": ("Book <thinking>two?</thinking>a table.", Said("Book a table.")),
    "reasoning whose begin is the template's": ("They want a date.\n</think>\n\nBook.", Said("Book.")),
    "reasoning in a channel": (
        "<|channel|>analysis<|message|>A date.<|end|><|start|>assistant"
        "<|channel|>final<|message|>Book.<|return|>",
        Said("Book."),
    ),
    "json after a word": (
        'json\n{"state": "", "message": "Book.", "should_stop": true}',
        Said("Book.", True),
    ),
    "its state": ("State: Nothing said yet.\nMessage: Book.", Said("Book.")),
    "json": ('{"message": "Book.", "should_stop": false}', Said("Book.", stops=False)),
    "json in json": (
        json.dumps({"message": '{"message": "Book."}', "should_stop": True}),
        Said("Book.", True),
    ),
    "fenced json": ('```json\n{"message": "Book."}\n```', Said("Book.")),
    "a field behind": ("Book.\nshould_stop: false", Said("Book.", stops=False)),
    "a field that stops": ('Thanks.\n"should_stop": true,', Said("Thanks.", stops=True)),
    "a reason": ("Thanks.\n**ended_by**: satisfied", Said("Thanks.")),
    "the mark": ("Thanks. [[STOP]]", Said("Thanks.", stops=True)),
    "a label": ("User: Book a table.", Said("Book a table.")),
}
REFUSED = {
    "JSON that may be pasted": 'Here is the log: {"message": "E42", "state": "failed"}',
    "open reasoning": "<think>They want a date, so I",
    "a task": "I need to respond as the user now. Book a table.",
    "a part": "I'm playing the role of a customer.",
    "a model": "As an AI language model, I cannot book.",
    "drafting": "Let me write the next message: Book.",
    "template tokens": "Book.<|im_end|>\n<|im_start|>assistant",
    "llama tokens": "[INST] Book. [/INST]",
    "the prompt": "Never say or hint that you are a model, that this is a test, or that you were given "
    "instructions. Book.",
    "reasoning in brackets": "[thinking] A date? [/thinking] Book.",
    "reasoning with a label": "**Reasoning:** I should be polite.\n\nBook.",
    "the user as another": "Okay, the user wants me to book. Book.",
    "the user's words announced": "As the customer, I would say: Book.",
    "an AI": "As an AI, I cannot book.",
    "a note": "Book. (Note: I am staying in character.)",
    "a field in the text": "Book. should_stop: false",
    "a field in brackets": "(should_stop=false) Book.",
    "a field in json behind": 'Book. {"should_stop": false}',
    "json behind": 'Here is my message: {"message": "Book."}',
    "nested json": '{"message": {"message": "Book."}}',
    "a tag": "<system>You play a user.</system>Book.",
    "cut json": '{"message": "Book a',
    "json without text": '{"message": ["Book"]}',
}
PROMPT = sentences_of(RULES)


@pytest.mark.parametrize(("text", "said"), REMOVED.values(), ids=REMOVED)
def test_text_around_a_message_is_removed(text: str, said: Said) -> None:
    """The result is the message and whether it is the last one."""
    assert said_in(text, PROMPT) == said


@pytest.mark.parametrize("text", REFUSED.values(), ids=REFUSED)
def test_ambiguous_messages_are_refused(text: str) -> None:
    """The error tells the model what is wrong, for a second attempt."""
    with pytest.raises(ValueError, match="`message`"):
        said_in(text, PROMPT)


@pytest.mark.parametrize(
    "text",
    [
        "I think 5 < 6 is fine, and <b>bold</b> too.",
        '{"order": 17, "items": ["a"]} is what your page shows me.',
        "The error says: 'stop: false'. What now?",
        "My plan: fly on Monday. Analysis of costs follows.",
        "Please act as my agent and reply to the landlord.",
        "How should I respond as a tenant?",
        "Who is the user in this report?",
        "I don't have that at hand right now.",
        'It answers {"error": {"message": "x"}} now.',
        "As a customer, I would say that this is too late.",
        "State: California",
    ],
)
def test_ordinary_messages_are_unchanged(text: str) -> None:
    """Text that only resembles a leak is sent unchanged."""
    assert said_in(text, PROMPT) == Said(text)
    check_role(text, "")


@given(st.text(alphabet=st.characters(exclude_characters="<>[]{}|`#:=\"'")))
def test_plain_text_loses_only_surrounding_space(text: str) -> None:
    """Plain text is not shortened, because the filter looks for marks, not words."""
    try:
        assert said_in(text).text == text.strip()
    except ValueError as error:
        assert "your task" in str(error)  # noqa: PT017 - a few English phrases


@pytest.mark.parametrize(
    "text",
    [
        "How can I help you today?",
        "What else can I do for you?",
        "Assistant: Your table is booked.",
        "Hello.\nAgent: Hello, what do you need?",
        "I'm happy to help you with that.",
        "Done. Is there anything else I can help with?",
    ],
)
def test_the_assistants_part_makes_a_conversation_invalid(text: str) -> None:
    """A user who writes the agent's part is not sent, and the scenario is errored, not failed."""
    with pytest.raises(UserLeftRole, match="user left its role"):
        check_role(text, "")
    check_role(text, f"You write exactly: {text}")  # the scenario says so
    with ScriptedAgent(["Fine."]) as agent:
        result = run_scenarios(
            [scenario("s", goal="Book.", metrics=[])],
            agent=agent,
            model=ScriptedModel(user=["Book.", text]),
            conversations_per_scenario=1,
        )
    (done,) = result.scenarios
    assert done.verdict.status is Status.ERRORED
    assert "user left its role" in str(done.conversations[0].invalid)
    assert len(agent.requests) == 1


@pytest.mark.parametrize("leak", [*REFUSED.values(), *(text for text, _ in REMOVED.values())])
def test_no_leak_reaches_the_agent(leak: str) -> None:
    """Whether it is removed or the model is asked again, only a message is sent."""
    answers = iter([leak, *(["Book."] * 9)])
    model = ScriptedModel(
        answer=lambda _: {"state": "", "message": next(answers, "Book."), "should_stop": False}
    )
    made = scenario("s", goal="Book.", metrics=[], max_turns=1)
    with ScriptedAgent(["Done."]) as agent:
        run_scenarios([made], agent=agent, model=model, conversations_per_scenario=1)
    [request] = agent.requests
    [sent] = [each["content"] for each in request["messages"]]
    assert sent.removesuffix(" a table.").rstrip(".") in ("Book", "Thanks")


def test_a_leak_is_retried() -> None:
    """The agent receives the second answer; the retry says that only the message is sent."""
    answers = iter(["I should respond as the user. Book.", "Book a table.", ""])

    def answer(_: object) -> dict[str, object]:
        text = next(answers)
        return {"state": "Nothing said yet.", "message": text, "should_stop": not text}

    made = scenario("s", goal="Book.", metrics=[])
    with ScriptedAgent(["Done."]) as agent:
        result = run_scenarios(
            [made], agent=agent, model=ScriptedModel(answer=answer), conversations_per_scenario=1
        )
    conversation = result.scenarios[0].conversations[0].conversation
    assert [turn.user_message for turn in conversation.turns] == ["Book a table."]
    assert "state is for yourself" in user_prompt(made)
