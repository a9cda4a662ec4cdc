"""OpenAI's Responses: whose call is whose, what is resent, and what is not an answer."""

from __future__ import annotations

import json
from typing import Any

import anyio
import pytest
from hurrying import hurry
from talking import Gathering, Held, as_events, as_json, held, looked
from wire import http

from agentest import scenario
from agentest.config.config import Config
from agentest.domain.messages import Attachment, UserText
from agentest.domain.transcript import Usage
from agentest.testing import run_scenarios

AGENT = {"type": "responses"}
PNG = Attachment(mime_type="image/png", base64="AAAA", name="a.png")


def said(*texts: str, **more: Any) -> dict[str, Any]:
    parts = [{"type": "output_text", "text": text} for text in texts]
    return {"type": "message", "id": "msg_1", "role": "assistant", "content": parts, **more}


def call(name: str = "pay", call_id: str = "call_1", /, **args: Any) -> dict[str, Any]:
    arguments = json.dumps(args)
    return {
        "type": "function_call",
        "id": f"fc_{call_id}",
        "call_id": call_id,
        "name": name,
        "arguments": arguments,
    }


def output(text: str = '{"paid": true}', call_id: str = "call_1") -> dict[str, Any]:
    return {"type": "function_call_output", "id": "fco_1", "call_id": call_id, "output": text}


def response(*items: Any, **more: Any) -> dict[str, Any]:
    return {"id": "resp_1", "object": "response", "status": "completed", "output": list(items), **more}


def talk(*answers: Any, lines: Any = ("Pay.",), tools: Any = None, **config: Any) -> Held:
    """A conversation with an agent whose responses are these."""
    wired = [answer if isinstance(answer, bytes) else as_json(answer) for answer in answers]
    return held({**AGENT, **config}, lines, *wired, tools=tools, path="/v1/responses")


# Whose call is whose


def test_a_call_without_output_is_ours() -> None:
    """Mocks answer, all outputs go back in one request, and the agent's items are resent as they came."""
    reasoning = {"type": "reasoning", "id": "rs_1", "encrypted_content": "xyz", "summary": []}
    asking = response(reasoning, said("One moment."), call(amount=5), call("look", "call_2"))
    usage = {"input_tokens": 10, "output_tokens": 5, "input_tokens_details": {"cached_tokens": 4}}
    body = {"model": "m", "input": [{"role": "developer", "content": "Be brief."}], "user": "{{session_id}}"}
    result = talk(
        asking,
        response(said("Paid."), usage=usage),
        response(said("Bye.")),
        lines=("Pay.", "Thanks."),
        tools={"pay": lambda amount: {"paid": amount}, "look": "text"},
        body=body,
    )
    assert result.replies == ["Paid.", "Bye."]
    assert result.calls == [("pay", {"amount": 5}, {"paid": 5}, "caller"), ("look", {}, "text", "caller")]
    turn = result.conversation.turns[0]
    assert [r.text for r in turn.remarks] == ["One moment."]
    assert turn.usage == Usage(10, 5, 4)
    first, second, third = [request.body for request in result.requests]
    before = {"role": "developer", "content": "Be brief."}
    assert first == {
        "model": "m",
        "user": "session-1",
        "input": [before, {"role": "user", "content": "Pay."}],
    }
    outputs = [
        {"type": "function_call_output", "call_id": "call_1", "output": '{"paid": 5}'},
        {"type": "function_call_output", "call_id": "call_2", "output": "text"},
    ]
    assert second["input"] == [*first["input"], *asking["output"], *outputs]
    assert third["input"] == [*second["input"], said("Paid."), {"role": "user", "content": "Thanks."}]


