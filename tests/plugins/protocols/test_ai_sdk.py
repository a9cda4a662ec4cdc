"""Backends of the Vercel AI SDK: three kinds of stream, parts sent back as they came, tools and approvals."""

from __future__ import annotations

import json
from typing import Any

import pytest
from dirty_equals import IsStr
from pydantic import TypeAdapter, ValidationError
from talking import Held, as_events, as_json, held, looked
from wire import Answer, http

from agentest import scenario
from agentest.config.agent_types import AgentConfig
from agentest.domain.messages import Attachment, UserText
from agentest.plugins.protocols.ai_sdk.client import user_message
from agentest.plugins.protocols.ai_sdk.stream import AssistantMessage
from agentest.testing import run_scenarios

CHAT = {"type": "ai_sdk"}
Chunk = dict[str, Any]
FINISH, DONE = {"type": "finish", "finishReason": "stop"}, "[DONE]"


def start(id: str = "m-1") -> list[Chunk]:
    return [{"type": "start", "messageId": id}, {"type": "start-step"}]


def text(said: str, id: str = "t") -> list[Chunk]:
    deltas = [{"type": "text-delta", "id": id, "delta": piece} for piece in said.partition(" ") if piece]
    return [{"type": "text-start", "id": id}, *deltas, {"type": "text-end", "id": id}]


def call(name: str, id: str, **given: Any) -> Chunk:
    return {"type": "tool-input-available", "toolCallId": id, "toolName": name, "input": given}


def output(id: str, value: Any) -> Chunk:
    return {"type": "tool-output-available", "toolCallId": id, "output": value}


def ui(*chunks: Any) -> bytes:
    flat = [one for chunk in chunks for one in (chunk if isinstance(chunk, list) else [chunk])]
    return as_events(*flat, names=False)


def said(*chunks: Any) -> bytes:
    return ui(start(), *chunks, FINISH, DONE)


def talk(*answers: Answer, says: tuple[Any, ...] = ("Hi",), tools: Any = None, **config: Any) -> Held:
    return held({**CHAT, **config}, says, *answers, tools=tools)


HELLO = said(text("Hello there."))


def test_a_conversation() -> None:
    """Every request has all messages, those of the agent with their parts as they came, in order."""
    usage = {"inputTokens": 10, "outputTokens": 5, "cachedInputTokens": 3}
    told = talk(
        ui(
            start("a-1"),
            text("Let me see."),
            {"type": "tool-input-start", "toolCallId": "c1", "toolName": "stock"},
            {"type": "tool-input-delta", "toolCallId": "c1", "inputTextDelta": '{"item"'},
            {**call("stock", "c1", item="lamp"), "providerMetadata": {"x": {"sig": 1}}},
            output("c1", {"left": 3}),
            {"type": "start-step"},
            {"type": "source-url", "sourceId": "s", "url": "http://h"},
            {"type": "data-weather", "id": "w", "data": 1},
            {"type": "data-weather", "id": "w", "data": 2},
            {"type": "data-note", "transient": True, "data": 3},
            text("Three."),
            text("No more.", "t2"),
            {"type": "finish", "messageMetadata": {"totalUsage": usage, "n": 1}},
            DONE,
        ),
        HELLO,
        says=("Lamps?", "Bye"),
        body={"user": "{{session_id}}"},
    )
    assert told.replies == ["Three.\n\nNo more.", "Hello there."]
    assert told.calls == [("stock", {"item": "lamp"}, {"left": 3}, "agent")]
    turn = told.conversation.turns[0]
    assert ([r.text for r in turn.remarks], turn.model_calls) == (["Let me see."], 2)
    assert (turn.usage.prompt_tokens, turn.usage.completion_tokens, turn.usage.cached_tokens) == (10, 5, 3)
    assert turn.first_token_ms is not None
    first, second = (request.body for request in told.requests)
    question = {"id": IsStr(), "role": "user", "parts": [{"type": "text", "text": "Lamps?"}]}
    assert first == {
        "user": "session-1",
        "id": "session-1",
        "trigger": "submit-message",
        "messages": [question],
    }
    reply = second["messages"][1]
    assert second["messages"][0] == first["messages"][0]
    assert (reply["id"], reply["role"], reply["metadata"]) == (
        "a-1",
        "assistant",
        {"totalUsage": usage, "n": 1},
    )
    assert reply["parts"] == [
        {"type": "step-start"},
        {"type": "text", "text": "Let me see.", "state": "done"},
        {
            "type": "tool-stock",
            "toolCallId": "c1",
            "state": "output-available",
            "input": {"item": "lamp"},
            "output": {"left": 3},
            "callProviderMetadata": {"x": {"sig": 1}},
        },
        {"type": "step-start"},
        {"type": "source-url", "sourceId": "s", "url": "http://h"},
        {"type": "data-weather", "id": "w", "data": 2},
        {"type": "text", "text": "Three.", "state": "done"},
        {"type": "text", "text": "No more.", "state": "done"},
    ]


