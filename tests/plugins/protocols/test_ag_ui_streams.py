"""Events of AG-UI runs: the reply, the calls, the state, and every invalid sequence."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ag_ui_events import FINISHED, STARTED, Event, answer, call, held, listed, run, snapshot, stream, text
from hypothesis import given, settings
from hypothesis import strategies as st
from wire import http

from agentest.domain.messages import Session
from agentest.domain.tool_visibility import SeenBy
from agentest.domain.transcript import Blame, Conversation, Failure, Remark, Usage
from agentest.plugins.protocols.ag_ui.client import read_spoken
from agentest.plugins.protocols.ag_ui.run import AgUiRun
from agentest.plugins.protocols.ag_ui.thread import AgUiState, Thread

USER: Event = {"id": "u-9", "role": "user", "content": "Hi"}
REASONING: list[Event] = [
    {"type": "REASONING_START", "messageId": "th"},
    {"type": "REASONING_MESSAGE_START", "messageId": "th", "role": "reasoning"},
    {"type": "REASONING_MESSAGE_CONTENT", "messageId": "th", "delta": "hm"},
    {"type": "REASONING_MESSAGE_END", "messageId": "th"},
    {"type": "REASONING_END", "messageId": "th"},
]


def failure(conversation: Conversation) -> Failure:
    assert conversation.failure is not None
    return conversation.failure


CHUNKS: list[Event] = [
    {"type": "TEXT_MESSAGE_CHUNK", "messageId": "a-1", "role": "assistant", "delta": "Hel"},
    {"type": "TEXT_MESSAGE_CHUNK", "delta": "lo."},
]
HELLO: Event = {"id": "a-1", "role": "assistant", "content": "Hello."}
STARTS, (FIRST, SECOND, *_) = text("Hello.")[0], text("Hello.")[1:]
REPLIES: dict[str, list[Event]] = {
    "deltas": text("Hello."),
    "chunks": CHUNKS,
    "content_before_its_start": [FIRST, STARTS, SECOND],
    "end_before_content": [text("x")[-1], FIRST, SECOND],
    "without_end": text("Hello.")[:-1],
    "only_in_a_snapshot": [snapshot(USER, HELLO)],
    "a_snapshot_wins": [
        *text("Hel"),
        snapshot(USER, HELLO),
    ],
    "a_snapshot_with_other_ids": [
        *text("Hello."),
        snapshot({**USER, "id": "new"}, {"id": "x", "role": "assistant", "content": "Hello."}),
    ],
    "a_snapshot_goes_on": [
        snapshot(USER, {"id": "a-1", "role": "assistant", "content": "Hel"}),
        {"type": "TEXT_MESSAGE_CONTENT", "messageId": "a-1", "delta": "lo."},
    ],
    "a_snapshot_without_the_text": [*text("Hello."), snapshot(USER)],
    "parts_of_a_content": [
        snapshot(USER, {"id": "a", "role": "assistant", "content": [{"type": "text", "text": "Hello."}]})
    ],
    "with_reasoning_and_steps": [
        *REASONING,
        {"type": "STEP_STARTED", "stepName": "model"},
        *text("Hello."),
        {"type": "RAW", "event": {"a": 1}},
        {"type": "CUSTOM", "name": "progress", "value": 1},
    ],
    "what_others_say_is_no_reply": [*text("echo", "u-1", role="user"), *text("Hello.")],
    "an_old_thread": [
        snapshot(
            {"id": "u-0", "role": "user", "content": "Yesterday"},
            {"id": "a-0", "role": "assistant", "content": "Old."},
            USER,
            {"id": "a-1", "role": "assistant", "content": "Hello."},
        )
    ],
}


@pytest.mark.parametrize("events", REPLIES.values(), ids=REPLIES)
def test_a_reply(events: list[Event]) -> None:
    """The reply is the message to the user, streamed in any way or not at all."""
    conversation, _ = held(["Hi"], run(*events))
    (turn,) = conversation.turns
    assert (turn.agent_message, turn.remarks, turn.author) == ("Hello.", (), "shop")
    assert turn.first_token_ms is not None


def test_several_messages() -> None:
    """Interleaved messages are separated by id; those of others are remarks with their names."""
    one, two = text("Let me look.", "a"), text("Searching…", "b", subagentRunId="s-1")
    mixed = [event for pair in zip(one, two, strict=False) for event in pair] + [one[-1], two[-1]]
    named = {"type": "SUBAGENT_STARTED", "subagentRunId": "s-1", "name": "scout"}
    last = [*text("Found it.", "c", name="lead"), *text("Anything else?", "d")]
    conversation, _ = held(["Hi"], run(named, *mixed, *call("c-1", "find", {"n": 1}, q="x"), *last))
    (turn,) = conversation.turns
    assert turn.agent_message == "Found it.\n\nAnything else?"
    assert turn.author == "lead"
    assert turn.remarks == (Remark("shop", "Let me look."), Remark("scout", "Searching…"))


def test_a_reply_without_text() -> None:
    """With a tool call it is a hand-over; without one it fails, unless the run has a result."""
    handed_over, _ = held(["Hi"], run(*call("c-1", "transfer", "ok")))
    assert [turn.agent_message for turn in handed_over.turns] == [""]
    silent, _ = held(["Hi"], run())
    assert "the agent's reply is empty" in failure(silent).message
    told, _ = held(["Hi"], stream(STARTED, {**FINISHED, "result": {"answer": 42}}))
    assert [turn.agent_message for turn in told.turns] == ['{"answer": 42}']


FULL, LOST = '{"q": "x"}', "{}"
MESSAGE: Event = {"id": "a-1", "role": "assistant", "toolCalls": [listed("c-1", "find", FULL)]}
CALLS: dict[str, list[Event]] = {
    "streamed": call("c-1", "find", {"n": 1}, q="x"),
    "chunks": [
        {"type": "TOOL_CALL_CHUNK", "toolCallId": "c-1", "toolCallName": "find", "delta": '{"q"'},
        {"type": "TOOL_CALL_CHUNK", "delta": ': "x"}'},
        answer("c-1", {"n": 1}),
    ],
    "result_before_its_call": [answer("c-1", {"n": 1}), *call("c-1", "find", q="x")],
    "arguments_before_the_start": [
        *call("c-1", "find", q="x")[1:3],
        call("c-1", "find", q="x")[0],
        answer("c-1", {"n": 1}),
    ],
    "lost_arguments_in_a_snapshot": [
        *call("c-1", "find", {"n": 1}),
        snapshot(USER, MESSAGE, {"id": "t", "role": "tool", "toolCallId": "c-1", "content": '{"n": 1}'}),
    ],
    "a_snapshot_in_the_middle": [
        *call("c-1", "find", q="x")[:2],
        snapshot(USER, {**MESSAGE, "toolCalls": [listed("c-1", "find", '{"q')]}),
        *call("c-1", "find", {"n": 1}, q="x")[2:],
    ],
    "only_in_a_snapshot": [
        snapshot(USER, MESSAGE, {"id": "t", "role": "tool", "toolCallId": "c-1", "content": '{"n": 1}'})
    ],
    "not_in_the_snapshot": [*call("c-1", "find", {"n": 1}, q="x"), snapshot(USER)],
    "told_twice": [*call("c-1", "find", q="x"), *call("c-1", "find", {"n": 1}, q="x")],
    "result_in_parts": [
        *call("c-1", "find", q="x"),
        {
            **answer("c-1", ""),
            "content": [{"type": "text", "text": '{"n"'}, {"type": "text", "text": ": 1}"}],
        },
    ],
}


@pytest.mark.parametrize("events", CALLS.values(), ids=CALLS)
def test_a_call_of_the_agent(events: list[Event]) -> None:
    """A call that the agent has answered itself is recorded once, with its arguments and its result."""
    conversation, opened = held(["Hi"], run(*events, *text("Done.")))
    (made,) = conversation.tool_calls
    assert (made.name, made.args, made.result, made.error) == ("find", {"q": "x"}, {"n": 1}, None)
    assert (made.mocked, made.seen_by, len(opened.requests)) == (False, SeenBy.AGENT, 1)
    assert conversation.turns[0].agent_message == "Done."


def test_calls_in_their_order() -> None:
    """Calls only in a snapshot get their position; reused ids lose no call."""
    both = {
        "id": "a",
        "role": "assistant",
        "toolCalls": [listed("c-1", "one", "{}"), listed("c-2", "two", "{}")],
    }
    results = [{"id": f"t-{n}", "role": "tool", "toolCallId": f"c-{n}", "content": "1"} for n in (1, 2)]
    missing = run(
        *call("c-2", "two", "1"), *call("c-3", "hidden", "1"), snapshot(USER, both, *results), *text("A")
    )
    again = run(*call("c-1", "one", "1"), *call("c-1", "four", "1"), *text("B"))
    conversation, _ = held(["Hi", "Again"], missing, again)
    assert [made.name for made in conversation.tool_calls] == ["one", "two", "hidden", "one", "four"]
    assert [turn.agent_message for turn in conversation.turns] == ["A", "B"]


@pytest.mark.parametrize("renamed", [False, True], ids=["same_ids", "other_ids"])
def test_a_call_reported_a_turn_late(renamed: bool) -> None:
    """An unknown call that a snapshot puts in an earlier turn counts; one before all turns does not."""
    example = {"id": "x", "role": "assistant", "toolCalls": [listed("c-0", "shown", "{}")]}
    hidden = {"id": "h", "role": "assistant", "toolCalls": [listed("c-1", "hidden", FULL)]}
    again = listed("n-2" if renamed else "c-2", "find", '{"q":"x"}')
    known = {"id": "a-2", "role": "assistant", "content": "One.", "toolCalls": [again]}
    asked, answered = {**USER, "id": "n-1"}, {"id": "t", "role": "tool", "toolCallId": "c-1", "content": "1"}
    second = snapshot(example, asked, hidden, answered, known, {**USER, "id": "n-2"})
    answers = [run(*call("c-2", "find", 1, q="x"), *text("One.")), run(second, *text("Two.", "a-9"))]
    conversation, _ = held(["Hi", "And?"], *answers)
    assert [[made.name for made in turn.tool_calls] for turn in conversation.turns] == [["find"], ["hidden"]]


def test_calls_of_earlier_turns_are_no_new_ones() -> None:
    """A server that lists the whole conversation after each turn reports each call once."""
    asked = {"id": "u-1", "role": "user", "content": "Hi"}
    first = [asked, MESSAGE, {"id": "t", "role": "tool", "toolCallId": "c-1", "content": "1"}]
    said = {"id": "a-2", "role": "assistant", "content": "Done."}
    second = [*first, said, {"id": "u-2", "role": "user", "content": "And?"}, {**said, "id": "a-3"}]
    conversation, opened = held(["Hi", "And?"], run(snapshot(*first, said)), run(snapshot(*second)))
    assert [len(turn.tool_calls) for turn in conversation.turns] == [1, 0]
    assert [message["id"] for message in opened.requests[1].body["messages"][:4]] == [
        "u-1",
        "a-1",
        "t",
        "a-2",
    ]


def test_arguments_that_are_none() -> None:
    """A call with arguments that are not a JSON object is recorded as it came, and what is wrong with it."""
    pieces = [{"type": "TOOL_CALL_ARGS", "toolCallId": "c-1", "delta": "{broken"}]
    conversation, _ = held(
        ["Hi"], run(call("c-1", "find")[0], *pieces, answer("c-1", "plain text"), *text("Done."))
    )
    (made,) = conversation.tool_calls
    assert (made.args, made.result) == ("{broken", "plain text")
    assert "not valid JSON" in (made.invalid_arguments or "")


ERRORS: dict[str, tuple[bytes, str]] = {
    "told": (
        stream(STARTED, {"type": "RUN_ERROR", "message": "on fire", "code": "E1"}),
        "the agent reports an error: on fire (E1)",
    ),
    "told_without_words": (stream({"type": "RUN_ERROR"}), 'reports an error: {"type": "RUN_ERROR"}'),
    "cut": (stream(STARTED, *text("Hel")), "cut: it ended without RUN_FINISHED or RUN_ERROR"),
    "nothing": (stream(), "the agent's stream ended without any event of AG-UI"),
    "another_stream": (stream({"choices": []}), "without any event of AG-UI (is this the address"),
    "cancelled": (stream(STARTED, {**FINISHED, "outcome": {"type": "cancelled"}}), "run was cancelled"),
    "unknown_outcome": (
        stream(STARTED, {**FINISHED, "outcome": {"type": "failed"}}),
        "with an unknown outcome",
    ),
    "no_json": (http(b"data: {oops\n\n", headers=("content-type: text/event-stream",)), "is not JSON: "),
    "no_object": (
        http(b"data: [1]\n\n", headers=("content-type: text/event-stream",)),
        "not a JSON object: [1]",
    ),
    "json": (http(b'{"reply": "Hi"}'), "JSON, and AG-UI answers with server-sent events"),
    "an_error_as_json": (http(b'{"error": "busy"}'), "the agent answered with an error: busy"),
    "a_page": (http(b"<html>Log in</html>"), "is a web page, not JSON (is this the address"),
    "no_message_id": (run({"type": "TEXT_MESSAGE_CONTENT", "delta": "x"}), "has no `messageId`: "),
    "no_first_id": (
        run({"type": "TEXT_MESSAGE_CHUNK", "delta": "x"}),
        "CHUNK of the agent has no `messageId`",
    ),
    "no_delta": (run({"type": "TOOL_CALL_ARGS", "toolCallId": "c"}), "has no `delta`"),
    "unknown_role": (run(*text("x", role="robot")), "unknown `role`"),
    "no_name": (
        run(answer("c-1", "1"), *text("x")),
        "call 'c-1' without its name: expected a TOOL_CALL_START",
    ),
    "no_messages": (run({"type": "MESSAGES_SNAPSHOT", "messages": {}}), "is not a list of messages"),
    "no_calls": (run(snapshot({**MESSAGE, "toolCalls": [1]})), "is not a list of tool calls"),
    "no_content": (run(snapshot(USER, {"id": "a", "role": "assistant", "content": 7})), "is not a text: 7"),
    "too_many": (run(*(call(f"c-{n}", "t")[0] for n in range(2001))), "more than 2,000 messages and tool"),
    "no_questions": (stream({**FINISHED, "outcome": {"type": "interrupt"}}), "no list of `interrupts`"),
    "refused": (http(b'{"detail": "no threadId"}', "422 Unprocessable"), "answered 422"),
    "refused_by_pydantic": (
        http(b'[{"type": "missing", "loc": ["threadId"], "msg": "Field required"}]', "422 No"),
        "answered 422 (the agent takes another form of request; see its documentation for the fields it "
        "needs): threadId: Field required",
    ),
    "elsewhere": (http(b"", "404 Not Found"), "the address at which the agent takes AG-UI runs"),
}


@pytest.mark.parametrize(("answered", "says"), ERRORS.values(), ids=ERRORS)
def test_an_error_of_the_agent(answered: bytes, says: str) -> None:
    """An incomplete run is the agent's error, with what was found; a wrong address is not."""
    conversation, _ = held(["Hi"], answered)
    is_elsewhere = answered in (ERRORS["a_page"][0], ERRORS["elsewhere"][0])
    assert failure(conversation).blame is (Blame.INTERNAL if is_elsewhere else Blame.AGENT)
    assert says in failure(conversation).message