def test_pairs_and_calls_of_the_server_are_its_own() -> None:
    """A call with its output, and a tool of the server's, are recorded."""
    served = [
        {"type": "web_search_call", "id": "ws", "status": "completed", "action": {"query": "x"}},
        {
            "type": "file_search_call",
            "id": "fs",
            "status": "completed",
            "queries": ["q"],
            "results": [{"n": 1}],
        },
        {"type": "code_interpreter_call", "id": "ci", "code": "1+1", "outputs": None, "container_id": "c"},
        {"type": "image_generation_call", "id": "ig", "status": "completed", "result": "A" * 2000},
        {"type": "mcp_call", "id": "m", "name": "ship", "arguments": '{"to": "Oslo"}', "output": '{"ok": 1}'},
        {"type": "mcp_call", "id": "n", "name": "ship", "arguments": "{}", "error": "no ships"},
        {"type": "shell_call", "call_id": "s", "action": {"commands": ["ls"]}},
        {"type": "shell_call_output", "call_id": "s", "output": [{"stdout": "a"}]},
        {"type": "frobnicate_call", "id": "f", "input": "x"},
    ]
    result = talk(
        response(said("Let me see."), call(amount=5), output(), *served, said("Do", "ne."), said("Bye.")),
    )
    assert result.replies == ["Done.\n\nBye."]
    assert [r.text for r in result.conversation.turns[0].remarks] == ["Let me see."]
    assert result.calls == [
        ("pay", {"amount": 5}, {"paid": True}, "agent"),
        ("web_search", {"query": "x"}, None, "agent"),
        ("file_search", {"queries": ["q"]}, [{"n": 1}], "agent"),
        ("code_interpreter", {"code": "1+1", "container_id": "c"}, None, "agent"),
        ("image_generation", None, "(2,000 characters of base64)", "agent"),
        ("ship", {"to": "Oslo"}, {"ok": 1}, "agent"),
        ("ship", {}, None, "agent"),
        ("shell", {"commands": ["ls"]}, [{"stdout": "a"}], "agent"),
        ("frobnicate", {"input": "x"}, None, "agent"),
    ]
    assert [c.error for c in result.conversation.tool_calls if c.error] == ["no ships"]
    ids = ["call_1", "ws", "fs", "ci", "ig", "m", "n", "s", "f"]
    assert [c.call_id for c in result.conversation.tool_calls] == ids
    assert len(result.requests) == 1


def test_both_in_one_response() -> None:
    """Own calls and ours mix: an id that comes again in a later response is another call."""
    result = talk(
        response(call("look", "call_1"), output('{"n": 1}'), call("pay", "call_2", amount=1)),
        response(call("look", "call_1"), output('{"n": 2}'), said("Paid.")),
        tools={"pay": {"paid": True}},
    )
    assert [(name, result, by) for name, _, result, by in result.calls] == [
        ("look", {"n": 1}, "agent"),
        ("pay", {"paid": True}, "caller"),
        ("look", {"n": 2}, "agent"),
    ]


def test_a_mock_that_is_ignored() -> None:
    """A call that the agent answered itself, though a mock was to, is recorded and ends the conversation."""
    result = talk(response(call(), output(), said("Paid.")), tools={"pay": "never"})
    assert "agent 'agent' ran tool 'pay' itself: the scenario's mock was ignored" in result.problem
    assert "without its output (a tool of body.tools)" in result.problem
    assert not result.problem.startswith("agent: ")
    assert result.calls == [("pay", {}, {"paid": True}, "agent")]


def test_the_real_tool_does_not_run_again() -> None:
    """After one conversation has shown that a mock is ignored, the run is stopped."""

    def answer(request: dict[str, Any]) -> dict[str, Any]:
        return response(call(), output(), said("Paid."))

    made = [scenario(name, turns=["Pay."], tools={"pay": "never"}) for name in ("first", "second")]
    made.append(scenario("third", turns=["Pay."]))
    result = run_scenarios(made, agent={**AGENT, "app": Gathering(1, answer)}, concurrency=1)
    assert [each.verdict.status.value for each in result.scenarios] == ["errored"] * 3
    assert [len(each.conversations) for each in result.scenarios[:2]] == [1, 0]
    assert result.stopped is not None
    assert "pay" in result.stopped