def boom(item: str) -> Any:
    raise RuntimeError("sold out")


def test_client_side_tools() -> None:
    """Calls without an output are answered by mocks: the same message goes back filled, and goes on."""
    dynamic = {**call("reserve", "c2", item="lamp"), "dynamic": True}
    told = talk(
        ui(start("a-1"), text("Wait."), call("stock", "c1", item="lamp"), dynamic, FINISH, DONE),
        ui({"type": "start"}, {"type": "start-step"}, text("Done."), FINISH, DONE),
        HELLO,
        says=("Hi", "More"),
        tools={"stock": {"left": 3}, "reserve": boom},
    )
    assert told.replies == ["Done.", "Hello there."]
    assert [c[::3] for c in told.calls] == [("stock", "caller"), ("reserve", "caller")]
    assert [r.text for r in told.conversation.turns[0].remarks] == ["Wait."]
    _, resent, third = (request.body for request in told.requests)
    assert (resent["messageId"], resent["trigger"], len(resent["messages"])) == ("a-1", "submit-message", 2)
    assert "messageId" not in third
    tools = [part for part in third["messages"][1]["parts"] if "toolCallId" in part]
    assert tools == [
        {
            "type": "tool-stock",
            "toolCallId": "c1",
            "state": "output-available",
            "input": {"item": "lamp"},
            "output": {"left": 3},
        },
        {
            "type": "dynamic-tool",
            "toolName": "reserve",
            "toolCallId": "c2",
            "state": "output-error",
            "input": {"item": "lamp"},
            "errorText": "sold out",
        },
    ]
    assert [part["type"] for part in third["messages"][1]["parts"]][-2:] == ["step-start", "text"]


def test_what_became_of_calls() -> None:
    """Failed, refused and cut calls of the agent are in the record, each once, with what was wrong."""
    again = {"type": "tool-output-error", "toolCallId": "c1", "errorText": "no such"}
    told = talk(
        said(
            call("stock", "c1"),
            again,
            {**call("stock", "c2"), "type": "tool-input-error", "errorText": "bad input"},
            call("web", "c3") | {"providerExecuted": True},
            {"type": "tool-input-start", "toolCallId": "c4", "toolName": "pay"},
            {"type": "tool-input-delta", "toolCallId": "c4", "inputTextDelta": "{5"},
            call("slow", "c5"),
            output("c5", 1) | {"preliminary": True},
            output("c5", 2),
            text("So."),
        ),
        said(call("stock", "c1"), output("c1", 7), text("Now.")),
        says=("Hi", "Again"),
    )
    found = [(c.name, c.result, c.error, c.invalid_arguments) for c in told.conversation.tool_calls]
    assert found == [
        ("stock", None, "no such", None),
        ("stock", None, "bad input", None),
        ("web", None, None, None),
        ("pay", None, None, "its input was cut"),
        ("slow", 2, None, None),
        ("stock", 7, None, None),
    ]
    assert told.replies == ["So.", "Now."]


def test_calls_under_one_id() -> None:
    """Another name is another call, and so are other arguments once the call was answered."""
    told = talk(
        said(
            call("look", "c1", n=1),
            output("c1", "found"),
            call("look", "c1", n=1),
            call("look", "c1", n=2),
            output("c1", "nothing"),
            call("pay", "c1"),
            output("c1", "paid"),
            text("So."),
        )
    )
    assert [(c.name, c.args, c.result) for c in told.conversation.tool_calls] == [
        ("look", {"n": 1}, "found"),
        ("look", {"n": 2}, "nothing"),
        ("pay", {}, "paid"),
    ]


APPROVAL = [
    call("order", "c1", n=1),
    {"type": "tool-approval-request", "approvalId": "p1", "toolCallId": "c1"},
]
DENIED = {"type": "tool-output-denied", "toolCallId": "c1"}


