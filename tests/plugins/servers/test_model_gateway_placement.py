"""Requests of many conversations at once: none is ever taken for one of another conversation."""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scripted_provider import Json

from agentest.mocks.binding import bind
from agentest.mocks.resolver import MockResolver
from agentest.plugins.servers.model_gateway.chat_completions import ChatCompletions
from agentest.plugins.servers.model_gateway.conversation import CallsEnded, GatewayConversation, GatewayState
from agentest.plugins.servers.model_gateway.placement import Unplaced, _written_ids, place
from agentest.plugins.servers.model_gateway.wire_form import ModelCall, PassedAnswer
from agentest.plugins.servers.port import Identity
from agentest.plugins.servers.server_calls import MockServerCalls
from agentest.support.errors import AgentError

FORM = ChatCompletions()
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {}}}]


@dataclass
class Talk:
    """A conversation whose agent stores its history as chat completions."""

    known: GatewayConversation
    history: list[Json] = field(default_factory=list)
    under_way: ExitStack = field(default_factory=ExitStack)

    def say(self, text: str) -> None:
        self.under_way.close()
        self.under_way = ExitStack()
        self.under_way.enter_context(self.known.said(text))
        self.history.append({"role": "user", "content": text})

    def answer(self, text: str, calls: Sequence[tuple[str, str]] = ()) -> None:
        """Let the model answer with a text and calls (id, argument), which the agent receives."""
        message: Json = {"role": "assistant", "content": text}
        if calls:
            message["tool_calls"] = [
                {"id": call_id, "function": {"name": "send", "arguments": json.dumps({"q": argument})}}
                for call_id, argument in calls
            ]
        shown = FORM.answer({"choices": [{"message": message}]})
        self.known.passed(
            PassedAnswer(before=[], message=[message], owed=[], hidden_calls=(), shown=shown, user_text="")
        )
        self.known.note_arguments([argument for _, argument in calls])
        self.history.append(message)
        self.history += [
            {"role": "tool", "tool_call_id": call_id, "content": argument} for call_id, argument in calls
        ]


@dataclass
class Talks:
    """Conversations at once, of one gateway."""

    state: GatewayState = field(default_factory=GatewayState)
    active: list[Talk] = field(default_factory=list)
    ended: list[Talk] = field(default_factory=list)

    def begin(self) -> Talk:
        self.state.begun += 1
        name = f"n{self.state.begun}"
        resolver = MockResolver({"find": bind(lambda q: q)}, scenario=name, conversation_id=name)
        who = Identity(key=name, session_id=None, conversation_id=name, scenario=name, agent="shop")
        talk = Talk(
            GatewayConversation(
                gateway=self.state,
                number=self.state.begun,
                who=who,
                serving=MockServerCalls(who, resolver),
                mocked=frozenset({"find"}),
                allows_real=True,
            )
        )
        self.active.append(talk)
        return talk

    def end(self, talk: Talk, *, given_up: bool = False) -> None:
        if given_up:
            with pytest.raises(TimeoutError), talk.under_way:
                raise TimeoutError
        else:
            talk.under_way.close()
        talk.known.end()
        self.active.remove(talk)
        self.ended.append(talk)

    def place(self, messages: Sequence[Json], tools: Any = TOOLS) -> GatewayConversation | Unplaced:
        request = FORM.request({"messages": list(messages), "tools": tools}, "")
        return place(
            request,
            [talk.known for talk in self.active],
            deque(talk.known for talk in self.ended),
            self.state.owners,
        )


@pytest.fixture
def talks() -> Talks:
    return Talks()


def user(text: str) -> Json:
    return {"role": "user", "content": text}


def test_each_text_of_a_growing_history_is_searched_for_ids_once(talks: Talks) -> None:
    """Each request repeats the one before: searching whole histories takes the square of their length."""
    talk = talks.begin()
    before = _written_ids.cache_info().misses
    for turn in range(20):
        talk.say(f"question {turn}")
        assert talks.place(talk.history) is talk.known
        talk.answer(f"the answer to question {turn} of this test")
    assert _written_ids.cache_info().misses - before == 19


def test_a_short_text_inside_another_text_tells_nothing(talks: Talks) -> None:
    first, second = talks.begin(), talks.begin()
    first.say("no")
    second.say("book me a table")

    assert isinstance(talks.place([user("Is there no table now, or none at all?")]), Unplaced)
    assert talks.place([user("New task:\nno")]) is first.known
    assert talks.place([user("<context>...</context>no")]) is first.known
    assert talks.place([user("Question: no")]) is first.known


def test_a_text_that_is_a_part_of_that_of_another_conversation_places_nothing_by_itself(
    talks: Talks,
) -> None:
    """An agent may forward the beginning of what its user said."""
    first, second = talks.begin(), talks.begin()
    first.say("book me a table")
    second.say("please book me a table for two")

    assert isinstance(talks.place(first.history), Unplaced)
    assert talks.place(second.history) is second.known
    first.answer("For when?")
    first.say("seven")
    assert talks.place(first.history) is first.known
    talks.end(second)
    assert talks.place(first.history[:1]) is first.known


def test_a_word_that_begins_another_word_is_not_a_part_of_it(talks: Talks) -> None:
    first, second = talks.begin(), talks.begin()
    first.say("book me a table")
    second.say("book me a tablespoon")

    assert talks.place(first.history) is first.known


@pytest.mark.parametrize("answers", [True, False])
def test_an_agent_that_answered_with_an_error_is_not_at_work(talks: Talks, answers: bool) -> None:
    first = talks.begin()
    with pytest.raises(AgentError if answers else TimeoutError), first.known.said("book me a table"):
        raise AgentError("it has no mock") if answers else TimeoutError
    talks.end(first)
    second = talks.begin()
    second.say("book me a table")

    assert (talks.place(second.history) is second.known) is answers