def test_a_call_of_ours_that_is_told_again() -> None:
    """A server that repeats our call, with the output that we gave, has made no further call."""
    again = response(call(amount=5), output("ok"), said("Paid."))
    result = talk(response(call(amount=5)), again, tools={"pay": "ok"})
    assert (result.replies, result.calls) == (["Paid."], [("pay", {"amount": 5}, "ok", "caller")])


def test_other_kinds_of_calls_for_the_caller() -> None:
    """Calls of built-in tools are mocked by the tool's name, and their outputs have the kind's own form."""
    asked = [
        {"type": "custom_tool_call", "call_id": "a", "name": "sql", "input": "select 1"},
        {"type": "computer_call", "call_id": "b", "action": {"type": "screenshot"}},
        {"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}},
        {"type": "local_shell_call", "call_id": "d", "action": {"command": ["ls"]}},
        {"type": "apply_patch_call", "call_id": "e", "operation": {"type": "delete_file", "path": "x"}},
        {"type": "function_call", "id": "fc", "name": "pay", "arguments": '{"amount"'},
        {"type": "function_call", "name": "pay", "arguments": {"amount": 1}},
    ]
    shot = {"type": "computer_screenshot", "image_url": "data:,"}
    tools = {
        "sql": "1",
        "computer": shot,
        "shell": [{"stdout": "a"}],
        "local_shell": "a",
        "apply_patch": "ok",
    }
    result = talk(response(*asked), response(said("Done.")), tools={**tools, "pay": {"paid": True}})
    assert [(name, args) for name, args, *_ in result.calls] == [
        ("sql", {"input": "select 1"}),
        ("computer", {"type": "screenshot"}),
        ("shell", {"commands": ["ls"]}),
        ("local_shell", {"command": ["ls"]}),
        ("apply_patch", {"type": "delete_file", "path": "x"}),
        ("pay", '{"amount"'),
        ("pay", {"amount": 1}),
    ]
    sent = result.requests[1].body["input"]
    outputs = [item for item in sent if item.get("type", "").endswith("_output")]
    assert outputs[:5] == [
        {"type": "custom_tool_call_output", "call_id": "a", "output": "1"},
        {"type": "computer_call_output", "call_id": "b", "output": shot},
        {"type": "shell_call_output", "call_id": "c", "output": [{"stdout": "a"}]},
        {"type": "local_shell_call_output", "call_id": "d", "id": "d", "output": "a"},
        {"type": "apply_patch_call_output", "call_id": "e", "status": "completed", "output": "ok"},
    ]
    assert outputs[5]["call_id"] == "fc"
    assert "not valid JSON" in outputs[5]["output"]
    assert outputs[6]["call_id"] == sent[-8]["call_id"] == "call_resp_1_6"


def test_an_unmocked_call_ends_the_conversation() -> None:
    """An unmocked call is the agent's error, and recorded."""
    result = talk(response(call("transfer", amount=5)))
    assert "tool 'transfer', which has no mock" in result.problem
    assert [name for name, *_ in result.calls] == ["transfer"]


# What is said


@pytest.mark.parametrize(
    ("items", "reply"),
    [
        ([said("a", "b")], "ab"),
        ([{"type": "message", "content": [{"type": "refusal", "refusal": "No."}]}], "No."),
        ([{"content": "plain"}], "plain"),
        ([said("Looking.", phase="commentary"), said("Found.", phase="final_answer")], "Found."),
        ([said("Before."), call(), output()], "Before."),
        ([said("Only.", phase="commentary")], "Only."),
        ([said("x"), {"type": "mcp_list_tools", "tools": []}], "x"),
        ([{"type": "message", "role": "user", "content": "echo"}, said("x")], "x"),
    ],
    ids=["parts", "refusal", "text", "phases", "before-calls", "commentary", "listing", "echo"],
)
def test_the_reply(items: list[Any], reply: str) -> None:
    """The reply is the text after the last call, including refusals."""
    assert talk(response(*items)).replies == [reply]


def test_a_reply_without_text_is_a_hand_over() -> None:
    """Without text, a turn in which the agent called something is a turn; one without calls is an error."""
    assert talk(response(call(), output())).replies == [""]
    assert (
        "agent: the agent's reply is empty: it has neither text nor tool calls. " in talk(response()).problem
    )


def test_files_of_the_user() -> None:
    """Images, sounds and other files are parts of the user's message."""
    files = (
        PNG,
        Attachment(mime_type="image/png", uri="https://h/a.png"),
        Attachment(mime_type="audio/mpeg", base64="AAAA"),
        Attachment(mime_type="application/pdf", base64="AAAA", name="a.pdf"),
        Attachment(mime_type="application/pdf", uri="https://h/a.pdf"),
    )
    result = talk(response(said("Nice.")), lines=(UserText("Look.", files),))
    (message,) = result.requests[0].body["input"]
    assert message["content"] == [
        {"type": "input_text", "text": "Look."},
        {"type": "input_image", "detail": "auto", "image_url": "data:image/png;base64,AAAA"},
        {"type": "input_image", "detail": "auto", "image_url": "https://h/a.png"},
        {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "mp3"}},
        {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,AAAA"},
        {"type": "input_file", "file_url": "https://h/a.pdf"},
    ]
    local = UserText("", (Attachment(mime_type="image/png", uri="gs://b/a.png", origin="the case"),))
    assert "cannot be sent to an agent that speaks Responses" in talk(response(), lines=(local,)).problem


# What is not an answer


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (
            response(call(), output(), status="failed", error={"code": "server_error", "message": "Boom."}),
            "the agent's response failed: Boom. (server_error)",
        ),
        (response(call(), output(), status="failed", error=None), "failed: no reason is given"),
        (
            response(call(), output(), output(call_id="call_9"), said("So.")),
            "a function_call_output of the agent belongs to no call",
        ),
        (
            response(call(), output(), said("Half"), status="incomplete", incomplete_details=None),
            "the agent's response is incomplete (no reason is given)",
        ),
        (
            response(
                call(), output(), status="incomplete", incomplete_details={"reason": "max_output_tokens"}
            ),
            "incomplete (max_output_tokens): it was cut before its end; raise body.max_output_tokens",
        ),
        (response(call(), output(), status="cancelled"), "the agent's response was cancelled"),
        (response(call(), output(), status="dreaming"), "the unknown status 'dreaming'"),
        (response(call(), output(), status="queued", id=None), "still 'queued', and has no id"),
        (
            response(call(), output(), {"type": "mcp_approval_request", "name": "ship"}),
            "approval to call the MCP tool 'ship'",
        ),
        (
            response(call(), output(), {"type": "function_call", "call_id": "x"}),
            "function_call of the agent has no",
        ),
        (
            response(call(), output(), said("a"), {"type": "message", "content": 5}),
            "is not a list of parts: 5",
        ),
        (
            response(call(), output(), {"type": "message", "content": [{"type": "output_text"}]}),
            "has no text",
        ),
    ],
    ids=lambda value: None if isinstance(value, dict) else value[:30],
)
def test_invalid_answers(answer: Any, problem: str) -> None:
    """A missing part or an error in a response is the agent's error; earlier calls are recorded."""
    result = talk(answer)
    assert problem in result.problem
    assert result.problem.startswith("agent: ")
    waits = [("ship", None, None, "agent")] if problem.startswith("approval") else []
    assert result.calls == [("pay", {}, {"paid": True}, "agent"), *waits]


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        ({"error": {"message": "Boom."}}, "the agent's response failed: Boom."),
        ({"choices": []}, "the agent's answer is not a response: it has no `output`"),
        ({"output": {}}, "`output` of the agent's response is not a list of items"),
        ([1], "the agent's answer is not a JSON object"),
        (http(b"<html>"), "a web page, not JSON (is the path right? Responses endpoints usually"),
        (http(b"{}", "404 Not Found"), "answered 404 (is the path right?"),
        (http(b"", "401 No"), "answered 401 (are the credentials right?"),
    ],
    ids=["error", "completion", "output", "list", "page", "404", "401"],
)
def test_other_answers(answer: Any, problem: str) -> None:
    """The error about any other answer shows it, with advice."""
    assert problem in talk(answer).problem