@pytest.mark.parametrize(
    "end",
    [[], [{"type": "RUN_ERROR", "message": "no"}], [{"type": "TEXT_MESSAGE_END"}, {}]],
    ids=["cut", "told", "bad"],
)
def test_calls_before_an_error(end: list[Event]) -> None:
    """Calls before a failure are recorded, answered or not."""
    begun = [STARTED, *call("c-1", "find", {"n": 1}, q="x"), *call("c-2", "reserve", item="lamp")]
    conversation, _ = held(["Hi"], stream(*begun, *end))
    assert [(made.name, made.args, made.error) for made in conversation.tool_calls] == [
        ("find", {"q": "x"}, None),
        ("reserve", {"item": "lamp"}, "the run ended before it was answered"),
    ]


def test_unknown_events() -> None:
    """Unknown types are ignored and counted; keep-alives and extra keys are not events."""
    notes: list[str] = []
    odd = [{"type": "FOO"}, {"type": "FOO", "x": 1}, {"type": "BAR"}]
    body = stream(STARTED, *odd, *text("Hi."), {**FINISHED, "novel": 1})
    body = body.replace(b"data: ", b": ping\n\ndata: ", 1).replace(
        b'data: {"type": "BAR"}', b"data:\n\ndata: [DONE]"
    )
    length = len(body.partition(b"\r\n\r\n")[2])
    body = body.replace(b"content-length: ", b"content-length: %d\r\nx-was: " % length)
    conversation, _ = held(["Hi"], body, notes=notes.append)
    assert conversation.turns[0].agent_message == "Hi."
    assert notes == ["agent 'shop': 2 events of unknown type 'FOO' were ignored"]