@pytest.mark.parametrize(
    ("approvals", "words", "decision"),
    [
        ("approve", None, {"id": "p1", "approved": True}),
        ("deny", None, {"id": "p1", "approved": False, "reason": "The user refused."}),
        ("ask", "Yes, please", {"id": "p1", "approved": True}),
        ("ask", "Too dear", {"id": "p1", "approved": False, "reason": "Too dear"}),
    ],
)
def test_approvals(approvals: str, words: str | None, decision: Chunk) -> None:
    """They are decided at once or by the user's next message; the call belongs to the turn of that."""
    end = output("c1", {"ordered": 1}) if decision["approved"] else DENIED
    # pydantic-ai tells an approved call again before its output.
    again = [call("order", "c1", n=1)] if decision["approved"] else []
    told = talk(
        ui(start("a-1"), APPROVAL, FINISH, DONE),
        ui({"type": "start"}, again, end, {"type": "start-step"}, text("Done."), FINISH, DONE),
        says=("Hi", words) if words else ("Hi",),
        approvals=approvals,
    )
    question = 'The agent asks for approval to call order with {"n": 1}.'
    assert told.replies == ([question, "Done."] if words else ["Done."])
    sent = told.requests[1].body
    assert (sent["messageId"], [m["role"] for m in sent["messages"]]) == ("a-1", ["user", "assistant"])
    assert sent["messages"][1]["parts"][1] == {
        "type": "tool-order",
        "toolCallId": "c1",
        "state": "approval-responded",
        "input": {"n": 1},
        "approval": decision,
    }
    (made,) = told.conversation.tool_calls
    assert (made.turn_index, made.error) == (
        len(told.replies) - 1,
        None if decision["approved"] else "the call was denied",
    )


def test_an_approval_with_a_client_call() -> None:
    """The mock answers first, then the user, and one request has both answers."""
    told = talk(
        ui(start("a-1"), call("stock", "c0"), APPROVAL, FINISH, DONE),
        said(output("c1", {}), text("Done.")),
        says=("Hi", "ok"),
        tools={"stock": 3},
    )
    assert (told.replies[1], len(told.requests)) == ("Done.", 2)
    states = [p["state"] for p in told.requests[1].body["messages"][1]["parts"] if "toolCallId" in p]
    assert states == ["output-available", "approval-responded"]


def test_a_tool_that_mocks_cannot_reach() -> None:
    """A mock of a tool that the agent runs itself is an error, because the real tool ran."""
    told = talk(said(call("stock", "c1"), output("c1", 3), text("Three.")), tools={"stock": 9})
    assert told.problem.startswith(
        "internal: agent 'agent' ran tool 'stock' itself: the scenario's mock was ignored"
    )
    assert "If it may run, remove its mock" in told.problem
    assert "take `execute` from the tool" in told.problem
    assert [name for name, *_ in told.calls] == ["stock"]


def test_a_denied_call_has_bypassed_no_mock() -> None:
    """A mocked tool whose call was denied did not run: the conversation goes on."""
    ended = said(DENIED, text("Done."))
    told = talk(ui(start("a-1"), APPROVAL, FINISH, DONE), ended, approvals="deny", tools={"order": 9})
    assert told.replies == ["Done."]


PLAIN = http("Grüße, Jo".encode(), headers=("content-type: text/plain; charset=utf-8",))


def test_text_streams() -> None:
    """All of a text stream is the reply; an empty one is an error, and mocks have no way to its tools."""
    assert talk(PLAIN, says=("Hi", "Hi")).replies == ["Grüße, Jo"] * 2
    empty = talk(http(b"", headers=("content-type: text/plain",)))
    assert "the agent's text stream is empty" in empty.problem
    assert "which hands over no call: its real tools run" in talk(PLAIN, tools={"stock": 1}).problem