# Streams


def streamed(*items: dict[str, Any], whole: bool = True, end: str = "response.completed") -> list[Any]:
    """The events of a response as OpenAI sends them."""
    events: list[Any] = [{"type": "response.created", "response": {"id": "resp_1", "status": "in_progress"}}]
    for index, item in enumerate(items):
        events += _events_of(item, {"output_index": index, "item_id": item.get("id")})
    last = response(*items) if whole else {"id": "resp_1"}
    return [*events, {"type": end, "response": last}]


def _events_of(item: dict[str, Any], where: dict[str, Any]) -> list[dict[str, Any]]:
    added = {"type": "response.output_item.added", **where}
    if item["type"] == "function_call":
        name, text, key = "response.function_call_arguments", item["arguments"], "arguments"
    elif item["type"] == "message":
        name, text, key = "response.output_text", item["content"][0]["text"], "content"
    else:
        return [{**added, "item": item}]
    deltas = [{"type": f"{name}.delta", **where, "delta": piece} for piece in text]
    return [{**added, "item": {**item, key: "" if key == "arguments" else []}}, *deltas]


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "pieces"])
@pytest.mark.parametrize("names", [True, False], ids=["events", "data"])
def test_a_stream(names: bool, whole: bool) -> None:
    """The response is the last event's, or is put together from pieces; the first text is timed."""
    own = [call("look", "call_0", q="x"), output("{}", "call_0")]
    result = talk(
        as_events(*streamed(*own, call(amount=5), whole=whole), "[DONE]", names=names),
        as_events(*streamed(said("Paid, sir."), whole=whole), names=names),
        tools={"pay": {"paid": True}},
        streaming=True,
    )
    assert result.replies == ["Paid, sir."]
    assert [(name, args, by) for name, args, _, by in result.calls] == [
        ("look", {"q": "x"}, "agent"),
        ("pay", {"amount": 5}, "caller"),
    ]
    assert result.requests[0].body["stream"] is True
    assert result.requests[0].headers["accept"] == "text/event-stream"
    turn = result.conversation.turns[0]
    assert turn.first_token_ms is not None
    assert 0 < turn.first_token_ms <= turn.latency_ms
    sent = result.requests[1].body["input"]
    assert sent[3]["arguments"] == '{"amount": 5}'
    assert sent[-1]["type"] == "function_call_output"
    assert not result.notes