def test_tokens() -> None:
    """The tokens of all models of a run are added up; what is not a number counts as none."""
    usage = [
        {"model": "a", "inputTokens": 10, "outputTokens": 5, "cachedInputTokens": 3},
        {"inputTokens": "x"},
        7,
    ]
    conversation, _ = held(["Hi"], stream(STARTED, *text("Hi."), {**FINISHED, "usage": usage}))
    assert conversation.turns[0].usage == Usage(10, 5, 3)


PATCH = [{"op": "add", "path": "/items/-", "value": "sofa"}, {"op": "replace", "path": "/n", "value": 2}]
STATES: dict[str, tuple[list[Event], Any, str]] = {
    "snapshot": ([{"type": "STATE_SNAPSHOT", "snapshot": {"n": 1}}], {"n": 1}, ""),
    "delta": ([{"type": "STATE_DELTA", "delta": PATCH}], {"n": 2, "items": ["lamp", "sofa"]}, ""),
    "bad_delta": (
        [{"type": "STATE_DELTA", "delta": [{"op": "remove", "path": "/x"}]}],
        None,
        "nothing at 'x'",
    ),
    "no_object": ([{"type": "STATE_SNAPSHOT", "snapshot": 3}], None, "not a JSON object but a int"),
    "untold": ([], None, ""),
    "with_messages": (
        [{"type": "STATE_SNAPSHOT", "snapshot": {"n": 1, "messages": [{"type": "human", "content": "Hi"}]}}],
        {"n": 1},
        "",
    ),
}