async def plain_text(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] == "http":
        await receive()
        head = [(b"content-type", b"text/plain")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        await send({"type": "http.response.body", "body": b"Hello."})


def test_calls_behind_a_text_stream() -> None:
    """Without reported calls a ban neither passes nor fails: errored, also for a turn."""
    ban = {"forbidden": ["pay"]}
    made = [
        scenario("all", turns=["Hi"], trajectory=ban),
        scenario("turn", turns=[{"user_message": "Hi", "trajectory": ban}]),
        scenario("none", turns=["Hi"], check=print),
    ]
    found = run_scenarios(made, agent={**CHAT, "app": plain_text}).scenarios
    assert [one.verdict.status for one in found] == ["errored", "errored", "passed"]
    reason = found[0].conversations[0].trajectory
    assert reason is not None
    assert "calls of agent 'agent' cannot be seen: it answered with a text stream" in str(reason)


ERROR = {"type": "error", "errorText": "on fire"}
PAGE = http(b"<html>Sign in</html>", headers=("content-type: text/html",))


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (ui(start(), ERROR, DONE), "agent: the agent's stream reports an error: on fire"),
        (ui(start(), ERROR, FINISH, DONE), "agent: the agent's stream reports an error: on fire"),
        (ui(start(), {"type": "abort", "reason": "bye"}), "agent: the agent aborted its reply: bye"),
        (ui({"type": "finish", "finishReason": "error"}, DONE), "finishReason is `error`"),
        (ui(start(), text("Hello")), "the agent's stream was cut: it ended without `finish` and `[DONE]`"),
        (ui(), "ended without `finish`"),
        (
            http(b"0:Hello\n", headers=("content-type: text/plain", "x-vercel-ai-data-stream: v1")),
            "the agent answers with a data stream of AI SDK 4; Agentest speaks versions 5 to 7",
        ),
        (ui("{", DONE), "an event of the agent's stream is not JSON"),
        (ui("[1]", DONE), "an event of the agent's stream is not a JSON object: [1]"),
        (ui({"kind": "x"}, DONE), "an event of the agent's stream has no `type`"),
        (said({"type": "tool-input-available", "toolName": "x"}), "has no `toolCallId`"),
        (said({"type": "tool-input-available", "toolCallId": "x"}), "has no `toolName`"),
        (said(output("c9", 1)), "belongs to no call: none has the toolCallId 'c9'"),
        (said(), "agent: the agent's reply is empty"),
        (as_json({"error": "no key"}), "agent: the agent answered with an error: no key"),
        (
            as_json({"reply": "Hi"}),
            "is not a stream of the AI SDK (expected server-sent events or plain",
        ),
        (PAGE, "a web page, not JSON (is the path right? such backends are usually at /api/chat)"),
        (http(b"Not found", "404 Not Found"), "answered 404 (is the path right?"),
    ],
    ids=[
        "error",
        "error-and-finish",
        "abort",
        "finish-error",
        "cut",
        "nothing",
        "data-stream",
        "no-json",
        "list",
        "no-type",
        "no-id",
        "no-name",
        "no-call",
        "empty",
        "json-error",
        "json",
        "page",
        "404",
    ],
)
def test_errors(answer: bytes, problem: str) -> None:
    """Each error has what was found, and what was expected or would help."""
    told = talk(answer)
    assert problem in told.problem
    assert told.conversation.turns == ()


def test_streams_that_end_as_some_do() -> None:
    """Either end will do, texts may be interleaved and lack their start, unknown events are counted."""
    assert talk(ui(text("Hello."), DONE)).replies == ["Hello."]
    assert talk(ui(text("Hello."), FINISH)).replies == ["Hello."]
    one, two = text("One two", "a"), text("Three four", "b")
    mixed = [chunk for pair in zip(one[1:], two[1:], strict=True) for chunk in pair]
    told = talk(said(*mixed, {"type": "sing"}, {"type": "sing"}, {"type": "ping"}))
    assert told.replies == ["One two\n\nThree four"]
    assert told.notes == ["agent 'agent': 2 events of unknown type 'sing' were ignored"]


def test_ids_that_are_used_again() -> None:
    """Each step of a message may have a call of the same id: both are made, each with its own result."""
    step = {"type": "start-step"}
    told = talk(
        said(
            call("stock", "c1"), output("c1", 1), step, call("reserve", "c1"), output("c1", 2), text("Done.")
        ),
    )
    assert told.calls == [("stock", {}, 1, "agent"), ("reserve", {}, 2, "agent")]
    asked = talk(
        said(call("stock", "c1")),
        said(call("reserve", "c1")),
        HELLO,
        tools={"stock": 1, "reserve": 2},
    )
    assert asked.calls == [("stock", {}, 1, "caller"), ("reserve", {}, 2, "caller")]
    assert [p["output"] for p in asked.requests[2].body["messages"][1]["parts"] if "output" in p] == [1, 2]


def test_calls_before_an_error_stay() -> None:
    """Calls before the agent failed are recorded."""
    told = talk(ui(start(), call("stock", "c1"), output("c1", 3), ERROR))
    assert told.calls == [("stock", {}, 3, "agent")]


def test_parts_of_rare_kinds() -> None:
    """A step can be taken back, a server can decide approvals itself, and metadata is merged."""
    message = AssistantMessage(lambda *_: None)
    for chunk in (
        {"type": "start", "messageId": "m", "messageMetadata": {"a": 1}},
        {"type": "start-step"},
        *text("Wrong."),
        {"type": "reset-step"},
        {"type": "message-metadata", "messageMetadata": {"b": 2}},
        *APPROVAL,
        {"type": "tool-approval-response", "approvalId": "p1", "approved": True},
    ):
        message.add(chunk)
    assert message.wire()["metadata"] == {"a": 1, "b": 2}
    step, order = message.parts
    assert (step["type"], order["state"]) == ("step-start", "approval-responded")
    assert order["approval"] == {"id": "p1", "approved": True}