def test_interleaved_items() -> None:
    """Pieces of two items that come in turns go to their own item; a later `done` item counts."""
    text = {"type": "response.output_text.delta"}
    events = [
        {**text, "output_index": 1, "delta": "B"},
        {**text, "output_index": 0, "delta": "A"},
        {**text, "output_index": 1, "delta": "b"},
        {**text, "output_index": 0, "delta": "a"},
        {"type": "response.output_item.done", "output_index": 1, "item": said("B!")},
        {"type": "response.refusal.delta", "output_index": 2, "delta": "No."},
        {"type": "response.completed"},
    ]
    assert talk(as_events(*events), streaming=True).replies == ["Aa\n\nB!\n\nNo."]


def test_a_call_only_in_the_stream() -> None:
    """A call that the last event omits still counts."""
    events = streamed(call(), output(), said("Done."))
    events[-1] = {"type": "response.completed", "response": response(said("Done."))}
    result = talk(as_events(*events), streaming=True)
    assert (result.replies, result.calls) == (["Done."], [("pay", {}, {"paid": True}, "agent")])


@pytest.mark.parametrize(
    ("events", "problem"),
    [
        (
            streamed(call(), output(), said("Hal"))[:-1],
            "the agent's stream was cut: it ended without response.c",
        ),
        ([*streamed(call(), output())[:-1], "[DONE]"], "the agent's stream was cut"),
        (
            [*streamed(call(), output())[:-1], {"type": "error", "code": "c", "message": "Boom."}],
            "the agent's response failed: Boom. (c)",
        ),
        ([*streamed(call(), output())[:-1], {"error": {"message": "Boom."}}], "failed: Boom."),
        (streamed(call(), output(), end="response.failed"), "failed: no reason is given"),
        (streamed(call(), output(), end="response.incomplete"), "is incomplete (no reason"),
        ([*streamed(call(), output())[:-1], "{nonsense"], "an event of the agent's stream is not JSON"),
        ([*streamed(call(), output())[:-1], "[1]"], "is not a JSON object"),
        (
            [*streamed(call(), output())[:-1], {"type": "response.output_item.added"}],
            "an event of the agent's stream has no `item`",
        ),
    ],
    ids=["cut", "done", "error", "untyped", "failed", "incomplete", "json", "list", "item"],
)
def test_broken_streams(events: list[Any], problem: str) -> None:
    """A stream without its end, or with an error, is the agent's error; its calls are on record."""
    result = talk(as_events(*events), streaming=True)
    assert problem in result.problem
    assert result.calls == [("pay", {}, {"paid": True}, "agent")]