@pytest.mark.parametrize(("events", "state", "error"), STATES.values(), ids=STATES)
def test_the_state(events: list[Event], state: Any, error: str) -> None:
    """Every run sends the session's state as the agent last changed it; an invalid one is reported."""
    begun = {"n": 0, "items": ["lamp"]}
    conversation, opened = held(
        ["Hi", "Bye"], run(*events, *text("Hi.")), run(*text("Bye.")), session=Session(state=begun)
    )
    first = conversation.turns[0]
    assert first.state_after == state
    assert error in (first.state_error or "")
    assert conversation.initial_state == (begun if events else None)
    assert opened.requests[0].body["state"] == begun
    if state:
        assert opened.requests[1].body["state"].items() >= state.items()


ORDERED = (
    [*text("Look.", "a-1")],
    [*text("Found.", "a-2")],
    [*call("c-1", "find", {"n": 1}, q="x")],
    [*call("c-2", "reserve", {"n": 2}, item="lamp")],
)


@settings(max_examples=60, deadline=None)
@given(st.permutations([at for at, events in enumerate(ORDERED) for _ in events]))
def test_any_interleaving(order: list[int]) -> None:
    """Messages and calls at the same time lose nothing, double nothing, and mix nothing."""
    waiting = [list(events) for events in ORDERED]
    read = AgUiRun(Thread([USER]), AgUiState({}))
    for at in order:
        assert read.take(waiting[at].pop(0))
    assert sorted((one.name, one.arguments, one.content) for one in read.calls) == [
        ("find", '{"q": "x"}', '{"n": 1}'),
        ("reserve", '{"item": "lamp"}', '{"n": 2}'),
    ]
    spoken = read_spoken(read.messages, "shop", {})
    said = [*spoken.text.split("\n\n"), *(remark.text for remark in spoken.remarks)]
    assert sorted(said) == ["Found.", "Look."]
    assert [json.loads(one.arguments) for one in read.calls if one.id == "c-1"] == [{"q": "x"}]