def test_an_id_that_two_conversations_have_decides_nothing(talks: Talks) -> None:
    first, second = talks.begin(), talks.begin()
    for talk, text in ((first, "look for a red hat"), (second, "look for a blue hat")):
        talk.say(text)
        talk.answer("", [("functions.send:0", "x")])

    assert talks.place(first.history) is first.known
    assert talks.place(second.history) is second.known
    assert isinstance(talks.place(first.history[1:]), Unplaced)


def test_an_agent_that_mixes_two_conversations_up_is_not_taken_for_one_of_them(talks: Talks) -> None:
    first, second = talks.begin(), talks.begin()
    first.say("look for a red hat")
    first.answer("", [("call_first", "red")])
    second.say("look for a blue hat")

    assert isinstance(talks.place([*first.history, *second.history]), Unplaced)
    second.answer("", [("call_second", "blue")])
    assert talks.place([*first.history, *second.history]) is second.known
    assert isinstance(talks.place([*second.history, *first.history, second.history[0]]), Unplaced)


def test_a_sub_agent_is_placed_by_the_argument_that_it_was_called_with(talks: Talks) -> None:
    first, second = talks.begin(), talks.begin()
    first.say("a question")
    first.answer("", [("call_1", "translate the menu")])
    second.say("another question")

    assert talks.place([user("Task: translate the menu")]) is first.known
    second.say("translate the menu")
    assert isinstance(talks.place([user("translate the menu")]), Unplaced)


def test_a_request_of_an_agent_that_was_given_up_is_not_taken_for_one_of_its_repetition(
    talks: Talks,
) -> None:
    first = talks.begin()
    first.say("book me a table")
    talks.end(first, given_up=True)
    second = talks.begin()
    second.say("book me a table")

    assert isinstance(talks.place(first.history), Unplaced)
    second.answer("", [("call_9", "x")])
    assert talks.place(second.history) is second.known


def test_a_late_request_without_marks_is_not_taken_for_one_of_the_only_conversation(talks: Talks) -> None:
    first, second = talks.begin(), talks.begin()
    first.say("book me a table")
    second.say("what is on the menu?")
    talks.end(first, given_up=True)

    placed = talks.place([user("[rewritten]")])
    assert isinstance(placed, Unplaced)
    assert placed.tool == "find"


def test_a_conversation_that_says_more_than_one_that_ended_is_placed(talks: Talks) -> None:
    first = talks.begin()
    first.say("book me a table")
    talks.end(first)
    second = talks.begin()
    second.say("book me a table")
    second.answer("For when?")
    second.say("seven")

    assert talks.place(second.history) is second.known


def test_a_call_after_the_end_of_its_conversation_is_refused(talks: Talks) -> None:
    talk = talks.begin()
    talk.say("book me a table")
    talks.end(talk)
    with pytest.raises(CallsEnded, match="has ended"):
        anyio.run(talk.known.answer, ModelCall(name="find", arguments={"q": "x"}))


SAID = st.sampled_from(
    [
        "yes",
        "yes please",
        "no",
        "book me a table",
        "please book me a table for two",
        "book me a table\nfor two",
        "what is on the menu?",
        "and what is on the menu? yes",
    ]
)
KINDS = (
    "begin say answer call full last text window sub-agent empty end give-up late late-text background leak"
)
STEP = st.tuples(st.sampled_from(KINDS.split()), st.integers(0, 7), SAID)


def as_text(history: Sequence[Json]) -> list[Json]:
    return [user("\n".join(f"{each['role']}: {each['content']}" for each in history))]


@given(steps=st.lists(STEP, min_size=10, max_size=60))
def test_no_request_is_ever_placed_in_another_conversation(steps: list[tuple[str, int, str]]) -> None:
    talks, ids = Talks(), 0
    for kind, number, text in steps:
        if kind == "begin" or not talks.active:
            # Conversations that begin alike do not run at once.
            if text not in {talk.history[0]["content"] for talk in talks.active}:
                talks.begin().say(text)
            continue
        talk = talks.active[number % len(talks.active)]
        messages: list[Json] | None = None
        match kind:
            case "say":
                talk.say(text)
            case "answer":
                talk.answer(text)
            case "call":
                ids += 1
                # Every third id is one that a careless provider uses again and again.
                talk.answer("", [("call_0" if ids % 3 == 0 else f"call_{ids}_{ids}", text)])
            case "full":
                messages = talk.history
            case "last":
                messages = [user(talk.known.texts[-1])]
            case "text":
                messages = as_text(talk.history)
            case "window":
                messages = talk.history[-(number + 1) :]
            case "sub-agent" if talk.known.arguments:
                messages = [user(f"Task: {talk.known.arguments[-1]}")]
            case "end" | "give-up":
                talks.end(talk, given_up=kind == "give-up")
            case "leak" if talk.known.texts[-1] not in json.dumps(talks.active[0].history):
                messages = [*talks.active[0].history, *talk.history]
            case "empty" if len(talks.active) > 1:
                messages = [{"role": "system", "content": "Write."}]
            case "late" | "late-text" if talks.ended:
                talk = talks.ended[number % len(talks.ended)]
                if talk.known.at_work:
                    messages = talk.history if kind == "late" else as_text(talk.history)
        if messages is not None:
            placed = talks.place(messages)
            assert isinstance(placed, Unplaced) or (placed is talk.known and not placed.over)
            if isinstance(placed, Unplaced):
                assert placed.tool == "find"