def test_unknown_parts_are_counted() -> None:
    """Unknown events, items and parts are ignored, with one note at the end."""
    odd = {"type": "response.odd"}
    item = {"type": "hologram", "id": "h"}
    parts = said("Hi.", content=[{"type": "output_text", "text": "Hi."}, {"type": "smell"}])
    answer = as_events(
        odd,
        odd,
        *streamed(parts)[1:-1],
        {"type": "keepalive"},
        {"type": "response.completed", "response": response(item, parts)},
    )
    assert talk(answer, streaming=True).notes == [
        "agent 'agent': 2 events of unknown type 'response.odd' were ignored",
        "agent 'agent': 1 item of unknown type 'hologram' was ignored",
        "agent 'agent': 1 part of unknown type 'smell' was ignored",
    ]


def test_an_agent_that_cannot_stream() -> None:
    """JSON is a valid answer even if a stream was requested."""
    assert talk(response(said("Hi.")), streaming=True).replies == ["Hi."]


# Responses that take their time


def test_a_response_in_the_background() -> None:
    """A queued response is polled until done, with the endpoint's query."""
    begun = response(status="queued", output=[], id="resp/1")
    answers = [as_json(begun), as_json({**begun, "status": "in_progress"}), as_json(response(said("Done.")))]
    result = held({**AGENT, "headers": {"x-key": "k"}}, ["Pay."], *answers, path="/responses?api-version=1")
    assert result.replies == ["Done."]
    lines = [request.line.rpartition(" ")[0] for request in result.requests]
    assert lines == ["POST /responses?api-version=1", *["GET /responses/resp%2F1?api-version=1"] * 2]
    assert {request.headers["x-key"] for request in result.requests} == {"k"}


@pytest.mark.slow
def test_a_response_that_never_ends() -> None:
    """The time-out counts for all requests together; calls that were seen are on record."""
    answer = as_json(response(call(), output(), status="in_progress"))

    async def again(writer: Any) -> None:
        hurry()  # what was answered before has been read
        writer.write(answer)

    result = held(AGENT, ["Pay."], answer, answer, again, timeout_s=60.0)
    assert "still 'in_progress' after 60 s (request_timeout_ms)" in result.problem
    assert [name for name, *_ in result.calls] == ["pay"]