def test_files_of_a_message() -> None:
    """They go as file parts with their bytes in the address."""
    files = (
        Attachment(mime_type="image/png", base64="AA==", name="a.png"),
        Attachment(mime_type="application/pdf", uri="https://h/b.pdf"),
    )
    sent = user_message(UserText("Look", files))
    assert sent["parts"][1:] == [
        {"type": "file", "mediaType": "image/png", "filename": "a.png", "url": "data:image/png;base64,AA=="},
        {"type": "file", "mediaType": "application/pdf", "url": "https://h/b.pdf"},
    ]


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"body": {"messages": []}}, "`messages` is written by Agentest"),
        ({"approvals": "always"}, "approve"),
        ({"headers": {"x": "{{sesion_id}}"}}, "did you mean `session_id`"),
    ],
    ids=["body", "approvals", "placeholder"],
)
def test_settings_that_are_wrong(wrong: dict[str, Any], message: str) -> None:
    """They are refused with what is expected."""
    with pytest.raises(ValidationError, match=message):
        TypeAdapter(AgentConfig).validate_python({**CHAT, "endpoint": "http://h", **wrong})


def test_the_state_of_a_session() -> None:
    """The agent gets it if `body` or `headers` have it; otherwise the error says how."""
    plain, placed = (
        TypeAdapter[Any](AgentConfig).validate_python({**CHAT, "endpoint": "http://h", "body": body})
        for body in ({}, {"user": "{{state.user}}"})
    )
    assert plain.state_refusal.startswith(
        "place it in the agent's `body` or `headers`, like {{state.user_id}}"
    )
    assert placed.state_refusal is None


def test_probing() -> None:
    """Streams identify themselves by a header, and pydantic-ai by requiring a trigger."""
    no_document = http(b"", "404 No")
    header = http(b"", headers=("x-vercel-ai-ui-message-stream: v1", "content-type: text/event-stream"))
    refusal = http(b'[{"msg": "discriminator \'trigger\'"}]', "422 Unprocessable")
    assert looked("ai_sdk", "/chat", no_document, header) == {
        "type": "ai_sdk",
        "endpoint": "/chat",
    }
    assert looked("ai_sdk", "/chat", no_document, refusal) == {
        "type": "ai_sdk",
        "endpoint": "/chat",
    }
    assert looked("ai_sdk", "/chat", no_document, as_json({})) is None


async def parrot(scope: Any, receive: Any, send: Any) -> None:
    """A backend in this process with a client tool: it replies with the tool's answer and a count."""
    if scope["type"] != "http":
        return
    body = json.loads((await receive())["body"])
    last = body["messages"][-1]
    answers = [
        p["output"] for m in body["messages"] for p in m["parts"] if p.get("state") == "output-available"
    ]
    if last["role"] == "user":
        chunks = [call("note", f"c{len(answers)}", chat=body["id"], said=last["parts"][0]["text"])]
    else:
        chunks = text(f"{body['id']} {answers}")
    head = [(b"content-type", b"text/event-stream")]
    await send({"type": "http.response.start", "status": 200, "headers": head})
    sent = [*start(f"m-{len(body['messages'])}"), *chunks, FINISH]
    stream = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in sent)
    await send({"type": "http.response.body", "body": f"{stream}data: [DONE]\n\n".encode()})


def test_fifty_conversations_at_once() -> None:
    """Each has its own chat, and no call, part or answer of another."""
    made = scenario(
        "s",
        turns=["one", "two"],
        tools={"note": lambda args, ctx: f"{ctx.conversation_id} {args['said']}"},
        conversations_per_scenario=50,
    )
    result = run_scenarios([made], agent={**CHAT, "app": parrot}, concurrency=50)
    held = [c.conversation for c in result.scenarios[0].conversations]
    chats = {one.session_id for one in held}
    assert len(chats) == 50
    for one in held:
        first, second = (f"{one.conversation_id} {word}" for word in ("one", "two"))
        assert [turn.agent_message for turn in one.turns] == [
            f"{one.session_id} {[first]}",
            f"{one.session_id} {[first, second]}",
        ]
        assert [c.args["chat"] for c in one.tool_calls] == [one.session_id] * 2