# History


def test_the_previous_response() -> None:
    """Only what is new is sent, with the id of the response before."""
    before = {"role": "developer", "content": "Be brief."}
    result = talk(
        response(call(amount=5)),
        response(said("Paid."), id="resp_2"),
        response(said("Bye."), id="resp_3"),
        lines=("Pay.", "Thanks."),
        tools={"pay": {"paid": True}},
        history="previous_response_id",
        body={"input": [before]},
    )
    assert result.replies == ["Paid.", "Bye."]
    assert [request.body for request in result.requests] == [
        {"input": [before, {"role": "user", "content": "Pay."}]},
        {
            "input": [{"type": "function_call_output", "call_id": "call_1", "output": '{"paid": true}'}],
            "previous_response_id": "resp_1",
        },
        {"input": [{"role": "user", "content": "Thanks."}], "previous_response_id": "resp_2"},
    ]


def test_a_server_without_stored_responses() -> None:
    """If it refuses the previous response, or gives no id, the error suggests a setting."""
    error = {"error": {"message": "previous_response_id is not supported", "param": "previous_response_id"}}
    refused = talk(
        response(said("Hi.")), as_json(error, "400 No"), lines="ab", history="previous_response_id"
    )
    assert refused.problem.endswith("(write history: input)")
    assert "answered 400" in refused.problem
    nameless = talk(response(said("Hi."), id=None), history="previous_response_id")
    assert "has no `id` (null), which history: previous_response_id needs" in nameless.problem


def test_a_conversation_of_ours() -> None:
    """The session's id, or one of the body, names the conversation; a server that echoes none is noted."""
    named = response(said("Hi."), conversation={"id": "session-1"})
    result = talk(named, named, lines="ab", history="conversation")
    assert [request.body["conversation"] for request in result.requests] == ["session-1"] * 2
    assert [len(request.body["input"]) for request in result.requests] == [1, 1]
    assert not result.notes
    body = {"conversation": {"id": "mine-{{session_id}}"}}
    forgetful = talk(response(said("Hi.")), lines="ab", history="conversation", body=body)
    assert [request.body["conversation"] for request in forgetful.requests] == [{"id": "mine-session-1"}] * 2
    (note,) = forgetful.notes
    assert "its responses name no `conversation`" in note
    assert "write history: input" in note


def test_a_conversation_id_of_the_server() -> None:
    """A server that refuses our id creates its own, and gets the whole history."""
    error = {"error": {"message": "Expected an ID that begins with 'conv'.", "param": "conversation"}}
    named = response(said("Hi."), conversation={"id": "conv_1"})
    result = talk(
        as_json(error, "400 No"),
        {"id": "conv_1"},
        named,
        named,
        lines="ab",
        history="conversation",
        body={"input": [{"role": "developer", "content": "-"}]},
    )
    assert result.replies == ["Hi.", "Hi."]
    paths = [request.line.split()[1] for request in result.requests]
    assert paths == ["/v1/responses", "/v1/conversations", "/v1/responses", "/v1/responses"]
    assert [request.body.get("conversation") for request in result.requests][2:] == ["conv_1"] * 2
    assert [len(request.body["input"]) for request in result.requests[2:]] == [2, 1]
    assert result.conversation.turns[0].retries == 1
    other = talk(as_json({"error": "no such model"}, "400 No"), history="conversation")
    assert len(other.requests) == 1
    assert "no such model" in other.problem


# Retries and faults


def test_retries_and_headers() -> None:
    """A busy server is retried; templates in headers are filled."""
    busy = http(b"busy", "503 Busy", ["retry-after: 0"])
    result = talk(busy, response(said("Hi.")), headers={"X-Session": "{{session_id}}"})
    assert result.conversation.turns[0].retries == 1
    assert result.requests[1].headers["x-session"] == "session-1"


def test_a_time_out_within_a_stream_keeps_the_calls() -> None:
    """Calls before the timeout are recorded."""

    async def stall(writer: Any) -> None:
        writer.write(as_events(*streamed(call(), output())[:-1]).replace(b"content-length", b"x-length"))
        await writer.drain()
        hurry()
        await anyio.sleep_forever()

    result = held({**AGENT, "streaming": True}, ["Pay."], stall, timeout_s=60.0)
    assert "no complete answer within 60 s" in result.problem
    assert result.calls == [("pay", {}, {"paid": True}, "agent")]


@pytest.mark.parametrize(
    ("keys", "says"),
    [
        ({"history": "inputs"}, "'input', 'previous_response_id' or 'conversation'"),
        ({"body": {"input": "Hi"}}, "must be a list of items"),
        ({"body": {"conversation": "c"}}, "history: input would send it twice; write history: conversation"),
        ({"body": {"user": "{{sesion_id}}"}}, "did you mean `session_id`"),
    ],
    ids=["history", "input", "conversation", "placeholder"],
)
def test_wrong_settings(keys: dict[str, Any], says: str) -> None:
    """An invalid value is refused with the valid ones."""
    with pytest.raises(ValueError, match=says.replace("{", r"\{")):
        Config.model_validate({"agent": {**AGENT, "endpoint": "http://h", **keys}})


# Probe


@pytest.mark.parametrize(
    ("path", "answers", "found"),
    [
        ("/x", [as_json(response(status="failed"))], "/x"),
        ("/x", [as_json({"error": {"message": "'input' is required"}}, "400 No")], "/x"),
        ("/x", [as_json({"error": {"message": "?", "param": "input"}}, "400 No")], "/x"),
        ("/", [http(b"", "404 No"), as_json({"error": {"param": "input"}}, "400 No")], "/v1/responses"),
        ("/", [http(b"", "404 No"), http(b"", "404 No"), as_json(response())], "/responses"),
        ("/x", [as_json({"error": {"message": "'messages' is required"}}, "400 No")], None),
        ("/x", [as_json({"error": "No."})], None),
        ("/x", [as_json({"choices": []})], None),
        ("/x", [http(b"<html>")], None),
    ],
    ids=["response", "message", "param", "v1", "plain", "other", "text", "completion", "page"],
)
def test_the_probe(path: str, answers: list[bytes], found: str | None) -> None:
    """An endpoint that requires `input`, or answers with a response, matches; others do not."""
    settings = found and {"type": "responses", "endpoint": found}
    no_document = http(b"", "404 No")
    assert looked("responses", path, no_document, *answers) == settings


# Many at once


def shop(request: dict[str, Any]) -> dict[str, Any]:
    """The answers of a stateless agent: it calls `pay` with the user's first text."""
    given = request["input"]
    who = next(item["content"] for item in given if item.get("role") == "user")
    if given[-1].get("role") == "user":
        return response(call("look", "c1", who=who), output(who, "c1"), call("pay", "c2", who=who))
    return response(said(f"{given[-1]['output']} {len(given)}"))


def test_fifty_conversations_at_once() -> None:
    """Each conversation has its own calls, history and mocks, in an application in this process."""
    names = [f"user {i}" for i in range(50)]
    made = [
        scenario(name, turns=[name, "Again."], tools={"pay": lambda who: f"paid by {who}"}) for name in names
    ]
    result = run_scenarios(made, agent={**AGENT, "app": Gathering(50, shop, at_once=2)}, concurrency=50)
    for each in result.scenarios:
        (one,) = each.conversations
        assert [turn.agent_message for turn in one.conversation.turns] == [
            f"paid by {each.name} 5",
            f"paid by {each.name} 11",
        ]
        told = [(c.name, c.args, c.seen_by.value) for c in one.conversation.tool_calls]
        assert told == [("look", {"who": each.name}, "agent"), ("pay", {"who": each.name}, "caller")] * 2
